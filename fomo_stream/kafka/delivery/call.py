"""Calls of the client that may block."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

SLICE_S = 1.0  # no call blocks for longer, because the main loop must go on


class Call:
    """Runs a function that may block in its own thread, so that the caller need not wait if it never ends."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._done = threading.Event()
        self._error: Exception | None = None
        self._began = monotonic()
        self._looked = self._began
        self.waited = 0.0  # seconds, without the time in which this process itself was suspended
        threading.Thread(target=self._run, name="fomo-commit", daemon=True).start()

    def _run(self) -> None:
        try:
            self._function()
        except Exception as error:
            self._error = error
        self._done.set()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return monotonic() - self._began

    def wait(self, seconds: float) -> bool:
        """Whether it has ended; waits for at most `seconds`."""
        done = self._done.wait(seconds)
        now = monotonic()
        self.waited += min(now - self._looked, 2 * SLICE_S)
        self._looked = now
        return done

    def result(self) -> None:
        """Raise the error that it raised, if any."""
        if self._error is not None:
            raise self._error
