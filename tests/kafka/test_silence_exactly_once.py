"""Silence exactly once: whatever happens to commits and instances, each is told once, and so is its end."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from typing import Any
from unittest.mock import patch

import memory_service
import pytest
from hypothesis import settings
from hypothesis.stateful import initialize, invariant
from memory_service import NUMBERS, SETTINGS
from test_exactly_once import ExactlyOnceMachine, Moment

from fomo_stream.kafka.topics.watch import InputEnd

WATCHED = type(SETTINGS)(
    **{name: getattr(SETTINGS, name) for name in SETTINGS.model_fields_set}, silence=2.0, silence_min="10s"
)
TEACHING, STEP_S = 30, 6.0  # records of each key, and the time between them


class SilenceMachine(ExactlyOnceMachine):
    """The same, with a clock that is set here. Keys p and q send every few seconds, until they do not."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0
        patches: list[Any] = [
            patch.object(memory_service, "SETTINGS", WATCHED),
            patch.object(time, "time", lambda: self.now),
        ]
        for one in patches:
            one.start()
        super().__init__()
        for one in patches:
            self._stack.callback(one.stop)

    @initialize()
    def deal(self) -> None:
        super().deal()
        for _ in range(TEACHING):
            self.all_goes_well(["p", "q"])

    def all_goes_well(self, keys: list[str]) -> None:
        self.now += STEP_S
        for number in NUMBERS:
            for key in keys:
                value = json.dumps({"x": self.now % 7, "y": 5.0}).encode()
                self.broker.append(("t", number), key.encode(), value)
            for name in {self.owner[number]}:
                self.instances[name].read(number, 1000, 1000)
                self.instances[name].score(is_due=True, is_built=True)
                self._turn(name)

    def it_goes_on(self, moment: Moment) -> None:
        self.now += (1.0, STEP_S, 40.0, 4000.0)[moment.seed % 4]
        super().it_goes_on(moment)

    def _turn(self, name: str, trouble: str = "") -> None:
        readable = {number: self.broker.ends["t", number] for number in NUMBERS}
        self.broker.input_end = InputEnd(round(self.now * 1000), readable, len(readable), sum(readable.values()))
        super()._turn(name, trouble)

    def said(self) -> dict[tuple[str, ...], list[str]]:
        """What was told of each key, partition and topic, in order."""
        told: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for number in NUMBERS:
            for notice in self.topics.silence(number):
                told[str(number), notice["of"], notice.get("key", "")].append(notice["status"])
        return told

    @invariant()
    def every_silence_is_told_once_and_so_is_its_end(self) -> None:
        for statuses in self.said().values():
            assert statuses == ["silent", "closed"] * (len(statuses) // 2) + ["silent"] * (len(statuses) % 2)

    def teardown(self) -> None:
        try:
            if self.owner:
                self._drain()
                for keys, last in ((["p", "q"], "closed"), (["p"], "silent"), (["p", "q"], "closed")):
                    for _ in range(3 * TEACHING):
                        self.all_goes_well(keys)
                    for number in NUMBERS:
                        assert self.said()[str(number), "key", "q"][-1:] in ([last], [])
                        assert last == "closed" or self.said()[str(number), "key", "q"]
                self.every_silence_is_told_once_and_so_is_its_end()
        finally:
            self._stack.close()


TestSilence = pytest.mark.slow(SilenceMachine.TestCase)
TestSilence.settings = settings(stateful_step_count=15, max_examples=6)


@pytest.mark.slow
def test_an_aborted_notice_is_told_again() -> None:
    machine = SilenceMachine()
    machine.deal()
    quiet: dict[str, Any] = {"labels": [], "records_read": 0, "labels_read": 0, "is_due": True, "is_built": True}
    for _ in range(TEACHING):
        machine.all_goes_well(["p"])
        if machine.broker.ends["t", 0] % 2:
            machine.it_goes_on(Moment(0, kinds=[], seed=0, again=0, then="abortable", **quiet))
    assert machine.said()["0", "key", "q"] == ["silent"]
    machine.teardown()
