"""Costly results that are computed in the background."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Generic, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True)
class Task(Generic[Result]):
    """A computation whose result is needed at record number `needed_at` of its partition.

    An executor may run the task first whose number is smallest.
    """

    make: Callable[[], Result]
    needed_at: int

    def __call__(self) -> Result:
        return self.make()


class Deferred(Generic[Result]):
    """A result that is expensive to compute: in an executor at once, or in the thread that first asks for it.

    needed_at: number of the record that needs it; made: the result, if it is known already.
    """

    def __init__(
        self, make: Callable[[], Result], executor: Executor | None, needed_at: int, made: Result | None = None
    ) -> None:
        self._make = make
        self._made: list[Result] = [] if made is None else [made]
        is_needed = executor is not None and made is None
        self._future: Future[Result] | None = (
            executor.submit(Task(make, needed_at)) if executor is not None and is_needed else None
        )

    @property
    def done(self) -> bool:
        """Whether `result` returns without waiting for another thread."""
        return self._future is None or self._future.done()

    @property
    def is_made(self) -> bool:
        """Whether `result` costs nothing."""
        return bool(self._made) or (self._future is not None and self._future.done())

    def result(self) -> Result:
        """The result; waits for it if necessary."""
        if not self._made:
            self._made.append(self._make() if self._future is None else self._future.result())
        return self._made[0]
