"""The effect of labels on the partition of their records, and when they are finished."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from label_effects import EffectRecorder, effects_in
from pipelines import Recording, commit, make_pipeline, record

from fomo_stream.detector.detector import Detector
from fomo_stream.kafka import guard
from fomo_stream.kafka.observer import Observer, Observers
from fomo_stream.kafka.pipeline import Pipeline
from fomo_stream.logs import Throttle
from fomo_stream.model.checkpoint import shared_model
from fomo_stream.ops.monitor import ProgressLog
from fomo_stream.partition.position import Restored
from fomo_stream.partition.record import Record
from fomo_stream.settings.service_settings import ServiceSettings

STATE = "fomo-stream-t-state"


def labelled(delivery: Recording, **changes: Any) -> Pipeline:
    of_it: Any = delivery
    recorder = EffectRecorder(ServiceSettings(topic="t"), lambda: of_it)
    observers = Observers([recorder, changes.pop("observer", Observer())])
    return make_pipeline(delivery, observer=observers, **{"feedback": "f", "batch_size": 32, **changes})


def exists(_partition: int, _offset: int) -> bool:
    return True


def label(pipeline: Pipeline, at: int, outlier: object, key: bytes | None = None, **about: object) -> None:
    """The pipeline reads a label at offset `at` of partition 0 of the feedback topic."""
    value = json.dumps({**about, "outlier": outlier}).encode()
    pipeline.receive_label(Record("f", 0, at, None, key, value, []), exists)


def score(pipeline: Pipeline, start: int, stop: int) -> None:
    for offset in range(start, stop):
        pipeline.receive(record(offset), 0.0)
    pipeline.finish([0])


def scored(delivery: Recording) -> dict[int, tuple[float, float]]:
    """Logit and p-value of every scored record, by its offset."""
    results = [json.loads(output.value or b"")["fomo"] for output in delivery.to("t-scores")]
    return {result["offset"]: (result["logit"], result["p_value"]) for result in results if result["score"] is not None}


def effects(delivery: Recording) -> list[dict[str, Any]]:
    return effects_in((output.key, output.value) for output in delivery.to(STATE))


# --- effects


def test_labels_before_the_schema_wait_for_it() -> None:
    delivery = Recording()
    pipeline = labelled(delivery, known=False)
    for offset in range(30):
        pipeline.receive(record(offset), 0.0)
    label(pipeline, 0, True, offset=3)
    pipeline.score_due(1e9)
    assert not delivery.outputs
    schema = pipeline.infer()
    assert schema is not None
    pipeline.begin(schema)
    score(pipeline, 30, 31)
    assert [entry["labels"] for entry in effects(delivery)] == [[[0, 3, True]]]


@pytest.mark.parametrize("count", [1, 5])
def test_a_label_that_raises_an_error_is_a_dead_letter_and_the_others_take_effect(
    count: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = Detector.feedback

    def feedback(self: Detector, numbers: Any, outlier: Any) -> int:
        changed = plain(self, numbers, outlier)
        if 7 in numbers:
            raise ZeroDivisionError("a fault")
        return changed

    monkeypatch.setattr(Detector, "feedback", feedback)
    monkeypatch.setattr(guard, "_throttle", Throttle())
    delivery = Recording()
    pipeline = labelled(delivery)
    score(pipeline, 0, 30)
    for at in range(count):
        label(pipeline, at, True, offset=7 - at)
    pipeline.score_due(0.0)
    tries = 0
    while pipeline.guard.has_failed:  # what a member does then
        assert not pipeline.partitions[0].is_active
        delivery.outputs.clear()
        for partition in pipeline.aborted({}):
            pipeline.activate(partition, Restored(0, committed=0))
        score(pipeline, 0, 30)
        for at in range(count):
            label(pipeline, at, True, offset=7 - at)
        pipeline.score_due(0.0)
        assert (tries := tries + 1) < 3
    assert delivery.reasons() == [(0, "bad_feedback")]
    heeded = sorted(one for effect in effects(delivery) for one in effect["labels"])
    assert heeded == [[at, 7 - at, True] for at in range(1, count)]
    assert commit(pipeline).items() >= {("t", 0): 30, ("f", 0): count}.items()
    assert "unexpected record=f[0]@0 error=ZeroDivisionError" in caplog.text


# --- lasting shifts


def test_a_lasting_shift_is_announced_once(caplog: pytest.LogCaptureFixture) -> None:
    delivery, progress = Recording(), ProgressLog()
    flags: dict[str, Any] = {"adapt_after": 64, "min_context": 50, "context_size": 100, "batch_size": 32}
    pipeline = make_pipeline(delivery, model=shared_model(), observer=progress, **flags)
    for offset in range(1800):
        shift = 0 if offset < 1200 else 30
        rng = random.Random(offset)
        value = json.dumps({"x": shift + rng.gauss(0, 1), "y": shift + rng.gauss(5, 2)}).encode()
        pipeline.receive(record(offset, value=value), 0.0)
    pipeline.finish([0])
    assert len(delivery.to("t-scores")) == 1800
    (offset,) = map(int, re.findall(r"regime topic=t partition=0 offset=(\d+) reason=", caplog.text))
    assert 1200 + 64 <= offset < 1800
    assert caplog.text.count("regime topic=") == progress.counts["regimes"] == 1
