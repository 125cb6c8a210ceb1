"""Derived features in a partition: exact in every way that records can take, and ordinary in all that is said."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import QUICK, Instance, Recording, cheap_model, commit, make_pipeline, restored

from fomo_stream.cli.main import main
from fomo_stream.errors import StateError
from fomo_stream.model.checkpoint import save_model
from fomo_stream.partition.record import Record
from fomo_stream.records.schema import Schema
from fomo_stream.settings.rule_spec import Window

DERIVE = ("count(10m)", "gap()", "sum(x,1h)", "new(kind)", "speed(lat,lon)")
NAMES = ("x", *DERIVE)
WINDOW = {"name": "work", "from": "2023-11-14T23:00", "to": "2023-11-15T01:00", "repeat": "FREQ=DAILY"}


def fields_of(offset: int) -> dict[str, Any]:
    rng = random.Random(offset)
    found: dict[str, Any] = {"x": rng.gauss(0, 1), "kind": rng.choice("aab"), "lat": rng.uniform(50, 51), "lon": 8.0}
    if offset >= 250 and offset % 9 < 5:
        found["lat"] = -found["lat"]
    for name in rng.sample(sorted(found), rng.choice([0, 0, 0, 1])):
        found[name] = None
    at = 1_700_000_000 + 120 * offset - rng.choice([0] * 9 + [500])
    return {**found, "device": f"d{rng.randint(0, 3)}", "at": at}


def record(offset: int) -> Record:
    is_broken = random.Random(-offset).random() < 0.05
    value = b"{" if is_broken else json.dumps(fields_of(offset)).encode()
    return Record("t", 0, offset, 1_700_000_000_000 + 120_000 * offset, None, value, [])


def instance(**changes: Any) -> Instance:
    flags = {"derive": DERIVE, "key": "device", "time": "at", "views": ("default",), "explain": "all", "lags": 0}
    return Instance(Schema(NAMES), **{**flags, **changes})


def scored(one: Instance, start: int, stop: int) -> list[tuple[str, bytes | None]]:
    for offset in range(start, stop):
        one.pipeline.receive(record(offset), 0.0)
    one.pipeline.finish([0])
    return one.results()


@settings(max_examples=3)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=4), st.sampled_from([1, 7]), st.sampled_from(["", "both"]))
def test_what_a_partition_says_depends_neither_on_restarts_nor_on_batches(
    parts: list[int], batch: int, skip: str
) -> None:
    flags: dict[str, Any] = {"keys": 3, "batch_size": batch}
    if skip:
        flags["maintenance"] = (Window.model_validate({**WINDOW, "timezone": "UTC", "skip": skip}),)
    steady, moving = instance(**{**flags, "batch_size": 8}), instance(**flags)
    entries: dict[str, bytes] = {}
    offset = 0
    for n in [*parts, 40]:
        assert scored(steady, offset, offset + n) == scored(moving, offset, offset + n)
        offset += n
        committed = moving.commit(entries)
        moving = instance(**flags)
        moving.restore(restored(entries, committed))
        assert moving.commit({}) == {}


def test_records_that_are_scored_again_do_not_count_again() -> None:
    entries: dict[str, bytes] = {}
    one, other = instance(), instance()
    scored(one, 0, 60)
    one.commit(entries)
    other.restore(restored(entries, {("t", 0): 33}))
    scored(other, 33, 60)
    assert scored(one, 60, 120) == scored(other, 60, 120)


def test_the_state_of_other_derived_features_is_refused() -> None:
    entries: dict[str, bytes] = {}
    one = instance()
    scored(one, 0, 30)
    committed = one.commit(entries)
    other = Instance(Schema(("x", "gap()")), derive=("gap()",), views=("default",), lags=0)
    with pytest.raises(StateError, match="the state has features x,count"):
        other.restore(restored(entries, committed))


def test_score_replay_and_service_say_the_same(tmp_path: Path, restored_logging: None) -> None:
    n, warm = 160, 50
    file, out, again = (tmp_path / name for name in ("in.jsonl", "scored.jsonl", "replayed.jsonl"))
    file.write_text("".join(json.dumps(fields_of(offset)) + "\n" for offset in range(n)))
    save_model(cheap_model(), tmp_path / "cheap.safetensors")
    flags = ["--model", str(tmp_path / "cheap.safetensors"), "--min-context", str(warm), "--context-size", "50"]
    flags += ["--key", "device", "--time", "at", "--explain", "all", "--features", "x", "--timezone", "UTC"]
    flags += [
        word for one in ("count(10m),gap", "sum(x, 1h)", "new(kind), speed(lat,lon)") for word in ("--derive", one)
    ]
    assert main(["score", str(file), "-o", str(out), *flags]) == 0
    assert main(["replay", "--file", str(file), "--scores-file", str(again), "--report", "none", *flags]) == 0
    delivery = Recording()
    sizes: dict[str, Any] = {"min_context": warm, "context_size": 50, "batch_size": 64}
    pipeline = make_pipeline(delivery, known=False, **sizes, derive=DERIVE, key="device", time="at", explain="all")
    pipeline.begin(Schema(NAMES))
    for offset in range(n):
        pipeline.receive(Record("t", 0, offset, None, None, json.dumps(fields_of(offset)).encode(), []), 0.0)
    pipeline.finish([0])
    commit(pipeline)
    names = ("logit", "score", "outlier", "missing", "reasons", "explanation")
    live = [json.loads(one.value or b"")["fomo"] for one in delivery.to("t-scores")]
    files = [[json.loads(line)["fomo"] for line in path.read_text().splitlines()] for path in (out, again)]
    scored = [[one for one in found if one["status"] != "no_features"][warm:] for found in (live, *files)]
    of_service, of_score, of_replay = ([{name: one.get(name) for name in names} for one in found] for found in scored)
    assert len(of_service) > 80
    assert of_replay == of_score == of_service
    said = [reason for one in live for reason in one.get("reasons", ()) if reason["feature"] == "count(10m)"]
    assert said
    assert all(reason["value"] >= 1 for reason in said if reason["cause"] == "value")


def test_a_record_without_a_value_of_another_feature_is_a_dead_letter_and_counts() -> None:
    delivery = Recording()
    pipeline = make_pipeline(delivery, known=False, **QUICK, derive=("count(10m)",), key="device", explain="all")
    pipeline.begin(Schema(("x", "count(10m)")))
    for offset in range(60):
        value = {"device": "d"} if offset == 50 else {"x": float(offset % 7), "device": "d", "count(10m)": "hostile"}
        pipeline.receive(Record("t", 0, offset, 1000 * offset, None, json.dumps(value).encode(), []), 0.0)
    pipeline.finish([0])
    assert delivery.reasons() == [(50, "no_features")]
    outputs = [json.loads(one.value or b"") for one in delivery.to("t-scores")]
    assert all(one["count(10m)"] == "hostile" for one in outputs)  # the record is written as it was
    values = {
        one["fomo"]["offset"]: reason["value"]
        for one in outputs
        for reason in one["fomo"].get("reasons", ())
        if (reason["feature"], reason["cause"]) == ("count(10m)", "value")
    }
    assert values
    assert all(value == offset + 1 for offset, value in values.items())


def test_derived_features_alone_are_enough() -> None:
    delivery = Recording()
    pipeline = make_pipeline(delivery, known=False, **QUICK, derive=("count(10m)", "new(kind)"), key="device")
    for offset in range(60):
        value = json.dumps({"device": "d", "kind": "ab"[offset % 2]}).encode()
        pipeline.receive(Record("t", 0, offset, 1000 * offset, None, value, []), 0.0)
    schema = pipeline.infer()
    assert schema is not None
    assert schema.features == ("count(10m)", "new(kind)")
    pipeline.begin(schema)
    pipeline.finish([0])
    assert len(delivery.to("t-scores")) == 60
