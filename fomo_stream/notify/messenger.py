"""Desk, queues and targets together, with a thread for each target."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple

from fomo_stream.logs import Throttle, kv, place_of
from fomo_stream.notify.delivery import FEW_WAITING, MOST_WAITING, Answer, Job, Ledger, Outbox
from fomo_stream.notify.desk import Desk, Due, Open, Place
from fomo_stream.notify.events import Event
from fomo_stream.notify.targets import REFRESH_S, Target
from fomo_stream.settings.notify import MessageFlags

log = logging.getLogger(__name__)

IDLE_S = 1.0  # a thread looks again after so long, whatever happens


class Health(NamedTuple):
    """One target, for metrics. oldest_s: how long the first message has waited."""

    name: str
    sent: int
    refused: int
    retried: int
    waiting: int
    oldest_s: float
    trouble: str


class Messenger:
    """Takes events, and sends the messages that follow from them. It is used within `with`, by one thread.

    Nothing here waits for a target: see `is_full`, and `finish`.
    """

    def __init__(self, settings: MessageFlags, targets: Sequence[Target]) -> None:
        has_people = any(target.audience == "people" for target in targets)
        self.desk = Desk(settings.update_every, settings.throttle, settings.group_above, has_people)
        self.ledger = Ledger()
        self.skipped: Counter[str] = Counter()  # records that say nothing of an incident, by reason
        self._boxes = [(target, Outbox(random.random)) for target in targets]
        self._changed = threading.Condition()  # held by whoever uses desk, ledger and boxes
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
            place = self.ledger.read(partition, offset)
            if event is not None:
                self._add(self.desk.take(event, place, time.monotonic()))

    def recall(self, event: Event, partition: int, offset: int) -> None:
        """A record that was told before."""
        with self._changed:
            self.desk.recall(event, Place(partition, offset), time.monotonic())  # which is not waited for

    def turn(self) -> None:
        """Send what is due by the clock."""
        with self._changed:
            self._add(self.desk.due(time.monotonic()))

    def start(self, partition: int, offset: int) -> None:
        """A partition begins with this offset."""
        with self._changed:
            self.ledger.start(partition, offset)

    def forget(self, partition: int) -> None:
        """A partition was taken away: others tell of what is not told yet."""
        with self._changed:
            self.ledger.forget(partition)
            self.desk.forget(partition)

    def committable(self) -> dict[int, int]:
        """By partition, the offset before which every message was answered."""
        with self._changed:
            return self.ledger.committable()

    def finish(self, seconds: float) -> bool:
        """Send what is held back, and wait for all answers; False if they did not come in time."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self._add(self.desk.flush(time.monotonic()))
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
                Health(target.name, box.sent, box.refused, box.retried, len(box), box.oldest(now), box.trouble)
                for target, box in self._boxes
            ]

    def _add(self, notices: Sequence[Due]) -> None:
        now = time.monotonic()
        for notice in notices:
            for target, box in self._boxes:
                if target.audience == notice.audience:
                    lost = box.add(notice.message, notice.places, now)
                    if lost is not None and (suppressed := self._throttle.allow(f"{target.name} behind")) is not None:
                        about = kv("message_given_up", target=target.name, message=lost.id, suppressed=suppressed)
                        log.error(about)
        if notices:
            self._changed.notify_all()

    # -- the thread of a target ------------------------------------------------------------------------------

    def _work(self, target: Target, box: Outbox) -> None:
        refresh_at = time.monotonic() + REFRESH_S
        while True:
            with self._changed:
                if self._stopped:
                    return
                now = time.monotonic()
                is_due = now >= refresh_at
                incidents = list(self.desk.open.values()) if is_due else []
                job = None if is_due else box.next(now)
                if not is_due and job is None:
                    self._changed.wait(max(0.0, min(IDLE_S, box.due - now, refresh_at - now)))
                    continue
            if job is None:
                answer = self._refresh(target, incidents)
                if answer is not None and answer.kind != "sent":
                    self._note("refresh", target, answer, "")
                refresh_at = time.monotonic() + REFRESH_S
                continue
            answer = self._send(target, job)
            if answer.kind != "sent":
                self._note(answer.kind, target, answer, job.message.id)
            with self._changed:
                had_trouble = box.trouble
                box.answered(job, answer, time.monotonic())
                self._changed.notify_all()
            if had_trouble and answer.kind != "again":
                log.info(kv("target_reachable", target=target.name))

    def _refresh(self, target: Target, incidents: list[Open]) -> Answer | None:
        try:
            return target.refresh(incidents)
        except Exception as error:  # a defect of this program; messages must go on
            return Answer("again", f"{type(error).__name__} at {place_of(error)}")

    def _send(self, target: Target, job: Job) -> Answer:
        try:
            return target.send(job.message)
        except Exception as error:  # a defect of this program or of a template; other messages must go on
            log.error(kv("message_failed", message=job.message.id, error=type(error).__name__, at=place_of(error)))
            return Answer("refused", type(error).__name__)

    def _note(self, kind: str, target: Target, answer: Answer, message: str) -> None:
        if kind == "refused":
            log.error(kv("message_refused", target=target.name, message=message, reason=answer.why))
        elif (suppressed := self._throttle.allow(target.name)) is not None:
            log.warning(kv("target_trouble", target=target.name, reason=answer.why, suppressed=suppressed))
