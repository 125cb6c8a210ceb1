"""Reports of the running service, for a log, metrics or a live display."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

from fomo_stream.detector.keys import Key
from fomo_stream.logs import Throttle, kv
from fomo_stream.partition.incidents import Notice
from fomo_stream.partition.labels import DueLabels
from fomo_stream.records.result import Result

log = logging.getLogger(__name__)

_throttle = Throttle()


class Outlier(NamedTuple):
    fields: dict[str, Any]
    result: Result
    key: Key = None  # of its series


@dataclass(frozen=True)
class Observation:
    """One micro-batch of a partition that was scored."""

    topic: str
    partition: int
    results: Sequence[Result]  # of the records that have features, in order
    outliers: Sequence[Outlier]
    context_rows: int
    generation: int
    opened: int = 0  # incidents that have begun
    closed: Sequence[str] = ()  # names of incidents that have ended
    score_s: float = 0.0  # seconds to score and learn them
    produce_s: float = 0.0  # seconds to encode their outputs and to hand them to the client

    @property
    def n_records(self) -> int:
        return len(self.results)

    @cached_property
    def missing(self) -> int:
        """Return the number of missing feature values."""
        return sum([result["missing"] for result in self.results])

    @cached_property
    def calibrated(self) -> int:
        """Return the number of results with the status ok: only these can be outliers."""
        return sum([result["status"] == "ok" for result in self.results])


class Observer:
    """Receive reports from the service's thread. Override the methods you need; a method must not block."""

    def received(self, n: int, seconds: float) -> None:
        """One poll returned n messages. `seconds`: to handle them, with the micro-batches that they filled."""

    def scored(self, observation: Observation) -> None:
        """A micro-batch was scored."""

    def dead_letter(self, reason: str) -> None:
        """A record could not be used."""

    def tombstone(self) -> None:
        """A record without a value was skipped."""

    def labelled(self, partition: int, due: DueLabels) -> None:
        """Labels about remembered records of a partition took effect."""

    def regime_changed(self) -> None:
        """A lasting shift was announced in a partition."""

    def silence(self, partition: int, notice: Notice) -> None:
        """A key, a partition or the topic is silent, or no longer."""

    def schema_seen(self, new_fields: int, schemas: int = 1) -> None:
        """New schemas of writers, or records without a schema, have new fields, which are not scored."""

    def committed(self, seconds: Sequence[float], ages: Sequence[float], took: float) -> None:
        """A commit succeeded.

        seconds: from poll to commit, of each of its records; ages: from the timestamp of each record that has one to
        the commit, in seconds; took: seconds from the beginning of the commit to its end.
        """

    def aborted(self) -> None:
        """Everything since the last commit was undone."""

    def rebalanced(self, event: str, n: int) -> None:
        """The group has changed what this instance reads. event: n partitions were assigned, revoked or lost."""

    def restored(self, seconds: float) -> None:
        """A partition is read from now on. seconds: since it was assigned, or since the abort."""

    def built(self, seconds: float) -> None:
        """A context was built in `seconds`. Called from the thread that builds them."""

    def turned(self, now: float) -> None:
        """The main loop has turned. now: seconds, monotonic."""


class Observers(Observer):
    """Pass every report on to several observers, in their order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        for name in vars(Observer):
            if not name.startswith("_"):
                setattr(self, name, partial(_call, [getattr(observer, name) for observer in observers]))


def _call(methods: Sequence[Callable[..., None]], *values: Any) -> None:
    for method in methods:
        try:
            method(*values)
        except Exception as error:  # a failed report must not stop scoring
            if _throttle.allow(method.__qualname__) is not None:
                log.exception(kv("report_failed", what=method.__qualname__, error=type(error).__name__))
