"""Reports of the service while it works, for a log, metrics or a live display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Outlier(NamedTuple):
    """A record that was flagged."""

    fields: dict[str, Any]
    result: dict[str, Any]
    key: bytes | None = None


@dataclass(frozen=True)
class Observation:
    """One micro-batch of a partition that was scored."""

    topic: str
    partition: int
    n_records: int
    context_rows: int
    generation: int
    outliers: list[Outlier]
    missing: int = 0  # values that the records lack


class Observer:
    """Receives reports from the service's thread. Override the methods you need; a method must not block."""

    def scored(self, seen: Observation) -> None:
        """A micro-batch was scored."""

    def dead_letter(self, reason: str) -> None:
        """A record could not be used."""

    def labelled(self, n: int) -> None:
        """Labels about n remembered records took effect."""

    def regime_changed(self) -> None:
        """A lasting shift became the new normal of a partition."""

    def committed(self, seconds: Sequence[float]) -> None:
        """A commit succeeded. seconds: from poll to commit, of each of its records."""

    def aborted(self) -> None:
        """Everything since the last commit was undone."""

    def turned(self, now: float) -> None:
        """The main loop has turned. now: seconds, monotonic."""


class Observers(Observer):
    """Passes every report on to several observers, in their order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def scored(self, seen: Observation) -> None:
        for observer in self._observers:
            observer.scored(seen)

    def dead_letter(self, reason: str) -> None:
        for observer in self._observers:
            observer.dead_letter(reason)

    def labelled(self, n: int) -> None:
        for observer in self._observers:
            observer.labelled(n)

    def regime_changed(self) -> None:
        for observer in self._observers:
            observer.regime_changed()

    def committed(self, seconds: Sequence[float]) -> None:
        for observer in self._observers:
            observer.committed(seconds)

    def aborted(self) -> None:
        for observer in self._observers:
            observer.aborted()

    def turned(self, now: float) -> None:
        for observer in self._observers:
            observer.turned(now)
