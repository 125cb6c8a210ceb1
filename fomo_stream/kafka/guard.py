"""The last guard: a record or label that raises an unexpected error becomes a dead letter, and the others go on."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fomo_stream.errors import RecordError
from fomo_stream.kafka.broker.cluster import PartitionId
from fomo_stream.logs import Throttle, kv, raised_at

log = logging.getLogger(__name__)

LOGGED_S = 60.0
_throttle = Throttle(LOGGED_S)


def unexpected_error(where: str, error: Exception) -> RecordError:
    """Return the error of the record at `where` that raised another error. Logs its traceback at level debug."""
    line = raised_at(error)
    about = {"record": where, "error": type(error).__name__, "at": line}
    if (suppressed := _throttle.allow(f"{type(error).__name__} {line}")) is not None:
        log.warning(kv("unexpected", **about, suppressed=suppressed, hint="a fault of fomo-stream: please report it"))
    log.debug(kv("unexpected", **about), exc_info=error)
    return RecordError("unexpected", f"{type(error).__name__} at {line}: a fault of fomo-stream, please report it")


class Guard:
    """Find out which of several records or labels raises an error.

    An error undoes all changes: everything begins again at the last commit. Then the records of the failed batch are
    handled one by one, and the one that raises the error again is found.
    """

    def __init__(self) -> None:
        self._until: dict[PartitionId, int] = {}  # offsets up to which each record is handled alone
        self._found: dict[tuple[PartitionId, int], RecordError] = {}
        self.has_failed = False  # everything has to begin again

    def blame(self, place: PartitionId, offsets: Sequence[int], error: Exception) -> None:
        """Note that a record at one of these ascending offsets has raised this error."""
        self.has_failed = True
        if len(offsets) == 1:
            self._found[place, offsets[0]] = unexpected_error(f"{place[0]}[{place[1]}]@{offsets[0]}", error)
        else:
            self._until[place] = max(offsets[-1], self._until.get(place, -1))
            log.debug(kv("searching", topic=place[0], partition=place[1], error=type(error).__name__), exc_info=error)

    def max_together(self, place: PartitionId, offset: int) -> int | None:
        """Return how many records may be handled together, beginning with this offset; None: any number."""
        is_alone = offset <= self._until.get(place, -1) or (place, offset) in self._found
        if is_alone:
            return 1
        return min((guilty - offset for of, guilty in self._found if of == place and guilty > offset), default=None)

    def error(self, place: PartitionId, offset: int) -> RecordError | None:
        """Return the error that this record raised alone; None: not found."""
        return self._found.get((place, offset)) if self._found else None

    def committed(self, place: PartitionId, offset: int) -> None:
        """Forget the records before this offset: they are committed."""
        if self._until and self._until.get(place, offset) < offset:
            del self._until[place]
        if self._found:
            self._found = {ref: error for ref, error in self._found.items() if ref[0] != place or ref[1] >= offset}
