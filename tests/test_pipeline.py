"""What a record goes through: which offset may be committed when, where outputs go, who waits for whom."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fomo_stream.broker import Record
from fomo_stream.checkpoint import load_model
from fomo_stream.detector import Detector, DetectorConfig
from fomo_stream.errors import ConfigError, SchemaError
from fomo_stream.lags import Shingler
from fomo_stream.outbox import Output
from fomo_stream.pipeline import Pipeline
from fomo_stream.records import decode, read_rows
from fomo_stream.schema import Schema
from fomo_stream.settings import ServiceSettings

model = cache(load_model)


class Recording:
    """An outbox that sends nothing: a test says what the broker answers, and when."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []

    def send(self, output: Output) -> None:
        self.outputs.append(output)

    def to(self, topic: str) -> list[Output]:
        return [output for output in self.outputs if output.topic == topic]


class Patient(Future[Any]):
    """A result that nobody may wait for before it is there."""

    def result(self, timeout: float | None = None) -> Any:
        assert self.done(), "somebody waits"
        return super().result(timeout)


class Held(Executor):
    """Runs what is submitted at once, except for the first: that one when the test says so."""

    def __init__(self) -> None:
        self.submitted = 0
        self.release: Callable[[], None] | None = None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = Patient()
        self.submitted += 1
        if self.submitted == 1:
            self.release = lambda: future.set_result(fn(*args, **kwargs))
        else:
            future.set_result(fn(*args, **kwargs))
        return future


class AtOnce(Held):
    """Runs everything at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        if self.submitted == 1:
            assert self.release is not None
            self.release()
        return future


def make_pipeline(
    outbox: Recording,
    executor: Executor | None = None,
    partitions: Mapping[str, int] | None = None,
    known: bool = True,
    **changes: Any,
) -> Pipeline:
    """A pipeline over topic `t` with partitions 0 and 1, warm after 20 rows, two records in a batch."""
    flags = {"topic": "t", "batch_size": 2, "min_context": 20, "context_size": 40, **changes}
    counts = {"t": 2, "t-scores": 2, "t-dead-letters": 2} if partitions is None else partitions
    sending: Any = outbox
    pipeline = Pipeline(ServiceSettings(**flags), model(), sending, executor or AtOnce(), lambda: counts)
    pipeline.add(0)
    pipeline.add(1)
    if known:
        pipeline.begin(Schema(("x", "y")))
    return pipeline


def record(offset: int, partition: int = 0, key: bytes | None = None, value: bytes | None = b"") -> Record:
    rng = random.Random(offset)
    value = json.dumps({"x": rng.gauss(0, 1), "y": rng.gauss(5, 2)}).encode() if value == b"" else value
    return Record("t", partition, offset, 1_700_000_000_000, key, value, [])


def offsets(outputs: list[Output]) -> Iterator[int]:
    for output in outputs:
        assert output.value is not None
        yield json.loads(output.value)["fomo"]["offset"]


# --- offsets


def test_an_offset_is_not_finished_when_its_output_is_sent_but_when_it_is_acknowledged() -> None:
    outbox = Recording()
    pipeline = make_pipeline(outbox)
    for offset in range(4):
        pipeline.receive(record(offset), 0.0)
    tracker = pipeline.tasks[0].tracker
    assert list(offsets(outbox.to("t-scores"))) == [0, 1, 2, 3]
    assert tracker.committable is None
    outbox.outputs[0].on_done(None)
    assert tracker.committable == 1


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(6)))
def test_acknowledgements_in_any_order_finish_only_what_has_no_gap_below(order: list[int]) -> None:
    outbox = Recording()
    pipeline = make_pipeline(outbox)
    for offset in range(6):  # 1 is a dead letter, which counts like any other output
        pipeline.receive(record(offset, value=b"{bad" if offset == 1 else b""), 0.0)
    pipeline.finish([0])
    (letter,) = outbox.to("t-dead-letters")
    outputs = dict(zip(offsets(outbox.to("t-scores")), outbox.to("t-scores"), strict=True)) | {1: letter}
    done: set[int] = set()
    for offset in order:
        outputs[offset].on_done(None)
        done.add(offset)
        contiguous = next(i for i in range(7) if i not in done)
        assert pipeline.tasks[0].tracker.committable == (contiguous or None)


def test_a_refused_output_becomes_a_dead_letter_and_only_that_ones_acknowledgement_counts() -> None:
    outbox = Recording()
    pipeline = make_pipeline(outbox)
    pipeline.receive(record(0, key=b"k"), 0.0)
    pipeline.receive(record(1), 0.0)
    first, second = outbox.to("t-scores")
    second.on_done(None)
    first.on_done("too large")
    assert pipeline.tasks[0].tracker.committable is None
    (letter,) = outbox.to("t-dead-letters")
    assert (letter.key, letter.value) == (b"k", record(0).value)
    assert dict(letter.headers)["fomo-reason"] == b"output_refused"
    letter.on_done(None)
    assert pipeline.tasks[0].tracker.committable == 2


def test_a_refused_dead_letter_is_cut_before_its_offset_is_finished() -> None:
    outbox = Recording()
    pipeline = make_pipeline(outbox)
    pipeline.receive(record(0, value=b"{" + b"x" * (1 << 20)), 0.0)
    for cut in (512 << 10, 0):
        outbox.outputs[-1].on_done("too large")
        assert len(outbox.outputs[-1].value or b"") == cut
        assert pipeline.tasks[0].tracker.committable is None
    outbox.outputs[-1].on_done(None)
    assert pipeline.tasks[0].tracker.committable == 1


def test_acknowledgements_of_a_partition_that_was_given_up_count_for_nothing() -> None:
    outbox = Recording()
    pipeline = make_pipeline(outbox)
    pipeline.receive(record(0), 0.0)
    pipeline.finish([0])
    pipeline.drop(0)
    pipeline.add(0)
    outbox.outputs[0].on_done(None)
    assert pipeline.tasks[0].tracker.committable is None


# --- where outputs go


@pytest.mark.parametrize("topic", ["t-scores", "t-dead-letters"])
@pytest.mark.parametrize(
    ("count", "key", "expected"),
    [(8, None, 5), (8, b"k", 5), (3, None, 5 % 3), (3, b"k", -1), (20, None, 5), (None, None, -1)],
)
def test_records_without_a_key_keep_together_where_partition_counts_differ(
    topic: str, count: int | None, key: bytes | None, expected: int
) -> None:
    outbox = Recording()
    counts = {"t": 8} if count is None else {"t": 8, topic: count}
    pipeline = make_pipeline(outbox, partitions=counts)
    pipeline.add(5)
    pipeline.receive(record(0, partition=5, key=key, value=b"" if topic == "t-scores" else None), 0.0)
    pipeline.finish([5])
    (output,) = outbox.to(topic)
    assert output.partition == expected


# --- generations


def test_a_late_generation_stops_only_its_own_partition_and_nothing_is_lost() -> None:
    outbox, executor = Recording(), Held()
    pipeline = make_pipeline(outbox, executor)
    for offset in range(60):
        pipeline.receive(record(offset, partition=0), 0.0)
    assert executor.submitted == 1  # the first generation, of partition 0
    for offset in range(60):
        pipeline.receive(record(offset, partition=1), 0.0)
    pipeline.score_due(1e9)
    scored = [json.loads(output.value or b"")["fomo"] for output in outbox.outputs]
    assert [len([s for s in scored if s["partition"] == number]) for number in (0, 1)] == [20, 60]
    assert len(pipeline.tasks[0].batch) == 40
    assert executor.release is not None
    executor.release()
    pipeline.score_due(1e9)
    ours = [output for output in outbox.outputs if output.partition == 0]
    assert list(offsets(ours)) == list(range(60))
    assert json.loads(ours[20].value or b"")["fomo"]["generation"] == 1


@pytest.mark.parametrize("batch_size", [1, 64, 1000])
def test_no_micro_batch_waits_for_a_generation_that_it_brings_about(batch_size: int) -> None:
    class Never(Executor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            return Patient()

    outbox = Recording()
    pipeline = make_pipeline(outbox, Never(), batch_size=batch_size)
    for offset in range(1000):
        pipeline.receive(record(offset), 0.0)
    pipeline.score_due(1e9)
    assert len(outbox.outputs) == 20


def test_a_seed_context_is_encoded_once_for_all_partitions(tmp_path: Path) -> None:
    seed = tmp_path / "normal.jsonl"
    seed.write_bytes(b"\n".join(record(1000 + i).value or b"" for i in range(40)))
    outbox, executor = Recording(), AtOnce()
    pipeline = make_pipeline(outbox, executor, seed_context=seed)
    for partition in (0, 1):
        pipeline.receive(record(0, partition), 0.0)
    pipeline.finish([0, 1])
    first, second = (json.loads(output.value or b"")["fomo"] for output in outbox.outputs)
    assert first["score"] == second["score"] is not None
    assert executor.submitted == 1
    for offset in range(1, 40):  # what one partition learns is none of the other's business
        pipeline.receive(record(offset, 0), 0.0)
    pipeline.receive(record(1, 1), 0.0)
    pipeline.finish([0, 1])
    by_source = {
        (result["partition"], result["offset"]): result["score"]
        for result in (json.loads(output.value or b"")["fomo"] for output in outbox.outputs)
    }
    assert by_source[0, 1] == by_source[1, 1]


# --- the schema


def test_records_with_too_many_numbers_are_dead_letters_and_later_ones_make_the_schema() -> None:
    outbox = Recording()
    pipeline = make_pipeline(outbox, known=False)
    wide = json.dumps({f"f{i}": random.random() for i in range(1001)}).encode()
    for offset in range(30):
        pipeline.receive(record(offset, value=wide), 0.0)
    assert pipeline.infer() is None
    reasons = {dict(output.headers)["fomo-reason"] for output in outbox.to("t-dead-letters")}
    assert reasons == {b"too_many_features"}
    assert len(outbox.outputs) == 30
    for offset in range(30, 60):
        pipeline.receive(record(offset), 0.0)
    assert pipeline.infer() == Schema(("x", "y"))


def test_a_schema_of_few_records_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    pipeline = make_pipeline(Recording(), known=False)
    for offset in range(19):
        pipeline.receive(record(offset), 0.0)
    pipeline.infer()
    assert "schema_of_few_records records=19" in caplog.text
    caplog.clear()
    pipeline.receive(record(19), 0.0)
    pipeline.infer()
    assert "schema_of_few_records" not in caplog.text


def test_the_log_shows_some_of_many_features(caplog: pytest.LogCaptureFixture) -> None:
    pipeline = make_pipeline(Recording(), known=False)
    with caplog.at_level("INFO"):
        pipeline.begin(Schema(tuple(f"f{i:03}" for i in range(900))))
    assert "f049,... count=900" in caplog.text
    assert "f050" not in caplog.text


# --- categories, missing values, and the past


def results(outbox: Recording) -> list[dict[str, Any]]:
    return [json.loads(output.value or b"")["fomo"] for output in outbox.to("t-scores")]


def config_of(pipeline: Pipeline) -> DetectorConfig:
    detector = pipeline.tasks[0].detector
    assert detector is not None
    return detector.config


def as_record(offset: int, fields: dict[str, Any], partition: int = 0, key: bytes | None = None) -> Record:
    return record(offset, partition, key, json.dumps(fields).encode())


@pytest.mark.parametrize("batch_size", [1, 7])
def test_each_key_of_a_partition_has_its_own_past(batch_size: int) -> None:
    rng = np.random.default_rng(0)
    outbox = Recording()
    pipeline = make_pipeline(outbox, batch_size=batch_size, lags=2)
    values, keys = rng.normal(size=(50, 2)), random.Random(0).choices([b"p", b"q", None], k=50)
    for offset, ((x, y), key) in enumerate(zip(values.tolist(), keys, strict=True)):
        pipeline.receive(as_record(offset, {"x": x, "y": y}, key=key), 0.0)
        pipeline.receive(as_record(offset, {"x": y, "y": x}, partition=1, key=key), 0.0)
    pipeline.finish([0, 1])
    for partition, rows in ((0, values), (1, values[:, ::-1])):
        shingles = Shingler(2, 2).rows(rows, keys)
        expected = Detector(model(), 6, config_of(pipeline)).process(shingles)
        found = [result["logit"] for result in results(outbox) if result["partition"] == partition]
        np.testing.assert_array_equal(np.array(found, dtype=float), expected.logit)


def test_a_seed_context_has_its_past_too(tmp_path: Path) -> None:
    seed = tmp_path / "normal.jsonl"
    seed.write_bytes(b"\n".join(record(1000 + i).value or b"" for i in range(40)))
    outbox = Recording()
    pipeline = make_pipeline(outbox, seed_context=seed, lags=1)
    pipeline.receive(record(0), 0.0)
    pipeline.finish([0])
    detector = Detector(model(), 4, config_of(pipeline))
    detector.seed_context(Shingler(1, 2).rows(read_rows(seed, Schema(("x", "y")))))
    first = decode(record(0).value)
    expected = detector.process(np.array([[first["x"], first["y"], np.nan, np.nan]])).logit
    assert results(outbox)[0]["logit"] == expected[0]


def test_missing_values_are_counted_in_the_output_and_in_the_progress() -> None:
    outbox = Recording()
    pipeline = make_pipeline(outbox, batch_size=4, lags=3)
    lacking: list[dict[str, Any]] = [{"x": 1, "y": 2}, {"x": 1}, {"x": None, "y": 2}, {"z": 1}]
    for offset, fields in enumerate(lacking):
        pipeline.receive(as_record(offset, fields), 0.0)
    assert [result["missing"] for result in results(outbox)] == [0, 1, 1]
    assert pipeline.progress.missing == 2
    assert dict(outbox.to("t-dead-letters")[0].headers)["fomo-reason"] == b"no_features"


def test_a_category_that_was_never_seen_is_an_outlier() -> None:
    rng = random.Random(0)
    outbox = Recording()
    pipeline = make_pipeline(
        outbox, known=False, categorical=("site",), min_context=200, context_size=200, batch_size=50
    )
    for offset in range(600):
        site = "mars" if offset in (550, 570) else rng.choice(["north", "south", "east"])
        pipeline.receive(as_record(offset, {"x": rng.gauss(0, 1), "site": site}), 0.0)
        if pipeline.schema is None and offset == 99:
            schema = pipeline.infer()
            assert schema == Schema(("site", "x"), frozenset({"site"}))
            pipeline.begin(schema)
    pipeline.finish([0])
    flagged = {result["offset"] for result in results(outbox) if result["outlier"]}
    assert {550, 570} <= flagged
    assert len(flagged) < 20


def test_categories_that_differ_from_the_groups_are_refused() -> None:
    pipeline = make_pipeline(Recording(), known=False, categorical=("site",))
    with pytest.raises(ConfigError, match=r"--categorical site differs .* \(none\).* choose another --group"):
        pipeline.begin(Schema(("site", "x")))
    other = make_pipeline(Recording(), known=False)
    other.begin(Schema(("site", "x"), frozenset({"site"})))  # the flag is left out: the group's are used
    assert other.schema is not None


def test_rows_that_become_too_wide_by_their_past_are_refused() -> None:
    pipeline = make_pipeline(Recording(), known=False, lags=10)
    pipeline.check(Schema(tuple(f"f{i}" for i in range(90))))
    with pytest.raises(SchemaError, match="make 1001 columns, at most 1000"):
        pipeline.check(Schema(tuple(f"f{i}" for i in range(91))))
