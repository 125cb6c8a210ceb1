"""What a record goes through: what it becomes, which offset is committed with it, where it goes, who waits for whom."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import AtOnce, Patient, Recording, begin, commit, make_pipeline, record, sources

from fomo_stream.detector.views import DEFAULT
from fomo_stream.errors import BrokerError
from fomo_stream.kafka.background import MAX_REORDERED_TASKS, BackgroundExecutor
from fomo_stream.kafka.observer import Observer
from fomo_stream.kafka.topics.watch import TopicsAnswer
from fomo_stream.partition.record import Headers, Record

# --- offsets


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
            assert found in ([{("t", 0): expected}] if expected > committed else [{}, {("t", 0): committed}])
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


def test_a_change_of_the_state_is_never_committed_without_an_offset() -> None:
    """A broker refuses a former owner of a partition only by its offset; labels may take effect where none moves."""
    delivery = Recording()
    pipeline = make_pipeline(delivery, feedback="f")
    for offset in range(30):
        pipeline.receive(record(offset), 0.0)
    pipeline.finish([0])
    commit(pipeline)
    before = len(delivery.outputs)
    for at, about in enumerate((40, 20)):  # the first is about a record that has not come, so no label is finished
        value = json.dumps({"offset": about, "outlier": True}).encode()
        pipeline.receive_label(Record("f", 0, at, None, None, value, []), lambda *_: True)
    pipeline.score_due(0.0)
    found = commit(pipeline)
    assert len(delivery.outputs) > before
    assert found["t", 0] == 30


def test_a_label_topic_that_is_gone_gets_no_offset_but_outputs_never_go_without_their_input_s() -> None:
    pipeline = make_pipeline(Recording(), feedback="f")
    pipeline.receive(record(0), 0.0)
    pipeline.finish([0])
    pipeline.receive_label(Record("f", 0, 0, None, None, b"{", []), lambda *_: True)
    assert [(found.topic, found.offset) for found in pipeline.stage(TopicsAnswer({}, {}))] == [("t", 1)]
    assert commit(pipeline) == {("t", 0): 1, ("f", 0): 1}


@pytest.mark.parametrize("known", [True, False])
def test_tombstones_are_passed_over_if_that_is_wanted(known: bool) -> None:
    """Others get the same scores, and offsets go on; of labels a missing value stays a mistake."""
    sent: dict[str, list[tuple[str, bytes | None]]] = {}
    for tombstones in ("skip", "dead-letter"):
        delivery, observer = Recording(), Mock(Observer)
        flags: dict[str, Any] = {"feedback": "f", "key": "x" if known else None, "tombstones": tombstones}
        pipeline = make_pipeline(delivery, known=known, observer=observer, **flags)
        for offset in range(60):
            pipeline.receive(record(offset, key=b"k", value=None if offset % 6 == 5 or not known else b""), 0.0)
        assert known or pipeline.infer() is None
        pipeline.finish([0])
        assert commit(pipeline)["t", 0] == 60
        sent[tombstones] = [(one.topic, one.value) for one in delivery.to("t-scores")]
        missing = [(offset, "tombstone") for offset in (range(5, 60, 6) if known else range(60))]
        wanted = [] if tombstones == "skip" else missing
        assert delivery.reasons() == wanted
        counts = observer.tombstone.call_count, observer.dead_letter.call_count
        assert counts == (len(missing) - len(wanted), len(wanted))
        pipeline.receive_label(Record("f", 0, 0, None, b"k", None, []), lambda *_: True)
        assert delivery.reasons()[len(wanted) :] == [(0, "bad_feedback")]
    assert len(sent["skip"]) == (50 if known else 0)
    assert sent["skip"] == sent["dead-letter"]


def test_an_output_that_is_too_large_with_its_white_space_is_written_without() -> None:
    delivery = Recording()
    pipeline = make_pipeline(delivery, batch_size=1)
    delivery.limits["t-scores"] = 2000
    fields = {"x": 1, "y": 2}
    for offset, spaces in enumerate((10, 2000)):
        pipeline.receive(record(offset, value=b"{" + b" " * spaces + json.dumps(fields).encode()[1:]), 0.0)
    loose, tight = [output.value or b"" for output in delivery.to("t-scores")]
    assert (b" " in loose, b" " in tight) == (True, False)
    assert {name: json.loads(tight)[name] for name in fields} == fields


def test_headers_pass_through_but_the_number_of_attempts_stays_in_dead_letters() -> None:
    delivery = Recording()
    pipeline = make_pipeline(delivery)
    headers: Headers = [("traceparent", b"00-4bf9-00f0-01"), ("tracestate", b"a=1"), ("tracestate", b"b=2")]
    headers += [("baggage", None), ("fomo-attempts", b"2")]
    for offset, value in enumerate((b'{"x": 1.0}', b"{")):
        pipeline.receive(record(offset, value=value)._replace(headers=headers), 0.0)
    pipeline.finish([0])
    (scored,), (letter,) = delivery.to("t-scores"), delivery.to("t-dead-letters")
    assert (scored.headers, letter.headers[: len(headers)]) == (headers[:-1], headers)


# --- what is refused


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
    pipeline.receive(record(3, key=b"k" * 1000, value=value)._replace(headers=[("own", b"x")]), 0.0)
    pipeline.finish([0])
    letter = delivery.outputs[-1]
    assert (letter.value, len(letter.key or b"")) == (b"", 32)  # a digest
    assert "own" not in dict(letter.headers)
    assert dict(letter.headers)["fomo-source-offset"] == b"3"
    delivery.refuse("t-dead-letters", 4, times=4)
    pipeline.receive(record(4, value=value), 0.0)
    with pytest.raises(BrokerError, match=r"refuses the dead letter of t\[0\]@4, even without its value and its key"):
        pipeline.finish([0])


@pytest.mark.parametrize("code", [KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD])
def test_an_output_that_may_be_refused_for_its_time_is_first_sent_with_another(code: int) -> None:
    delivery = Recording()
    pipeline = make_pipeline(delivery)
    for offset, topic in enumerate(("t-scores", "t-dead-letters", "t-scores", "")):
        delivery.refuse(topic, offset, times=1 + (offset == 2), code=code)
        pipeline.receive(record(offset, value=b"{" if topic == "t-dead-letters" else b""), 0.0)
    pipeline.finish([0])
    sent = [(one.topic, one.timestamp) for one in delivery.outputs]
    assert (*sent[:2], sent[-1]) == (("t-scores", 0), ("t-dead-letters", 0), ("t-scores", 1_700_000_000_000))
    assert delivery.outputs[1].value == b"{"  # not cut
    assert delivery.reasons()[-1] == (2, "output_refused")


# --- where outputs go


@pytest.mark.parametrize(
    ("count", "key", "expected"),
    [(8, None, 5), (8, b"k", 5), (3, None, 5 % 3), (3, b"k", -1), (20, None, 5), (None, None, -1)],
)
def test_records_without_a_key_keep_together_where_partition_counts_differ(
    count: int | None, key: bytes | None, expected: int
) -> None:
    delivery, topics = Recording(), ("t-scores", "t-dead-letters")
    counts = {"t": 8} if count is None else {"t": 8, **dict.fromkeys(topics, count)}
    pipeline = make_pipeline(delivery, partitions=counts)
    begin(pipeline, 5)
    for offset, value in enumerate((b"", None)):
        pipeline.receive(record(offset, partition=5, key=key, value=value), 0.0)
    pipeline.finish([5])
    assert [(one.topic, one.partition) for one in delivery.outputs] == [(topic, expected) for topic in topics]


# --- generations


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
    assert first["logit"] == second["logit"] is not None
    assert executor.submitted == len(DEFAULT) - 1  # nothing is known of keys


# --- tasks in the background


class Task:
    """As a `Build`."""

    def __init__(self, make: Callable[[], object], needed_at: int) -> None:
        self.make, self.needed_at = make, needed_at

    def __call__(self) -> object:
        return self.make()


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, 5), max_size=20)
    | st.lists(st.integers(0, 5), min_size=MAX_REORDERED_TASKS, max_size=4 * MAX_REORDERED_TASKS)
)
def test_the_task_that_is_needed_soonest_runs_first_and_none_is_overtaken_for_ever(numbers: list[int]) -> None:
    done: list[int] = []
    with BackgroundExecutor("tasks") as thread:
        begin = threading.Event()
        thread.submit(begin.wait)
        for i, number in enumerate(numbers):
            thread.submit(Task(partial(done.append, i), number))
        begin.set()
    assert sorted(done) == list(range(len(numbers)))
    assert len(numbers) >= MAX_REORDERED_TASKS or done == sorted(done, key=lambda i: (-numbers[i], i))
    assert all(place < i + MAX_REORDERED_TASKS for place, i in enumerate(done))
