"""Structured logs on standard error: one line of `event key=value ...` per event."""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from pathlib import Path
from traceback import extract_tb

from fomo_stream.wording import clean

_TOPIC: ContextVar[str | None] = ContextVar("topic", default=None)  # of several in this process: what lines are about


def kv(event: str, **fields: object) -> str:
    """Return one log line.

    >>> kv("restored", topic="sensors", partition=3, elapsed_s=0.4321, reason="no such topic")
    'restored topic=sensors partition=3 elapsed_s=0.432 reason="no such topic"'
    """
    return " ".join([event, *(f"{name}={_field_text(value)}" for name, value in fields.items())])


def _field_text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    text = clean(str(value), " ")
    if text and not any(character in text for character in ' "='):
        return text
    return '"' + text.replace('"', "'") + '"'


def raised_at(error: BaseException) -> str:
    """Return where an error was raised, such as `mine.py:12`: its text could hold contents of a record."""
    frames = extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "an unknown place"


def configure_logging(level: str, more: str = "") -> None:
    """Write the log lines of the package, from `level` upwards, to standard error, with `more` at the end of each."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = _LineFormatter(f"%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s{more}", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logger = logging.getLogger("fomo_stream")
    logger.handlers[:] = [handler]
    logger.propagate = False
    set_level(level)


class _LineFormatter(logging.Formatter):
    """Adds the topic of the thread to lines that do not name it; `input` where `topic` is another one."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # named by logging
        line, topic = super().formatMessage(record), _TOPIC.get()
        if topic is None or re.search(rf" (topic|record|partition)={re.escape(topic)}(?=[\[ ]|$)", line):
            return line
        return f"{line} {'input' if ' topic=' in line else 'topic'}={topic}"


def set_topic(topic: str) -> None:
    """Let all lines of this thread, and of those that it makes by `make_thread`, name their topic."""
    _TOPIC.set(topic)


def make_thread(run: Callable[..., None], name: str, *values: object) -> threading.Thread:
    """Make a thread that ends with the process, for work on the same topic."""
    return threading.Thread(target=copy_context().run, args=(run, *values), name=name, daemon=True)


def set_level(level: str) -> None:
    """Write log lines of the package from this level upwards."""
    logging.getLogger("fomo_stream").setLevel(level.upper())


class Throttle:
    """Limits how often a repeating event of a topic is logged, and counts the occurrences that were suppressed."""

    def __init__(self, seconds: float = 30.0) -> None:
        self._seconds = seconds
        self._last: dict[tuple[str | None, str], tuple[float, int]] = {}

    def allow(self, event: str, now: float | None = None) -> int | None:
        """Return the number of occurrences suppressed since the last one allowed; None to suppress this one, too.

        >>> throttle = Throttle(seconds=30)
        >>> [throttle.allow("down", now) for now in (0.0, 1.0, 2.0, 31.0)]
        [0, None, None, 2]
        """
        now, key = time.monotonic() if now is None else now, (_TOPIC.get(), event)
        last, suppressed = self._last.get(key, (float("-inf"), 0))
        if now - last < self._seconds:
            self._last[key] = (last, suppressed + 1)
            return None
        self._last[key] = (now, 0)
        return suppressed


_QUIET: list[None] = []  # one for each open block of `quiet_clients`, in all threads


@contextmanager
def quiet_clients() -> Iterator[None]:
    """Suppress log lines of the Kafka clients unless the level is debug: the caller reports what went wrong."""
    _QUIET.append(None)
    try:
        yield
    finally:
        _QUIET.pop()


class ClientLog:
    """Logs the messages of a Kafka client as key=value lines, each kind at most once in 30 s.

    Pass it as the `logger` of a confluent_kafka client.
    """

    # Warnings that a setting is for the other kind of client: consumers and producers all get every --kafka.* setting.
    _NOISE = ("CONFWARN",)
    # Errors that refuse a commit while a group rebalances. They are expected; the committing code reports the effect.
    _ORDINARY = ("ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID", "REBALANCE_IN_PROGRESS")

    def __init__(self, client: str) -> None:
        self._client = client
        self._logger = logging.getLogger(f"{__package__}.kafka")
        self._throttle = Throttle()

    def log(self, level: int, _template: str, kind: str, _name: str, text: str) -> None:
        """Log a message; called by confluent_kafka. kind: FAIL, ERROR and so on; level: as in syslog."""
        if kind in self._NOISE or (_QUIET and not self._logger.isEnabledFor(logging.DEBUG)):
            return
        suppressed = self._throttle.allow(kind)
        if suppressed is None:
            return
        if kind == "TXNERR" and any(name in text for name in self._ORDINARY):
            level = logging.INFO
        fields = {"suppressed": suppressed} if suppressed else {}
        self._logger.log(level, kv("kafka_client", client=self._client, kind=kind, message=text, **fields))
