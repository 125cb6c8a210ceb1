"""The good records of --reference: of a file, which may be replaced, or of a range of the input, which the group keeps.

A range is read from the input only if the group has not stored it yet.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

from fomo_stream.detector.detector import Detector
from fomo_stream.detector.reference import Reference
from fomo_stream.errors import FomoError
from fomo_stream.kafka.background import BackgroundExecutor
from fomo_stream.kafka.group.agreed_reference import GroupReference
from fomo_stream.kafka.guard import unexpected_error
from fomo_stream.kafka.ranges import read_items, reference_ranges
from fomo_stream.kafka.watched_files import WatchedFiles
from fomo_stream.loading import set_reference, unpack_reference
from fomo_stream.logs import kv
from fomo_stream.partition.record import Pending
from fomo_stream.records.schema import Schema
from fomo_stream.settings.topic_flags import InputFlags

log = logging.getLogger(__name__)

CHECK_S = 1.0  # between two checks of the file; one that has changed is read when it has rested for so long


class References:
    """The reference for the detectors of a topic. Each is made once for a schema."""

    def __init__(self, settings: InputFlags) -> None:
        self._made: tuple[Schema, Reference, bool] | None = None  # and whether the group has to agree on it
        path = settings.reference
        self._file = WatchedFiles([path] if isinstance(path, Path) else [])
        self._checked_at, self._is_changed = 0.0, False
        self._reading: Future[Reference] | None = None
        # one for all files: each new thread would get memory of its own from the system, which stays
        self._thread: BackgroundExecutor | None = None

    def stop(self) -> None:
        """End the thread that reads files, if there is one."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def check(self, settings: InputFlags, detector: Detector, schema: Schema) -> Reference:
        """Give the detector the reference. Store nothing. Raises the errors of `set_reference`, and of the broker."""
        if self._made is None or self._made[0] != schema:
            span = settings.reference_span
            if span is not None and (packed := GroupReference(settings, schema).stored()) is not None:
                self._made = schema, unpack_reference(settings, detector, packed), False
            else:
                items = None if span is None else _good_records(settings)
                self._made = schema, set_reference(settings, detector, schema, items), span is not None
        detector.reference = self._made[1]
        return self._made[1]

    def agree(self, settings: InputFlags, detector: Detector, schema: Schema) -> Reference:
        """Give the detector the reference; the group keeps that of a range."""
        made = self.check(settings, detector, schema)
        if self._made is not None and self._made[2]:
            made = unpack_reference(settings, detector, GroupReference(settings, schema).agree(made.pack()))
            self._made = schema, made, False
        return made

    def changed(self, now: float, read: Callable[[], Reference], former: Reference) -> Reference | None:
        """Return the reference of the file once this has changed and was read, in a thread.

        None: it has not changed, or has a mistake. now: seconds, monotonic. read: makes the reference, which takes over
        from the former one without a wait.
        """
        if not self._file or now < self._checked_at + CHECK_S:
            return None
        self._checked_at = now
        if self._file.changed():  # it may not be complete yet
            self._is_changed, self._reading = True, None
        elif self._is_changed:
            self._is_changed, self._thread = False, self._thread or BackgroundExecutor("fomo-reference")
            self._reading = self._thread.submit(lambda: _prepared(read(), former))
        elif self._reading is not None and self._reading.done():
            reading, self._reading = self._reading, None
            try:
                made = reading.result()
                self._made = None  # the first one would be kept for ever
                return made
            except Exception as error:
                reason = error if isinstance(error, FomoError) else unexpected_error("the file of --reference", error)
                log.error(kv("reference_not_read", reason=reason, effect="the old one is kept"))
        return None


def _prepared(reference: Reference, former: Reference) -> Reference:
    reference.prepare(former)
    return reference


def _good_records(settings: InputFlags) -> Iterator[Pending]:
    """Yield the records of the input in the range of --reference, partition by partition."""
    spans, notes = reference_ranges(settings, round(1000 * time.time()))
    for note in notes:
        log.warning(kv("check_reference", note=note))
    for span in spans:
        yield from read_items(settings, span, lambda: False)
