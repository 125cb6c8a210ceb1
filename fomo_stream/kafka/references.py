"""The good records of --reference: of a file, which may be replaced, or of a range of the input, which the group keeps.

A range is read from the input only if the group has not stored it yet. Until the first records are all there, records
are scored without a reference.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

from fomo_stream.detector.detector import Detector
from fomo_stream.detector.reference import Reference
from fomo_stream.errors import BrokerError, FomoError, NotCompleteError
from fomo_stream.kafka.background import BackgroundExecutor
from fomo_stream.kafka.group.agreed_reference import GroupReference
from fomo_stream.kafka.guard import unexpected_error
from fomo_stream.kafka.ranges import read_items, reference_ranges, with_first_range
from fomo_stream.kafka.watched_files import WatchedFiles
from fomo_stream.loading import set_reference, unpack_reference
from fomo_stream.logs import kv
from fomo_stream.partition.record import Pending
from fomo_stream.records.schema import Schema
from fomo_stream.settings.topic_flags import InputFlags

log = logging.getLogger(__name__)

CHECK_S = 1.0  # between two checks of the file; one that has changed is read when it has rested for so long
RETRY_S = 60.0  # between two attempts to take the first records
WITHOUT = "records are scored without a reference"


class References:
    """The reference for the detectors of a topic. Each is made once for a schema."""

    def __init__(self, settings: InputFlags) -> None:
        self._made: tuple[Schema, Reference, str] | None = None  # and the range that the group has to agree on
        self.has_state = True  # False: the group cannot have stored a range, as it has no topic yet
        self.read_at = 0.0  # when records were read, seconds, monotonic: infinite while they are read
        self.waits_for = self._told = ""  # why the first records cannot be taken yet; what the log says of it
        self._takes_first_at = 0.0  # seconds since 1970
        path = settings.reference
        self._file = WatchedFiles([path] if isinstance(path, Path) else [])
        self._checked_at, self._is_changed = 0.0, False
        self._reading: Future[Reference | None] | None = None
        # one for all files: each new thread would get memory of its own from the system, which stays
        self._thread: BackgroundExecutor | None = None

    def stop(self) -> None:
        """End the thread that reads files, if there is one."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def check(self, settings: InputFlags, detector: Detector, schema: Schema) -> Reference | None:
        """Give the detector the reference; None: there is none yet. Store nothing.

        Raises the errors of `set_reference`, and of the broker.
        """
        if self._made is None or self._made[0] != schema:
            self.read_at = math.inf
            try:
                self._made = schema, *self._make(settings, detector, schema)
            except NotCompleteError as error:
                self._takes_first_at = max(time.time() + RETRY_S, error.complete_ms / 1000)
                self.waits_for = error.what
                return None
            finally:
                self.read_at = time.monotonic()
        detector.reference = self._made[1]
        return self._made[1]

    def _make(self, settings: InputFlags, detector: Detector, schema: Schema) -> tuple[Reference, str]:
        """Return the reference, and its range if the group has not stored it."""
        if settings.reference_span is None:
            return set_reference(settings, detector, schema), ""
        if self.has_state and (packed := GroupReference(settings, schema).stored()) is not None:
            return unpack_reference(settings, detector, packed), ""
        settings = with_first_range(settings, round(1000 * time.time()))
        return set_reference(settings, detector, schema, _good_records(settings)), str(settings.reference)

    def agree(self, settings: InputFlags, detector: Detector, schema: Schema) -> Reference | None:
        """Give the detector the reference; the group keeps that of a range."""
        made = self.check(settings, detector, schema)
        if made is None and self.waits_for != self._told:
            self._told = self.waits_for
            log.warning(kv("reference_waits", reason=self._told, effect=WITHOUT))
        elif made is not None and self._made is not None and (range_ := self._made[2]):
            made = unpack_reference(settings, detector, GroupReference(settings, schema).agree(made.pack(), range_))
            self._made = schema, made, ""
        return made

    def changed(self, now: float, read: Callable[[], Reference | None], former: Reference | None) -> Reference | None:
        """Return the reference of the file once this has changed, or of the first records once they are all there.

        It is read in a thread. None: nothing has changed, or it has a mistake. now: seconds, monotonic. read: makes the
        reference, which takes over from the former one without a wait.
        """
        if now < self._checked_at + CHECK_S:
            return None
        self._checked_at = now
        if self._file.changed():  # it may not be complete yet
            self._is_changed, self._reading = True, None
        elif self._is_changed or (former is None and self._reading is None and time.time() >= self._takes_first_at):
            self._is_changed, self._thread = False, self._thread or BackgroundExecutor("fomo-reference")
            self._reading = self._thread.submit(self._read, read, former)
        elif self._reading is not None and self._reading.done():
            reading, self._reading = self._reading, None
            try:
                return reading.result()
            except Exception as error:
                self._takes_first_at = time.time() + RETRY_S * (1 if isinstance(error, BrokerError) else 10)
                reason = error if isinstance(error, FomoError) else unexpected_error("--reference", error)
                effect = WITHOUT if former is None else "the old one is kept"
                log.error(kv("reference_not_read", reason=reason, effect=effect))
        return None

    def _read(self, read: Callable[[], Reference | None], former: Reference | None) -> Reference | None:
        self._made = None  # it is of the former file
        made = read()
        if made is not None and former is not None:
            made.prepare(former)
        return made


def _good_records(settings: InputFlags) -> Iterator[Pending]:
    """Yield the records of the input in the range of --reference, partition by partition."""
    spans, notes = reference_ranges(settings, round(1000 * time.time()))
    for note in notes:
        log.warning(kv("check_reference", note=note))
    for span in spans:
        yield from read_items(settings, span, lambda: False)
