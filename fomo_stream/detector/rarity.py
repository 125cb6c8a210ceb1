"""The rarity of a logit: among some others (p-values), and in the long run, by a decaying histogram."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.changelog import BlockTable, State
from fomo_stream.detector.config import STEP
from fomo_stream.detector.step.judge import BINS, ODD_LOGIT, count_logits, shares_above

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

HALF_LIFE = 20_000.0  # records after which an older one counts half
GROWTH = 2.0 ** (STEP / HALF_LIFE)  # of the weight of a record, from one step to the next
MAX_WEIGHT = 2.0**20  # weight at which all weights are made smaller
CLEAR_HEIGHT = 0.12  # of the height of the largest logit above the median; a clearly larger one is so much higher
MIN_HEIGHT = 0.3  # logits of the largest above the median
MAX_FAR_SHARE = 0.05  # largest share of records that are far outside of the others
BLOCK_BINS = 8  # in the log


def p_values(logits: Float, reference: Float) -> Float:
    """Share of reference scores at least as high, counting the new one: (1 + #{r >= s}) / (n + 1).

    logits: (n,), any scale; reference: (m,), ascending, scores of earlier records, each taken before it was learned.
    Where new records resemble the reference, P(p <= a) <= a. With an empty reference every p-value is 1.

    >>> p_values(np.array([0.0, 5.0, 9.0]), np.array([1.0, 2.0, 5.0]))
    array([1.  , 0.5 , 0.25])
    """
    at_least = len(reference) - np.searchsorted(reference, logits, side="left")
    return np.asarray((1.0 + at_least) / (len(reference) + 1.0), dtype=np.float64)


def own_p_values(logits: Float) -> Float:
    """The p-value of each of n logits against the n - 1 others: #{r >= s} / n, where r is any of the n.

    >>> own_p_values(np.array([1.0, 2.0, 2.0, 5.0]))
    array([1.  , 0.75, 0.75, 0.25])
    """
    at_least = len(logits) - np.searchsorted(np.sort(logits), logits, side="left")
    return np.asarray(at_least / len(logits), dtype=np.float64)


def is_calibrated(n_reference: int, alert_rate: float) -> bool:
    """Return whether a p-value can be as small as alert_rate at all.

    >>> is_calibrated(98, 0.01), is_calibrated(99, 0.01)
    (False, True)
    """
    return alert_rate * (n_reference + 1) >= 1.0 - 1e-9


def clear_above(logits: Float, size: int) -> float:
    """Return how far above the largest of logits (n,), n >= 1, in heights of that above their median, one is clear
    above it.

    CLEAR_HEIGHT above `size` and more. Above fewer by more, so that each doubling of their number brings as few by
    chance: if the tail of logits falls exponentially, the height of the largest is log(n) of its widths, known by one
    part in sqrt(n). Logits that follow each other closely count as fewer.

    >>> alternating = np.tile([0.0, 1.0], 350)
    >>> clear_above(alternating, 700), clear_above(alternating[:200], 700), clear_above(np.sort(alternating)[:600], 700)
    (0.12, 0.219, 1.293)
    """
    if (n := len(logits)) >= size:
        return CLEAR_HEIGHT
    around = logits - logits.mean()
    following = float((around[1:] * around[:-1]).sum() / max(float((around * around).sum()), 1e-300))
    n_free = max(n * (1.0 - max(following, 0.0)) / (1.0 + max(following, 0.0)), 3.0)
    return round(CLEAR_HEIGHT * math.log(size) / math.log(n_free) + 1.0 / math.sqrt(n_free), 3)


def far_outside(logits: Float, clear: float = CLEAR_HEIGHT) -> Bool:
    """Which of logits (n,), NaN = unknown, are clear above all smaller ones, however many they are: up to
    MAX_FAR_SHARE.

    clear: how far above, see `clear_above`.

    >>> ordinary = np.linspace(-3.0, 1.0, 197)
    >>> far_outside(np.append(ordinary, [2.0, 2.1, 2.2])).sum(), far_outside(ordinary).sum()
    (np.int64(3), np.int64(0))
    """
    is_known = ~np.isnan(logits)
    if not is_known.all():
        far = is_known.copy()
        far[is_known] = far_outside(logits[is_known], clear)
        return far
    if not len(logits):
        return is_known
    ascending, n = np.sort(logits), len(logits)
    below = np.maximum(ascending[:-1], ODD_LOGIT)
    median = (ascending[(n - 1) // 2] + ascending[n // 2]) / 2.0
    height = np.maximum(below - median, MIN_HEIGHT)
    beyond = 1 + np.flatnonzero(ascending[1:] > below + clear * height)
    beyond = beyond[beyond >= n - int(MAX_FAR_SHARE * n)]
    return np.asarray(logits >= ascending[beyond[0]] if len(beyond) else np.zeros(n, dtype=bool))


class Rarity(State):
    """Counts remembered logits in bins; each older record counts half every HALF_LIFE records.

    The weights of new records grow, while those of older ones stay: so a step changes few bins, and few go to the log.
    """

    parts: ClassVar = {"_bins": "rarity"}
    scalars: ClassVar = ("weight",)

    def __init__(self) -> None:
        self._bins = BlockTable(BLOCK_BINS, counts=np.zeros(BINS + 2))
        self.weight = 1.0  # of the records of the next step
        self._above: Float | None = None  # (BINS + 3,) counts of this bin and all higher ones; None: out of date

    def above(self, logits: Float) -> Float:
        """P (n,) in (0, 1): the share of the records so far, and of the assumed ones, above these logits (n,).

        Inside of a bin it is linear. A higher logit has a smaller P, however high.
        """
        return np.asarray(shares_above(logits, self.counts_above), dtype=np.float64)

    @property
    def counts_above(self) -> Float:
        """(BINS + 3,) counts of each bin and all higher ones, in records of now."""
        if self._above is None:
            self._above = np.append(np.cumsum(self._bins["counts"][::-1])[::-1], 0.0) / self.weight
        return self._above

    def add(self, logits: Float, steps_ago: Int, sign: float = 1.0) -> None:
        """Count records (n,) that belong to a step so many steps ago; sign: -1.0 takes them back."""
        if not len(logits):
            return
        (counts,), written = self._bins.whole("counts")
        count_logits(counts, written, BLOCK_BINS, logits, steps_ago, sign * self.weight, 1.0 / GROWTH)
        self._above = None

    def start_from_shared(self, other: Rarity, records: float) -> None:
        """Count the records of another histogram, too, as so many now."""
        total = float(other._bins["counts"].sum())
        if total > 0:
            borrowed = other._bins["counts"] * (records * self.weight / total)
            slots = np.flatnonzero(borrowed)
            self._bins.put(slots, counts=self._bins["counts"][slots] + borrowed[slots])
            self._above = None

    def step(self) -> None:
        """Let all records so far count a little less."""
        self.weight *= GROWTH
        if self.weight > MAX_WEIGHT:
            self._bins.put(np.arange(BINS + 2), counts=self._bins["counts"] / self.weight)
            self.weight = 1.0
        self._above = None

    def _recovered(self) -> None:
        self._above = None
