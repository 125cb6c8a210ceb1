"""What is usual at a time of the day, the week or the year: learned from earlier cycles, used if it explains much."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from fomo_stream.detector.changelog import Document, Entries, StoredEntries, Table
from fomo_stream.detector.relative import FARTHEST, Pooled, Usual
from fomo_stream.errors import DamagedStateError

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

MOST_VISITS = 8  # of a bin: each newer one counts as much as all before it divided by this
CYCLES = 4  # about so many count in how well a season explains
EXPLAINED = 0.5  # share of the variance around the mean of a cycle that a season has to explain, to be used
ALONE = 0.75  # ... and share of it as long as a finer cycle (the week beside the day) is not tested
LEAST_VARIANCE = 1e-3  # of scores around the mean: else a value that never changes would be explained
OF_ALL = 4.0  # visits that count as much as all bins in the spread of a bin
LAST = 6.0  # bins: as far as the last ones were off the profile, spreads are wider


class Cycle(NamedTuple):
    """`inner` bins that follow each other in time and begin again, of each of `outer` kinds of cycles (months)."""

    inner: int
    outer: int = 1


class Seasons:
    """Profiles over cycles of d features: for each bin (an hour of the day), the mean over visits in earlier cycles.

    A visit becomes part of the profile half a cycle after it, so a prediction knows only earlier cycles. It is the
    profile between the middles of the two nearest bins. A profile is used for a feature once it has predicted a whole
    cycle, and as long as its squared errors are at most 1 - EXPLAINED of those of the profile's mean, which is as old:
    so a value that only wanders has no season. Of several cycles the one with the smallest errors is used.
    """

    def __init__(self, n_features: int, cycles: Sequence[Cycle]) -> None:
        self.cycles, self.n_features = tuple(cycles), n_features
        self._profiles = [_Profile(n_features, cycle) for cycle in self.cycles]
        self._log = Document()

    def follow(self, scores: Float, places: Float) -> Usual:
        """What is usual for the next records, which are learned. scores: (n, d), NaN = unknown; places: (n, cycles).

        A place is a number of bins since the start of the cycle, NaN = unknown. Nothing depends on how records are
        split over calls.
        """
        usual = Usual(np.zeros(scores.shape, bool), np.zeros(scores.shape), np.ones(scores.shape))
        if not len(scores):
            return usual
        bins = np.where(np.isnan(places), -1, places).astype(np.int64)
        edges = np.flatnonzero((bins[1:] != bins[:-1]).any(axis=1)) + 1
        for part in map(slice, [0, *edges.tolist()], [*edges.tolist(), len(scores)]):
            best, finest = np.full(scores[part].shape, np.inf), self._profiles[-1]
            predicted = []
            for at, profile in enumerate(self._profiles):
                profile.enter(int(bins[part.start, at]))
                predicted.append(profile.predict(places[part, at]))
                least = np.where(finest.is_tested, EXPLAINED, ALONE) if profile is not finest else EXPLAINED
                level, errors = predicted[-1], np.where(profile.explains(least), profile.error, np.inf)
                better = ~np.isnan(level) & (errors < best)
                np.copyto(usual.level[part], level, where=better)
                np.copyto(usual.spread[part], profile.spread(bins[part.start, at]), where=better)
                usual.known[part] |= better
                best = np.where(better, errors, best)
            known, level, spread = usual.known[part], usual.level[part], usual.spread[part]
            # what is far off teaches nothing: if it stays so, the profile stops to explain, and then it counts
            near = np.where(known & (np.abs(scores[part] - level) > FARTHEST * spread), np.nan, scores[part])
            for profile, of_profile in zip(self._profiles, predicted, strict=True):
                profile.add(scores[part], near, of_profile)
        return usual

    def rescale(self, old: Pooled, new: Pooled) -> None:
        """Take another scale for scores."""
        for profile in self._profiles:
            profile.rescale(old, new)

    def copy(self) -> Seasons:
        """An independent twin, the same now."""
        twin = copy(self)
        twin._profiles = [profile.copy() for profile in self._profiles]
        twin._log = Document()
        return twin

    # -- log -----------------------------------------------------------------------------------------------------

    def changes(self, name: str) -> Entries:
        """The entries that have changed since the last call."""
        arrays = {f"{at}/{key}": value for at, one in enumerate(self._profiles) for key, value in one.now.items()}
        entries = self._log.changes(f"{name}/now", save(arrays))
        for at, profile in enumerate(self._profiles):
            entries |= profile.bins.changes(f"{name}/{at}")
        return entries

    def recover(self, entries: StoredEntries, name: str) -> None:
        """Take the state from the entries. Raises StateError."""
        self._log = Document()
        arrays = load(self._log.recover(entries, f"{name}/now"))
        for at, profile in enumerate(self._profiles):
            profile.bins.recover(entries, f"{name}/{at}")
            for key, value in profile.now.items():
                found = arrays.get(f"{at}/{key}")
                if found is None or found.shape != value.shape:
                    raise DamagedStateError(f"the state is damaged: {name} does not fit")
                profile.now[key] = found.astype(value.dtype)
            profile.find_mean()


class _Profile:
    """The profile over one cycle. Bins have their visits so far, and sums of the one that is not part of it yet."""

    def __init__(self, n_features: int, cycle: Cycle) -> None:
        n, d = cycle.inner * cycle.outer, n_features
        self.cycle = cycle
        self.bins = Table(
            1,
            visits=np.zeros((n, d), np.uint8),
            mean=np.zeros((n, d)),
            variance=np.zeros((n, d)),
            count=np.zeros((n, d), np.uint32),
            sum=np.zeros((n, d)),
            square=np.zeros((n, d)),  # of distances from the prediction, at the first visit from 0
        )
        self.now: dict[str, NDArray[Any]] = {
            "bin": np.full(1, -1, np.int64),
            "tested": np.zeros(d, np.int64),  # visits that were predicted
            "recent": np.ones(d),  # mean square of distances in the last bins, in spreads
            "error": np.zeros(d),  # mean square of the profile, of its mean, ...
            "error_of_mean": np.zeros(d),
            "count": np.zeros(d, np.int64),  # ... and in the visit now: their sums
            "sum": np.zeros(d),
            "sum_of_mean": np.zeros(d),
        }
        self.find_mean()

    @property
    def error(self) -> Float:
        """(d,) mean square of what it predicted."""
        return np.asarray(self.now["error"])

    @property
    def is_tested(self) -> Bool:
        """(d,) whether it has predicted a whole cycle."""
        return np.asarray(self.now["tested"] >= self.cycle.inner)

    def explains(self, least: Float | float) -> Bool:
        """(d,) whether it explains at least these shares (d,) of the variance around its mean."""
        varies = self.now["error_of_mean"] > LEAST_VARIANCE
        return self.is_tested & varies & (self.now["error"] <= (1.0 - least) * self.now["error_of_mean"])

    def enter(self, bin: int) -> None:
        """The next records are in this bin; -1: it is not known, and nothing happens."""
        if bin in (-1, int(self.now["bin"][0])):
            return
        now, inner = self.now, self.cycle.inner
        seen = now["count"] > 0
        gain = seen / np.minimum(now["tested"] + 1, CYCLES * inner)
        n = np.maximum(now["count"], 1)
        size = np.minimum(now["sum"] / n / self._spread(int(now["bin"][0])) ** 2, FARTHEST**2)
        now["recent"] = now["recent"] + (size - now["recent"]) * seen / LAST
        now["error"] = now["error"] + (now["sum"] / n - now["error"]) * gain
        now["error_of_mean"] = now["error_of_mean"] + (now["sum_of_mean"] / n - now["error_of_mean"]) * gain
        now["tested"] = now["tested"] + seen
        for name in ("count", "sum", "sum_of_mean"):
            now[name] = np.zeros_like(now[name])
        now["bin"] = np.array([bin])
        open_ones = np.flatnonzero(self.bins["count"].any(axis=1))
        far = ((bin - open_ones) % inner >= max(1, inner // 2)) | (open_ones // inner != bin // inner)
        self._merge(open_ones[far])

    def _merge(self, at: Int) -> None:
        """Let visits that ended long enough ago be part of the profile."""
        if not len(at):
            return
        count, total, square, mean, variance = (
            self.bins[name][at] for name in ("count", "sum", "square", "mean", "variance")
        )
        visits = self.bins["visits"][at].astype(np.int64)
        n, seen = np.maximum(count, 1), count > 0
        gain = seen / np.minimum(visits + 1, MOST_VISITS)
        first = visits == 0  # nothing was predicted
        size = square / n - np.where(first, (total / n) ** 2, 0.0)
        self.bins.put(
            at,
            visits=np.minimum(visits + seen, MOST_VISITS),
            mean=mean + (total / n - mean) * gain,
            variance=variance + (np.maximum(size, 0.0) - variance) * gain,
            count=0,
            sum=0.0,
            square=0.0,
        )
        self.find_mean()

    def find_mean(self) -> None:
        """Find the mean and the variance of all bins, after these have changed."""
        is_known = self.bins["visits"] > 0
        n = is_known.sum(axis=0)
        some = np.maximum(n, 1)
        self._mean = np.where(n > 0, np.where(is_known, self.bins["mean"], 0.0).sum(axis=0) / some, np.nan)
        self._variance = np.where(is_known, self.bins["variance"], 0.0).sum(axis=0) / some

    def predict(self, places: Float) -> Float:
        """The profile (n, d) at places (n,), NaN = unknown."""
        inner = self.cycle.inner
        whole = np.where(np.isnan(places), 0.0, places)
        first = np.floor(whole - 0.5)
        share = (whole - 0.5 - first)[:, None]
        start = (whole // inner * inner).astype(np.int64)
        low, high = ((start + (first.astype(np.int64) + k - start) % inner) for k in (0, 1))
        means, known = self.bins["mean"], self.bins["visits"] > 0
        share = np.where(known[low], np.where(known[high], share, 0.0), 1.0)
        found = (1.0 - share) * means[low] + share * means[high]
        return np.where((known[low] | known[high]) & ~np.isnan(places)[:, None], found, np.nan)

    def spread(self, bin: int) -> Float:
        """The spread (d,) of records around the profile in a bin; wider while the last bins were far off."""
        return np.asarray(self._spread(bin) * np.sqrt(np.maximum(self.now["recent"], 1.0)))

    def _spread(self, bin: int) -> Float:
        visits = self.bins["visits"][bin].astype(np.float64)
        of_bin = self.bins["variance"][bin]
        return np.asarray(np.sqrt((visits * of_bin + OF_ALL * self._variance) / (visits + OF_ALL) + 1e-12))

    def add(self, scores: Float, near: Float, level: Float) -> None:
        """Add records of the bin now: scores (n, d), those that teach something, and what was predicted."""
        bin = int(self.now["bin"][0])
        if bin < 0:
            return
        is_tested, known = ~np.isnan(scores) & ~np.isnan(level), ~np.isnan(near)
        e = np.where(is_tested, (scores - level) ** 2, 0.0)
        of_mean = np.where(is_tested, (scores - self._mean) ** 2, 0.0)
        now = self.now
        now["count"] = now["count"] + is_tested.sum(axis=0)
        now["sum"], now["sum_of_mean"] = _added(now["sum"], e), _added(now["sum_of_mean"], of_mean)
        at = np.array([bin])
        total = _added(self.bins["sum"][bin], np.where(known, near, 0.0))
        around = np.where(np.isnan(level) | (self.bins["visits"][bin] == 0), 0.0, level)
        square = _added(self.bins["square"][bin], np.where(known, (near - around) ** 2, 0.0))
        count = self.bins["count"][bin] + known.sum(axis=0)
        self.bins.put(at, count=count, sum=total, square=square)

    def rescale(self, old: Pooled, new: Pooled) -> None:
        """Take another scale for scores."""
        mean, n = self.bins["mean"], np.maximum(self.bins["count"], 1)
        ratio = _ratio(old, new, mean) ** 2
        open_mean = self.bins["sum"] / n
        self.bins.put(
            np.arange(self.bins.size),
            mean=new.scores(old.raw(mean)),
            variance=self.bins["variance"] * ratio,
            sum=new.scores(old.raw(open_mean)) * self.bins["count"],
            square=self.bins["square"] * ratio,
        )
        of_mean = _ratio(old, new, np.where(np.isnan(self._mean), 0.0, self._mean)) ** 2
        for name in ("error", "error_of_mean", "sum", "sum_of_mean"):
            self.now[name] = self.now[name] * of_mean
        self.find_mean()

    def copy(self) -> _Profile:
        """An independent twin."""
        twin = _Profile(len(self.now["error"]), self.cycle)
        at = np.flatnonzero((self.bins["visits"] > 0).any(axis=1) | (self.bins["count"] > 0).any(axis=1))
        if len(at):
            twin.bins.put(at, **{name: self.bins[name][at] for name in self.bins})
        for name, value in self.now.items():
            twin.now[name] = value.copy()
        twin.find_mean()
        return twin


def _added(first: Float, values: Float) -> Float:
    """The sum (d,) of `first` (d,) and values (n, d), one after the other: no bit depends on how they are split."""
    return np.asarray(np.cumsum(np.vstack([first, values]), axis=0)[-1])


def _ratio(old: Pooled, new: Pooled, scores: Float) -> Float:
    """By how much a small distance at these scores (n, d) grows with the new scale."""
    step = 0.01
    return np.asarray((new.scores(old.raw(scores + step)) - new.scores(old.raw(scores - step))) / (2.0 * step))
