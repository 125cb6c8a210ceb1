"""The last guard: what raises an error that nobody expected costs one record, and the others go on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from memory_service import exploding
from pipelines import Recording, make_pipeline, record

from fomo_stream.errors import StateError
from fomo_stream.kafka import guard, pipeline
from fomo_stream.kafka.observer import Observer, Observers
from fomo_stream.kafka.pipeline import Pipeline
from fomo_stream.kafka.topics.watch import TopicsAnswer
from fomo_stream.logs import Throttle
from fomo_stream.ops.monitor import ProgressLog
from fomo_stream.partition.partition import Waiting
from fomo_stream.partition.position import Restored
from fomo_stream.partition.running import Running
from fomo_stream.records.inference import infer_from_records
from fomo_stream.records.json_codec import JsonCodec


@pytest.fixture(autouse=True)
def fresh_throttle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_throttle", Throttle())


def value(offset: int, note: str = "") -> bytes:
    return json.dumps({"x": offset % 7, "y": offset % 3, "note": note}).encode()


def run(made: Pipeline, delivery: Recording, notes: dict[int, str], count: int) -> int:
    """Score `count` records as a member does; returns how often all was undone."""
    undone = 0
    while True:
        for offset in range(count):
            made.receive(record(offset, value=value(offset, notes.get(offset, ""))), 0.0)
        made.finish([0])
        if not made.guard.has_failed:
            return undone
        assert not made.partitions[0].is_active  # nothing more of it is scored, or committed
        undone += 1
        delivery.outputs.clear()
        for partition in made.aborted({}):
            made.activate(partition, Restored(0, committed=0))


@pytest.mark.parametrize("odd", [(0, 39), (10, 11, 30)])
def test_records_that_raise_an_error_are_dead_letters_and_all_others_are_scored(
    odd: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    delivery = Recording()
    monkeypatch.setattr(Running, "score", exploding(Running.score))
    made = make_pipeline(delivery, batch_size=16)
    assert run(made, delivery, dict.fromkeys(odd, "explode"), 40) <= 2 * len(odd)
    assert delivery.reasons() == [(offset, "unexpected") for offset in odd]
    results = [json.loads(one.value or b"")["fomo"] for one in delivery.to("t-scores")]
    assert [one["offset"] for one in results] == [offset for offset in range(40) if offset not in odd]
    (letter, *_) = delivery.to("t-dead-letters")
    text = dict(letter.headers)["fomo-error"] or b""
    assert text.startswith(b"ZeroDivisionError at memory_service.py:")
    assert f"unexpected record=t[0]@{odd[0]} error=ZeroDivisionError" in caplog.text
    assert "a fault of fomo-stream: please report it" in caplog.text
    assert "Traceback" not in caplog.text
    made.committed(made.stage(TopicsAnswer({}, {})), 0.0, 0.0, 0.0)
    assert made.guard.max_together(("t", 0), 1) is None  # what was found is forgotten


@pytest.mark.parametrize("step", ["decode", "encode"])
def test_a_record_that_cannot_be_read_or_written_for_any_reason_is_a_dead_letter(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = getattr(JsonCodec, step)

    def fails(self: JsonCodec, its: Any, *given: Any) -> Any:
        if "odd" in str(its):
            raise OverflowError("a fault")
        return usual(self, its, *given)

    monkeypatch.setattr(JsonCodec, step, fails)
    delivery = Recording()
    assert run(make_pipeline(delivery), delivery, {7: "odd"}, 12) == 0
    assert delivery.reasons() == [(7, "unexpected")]
    assert len(delivery.to("t-scores")) == 11


def test_records_of_which_nothing_can_be_inferred_do_not_stop_the_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(settings: Any, sample: Any, *given: Any) -> Any:
        if any(fields.get("note") == "odd" for fields in sample):
            raise OverflowError("a fault")
        return infer_from_records(settings, sample, *given)

    monkeypatch.setattr(pipeline, "infer_from_records", fails)
    delivery = Recording()
    made = make_pipeline(delivery, known=False)
    for offset in range(40):
        made.receive(record(offset, value=value(offset, "odd" if offset in (3, 20) else "")), 0.0)
    assert made.infer() is None
    schema = made.infer()
    assert schema is not None
    made.begin(schema)
    made.finish([0])
    assert delivery.reasons() == [(3, "unexpected"), (20, "unexpected")]
    assert len(delivery.to("t-scores")) == 38


def test_an_observer_that_fails_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(Observer):
        def scored(self, _seen: Any) -> None:
            raise ZeroDivisionError("a fault")

    progress, delivery = ProgressLog(), Recording()
    assert run(make_pipeline(delivery, observer=Observers([Odd(), progress])), delivery, {}, 12) == 0
    assert delivery.reasons() == []
    assert progress.counts["records"] == 12


def test_state_that_raises_any_error_is_damaged_state(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_given: Any) -> None:
        raise ZeroDivisionError("a fault")

    made = make_pipeline(Recording())
    monkeypatch.setattr(Waiting, "restore", fails)
    with pytest.raises(StateError, match=r"state\[0\]: ZeroDivisionError at test_guard.py:\d+.*--reset-state"):
        made.activate(made.add(0, {}), Restored(0))
