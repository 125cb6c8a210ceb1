"""What a record goes through: what it becomes, which offset is committed with it, where it goes, who waits for whom."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from confluent_kafka import KafkaError
from hypothesis import given, settings
from hypothesis import strategies as st

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.detector import Detector
from fomo_stream.detector.past_values import PastValues
from fomo_stream.errors import BrokerError, SchemaError
from fomo_stream.kafka.clients import Record
from fomo_stream.kafka.delivery.delivery import Output
from fomo_stream.kafka.pipeline import Pipeline
from fomo_stream.kafka.position import Restored
from fomo_stream.kafka.topic_watch import TopicsSeen
from fomo_stream.model.checkpoint import shared_model
from fomo_stream.model.zero_shot import ModelConfig, ZeroShotModel
from fomo_stream.records.files import read_rows
from fomo_stream.records.json_codec import decode
from fomo_stream.records.schema import Schema
from fomo_stream.settings.service import ServiceSettings


@cache
def cheap_model() -> ZeroShotModel:
    """Untrained, and a tenth of the work: its scores say nothing, but depend on the record and on the context."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = ModelConfig(
            raw_features=8, evidence=False, fusion=False, layers=1, width=8, heads=2, feed_forward=8, routers=2
        )
        return ZeroShotModel(config, "cheap").eval()


class QuickSettings(ServiceSettings):
    """Few records are enough for a generation, a regime, or to forget one."""

    def detector_config(self) -> DetectorConfig:
        return replace(super().detector_config(), lag=16, calibration_size=50)


QUICK: dict[str, Any] = {
    "kind": QuickSettings,
    "min_context": 10,
    "context_size": 20,
    "adapt_after": 60,
    "alert_rate": 0.1,
    "batch_size": 8,
}


class Recording:
    """A delivery that sends nothing: a test says what the broker refuses."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.refusals: dict[tuple[str, int], tuple[int, KafkaError | None]] = {}  # by topic and offset of the source
        self.limits: dict[str, int] = {}
        self.is_committing = False

    @property
    def sent(self) -> int:
        return len(self.outputs)

    def send(self, output: Output) -> None:
        self.outputs.append(output)

    def fits(self, output: Output) -> bool:
        return output.size() <= self.limits.get(output.topic, output.size())

    def refused(self, topic: str, source: Record) -> tuple[int, KafkaError | None]:
        return self.refusals.get((topic, source.offset), (0, None))

    def refuse(self, topic: str, offset: int, times: int, code: int = KafkaError.MSG_SIZE_TOO_LARGE) -> None:
        self.refusals[topic, offset] = (times, KafkaError(code))

    def to(self, topic: str) -> list[Output]:
        return [output for output in self.outputs if output.topic == topic]

    def reasons(self) -> list[tuple[int, str]]:
        """Source offset and reason of each dead letter."""
        headers = [dict(output.headers) for output in self.to("t-dead-letters")]
        return [(int(h["fomo-source-offset"] or b""), (h["fomo-reason"] or b"").decode()) for h in headers]


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
    recording: Recording,
    executor: Executor | None = None,
    partitions: Mapping[str, int] | None = None,
    known: bool = True,
    model: ZeroShotModel | None = None,
    kind: type[ServiceSettings] = ServiceSettings,
    **changes: Any,
) -> Pipeline:
    """A pipeline over topic `t` with partitions 0 and 1, warm after 20 rows, two records in a batch."""
    flags = {"topic": "t", "batch_size": 2, "min_context": 20, "context_size": 40, **changes}
    counts = {"t": 2, "t-scores": 2, "t-dead-letters": 2} if partitions is None else partitions
    sending: Any = recording
    pipeline = Pipeline(kind(**flags), model or cheap_model(), sending, executor or AtOnce(), lambda: counts)
    for number in (0, 1):
        begin(pipeline, number)
    if known:
        pipeline.begin(Schema(("x", "y")))
    return pipeline


def begin(pipeline: Pipeline, number: int, start: int = 0) -> None:
    """A partition comes, of which nothing is known."""
    pipeline.activate(pipeline.add(number, {}), Restored(start))


def commit(pipeline: Pipeline) -> dict[tuple[str, int], int]:
    """A commit succeeds; returns its offsets."""
    offsets = pipeline.stage(TopicsSeen({"t": 2, "f": 2}, {}))
    pipeline.committed(offsets, 0.0)
    return {(found.topic, found.partition): found.offset for found in offsets}


def record(offset: int, partition: int = 0, key: bytes | None = None, value: bytes | None = b"") -> Record:
    rng = random.Random(offset)
    value = json.dumps({"x": rng.gauss(0, 1), "y": rng.gauss(5, 2)}).encode() if value == b"" else value
    return Record("t", partition, offset, 1_700_000_000_000, key, value, [])


def offsets(outputs: list[Output]) -> Iterator[int]:
    for output in outputs:
        assert output.value is not None
        yield json.loads(output.value)["fomo"]["offset"]


def sources(outputs: list[Output]) -> list[int]:
    """Offset of the record that each output is about."""
    return [output.source.offset for output in outputs if output.source is not None]


# --- offsets


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.sampled_from(["record", "record", "bad", "due", "commit"]), max_size=40),
    st.integers(1, 5),
    st.integers(0, 3),
)
def test_what_is_committed_is_what_has_outputs(steps: list[str], batch_size: int, start: int) -> None:
    """However records come, each has one output, in their order, and offsets are those of the outputs sent so far."""
    delivery = Recording()
    pipeline = make_pipeline(delivery, batch_size=batch_size)
    begin(pipeline, 0, start)
    read = committed = start
    for step in [*steps, "due", "commit"]:
        if step == "due":
            pipeline.score_due(1e9)
        elif step == "commit":
            found = commit(pipeline)
            done = [output for output in delivery.outputs if output.source is not None]
            assert sources(done) == list(range(start, start + len(done)))
            expected = start + len(done)
            assert found == ({("t", 0): expected} if expected > committed else {})
            assert read - expected < batch_size
            committed = expected
        else:
            pipeline.receive(record(read, value=b"{bad" if step == "bad" else b""), 0.0)
            read += 1
    assert committed == read
    assert [offset for offset, _ in delivery.reasons()] == [
        offset
        for offset, step in enumerate((step for step in steps if step in ("record", "bad")), start)
        if step == "bad"
    ]


def test_a_partition_of_which_nothing_is_new_commits_nothing() -> None:
    delivery = Recording()
    pipeline = make_pipeline(delivery)
    pipeline.receive(record(0), 0.0)
    pipeline.finish([0])
    assert commit(pipeline) == {("t", 0): 1}
    sent = delivery.sent
    assert commit(pipeline) == {}
    assert delivery.sent == sent


def test_a_partition_that_is_not_restored_takes_nothing_and_commits_nothing() -> None:
    delivery = Recording()
    pipeline = make_pipeline(delivery)
    commit(pipeline)
    delivery.outputs.clear()
    task = pipeline.add(0, {})
    for offset in range(5):
        pipeline.receive(record(offset), 0.0)
    pipeline.score_due(1e9)
    pipeline.finish([0])
    assert (commit(pipeline), delivery.outputs, len(task.batch)) == ({}, [], 0)
    pipeline.activate(task, Restored(start=3))
    for offset in (0, 2, 3, 4, 4, 3):  # those before the start, or fetched twice, are of an earlier time
        pipeline.receive(record(offset), 0.0)
    assert sources(delivery.outputs) == [3, 4]


def test_an_abort_begins_every_partition_anew() -> None:
    delivery = Recording()
    pipeline = make_pipeline(delivery)
    for partition in (0, 1):
        for offset in range(3):
            pipeline.receive(record(offset, partition), 0.0)
    pipeline.finish([0, 1])
    tasks = pipeline.aborted({"t": "T1"})
    assert [(task.number, task.is_active, task.position) for task in tasks] == [(0, False, None), (1, False, None)]
    delivery.outputs.clear()
    assert commit(pipeline) == {}
    assert not delivery.outputs
    pipeline.activate(tasks[0], Restored(start=0))
    pipeline.receive(record(0), 0.0)
    pipeline.finish([0])
    assert commit(pipeline) == {("t", 0): 1}


def test_a_partition_that_was_given_up_counts_for_nothing() -> None:
    delivery = Recording()
    pipeline = make_pipeline(delivery)
    pipeline.receive(record(0), 0.0)
    pipeline.drop(0)
    pipeline.receive(record(1), 0.0)
    pipeline.finish([0])
    assert not delivery.outputs
    assert ("t", 0) not in commit(pipeline)


def test_a_label_topic_that_is_gone_gets_no_offset_but_outputs_never_go_without_their_input_s() -> None:
    pipeline = make_pipeline(Recording(), feedback="f")
    pipeline.receive(record(0), 0.0)
    pipeline.finish([0])
    pipeline.receive_label(Record("f", 0, 0, None, None, b"{", []), lambda *_: True)
    assert [(found.topic, found.offset) for found in pipeline.stage(TopicsSeen({}, {}))] == [("t", 1)]
    assert commit(pipeline) == {("t", 0): 1, ("f", 0): 1}


# --- what is refused


@pytest.mark.parametrize("refused", [True, False])
def test_an_output_that_its_topic_does_not_take_becomes_a_dead_letter_in_its_place(refused: bool) -> None:
    delivery = Recording()
    pipeline = make_pipeline(delivery, batch_size=3)
    wide = json.dumps({"x": 1, "y": 2, "note": "n" * 2000}).encode()
    if refused:
        delivery.refuse("t-scores", 1, times=1)
    else:
        delivery.limits["t-scores"] = 2000
    for offset in range(3):
        pipeline.receive(record(offset, key=b"k", value=wide if offset == 1 else b""), 0.0)
    assert [(output.topic, output.source.offset) for output in delivery.outputs if output.source] == [
        ("t-scores", 0),
        ("t-dead-letters", 1),
        ("t-scores", 2),
    ]
    (letter,) = delivery.to("t-dead-letters")
    assert (letter.key, letter.value) == (b"k", wide)
    assert delivery.reasons() == [(1, "output_refused")]
    assert commit(pipeline)["t", 0] == 3


@pytest.mark.parametrize("value", [b"", b"{bad"])
def test_a_timestamp_that_is_refused_is_left_out(value: bytes) -> None:
    topic = "t-dead-letters" if value else "t-scores"
    delivery = Recording()
    pipeline = make_pipeline(delivery)
    delivery.refuse(topic, 1, times=1, code=KafkaError.INVALID_TIMESTAMP)
    for offset in range(2):
        pipeline.receive(record(offset, value=value), 0.0)
    assert [output.timestamp for output in delivery.to(topic)] == [1_700_000_000_000, 0]
    assert not any("fomo-truncated-from" in dict(output.headers) for output in delivery.outputs)


def test_a_dead_letter_that_is_refused_is_cut_and_in_the_end_a_matter_for_people() -> None:
    delivery = Recording()
    pipeline = make_pipeline(delivery)
    value = b"{" + b"x" * (1 << 20)
    for times, size in ((0, len(value)), (1, 512 << 10), (2, 0)):
        delivery.refuse("t-dead-letters", times, times=times)
        pipeline.receive(record(times, value=value), 0.0)
        pipeline.finish([0])
        letter = delivery.outputs[-1]
        assert len(letter.value or b"") == size
        assert dict(letter.headers).get("fomo-truncated-from") == (str(len(value)).encode() if times else None)
    delivery.refuse("t-dead-letters", 3, times=3)
    pipeline.receive(record(3, value=value), 0.0)
    with pytest.raises(BrokerError, match=r"refuses the dead letter of t\[0\]@3, even without its value"):
        pipeline.finish([0])


def test_a_dead_letter_is_cut_to_what_its_topic_is_known_to_take() -> None:
    delivery = Recording()
    pipeline = make_pipeline(delivery)
    delivery.limits["t-dead-letters"] = 600 << 10
    pipeline.receive(record(0, value=b"{" + b"x" * (1 << 20)), 0.0)
    pipeline.finish([0])
    assert [len(letter.value or b"") for letter in delivery.outputs] == [512 << 10]


# --- where outputs go


@pytest.mark.parametrize("topic", ["t-scores", "t-dead-letters"])
@pytest.mark.parametrize(
    ("count", "key", "expected"),
    [(8, None, 5), (8, b"k", 5), (3, None, 5 % 3), (3, b"k", -1), (20, None, 5), (None, None, -1)],
)
def test_records_without_a_key_keep_together_where_partition_counts_differ(
    topic: str, count: int | None, key: bytes | None, expected: int
) -> None:
    delivery = Recording()
    counts = {"t": 8} if count is None else {"t": 8, topic: count}
    pipeline = make_pipeline(delivery, partitions=counts)
    begin(pipeline, 5)
    pipeline.receive(record(0, partition=5, key=key, value=b"" if topic == "t-scores" else None), 0.0)
    pipeline.finish([5])
    (output,) = delivery.to(topic)
    assert output.partition == expected


# --- generations


def test_a_late_generation_stops_only_its_own_partition_and_nothing_is_lost() -> None:
    delivery, executor = Recording(), Held()
    pipeline = make_pipeline(delivery, executor)
    for offset in range(60):
        pipeline.receive(record(offset, partition=0), 0.0)
    assert executor.submitted == 1  # the first generation, of partition 0
    for offset in range(60):
        pipeline.receive(record(offset, partition=1), 0.0)
    pipeline.score_due(1e9)
    scored = [json.loads(output.value or b"")["fomo"] for output in delivery.outputs]
    assert [len([s for s in scored if s["partition"] == number]) for number in (0, 1)] == [20, 60]
    assert len(pipeline.tasks[0].batch) == 40
    assert executor.release is not None
    executor.release()
    pipeline.score_due(1e9)
    ours = [output for output in delivery.outputs if output.partition == 0]
    assert list(offsets(ours)) == list(range(60))
    assert json.loads(ours[20].value or b"")["fomo"]["generation"] == 1


@pytest.mark.parametrize("batch_size", [1, 64, 1000])
def test_no_micro_batch_waits_for_a_generation_that_it_brings_about(batch_size: int) -> None:
    class Never(Executor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            return Patient()

    delivery = Recording()
    pipeline = make_pipeline(delivery, Never(), batch_size=batch_size)
    for offset in range(1000):
        pipeline.receive(record(offset), 0.0)
    pipeline.score_due(1e9)
    assert len(delivery.outputs) == 20


def test_a_seed_context_is_encoded_once_for_all_partitions(tmp_path: Path) -> None:
    seed = tmp_path / "normal.jsonl"
    seed.write_bytes(b"\n".join(record(1000 + i).value or b"" for i in range(40)))
    delivery, executor = Recording(), AtOnce()
    pipeline = make_pipeline(delivery, executor, seed_context=seed)
    for partition in (0, 1):
        pipeline.receive(record(0, partition), 0.0)
    pipeline.finish([0, 1])
    first, second = (json.loads(output.value or b"")["fomo"] for output in delivery.outputs)
    assert first["score"] == second["score"] is not None
    assert executor.submitted == 1
    for offset in range(1, 40):  # what one partition learns is none of the other's business
        pipeline.receive(record(offset, 0), 0.0)
    pipeline.receive(record(1, 1), 0.0)
    pipeline.finish([0, 1])
    by_source = {
        (result["partition"], result["offset"]): result["score"]
        for result in (json.loads(output.value or b"")["fomo"] for output in delivery.outputs)
    }
    assert by_source[0, 1] == by_source[1, 1]


# --- the schema


def test_records_with_too_many_numbers_are_dead_letters_and_later_ones_make_the_schema() -> None:
    delivery = Recording()
    pipeline = make_pipeline(delivery, known=False)
    wide = json.dumps({f"f{i}": random.random() for i in range(1001)}).encode()
    for offset in range(30):
        pipeline.receive(record(offset, value=wide), 0.0)
    assert pipeline.infer() is None
    reasons = {dict(output.headers)["fomo-reason"] for output in delivery.to("t-dead-letters")}
    assert reasons == {b"too_many_features"}
    assert len(delivery.outputs) == 30
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
        pipeline.begin(Schema(tuple(f"f{i:03}" for i in range(60))))
    assert "f049,... count=60" in caplog.text
    assert "f050" not in caplog.text


# --- categories, missing values, and the past


def results(delivery: Recording) -> list[dict[str, Any]]:
    return [json.loads(output.value or b"")["fomo"] for output in delivery.to("t-scores")]


def config_of(pipeline: Pipeline) -> DetectorConfig:
    detector = pipeline.tasks[0].detector
    assert detector is not None
    return detector.config


def as_record(offset: int, fields: dict[str, Any], partition: int = 0, key: bytes | None = None) -> Record:
    return record(offset, partition, key, json.dumps(fields).encode())


@pytest.mark.parametrize("batch_size", [1, 7])
def test_each_key_of_a_partition_has_its_own_past(batch_size: int) -> None:
    rng = np.random.default_rng(0)
    delivery = Recording()
    pipeline = make_pipeline(delivery, batch_size=batch_size, lags=2)
    values, keys = rng.normal(size=(50, 2)), random.Random(0).choices([b"p", b"q", None], k=50)
    for offset, ((x, y), key) in enumerate(zip(values.tolist(), keys, strict=True)):
        pipeline.receive(as_record(offset, {"x": x, "y": y}, key=key), 0.0)
        pipeline.receive(as_record(offset, {"x": y, "y": x}, partition=1, key=key), 0.0)
    pipeline.finish([0, 1])
    for partition, rows in ((0, values), (1, values[:, ::-1])):
        with_past = PastValues(2, 2).rows(rows, keys)
        expected = Detector(cheap_model(), 6, config_of(pipeline)).process(with_past)
        found = [result["logit"] for result in results(delivery) if result["partition"] == partition]
        np.testing.assert_array_equal(np.array(found, dtype=float), expected.logit)


def test_a_seed_context_has_its_past_too(tmp_path: Path) -> None:
    seed = tmp_path / "normal.jsonl"
    seed.write_bytes(b"\n".join(record(1000 + i).value or b"" for i in range(40)))
    delivery = Recording()
    pipeline = make_pipeline(delivery, seed_context=seed, lags=1)
    pipeline.receive(record(0), 0.0)
    pipeline.finish([0])
    detector = Detector(cheap_model(), 4, config_of(pipeline))
    detector.seed_context(PastValues(1, 2).rows(read_rows(seed, Schema(("x", "y")))))
    first = decode(record(0).value)
    expected = detector.process(np.array([[first["x"], first["y"], np.nan, np.nan]])).logit
    assert results(delivery)[0]["logit"] == expected[0]


def test_missing_values_are_counted_in_the_output_and_in_the_progress() -> None:
    delivery = Recording()
    pipeline = make_pipeline(delivery, batch_size=4, lags=3)
    lacking: list[dict[str, Any]] = [{"x": 1, "y": 2}, {"x": 1}, {"x": None, "y": 2}, {"z": 1}]
    for offset, fields in enumerate(lacking):
        pipeline.receive(as_record(offset, fields), 0.0)
    assert [result["missing"] for result in results(delivery)] == [0, 1, 1]
    assert pipeline.progress.missing == 2
    assert dict(delivery.to("t-dead-letters")[0].headers)["fomo-reason"] == b"no_features"


def test_a_category_that_was_never_seen_is_an_outlier() -> None:
    rng = random.Random(0)
    delivery = Recording()
    changes: dict[str, Any] = {"categorical": ("site",), "min_context": 100, "context_size": 100, "batch_size": 50}
    pipeline = make_pipeline(delivery, known=False, model=shared_model(), **changes)
    for offset in range(400):
        site = "mars" if offset in (350, 370) else rng.choice(["north", "south", "east"])
        pipeline.receive(as_record(offset, {"x": rng.gauss(0, 1), "site": site}), 0.0)
        if pipeline.schema is None and offset == 99:
            schema = pipeline.infer()
            assert schema == Schema(("site", "x"), frozenset({"site"}))
            pipeline.begin(schema)
    pipeline.finish([0])
    flagged = {result["offset"] for result in results(delivery) if result["outlier"]}
    assert {350, 370} <= flagged
    assert len(flagged) < 20


def test_rows_that_become_too_wide_by_their_past_are_refused() -> None:
    pipeline = make_pipeline(Recording(), known=False, model=shared_model(), lags=10)
    pipeline.check(Schema(tuple(f"f{i}" for i in range(90))))
    with pytest.raises(SchemaError, match="make 1001 columns, at most 1000"):
        pipeline.check(Schema(tuple(f"f{i}" for i in range(91))))
