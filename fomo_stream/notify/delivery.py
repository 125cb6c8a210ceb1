"""The queue of each target, when it is tried again, and what is held back: a pure core.

Each target has its messages one after the other, in the order in which they were added. A message that cannot be sent
now waits, and all behind it. One that the target refuses for good is given up, and so is the oldest one where too many
wait. Times are seconds of a clock that never goes back.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from fomo_stream.notify.messages import Message, held_message

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0  # before another try, without the target's own wish
LONGEST_WISH_S = 3600.0  # of a target, by Retry-After
MOST_WAITING = 500  # messages of a target that takes them; at more nothing is read
FEW_WAITING = 250  # then reading goes on
MOST_KEPT = 5000  # messages of a target that is down while others are not; at more the oldest are given up
HOUR_S = 3600.0
LISTED = 20  # messages that were held back and are named


class Answer(NamedTuple):
    """What a target said. why: without secrets. after: seconds until it wants to be asked again; 0: it did not say."""

    kind: Literal["sent", "again", "refused"]
    why: str = ""
    after: float = 0.0


@dataclass(slots=True)
class Job:
    """A message that waits. places: by partition, the offset of the first record that waits for it."""

    message: Message
    places: dict[int, int]
    since: float


@dataclass(slots=True)
class _Held:
    """Messages that are held back until a time, when one message tells of them."""

    due: float
    counts: Counter[str] = field(default_factory=Counter)  # by kind, and of those that are critical
    first: list[Message] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)


class Outbox:
    """The messages of one target. per_hour: of them, at most; 0: any number. random: returns numbers from 0 to 1."""

    def __init__(self, per_hour: int, random: Callable[[], float], link: str | None = None) -> None:
        self._per_hour, self._random, self._link = per_hour, random, link
        self._jobs: deque[Job] = deque()
        self._added: deque[float] = deque(maxlen=per_hour or 1)  # when the last ones came
        self._held: _Held | None = None
        self._tries, self._not_before = 0, float("-inf")  # of the target, whichever message comes first
        self.sent = self.refused = self.retried = 0
        self.trouble = ""  # why the last try failed; empty: it did not

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def held(self) -> int:
        """Messages that are held back."""
        return 0 if self._held is None else self._held.counts["opened"] + self._held.counts["closed"]

    def add(self, message: Message, partition: int, offset: int, now: float) -> Message | None:
        """A message about a record, after those before it. Returns the oldest one if it is given up."""
        is_much = self._per_hour and len(self._added) == self._per_hour and now < self._added[0] + HOUR_S
        if self._held is None and not is_much:
            return self._queue(Job(message, {partition: offset}, now))
        held = self._held = self._held or _Held(self._added[0] + HOUR_S)
        held.counts.update((message.kind, message.severity))
        held.places.setdefault(partition, offset)
        if len(held.first) < LISTED:
            held.first.append(message)
        return None

    def flush(self, now: float) -> None:
        """Tell now of what is held back."""
        if self._held is not None:
            held, self._held = self._held, None
            self._queue(Job(held_message(held.counts, held.first, self._link), held.places, now))

    def next(self, now: float) -> Job | None:
        """The message to send now, if there is one. It stays the first until it is answered."""
        if self._held is not None and self._held.due <= now:
            self.flush(now)
        return self._jobs[0] if self._jobs and self._not_before <= now else None

    def answered(self, job: Job, answer: Answer, now: float) -> None:
        """The answer to the message that `next` gave."""
        if answer.kind == "again":
            self.retried += 1
            self.trouble = answer.why
            wait = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(self._tries, 10)) * (0.5 + self._random() / 2)
            self._tries, self._not_before = self._tries + 1, now + max(wait, min(answer.after, LONGEST_WISH_S))
            return
        self.trouble, self._tries, self._not_before = "", 0, float("-inf")
        self.sent += answer.kind == "sent"
        self.refused += answer.kind == "refused"
        if self._jobs and self._jobs[0] is job:
            self._jobs.popleft()

    @property
    def due(self) -> float:
        """When `next` has something to do; infinity: when a message is added."""
        held = float("inf") if self._held is None else self._held.due
        return min(held, self._not_before) if self._jobs else held

    def oldest(self, now: float) -> float:
        """Seconds that the first message has waited."""
        return now - self._jobs[0].since if self._jobs else 0.0

    def first_waiting(self) -> dict[int, int]:
        """By partition, the first record that a message about is not answered; it may not be committed yet."""
        found = {} if self._held is None else dict(self._held.places)
        for job in self._jobs:
            for partition, offset in job.places.items():
                found[partition] = min(offset, found.get(partition, offset))
        return found

    def forget(self, partition: int) -> None:
        """A partition was taken away: others tell of it."""
        for job in self._jobs:
            job.places.pop(partition, None)
        self._jobs = deque(job for job in self._jobs if job.places)
        if self._held is not None and self._held.places.pop(partition, None) is not None and not self._held.places:
            self._held = None

    def _queue(self, job: Job) -> Message | None:
        self._jobs.append(job)
        self._added.append(job.since)
        if len(self._jobs) <= MOST_KEPT:
            return None
        self.refused += 1
        return self._jobs.popleft().message
