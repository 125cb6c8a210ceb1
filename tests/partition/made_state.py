"""The state of a partition as a released version writes it, and what that version says of the records that follow.

To keep the state of the present version, before the format of the state changes:
`PYTHONPATH=.:tests python tests/partition/made_state.py tests/partition/state_N.xz`.
"""

from __future__ import annotations

import io
import json
import lzma
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines import Instance

from fomo_stream.model.checkpoint import shared_model
from fomo_stream.partition.record import Record
from fomo_stream.records.schema import Schema
from fomo_stream.settings.service_settings import ServiceSettings

FIRST, LAST = 1500, 1700  # the records that are scored after the state was written
SCHEMA = Schema(("level", "total", "kind"), frozenset({"kind"}), frozenset({"total"}))
SMALL: dict[str, Any] = {
    **{"kind": ServiceSettings, "batch_size": 64, "explain": "none", "alert_rate": 0.02, "feedback_memory": 300},
    **{"context_size": 100, "min_context": 60, "keys": 20, "own_contexts": 2, "adapt_after": 1000},
    **{"views": ("trimmed", "all", "recent", "movement", "key"), "lags": 0},
}
KINDS: dict[str, dict[str, Any]] = {"plain": {}, "hours": {"lags": 2, "time_features": ("hour",), "own_contexts": 0}}
FIELDS = ("logit", "remembered_logit", "score", "p_value", "outlier", "generation", "severity", "incident")


def instance(kind: str) -> Instance:
    return Instance(SCHEMA, model=shared_model(), **{**SMALL, **KINDS[kind]})


def record(offset: int) -> Record:
    """Of two busy keys, thirty rare ones, or of none; a minute after the one before.

    One in thirty is far off, and some after FIRST are more than ever.
    """
    rng = random.Random(offset)
    number = rng.choice([0, 0, 0, 1, 1, rng.randrange(2, 32), None])
    level = 4 if number is None else 3 * number
    far = 300 if offset > FIRST and offset % 40 == 7 else 30 * (rng.random() < 0.03)
    fields = {
        "level": round(rng.gauss(level + far, 1), 3),
        "total": 3 * offset + rng.randrange(9),
        "kind": rng.choice("xxxxyyz"),
    }
    if rng.random() < 0.05:
        del fields[rng.choice(["level", "total"])]
    key = None if number is None else b"%d" % number
    return Record("t", 0, offset, 1_700_000_000_000 + 60_000 * offset, key, json.dumps(fields).encode(), [])


def score(one: Instance, start: int, stop: int) -> None:
    for offset in range(start, stop):
        one.pipeline.receive(record(offset), 0.0)
    one.pipeline.finish([0])


def results_of_next(one: Instance) -> list[dict[str, Any]]:
    """Score the records from FIRST to before LAST; the fields of their results."""
    one.results()
    score(one, FIRST, LAST)
    found = [json.loads(value or b"")["fomo"] for topic, value in one.results() if topic == "t-scores"]
    assert [each["offset"] for each in found] == list(range(FIRST, LAST))
    return [{name: each.get(name) for name in FIELDS} for each in found]


def write(path: Path) -> None:
    made: list[Any] = []
    data = b""
    for kind in KINDS:
        one, entries, committed = instance(kind), dict[str, bytes](), dict[tuple[str, int], int]()
        for start, stop in ((0, 700), (700, 1300), (1300, FIRST)):
            score(one, start, stop)
            committed |= one.commit(entries)
        for at, (outlier, offset) in enumerate([(True, 1490), (False, 1400), (True, 1200)]):
            one.label(at, outlier, offset)
        one.pipeline.score_due(0.0)
        committed |= one.commit(entries)
        if kind == "hours":  # to stay small; they are made again
            entries = {name: value for name, value in entries.items() if "/encoded/" not in name}
        sizes = {name: len(value) for name, value in entries.items()}
        made.append((kind, sizes, committed["t", 0], committed["f", 0], results_of_next(one)))
        data += b"".join(entries.values())
    path.write_bytes(lzma.compress(json.dumps(made).encode() + b"\n" + data))


@dataclass(frozen=True)
class Written:
    """entries: the state; committed: offsets by topic and partition; results: of the records that follow."""

    kind: str
    entries: dict[str, bytes]
    committed: dict[tuple[str, int], int]
    results: list[dict[str, Any]]


def read(path: Path) -> Iterator[Written]:
    """What `write` has written."""
    text, _, data = lzma.decompress(path.read_bytes()).partition(b"\n")
    for kind, sizes, records, labels, results in json.loads(text):
        parts = io.BytesIO(data)
        entries = {name: parts.read(size) for name, size in sizes.items()}
        data = parts.read()
        yield Written(kind, entries, {("t", 0): records, ("f", 0): labels}, results)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
