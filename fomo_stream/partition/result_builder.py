"""What is said of scored records: from results to rules, muted keys, sentences and incidents, in one step. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.keys import Key
from fomo_stream.detector.results import Results
from fomo_stream.partition.incidents import Incidents, Notice
from fomo_stream.partition.labels import MutedKeys
from fomo_stream.partition.record import Item
from fomo_stream.partition.rules import OpenWindows, RulesLog, force_alert, skips, suppress_alert
from fomo_stream.records.result import Result, Source, results_of, unscored_result
from fomo_stream.records.schema import Schema

MAINTENANCE = "maintenance"  # status of a record that is neither scored nor learned

Float = NDArray[np.float64]


class JudgedRecords(NamedTuple):
    """What is said of n records."""

    results: list[Result]  # (n,)
    columns: Results  # (n,) with the alerts of `results`
    before_rules: NDArray[np.bool_]  # (n,) which were outliers before rules and windows of maintenance were looked at


class ResultBuilder:
    """What a partition says of its records.

    rules, muted, incidents: of the partition, which changes them. model: its name; source: topic and number of the
    partition, None: results do not name it.
    """

    def __init__(
        self,
        rules: RulesLog,
        muted: MutedKeys,
        incidents: Incidents,
        schema: Schema,
        model: str,
        source: tuple[str, int] | None,
    ) -> None:
        self._rules, self._muted, self._incidents = rules, muted, incidents
        self._schema, self._model, self._source = schema, model, source

    def judge(
        self,
        columns: Results,
        rows: Float,
        items: Sequence[Item],
        fields: Sequence[Mapping[str, Any]],
        missing: Sequence[int],
        windows: Mapping[int, OpenWindows],
    ) -> JudgedRecords:
        """Results of n records, with the alerts that muted keys, rules and windows leave, and rules force.

        columns: (n,) of the detector; rows: (n, d) values of the features; items, fields, missing: (n,) the records,
        their contents, and how many features each lacks; windows: by place, of maintenance.
        """
        keys = [item.key for item in items]
        muted = [at for at in np.flatnonzero(columns.outlier).tolist() if self._muted.has(keys[at])]
        columns = columns.with_alerts((), muted)
        sources = None if self._source is None else [(*self._source, one.offset, one.timestamp) for one in items]
        results = results_of(columns, self._model, self._schema, fields, missing, sources, keys)
        for at in muted:
            results[at]["muted"] = True
        without, forcing = [], []
        for part, rules in self._rules.parts([item.offset for item in items]):
            if not rules.rules and not windows:
                continue
            outside = rules.outside(rows[part], keys[part], self._schema)
            at_rules = {at + part.start: found for at, found in outside.items()}
            alerts = np.flatnonzero(columns.outlier[part]) + part.start
            for at in sorted({*at_rules, *alerts.tolist()}):
                result, name = results[at], None
                if skips(windows.get(at, ()), "alerts"):
                    name = windows[at][0].name
                elif self._muted.has(keys[at]):
                    continue
                elif at in at_rules:
                    force_alert(result, at_rules[at], rows[at], self._schema, DetectorConfig.reasons)
                    forcing.append(at)
                    continue
                else:
                    name = rules.suppressing(result, keys[at])
                if name is not None and result["outlier"]:
                    suppress_alert(result, name)
                    without.append(at)
        return JudgedRecords(results, columns.with_alerts(forcing, without), columns.outlier)

    def follow(
        self, judged: JudgedRecords, keys: Sequence[Key], offsets: Sequence[int], n_again: int, first: int
    ) -> list[Notice]:
        """Give alerts their incidents; returns those that have ended.

        n_again: of so many records it is known already: they belong to incidents, but change nothing. first: number of
        the next record of the partition.
        """
        results, columns, n = *judged[:2], len(offsets)
        again, new = slice(0, n_again), slice(n_again, None)
        if n_again:
            its = self._incidents.copy()
            its.follow(results[again], columns.part(again), keys[again], offsets[again], first)
        if n_again >= n:
            return []
        return self._incidents.follow(results[new], columns.part(new), keys[new], offsets[new], first)

    def passed(self, item: Item, missing: int, windows: OpenWindows) -> Result:
        """The result of a record that is neither scored nor learned, because of maintenance."""
        source: Source | None = None if self._source is None else (*self._source, item.offset, item.timestamp)
        return unscored_result(missing, self._model, source) | {"status": MAINTENANCE, "suppressed": windows[0].name}
