"""The queue of each target, when it is tried again, and the offsets that may be committed: a pure core.

Each target has its messages one after the other, in the order in which they were added. A message that cannot be sent
now waits, and all behind it. One that the target refuses for good is given up, and so is the oldest one where too many
wait. An offset may be committed when no message about the records before it waits for any target. Times are seconds of
a clock that never goes back.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fomo_stream.notify.desk import Message, Place

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0  # before another try, without the target's own wish
LONGEST_WISH_S = 3600.0  # of a target, by Retry-After
MOST_WAITING = 500  # messages of a target that takes them; at more nothing is read
FEW_WAITING = 250  # then reading goes on
MOST_KEPT = 5000  # messages of a target that is down while others are not; at more the oldest are given up


class Answer(NamedTuple):
    """What a target said. why: without secrets. after: seconds until it wants to be asked again; 0: it did not say."""

    kind: Literal["sent", "again", "refused"]
    why: str = ""
    after: float = 0.0


@dataclass(slots=True)
class Job:
    """A message for one target."""

    message: Message
    places: tuple[Place, ...]
    since: float


class Ledger:
    """The records of each partition in their order, and how far they are done."""

    def __init__(self) -> None:
        self._places: defaultdict[int, list[Place]] = defaultdict(list)
        self._next: dict[int, int] = {}  # offset of the next record to read

    def read(self, partition: int, offset: int) -> Place:
        """The next record of a partition; those before it were read before."""
        place = Place(partition, offset)
        self._places[partition].append(place)
        self._next[partition] = offset + 1
        return place

    def start(self, partition: int, offset: int) -> None:
        """A partition was given to this instance, which begins with this offset."""
        self._next[partition] = offset

    def committable(self) -> dict[int, int]:
        """By partition, the offset before which all is done."""
        found = {}
        for partition, offset in self._next.items():
            self._places[partition] = places = [one for one in self._places[partition] if one.unanswered]
            found[partition] = places[0].offset if places else offset
        return found

    def forget(self, partition: int) -> None:
        """A partition was taken away: nothing of it is waited for."""
        for place in self._places.pop(partition, ()):
            place.is_forgotten = True
        self._next.pop(partition, None)


class Outbox:
    """The messages of one target. random: returns numbers from 0 to 1."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._jobs: deque[Job] = deque()
        self._tries, self._not_before = 0, float("-inf")  # of the target, whichever message comes first
        self.sent = self.refused = self.retried = 0
        self.trouble = ""  # why the last try failed; empty: it did not

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, message: Message, places: Sequence[Place], now: float) -> Message | None:
        """A message to send after those before it. Returns the oldest one where there are too many: it is given up."""
        for place in places:
            place.unanswered += 1
        self._jobs.append(Job(message, tuple(places), now))
        if len(self._jobs) <= MOST_KEPT:
            return None
        self.refused += 1
        return self._done()

    def next(self, now: float) -> Job | None:
        """The message to send now, if there is one. It stays the first until it is answered."""
        while self._jobs and self._jobs[0].places and all(place.is_forgotten for place in self._jobs[0].places):
            self._done()
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
            self._done()

    @property
    def due(self) -> float:
        """When `next` has a message; infinity: when one is added."""
        return self._not_before if self._jobs else float("inf")

    def oldest(self, now: float) -> float:
        """Seconds that the first message has waited."""
        return now - self._jobs[0].since if self._jobs else 0.0

    def _done(self) -> Message:
        job = self._jobs.popleft()
        for place in job.places:
            place.unanswered -= 1
        return job.message
