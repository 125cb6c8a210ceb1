"""Stops a service on SIGTERM, Ctrl-C and the end of its terminal, from the first moment of the process."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from typing import Protocol

from fomo_stream.errors import ShutdownError
from fomo_stream.logs import kv

log = logging.getLogger(__name__)

SHUTDOWN_S = 24.0  # longest time from the signal to the end of the process
AGAIN_S = 1.0  # sooner, a second signal is not another wish: a terminal or supervisor may tell a process and its parent
CTRL_C = 130  # exit code


class Stoppable(Protocol):
    """A service that runs until it is stopped."""

    @property
    def is_loading(self) -> bool:
        """True if the service holds nothing yet, so that the process may end at once."""

    def stop(self) -> None:
        """Make the service end soon."""


class Signals:
    """Handles the signals of a service.

    Create it before the large packages are imported, because the first process of a container gets only signals that it
    handles. Until the model is loaded the service holds nothing, and the process ends at once.
    """

    def __init__(self) -> None:
        self._service: Stoppable | None = None
        self._stopped_at: float | None = None  # seconds, monotonic
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGTERM, self._stop)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup has it
            signal.signal(signal.SIGHUP, self._stop)

    def attach(self, service: Stoppable) -> None:
        """Stop this service on a signal from now on."""
        self._service = service

    def _stop(self, number: int, _frame: object) -> None:
        now = time.monotonic()
        if self._stopped_at is not None:
            if now - self._stopped_at >= AGAIN_S:
                _end_at_once(number)
            return
        self._stopped_at = now
        log.info(kv("stopping", signal=signal.Signals(number).name))
        if self._service is None or self._service.is_loading:
            os._exit(CTRL_C if number == signal.SIGINT else 0)
        end_within(SHUTDOWN_S)
        self._service.stop()


def _end_at_once(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # the first process of a container ignores the default action


def end_within(seconds: float) -> None:
    """End this process after `seconds` at the latest, even inside a call of the Kafka client that has no timeout."""

    def cut_short() -> None:
        effect = "the next owner reads the uncommitted records again"
        log.error(kv("shutdown_cut_short", after_s=seconds, reason="the broker does not answer", effect=effect))
        os._exit(ShutdownError.exit_code)

    timer = threading.Timer(seconds, cut_short)
    timer.daemon = True
    signal.setitimer(signal.ITIMER_REAL, seconds + 0.5)  # works even if the interpreter no longer runs threads
    timer.start()
