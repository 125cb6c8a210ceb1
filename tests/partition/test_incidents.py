"""Incidents: the alerts that belong together, at any split of the records and after any restart."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.detector.results import Results, Scores
from fomo_stream.errors import DamagedStateError
from fomo_stream.partition.incidents import MAX_FIELD_BYTES, Incidents, Notice, without_reasons

TOPIC, PARTITION, QUIET = "sensors", 3, (10, 1000)


@dataclass(frozen=True)
class Stream:
    """Records of a partition: the number of the series of each, whether that series is new, whether it is an alert."""

    series: list[int]
    begins: list[bool]
    alerts: list[bool]
    keys: list[bytes | None]
    scores: list[float]

    def __len__(self) -> int:
        return len(self.series)

    def results(self) -> list[dict[str, Any]]:
        made = []
        for i in range(len(self)):
            result: dict[str, Any] = {
                "offset": self.offset(i),
                "timestamp": 1000 + i if i % 3 else None,
                "score": self.scores[i],
                "remembered_logit": float(i % 7),
                "p_value": 0.01,
                "outlier": self.alerts[i],
                "severity": "critical",
            }
            if i % 2:
                result |= {"reasons": [{"feature": f"f{i}", "value": 1e300 / 3}], "explanation": f"because of {i}"}
            made.append(result)
        return made

    def scored(self, part: slice) -> Results:
        n = len(self.series[part])
        nothing = Results.nothing(Scores.unknown(n, 1))
        outlier = np.array(self.alerts[part], dtype=bool)
        series, begins = np.array(self.series[part], dtype=np.int64), np.array(self.begins[part], dtype=bool)
        return replace(nothing, outlier=outlier, series=series, begins=begins)

    @staticmethod
    def offset(number: int) -> int:
        return 2 * number + 100  # transactions leave gaps


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    n = draw(st.integers(0, 120))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    series = rng.integers(0, draw(st.integers(1, 4)), n)
    begins = (rng.random(n) < 0.05) & (series > 0)
    alerts = rng.random(n) < draw(st.sampled_from([0.0, 0.05, 0.3]))
    age = np.zeros(4, dtype=int)
    keys: list[bytes | None] = []
    for slot, is_new in zip(series, begins, strict=True):
        age[slot] += is_new
        keys.append(None if slot == 0 else b"\xff%d-%d" % (slot, age[slot]))
    scores = rng.choice([0.999, 0.998, 0.99], n)
    return Stream(series.tolist(), begins.tolist(), alerts.tolist(), keys, scores.tolist())


def follow(stream: Stream, incidents: Incidents, results: list[dict[str, Any]], part: slice) -> list[Notice]:
    offsets = [stream.offset(i) for i in range(part.start, part.stop)]
    return incidents.follow(results[part], stream.scored(part), stream.keys[part], offsets, part.start)


def one_by_one(stream: Stream, quiet: tuple[int, int]) -> tuple[dict[int, str], list[tuple[int, dict[str, Any]]]]:
    """A plain reference: the incident of each alert, and (number of the record that ends it, its alerts) for each.

    It looks at every open incident at every record, and counts again from its alerts.
    """
    of_series, of_all = quiet
    names: dict[int, str] = {}
    ended: list[tuple[int, dict[str, Any]]] = []
    life, lives = [0] * 4, []  # which series a number stands for at each record
    is_open: dict[tuple[int, int], list[int]] = {}  # the alerts, by series
    for i, (slot, is_new) in enumerate(zip(stream.series, stream.begins, strict=True)):
        life[slot] += is_new
        lives.append((slot, life[slot]))
        if stream.alerts[i]:
            is_open.setdefault(lives[i], []).append(i)
        for own, alerts in list(is_open.items()):
            records = [j for j in range(alerts[0], i + 1) if lives[j] == own]
            after = [j for j in records if j > alerts[-1]]
            names[alerts[-1]] = f"{PARTITION}-{stream.offset(alerts[0])}"
            is_replaced = slot == own[0] and lives[i] != own
            if is_replaced or len(after) >= of_series or i - records[-1] >= of_all:
                worst = max(alerts, key=lambda j: (stream.scores[j], j % 7, -j))
                span = len(records) - len(after)
                ended.append((i, {"alerts": alerts, "span": span, "worst": worst, "key": stream.keys[alerts[-1]]}))
                del is_open[own]
    return names, ended


@given(streams(), st.data())
def test_incidents_are_those_of_a_plain_reference_at_any_split_and_after_restarts(
    stream: Stream, data: st.DataObject
) -> None:
    quiet = data.draw(st.sampled_from([(1, 1), (2, 5), (10, 15), (10, 1000)]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    restarts = set(data.draw(st.lists(st.sampled_from(cuts), max_size=4))) if cuts else set()
    results = stream.results()
    log: dict[str, bytes] = {}
    incidents = Incidents(quiet, TOPIC, PARTITION)
    closed: list[Notice] = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        closed += follow(stream, incidents, results, slice(start, stop))
        for name, value in incidents.changes().items():
            if value is None:
                del log[name]  # only entries that exist are deleted
            else:
                log[name] = value
        assert len(log) == 2 * len(incidents)
        if stop in restarts:
            incidents = Incidents(quiet, TOPIC, PARTITION)
            incidents.recover(log)
            assert incidents.changes() == {}
    names, ended = one_by_one(stream, quiet)
    assert {i: result["incident"] for i, result in enumerate(results) if "incident" in result} == names
    ended_at = [one.offset for one in closed if one.offset is not None]
    assert ended_at == sorted(ended_at)
    assert len(ended_at) == len(closed)
    fresh = stream.results()
    expected = {}
    for end, group in ended:
        first, last, worst = group["alerts"][0], group["alerts"][-1], group["worst"]
        places = {i: {"offset": stream.offset(i), "timestamp": fresh[i]["timestamp"]} for i in (first, last, worst)}
        score = {name: fresh[worst][name] for name in ("score", "remembered_logit", "p_value", "severity")}
        summary = {"incident": names[first], "status": "closed", "topic": TOPIC, "partition": PARTITION}
        if group["key"] is not None:
            summary |= {"key": group["key"].decode(errors="replace")}
        summary |= {"from": places[first], "to": places[last], "records": len(group["alerts"]), "span": group["span"]}
        chances = [-math.log(1 - stream.scores[i]) for i in group["alerts"]]
        assert results[last]["surprise"] == pytest.approx(sum(chances), abs=0.1)
        summary |= {"surprise": results[last]["surprise"], "worst": places[worst] | score}
        summary |= {name: fresh[worst][name] for name in ("reasons", "explanation") if name in fresh[worst]}
        expected[names[first]] = Notice(stream.offset(end), group["key"], stream.offset(first), summary)
    assert {one.summary["incident"]: one for one in closed} == expected
    assert len(closed) == len(expected)


def alert(offset: int, **more: Any) -> dict[str, Any]:
    scores = {"score": 0.999, "remembered_logit": 5.0, "p_value": 0.001, "severity": "critical"}
    return {"offset": offset, "timestamp": 7, "outlier": True, **scores, **more}


def alone(key: Any, slot: int = 1) -> Stream:
    return Stream([slot], [False], [True], [key], [0.001])


def test_very_long_keys_and_reasons_are_left_out_and_damage_is_noticed() -> None:
    incidents = Incidents(QUIET, TOPIC, PARTITION)
    result = alert(5, reasons=[{"value": "x" * MAX_FIELD_BYTES}], explanation="x")
    incidents.follow([result], alone(None).scored(slice(0, 1)), [b"k" * (MAX_FIELD_BYTES + 1)], [5], 0)
    entries = {name: value for name, value in incidents.changes().items() if value is not None}
    assert sum(map(len, entries.values())) < 1000
    key, summary = (json.loads(entries["1/open"])[name] for name in ("key", "summary"))
    assert key is None
    assert without_reasons(summary) == summary
    for name in entries:
        with pytest.raises(DamagedStateError):
            Incidents(QUIET).recover({**entries, name: b"{"})
    with pytest.raises(DamagedStateError):
        Incidents(QUIET).recover({"1/open": entries["1/open"]})
