"""Build the results of scored records: apply muted keys and rules, add reasons and incidents. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
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
    """The results of n records."""

    results: list[Result]  # (n,)
    columns: Results  # (n,) with the alerts of `results`
    before_rules: NDArray[np.bool_]  # (n,) outliers before rules and windows of maintenance


class ResultBuilder:
    """Build the results of a partition.

    rules, muted, incidents: of the partition, which changes them. model: its name; source: topic and number of the
    partition; None: results do not name it.
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
        keys: Sequence[Key],
        offsets: Sequence[int],
        fields: Sequence[Mapping[str, Any]],
        missing: Sequence[int],
        windows: Mapping[int, OpenWindows],
    ) -> JudgedRecords:
        """Return the results of n records, with the alerts that muted keys, rules and windows leave, and rules force.

        columns: (n,) of the detector; rows: (n, d) values of the features; items, keys, offsets, fields, missing:
        (n,) the records, theirs, and how many features each lacks; windows: open windows by position.
        """
        muted = [i for i in np.flatnonzero(columns.outlier).tolist() if self._muted.has(keys[i])]
        columns = columns.with_alerts((), muted)
        times = [item.timestamp for item in items]
        sources = None if self._source is None else zip(*map(repeat, self._source), offsets, times, strict=False)
        results = results_of(columns, self._model, self._schema, fields, missing, sources, keys)
        for i in muted:
            results[i]["muted"] = True
        removed, forced = [], []
        for part, rules in self._rules.parts(offsets):
            if not rules.rules and not windows:
                continue
            outside = rules.outside(rows[part], keys[part], self._schema)
            violations = {i + part.start: rules_of_row for i, rules_of_row in outside.items()}
            alerts = np.flatnonzero(columns.outlier[part]) + part.start
            for i in sorted({*violations, *alerts.tolist()}):
                result, name = results[i], None
                if skips(windows.get(i, ()), "alerts"):
                    name = windows[i][0].name
                elif self._muted.has(keys[i]):
                    continue
                elif i in violations:
                    force_alert(result, violations[i], rows[i], self._schema, DetectorConfig.reasons)
                    forced.append(i)
                    continue
                else:
                    name = rules.suppressing(result, keys[i])
                if name is not None and result["outlier"]:
                    suppress_alert(result, name)
                    removed.append(i)
        return JudgedRecords(results, columns.with_alerts(forced, removed), columns.outlier)

    def follow(
        self, judged: JudgedRecords, keys: Sequence[Key], offsets: Sequence[int], n_again: int, first: int
    ) -> list[Notice]:
        """Give alerts their incidents. Return the incidents that have ended.

        n_again: number of records that are read again: their incidents come from a copy, and nothing changes. first:
        number of the next record of the partition.
        """
        results, columns, n = *judged[:2], len(offsets)
        reread, new = slice(0, n_again), slice(n_again, None)
        if n_again:
            incidents = self._incidents.copy()
            incidents.follow(results[reread], columns.part(reread), keys[reread], offsets[reread], first)
        if n_again >= n:
            return []
        return self._incidents.follow(results[new], columns.part(new), keys[new], offsets[new], first)

    def passed(self, item: Item, missing: int, windows: OpenWindows) -> Result:
        """Return the result of a record that is neither scored nor learned, because of maintenance."""
        source: Source | None = None if self._source is None else (*self._source, item.offset, item.timestamp)
        return unscored_result(missing, self._model, source) | {"status": MAINTENANCE, "suppressed": windows[0].name}
