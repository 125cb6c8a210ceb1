"""A last guard: a record or label that raises what nobody expected becomes a dead letter, and the others go on."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fomo_stream.errors import RecordError
from fomo_stream.kafka.broker.cluster import Place
from fomo_stream.logs import Throttle, kv, raised_at

log = logging.getLogger(__name__)

LOGGED_S = 60.0
_throttle = Throttle(LOGGED_S)


def unexpected(where: str, error: Exception) -> RecordError:
    """The error of the record at `where`, which raised another one; the log has its traceback at level debug."""
    line = raised_at(error)
    about = {"record": where, "error": type(error).__name__, "at": line}
    if (suppressed := _throttle.allow(f"{type(error).__name__} {line}")) is not None:
        log.warning(kv("unexpected", **about, suppressed=suppressed, hint="a fault of fomo-stream: please report it"))
    log.debug(kv("unexpected", **about), exc_info=error)
    return RecordError("unexpected", f"{type(error).__name__} at {line}: a fault of fomo-stream, please report it")


class Guard:
    """Finds out which of several records or labels raises an error.

    Whatever had changed when it was raised is undone: everything begins again at the last commit. Then those up to the
    last of them are handled one by one, and the one that raises the error again is named.
    Places are (topic, partition).
    """

    def __init__(self) -> None:
        self._until: dict[Place, int] = {}  # offsets up to which each is handled alone
        self._found: dict[tuple[Place, int], RecordError] = {}
        self.has_failed = False  # everything has to begin again

    def blame(self, place: Place, offsets: Sequence[int], error: Exception) -> None:
        """One of these, at ascending offsets, has raised this error."""
        self.has_failed = True
        if len(offsets) == 1:
            self._found[place, offsets[0]] = unexpected(f"{place[0]}[{place[1]}]@{offsets[0]}", error)
        else:
            self._until[place] = max(offsets[-1], self._until.get(place, -1))
            log.debug(kv("searching", topic=place[0], partition=place[1], error=type(error).__name__), exc_info=error)

    def most(self, place: Place, offset: int) -> int | None:
        """How many may be handled at once, if the first one has this offset; None: as many as there are."""
        is_alone = offset <= self._until.get(place, -1) or (place, offset) in self._found
        if is_alone:
            return 1
        return min((at - offset for its, at in self._found if its == place and at > offset), default=None)

    def error(self, place: Place, offset: int) -> RecordError | None:
        """The error that was found of this one."""
        return self._found.get((place, offset)) if self._found else None

    def committed(self, place: Place, offset: int) -> None:
        """Those before this offset are done."""
        if self._until and self._until.get(place, offset) < offset:
            del self._until[place]
        if self._found:
            self._found = {at: why for at, why in self._found.items() if at[0] != place or at[1] >= offset}
