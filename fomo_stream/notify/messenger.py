"""Policy, queues and targets together, with a thread for each target."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple

from fomo_stream.logs import Throttle, kv, place_of
from fomo_stream.notify.delivery import FEW_WAITING, MOST_WAITING, Answer, Job, Outbox
from fomo_stream.notify.events import Event
from fomo_stream.notify.messages import message_of
from fomo_stream.notify.policy import Policy
from fomo_stream.notify.targets import Target
from fomo_stream.settings.notify import NotifySettings

log = logging.getLogger(__name__)

IDLE_S = 1.0  # a thread looks again after so long, whatever happens


class Health(NamedTuple):
    """One target, for metrics. oldest_s: how long the first message has waited."""

    name: str
    sent: int
    refused: int
    retried: int
    waiting: int
    held: int
    oldest_s: float
    trouble: str


class Messenger:
    """Takes events, and sends the messages that follow from them. It is used within `with`, by one thread.

    Nothing here waits for a target: see `is_full`, and `finish`.
    """

    def __init__(self, settings: NotifySettings, targets: Sequence[Target]) -> None:
        self._link = settings.status_url
        self._policy = Policy()
        limits = [settings.per_hour if target.is_for_people else 0 for target in targets]
        boxes = [Outbox(limit, random.random, self._link) for limit in limits]
        self._boxes = list(zip(targets, boxes, strict=True))
        self._next: dict[int, int] = {}  # by partition, the offset of the next record to read
        self._changed = threading.Condition()  # held by whoever uses the boxes
        self._stopped = False
        self._was_full = False
        self._throttle = Throttle()
        self._threads = [
            threading.Thread(target=self._work, args=pair, name=f"fomo-notify-{number}", daemon=True)
            for number, pair in enumerate(self._boxes)
        ]

    def __enter__(self) -> Messenger:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, _type: type[BaseException] | None, _value: object, _traceback: TracebackType | None) -> None:
        """Threads that wait for an answer are left behind: they are daemons."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def take(self, event: Event | None, partition: int, offset: int) -> None:
        """A record that was read next in its partition, and what it says; None: nothing of an incident."""
        with self._changed:
            self._next[partition] = offset + 1
            kind = None if event is None else self._policy.take(event)
            if event is None or kind is None:
                return
            message, now = message_of(kind, event, self._link), time.monotonic()
            for target, box in self._boxes:
                lost = box.add(message, partition, offset, now)
                if lost is not None and (suppressed := self._throttle.allow(f"{target.name} behind")) is not None:
                    log.error(kv("message_given_up", target=target.name, message=lost.id, suppressed=suppressed))
            self._changed.notify_all()

    def start(self, partition: int, offset: int) -> None:
        """A partition begins with this offset."""
        with self._changed:
            self._next[partition] = offset

    def forget(self, partition: int) -> None:
        """A partition was taken away: others tell of what is not told yet."""
        with self._changed:
            self._next.pop(partition, None)
            self._policy.begin_again()
            for _, box in self._boxes:
                box.forget(partition)

    def committable(self) -> dict[int, int]:
        """By partition, the offset before which every message was answered."""
        with self._changed:
            waiting = [box.first_waiting() for _, box in self._boxes]
            return {
                number: min([end, *(one.get(number, end) for one in waiting)]) for number, end in self._next.items()
            }

    def finish(self, seconds: float) -> bool:
        """Send what is held back, and wait for all answers; False if they did not come in time."""
        deadline = time.monotonic() + seconds
        with self._changed:
            for _, box in self._boxes:
                box.flush(time.monotonic())
            self._changed.notify_all()
            while any(len(box) for _, box in self._boxes):
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, IDLE_S))
            return True

    @property
    def is_full(self) -> bool:
        """Whether so many messages wait that nothing more should be read; then until few are left.

        For a target that is down this holds only while all are: else it would keep the others from their messages.
        """
        with self._changed:
            most = FEW_WAITING if self._was_full else MOST_WAITING
            full = [box for _, box in self._boxes if len(box) > most]
            waits_for = [box for box in full if not box.trouble] or all(box.trouble for _, box in self._boxes)
            self._was_full = bool(full and waits_for)
            return self._was_full

    def health(self) -> list[Health]:
        """The state of each target."""
        now = time.monotonic()
        with self._changed:
            return [
                Health(one.name, box.sent, box.refused, box.retried, len(box), box.held, box.oldest(now), box.trouble)
                for one, box in self._boxes
            ]

    # -- the thread of a target ------------------------------------------------------------------------------

    def _work(self, target: Target, box: Outbox) -> None:
        while True:
            with self._changed:
                if self._stopped:
                    return
                now = time.monotonic()
                job = box.next(now)
                if job is None:
                    self._changed.wait(max(0.0, min(IDLE_S, box.due - now)))
                    continue
            answer = self._send(target, job)
            with self._changed:
                had_trouble = box.trouble
                box.answered(job, answer, time.monotonic())
                self._changed.notify_all()
            if had_trouble and answer.kind != "again":
                log.info(kv("target_reachable", target=target.name))

    def _send(self, target: Target, job: Job) -> Answer:
        try:
            answer = target.send(job.message)
        except Exception as error:  # a defect of this program; other messages must go on
            log.error(kv("message_failed", message=job.message.id, error=type(error).__name__, at=place_of(error)))
            answer = Answer("refused", type(error).__name__)
        if answer.kind == "refused":
            log.error(kv("message_refused", target=target.name, message=job.message.id, reason=answer.why))
        elif answer.kind == "again" and (suppressed := self._throttle.allow(target.name)) is not None:
            log.warning(kv("target_trouble", target=target.name, reason=answer.why, suppressed=suppressed))
        return answer
