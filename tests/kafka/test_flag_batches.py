"""Every flag that changes how records are scored, and pairs of them, with batches that have no usable record."""

from __future__ import annotations

import json
import random
from itertools import compress
from typing import Any

import pytest
from pipelines import QUICK, Recording, commit, make_pipeline, offsets

from fomo_stream.kafka.pipeline import Pipeline
from fomo_stream.partition.record import Record
from fomo_stream.records.schema import Schema
from fomo_stream.settings.rule_spec import Rule, Window

SCHEMAS = {
    "categories": Schema(("x", "kind"), frozenset({"kind"})),
    "counters": Schema(("x", "total"), counters=frozenset({"total"})),
    "derive": Schema(("x", "count(10m)", "gap()", "sum(x,1h)", "new(kind)", "rate(total)")),
}
BROKEN = (b"{broken", b"", None, b"[1]", b'"text"', b"{}", b'{"x": null}', b'{"other": 1}', b"\xff", b"1e999")
NIGHT = {
    "name": "night",
    "from": "2023-01-01T00:00",
    "to": "2023-01-01T12:00",
    "repeat": "FREQ=DAILY",
    "timezone": "UTC",
}
RULES = [
    {"name": "valid", "features": ("x",), "valid": (-1.0, 1.0)},
    {"name": "rises", "features": ("y",), "only": "rises"},
    {"name": "small", "ignore": "5%", "keys": ("p*",)},
]

N = 64
CHANGES: dict[str, dict[str, Any]] = {
    "categories": {},
    "counters": {},
    "hours": {"time_features": ("hour",)},
    "weekdays of a field": {"time_features": ("hour", "weekday", "month"), "time": "at"},
    "lags": {"lags": 3},
    "derive": {"derive": ("count(10m)", "gap()", "sum(x,1h)", "new(kind)", "rate(total)"), "key": "device"},
    "views": {"views": ("all", "recent")},
    "fast": {"views": ("fast",)},
    "explain all": {"explain": "all"},
    "explain alerts": {"explain": "alerts"},
    "still": {"stuck_values": "ignore"},
    "rules": {"rules": tuple(Rule.model_validate(one) for one in RULES)},
    "flags of rules": {"only_rises": ("x",), "only_falls": ("y",), "ignore": ("y=5%",), "valid": ("x=-1:1",)},
    "severity": {"min_severity": "critical"},
    **{
        f"window {skip}": {"maintenance": (Window.model_validate({**NIGHT, "skip": skip}),)}
        for skip in ("both", "alerts", "learning")
    },
    "key": {"key": "device"},
    "keys": {"keys": 2, "own_contexts": 1},
    "muted": {"mute_key": ("p",)},
    "silence": {"alerts": "t-alerts", "silence": "5x", "silence_min": "10s"},
    "alerts": {"alerts": "t-alerts"},
    "scores": {"scores_only": True},
    "policy": {"admit": "feedback", "feedback": "f"},
    "shifts": {"adapt_after": 0, "alert_rate": 0.01},
}
# A design of Plackett and Burman: of each two changes every combination of on and off stands in three of twelve rows.
PAIRED = [
    *("counters", "weekdays of a field", "lags", "fast", "explain all", "still", "rules", "flags of rules"),
    *("window both", "keys", "silence"),
]
PLACKETT_BURMAN = "++-+++---+-"
DESIGN = [PLACKETT_BURMAN[shift:] + PLACKETT_BURMAN[:shift] for shift in range(11)]
TOGETHER = ["+".join(compress(PAIRED, (sign == "+" for sign in row))) for row in DESIGN]
OTHERS = [  # each in one row
    *("categories+hours+explain alerts+alerts", "derive+severity+muted", "views+window alerts+policy"),
    *("key+window learning+shifts", "scores"),
]


def value(offset: int, is_broken: bool) -> bytes | None:
    rng = random.Random(offset)
    if is_broken:
        return rng.choice(BROKEN)
    fields = {"x": rng.gauss(0, 1), "y": rng.gauss(5, 2), "kind": rng.choice("ab"), "total": offset * 2}
    return json.dumps({**fields, "device": rng.choice("uvw"), "at": 1_700_000_000 + 600 * offset}).encode()


def outputs(name: str, batch: int) -> tuple[list[tuple[int, Any]], list[int]]:
    """Results and dead letters of N records, of which the first 8, the last ones and many between are broken."""
    delivery, names = Recording(), name.split("+")
    flags = {**QUICK, "batch_size": batch} | {flag: value for one in names for flag, value in CHANGES[one].items()}
    pipeline: Pipeline = make_pipeline(delivery, known=False, **flags)
    pipeline.begin(next((SCHEMAS[one] for one in names if one in SCHEMAS), Schema(("x", "y"))))
    for offset in range(N):
        is_broken = offset < 8 or offset >= N - 8 or random.Random(-offset).random() < 0.3 or offset // 8 % 5 == 4
        key = random.Random(offset).choice([b"p", b"q", b"r", None])
        pipeline.receive(
            Record("t", 0, offset, 1_700_000_000_000 + 600_000 * offset, key, value(offset, is_broken), []), 0
        )
        if batch == 1 or offset % 16 == 15:
            pipeline.finish([0])
            commit(pipeline)
    pipeline.finish([0])
    commit(pipeline)
    assert pipeline.partitions[0].position == N
    results = {
        at: json.loads(one.value or b"")
        for at, one in zip(offsets(delivery.to("t-scores")), delivery.to("t-scores"), strict=True)
    }
    return sorted(results.items()), sorted(at for at, _ in delivery.reasons())


@pytest.mark.parametrize("name", [*TOGETHER, *OTHERS])
def test_a_batch_without_a_usable_record_is_as_good_as_any(name: str) -> None:
    results, letters = outputs(name, 1)
    assert sorted([*(at for at, _ in results), *letters]) == list(range(N))
    assert (results, letters) == outputs(name, 8)
