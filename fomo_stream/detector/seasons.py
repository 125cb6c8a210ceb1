"""Usual values at a time of the day, the week or the year: learned from earlier cycles, used if they explain much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from fomo_stream.detector.changelog import BlockTable, Copied, Document, Entries, StoredEntries
from fomo_stream.detector.relative import Pooled
from fomo_stream.detector.step.follow import AROUND, EXPLAINS, OF_KEY, OF_TIME, Profiles, find_levels, follow_seasons
from fomo_stream.errors import DamagedStateError

Float = NDArray[np.float64]
NAMES = {  # of what is kept of a cycle, in the log
    "bin": "bin", "tested": "tested", "recent": "recent", "error": "error", "error_of_mean": "error_of_mean",
    "count": "counted", "sum": "summed", "sum_of_mean": "summed_of_mean",
}  # fmt: skip
BINS = ("visits", "mean", "variance", "open", "sum", "square")


class Cycle(NamedTuple):
    """A cycle of `inner` bins, one after the other in time, for each of `outer` kinds of cycles (months)."""

    inner: int
    outer: int = 1


class Usual(NamedTuple):
    """The usual values of n records at their times, as scores (n, d)."""

    is_known: NDArray[np.bool_]  # where a season explains much
    level: Float  # else 0
    spread: Float  # else 1
    of_key: Float  # the level that counts for a key


class Seasons(Copied):
    """Profiles over cycles of d features: for each bin (an hour of the day), the mean over visits in earlier cycles.

    A visit becomes part of the profile half a cycle after it, so a prediction knows only earlier cycles. It is the
    profile between the middles of the two nearest bins. In a finer cycle (the week) the level of the coarser one (the
    day) counts as one more visit.

    Without keys, a profile is used for a feature once it has predicted a whole cycle, and as long as its squared errors
    are at most half of those of the profile's mean, which is as old: so a value that only wanders has no season. Of
    several cycles the one with the smallest errors is used. For a key, the finest cycle is used, and of the distance
    from its mean the part that makes errors smallest, for each feature. `step.follow` does all this.
    """

    def __init__(self, n_features: int, cycles: Sequence[Cycle]) -> None:
        self.cycles = tuple(cycles)
        d, p = n_features, len(self.cycles)
        first = np.cumsum([0, *(cycle.inner * cycle.outer for cycle in self.cycles)])
        shape = int(first[-1]), d
        bins, cycle = np.zeros((4, *shape)), np.zeros((6, p, d))
        self.profiles = Profiles(
            inner=np.array([cycle.inner for cycle in self.cycles], dtype=np.int64),
            first=first,
            visits=np.zeros(shape, np.uint8),
            mean=bins[0],
            variance=bins[1],
            open=np.zeros(shape, np.uint32),
            sum=bins[2],
            square=bins[3],
            written=np.zeros(shape[0], dtype=bool),
            bin=np.full(p, -1),
            tested=np.zeros((p, d), np.int64),
            recent=np.ones((p, d)),
            error=cycle[0],
            error_of_mean=cycle[1],
            counted=np.zeros((p, d), np.int64),
            summed=cycle[2],
            summed_of_mean=cycle[3],
            of_mean=np.full((p, d), np.nan),
            of_variance=cycle[4],
            course=cycle[5],
            level=np.full(shape, np.nan),
        )
        self._recovered()

    def follow(self, scores: Float, places: Float) -> Usual:
        """Return the usual values of the next records, then learn these. scores: (n, d), NaN = unknown; places: (n,
        cycles).

        A place is a number of bins since the start of the cycle, NaN = unknown.
        """
        seasons = np.empty((len(scores), 5, scores.shape[1]))
        follow_seasons(np.array(scores, order="C"), np.array(places, order="C"), self.profiles, seasons)
        return Usual(seasons[:, EXPLAINS] > 0.0, seasons[:, OF_TIME], seasons[:, AROUND], seasons[:, OF_KEY])

    def rescale(self, old: Pooled, new: Pooled) -> None:
        """Convert the profiles to another scale of scores."""
        profiles = self.profiles
        n, changed = np.maximum(profiles.open, 1), _scale_ratio(old, new, profiles.mean) ** 2
        of_open = new.scores(old.raw(profiles.sum / n)) * profiles.open
        profiles.mean[:], profiles.sum[:] = new.scores(old.raw(profiles.mean)), of_open
        profiles.variance[:], profiles.square[:] = profiles.variance * changed, profiles.square * changed
        of_mean = _scale_ratio(old, new, np.where(np.isnan(profiles.of_mean), 0.0, profiles.of_mean)) ** 2
        for sums in (profiles.error, profiles.error_of_mean, profiles.summed, profiles.summed_of_mean):
            sums *= of_mean
        profiles.written[:] = True
        self._find_levels()

    def _find_levels(self) -> None:
        for p in range(len(self.cycles)):
            find_levels(p, self.profiles)

    # -- log -----------------------------------------------------------------------------------------------------

    def _recovered(self) -> None:
        """Make independent arrays, and an empty log."""
        profiles = self.profiles = Profiles._make(array.copy() for array in self.profiles)
        profiles.written[:] = ((profiles.visits > 0) | (profiles.open > 0)).any(axis=1)
        self._log, self._tables = Document(), []
        for first, stop in zip(profiles.first[:-1].tolist(), profiles.first[1:].tolist(), strict=True):
            bins = {name: np.zeros_like(getattr(profiles, name)[first:stop]) for name in BINS}
            self._tables.append(BlockTable(1, **bins))

    def changes(self, name: str) -> Entries:
        """The entries that have changed since the last call."""
        profiles, cycles = self.profiles, range(len(self.cycles))
        names = NAMES.items()
        arrays = {f"{p}/{key}": np.atleast_1d(getattr(profiles, field)[p]) for p in cycles for key, field in names}
        entries = self._log.changes(f"{name}/now", save(arrays))
        for p, table in enumerate(self._tables):
            at = np.flatnonzero(profiles.written[profiles.first[p] : profiles.first[p + 1]])
            table.put(at, **{column: getattr(profiles, column)[profiles.first[p] + at] for column in BINS})
            entries |= table.changes(f"{name}/{p}")
        profiles.written[:] = False
        return entries

    def recover(self, entries: StoredEntries, name: str) -> None:
        """Take the state from the entries. Raises StateError."""
        self._recovered()
        profiles, arrays = self.profiles, load(self._log.recover(entries, f"{name}/now"))
        for p, table in enumerate(self._tables):
            table.recover(entries, f"{name}/{p}")
            for column in BINS:
                getattr(profiles, column)[profiles.first[p] : profiles.first[p + 1]] = table[column]
            for key, field in NAMES.items():
                stored, value = arrays.get(f"{p}/{key}"), getattr(profiles, field)
                if stored is None or stored.shape != np.shape(np.atleast_1d(value[p])):
                    raise DamagedStateError(f"the state is damaged: {name} does not fit")
                value[p] = stored if value.ndim > 1 else stored[0]
        profiles.written[:] = False
        self._find_levels()


def _scale_ratio(old: Pooled, new: Pooled, scores: Float) -> Float:
    """Return by how much a small distance at these scores (n, d) grows with the new scale."""
    step = 0.01
    return np.asarray((new.scores(old.raw(scores + step)) - new.scores(old.raw(scores - step))) / (2.0 * step))
