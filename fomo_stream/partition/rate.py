"""Whether records come far more or far less often than usual, by counts of whole minutes. Pure.

Usual is the median of the last hour. A count is odd if it is FACTOR times more or less, and also far outside of the
spread of the last hour, on the scale of square roots, where the spread of counts does not depend on their mean. Two odd
minutes in a row begin it, two usual ones end it. What has lasted for an hour is usual. Minutes without any record are
left to silence, and minutes that were not watched wholly do not count.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any

KNOWN = 60  # minutes that are remembered
LEAST = 20  # minutes, before which nothing is odd
SPREADS = 6.0  # a count is odd if it is so many spreads away
POISSON = 0.5  # spread of the square root of a Poisson count; counts are assumed to spread at least so much
IN_A_ROW = 2
MINUTE_MS = 60_000
NEVER_FULL = 2**40  # records


class Rate:
    """The counts of a partition, or of a topic. factor: as in --rate-change.

    >>> rate = Rate(3.0)
    >>> [rate.minute(count) for count in [100] * 30 + [20, 20, 20, 100, 100]][-5:]
    [None, 'opened', None, None, 'closed']
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._known: deque[int] = deque(maxlen=KNOWN)  # counts of usual minutes
        self._odd: list[int] = []  # counts since it began
        self._in_a_row = 0
        self.is_odd = False
        self._minute: int | None = None  # since 1970, that is counted now; None: it is not counted
        self._count = 0

    @property
    def usual(self) -> float:
        """Records in a usual minute."""
        return float(median(self._known)) if self._known else 0.0

    @property
    def now(self) -> float:
        """Records in a minute, by the last odd ones."""
        return float(median(self._odd[-IN_A_ROW:])) if self._odd else self.usual

    def add(self, time: int, n: int = 1) -> str | None:
        """n records at a time, milliseconds since 1970, that never descends. Returns what `minute` returns."""
        minute, said = time // MINUTE_MS, None
        if minute != self._minute:
            if self._count > 0:
                said = self.minute(self._count)
            # the first minute may have begun before it was watched
            self._count = 0 if self._minute is not None else -NEVER_FULL
            self._minute = minute
        self._count += n
        return said

    def skip(self) -> None:
        """The minute of now is not watched wholly."""
        self._minute, self._count = None, 0

    def minute(self, count: int) -> str | None:
        """A whole minute had so many records: returns "opened" or "closed" if that changes anything."""
        if len(self._known) < LEAST or not self._is_odd(count):
            self._known.append(count)
            self._in_a_row = self._in_a_row + 1 if self.is_odd else 0
            if self.is_odd and self._in_a_row >= IN_A_ROW:
                return self._end()
            if not self.is_odd:
                self._odd.clear()
            return None
        self._odd.append(count)
        self._in_a_row = 0 if self.is_odd else self._in_a_row + 1
        if self.is_odd and len(self._odd) >= KNOWN:
            self._known = deque(self._odd, maxlen=KNOWN)
            return self._end()
        if not self.is_odd and self._in_a_row >= IN_A_ROW:
            self.is_odd, self._in_a_row = True, 0
            return "opened"
        return None

    def _end(self) -> str:
        self.is_odd, self._in_a_row = False, 0
        self._odd.clear()
        return "closed"

    def _is_odd(self, count: int) -> bool:
        usual = self.usual
        if usual / self._factor < count < usual * self._factor:
            return False
        roots = [math.sqrt(one) for one in self._known]
        middle = median(roots)
        spread = max(POISSON, 1.4826 * median([abs(root - middle) for root in roots]))
        return abs(math.sqrt(count) - middle) > SPREADS * spread

    # -- state -----------------------------------------------------------------------------------------------

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        counting = {"minute": self._minute, "count": self._count}
        return {"known": [*self._known], "odd": self._odd, "row": self._in_a_row, "is_odd": self.is_odd, **counting}

    def recover(self, state: Mapping[str, Any]) -> None:
        """The reverse of `plain`. Raises KeyError, TypeError or ValueError."""
        self._known = deque(map(int, state["known"]), maxlen=KNOWN)
        self._odd, self._in_a_row = [*map(int, state["odd"])], int(state["row"])
        self.is_odd, self._count = bool(state["is_odd"]), int(state["count"])
        self._minute = None if state["minute"] is None else int(state["minute"])
