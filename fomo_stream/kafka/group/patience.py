"""How long to wait for a sample of records. Pure: the caller passes the time."""

from __future__ import annotations

FEW = 20  # records: fewer may not be typical


class Patience:
    """How long to wait for a sample of `wanted` records on a stream of any speed.

    If fewer come, the wait ends `seconds` after the 20th record, or 6 x `seconds` after the first.

    >>> patience = Patience(wanted=200, seconds=5)
    >>> patience.is_over(3, now=0.0), patience.is_over(25, now=8.0), patience.is_over(25, now=13.0)
    (False, False, True)
    """

    def __init__(self, wanted: int, seconds: float) -> None:
        self._wanted = wanted
        self._seconds = seconds
        self._deadline = float("inf")

    def is_over(self, waiting: int, now: float) -> bool:
        """Whether to stop waiting; the time counts only while records wait."""
        if not waiting:
            self._deadline = float("inf")
            return False
        self._deadline = min(self._deadline, now + self._seconds * (1 if waiting >= FEW else 6))
        return waiting >= self._wanted or now >= self._deadline
