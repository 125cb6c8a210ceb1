"""Views: the contexts that a record is compared with, side by side. `VIEWS` is the list of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.series import MOVEMENT_VECTORS, flat
from fomo_stream.detector.step.follow import MAX_SPREADS, RELATIVE_VECTORS

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]
Name = TypeVar("Name", bound=str)

MAX_COLUMNS = 200  # of a view with more than the record as input; a wider one is left out


@dataclass(frozen=True)
class View:
    """A view: its input, the rows that its context keeps, and when the context is renewed.

    >>> VIEWS["movement"].columns(np.arange(9.0).reshape(1, 3, 3), lags=0, categorical=(0,))
    array([[nan,  4.,  5., nan,  7.,  8.]])
    """

    name: str
    # its input: the "record", the record with the ones before it ("past"), its level and spread ("movement"), how far
    # its values, level and spread are from what is usual for its key ("relative"), or only the values ("key_value")
    input: str = "record"
    # whose rows: "reservoir", a uniform sample of all records so far, renewed when a share of it has changed, or
    # "recent", the last records, renewed after a fixed number of records
    sample: str = "reservoir"
    trim: float = 0.0  # share of the context's unconfirmed rows, the most outlying ones, to leave out
    # of a view of keys: the share of the values of a column, those in the middle, that are its range, and the weight of
    # the distance from the ranges; see `generation.Ranges`
    middle: float = 1.0
    extremes: float = 1.0

    def columns(self, vectors: Float, lags: int, categorical: tuple[int, ...]) -> Float:
        """Return the columns (n, width) from the vectors (n, vectors, d) of `Series.follow` with these lags.

        A view of what is usual for keys has its own: `Batch.relative`. categorical: columns of the record
        that hold category codes; these have no level and no spread.
        """
        if self.input == "key_value":
            return compressed_distances(vectors[:, 0])
        shown = vectors[:, -MOVEMENT_VECTORS:] if self.input == "movement" else vectors[:, : self.n_vectors(lags)]
        if self.input == "movement" and categorical:
            shown = shown.copy()
            shown[:, :, categorical] = np.nan
        return flat(shown)

    def gaps(self, gaps: Bool, lags: int) -> Bool | None:
        """Which columns (n, width) of this view are for missing values (n, d) of the records; None: there are none."""
        if self.is_computed or not gaps.any():
            return None
        return np.pad(gaps, [(0, 0), (0, (self.n_vectors(lags) - 1) * gaps.shape[1])])

    @property
    def is_computed(self) -> bool:
        """Return whether its columns are not values of the record or of records before."""
        return self.input == "movement" or self.is_of_keys

    @property
    def is_of_keys(self) -> bool:
        """Return whether it knows only records of known keys."""
        return self.input in ("relative", "key_value")

    @property
    def widest(self) -> int:
        """The most columns of a view with more than the record as input: as many features as for movement."""
        return MAX_COLUMNS // MOVEMENT_VECTORS * RELATIVE_VECTORS if self.is_of_keys else MAX_COLUMNS

    def n_vectors(self, lags: int) -> int:
        """Return the number of vectors of d columns in its input."""
        several = {"past": 1 + lags, "movement": MOVEMENT_VECTORS, "relative": RELATIVE_VECTORS}
        return several.get(self.input, 1)

    def codes(self, n_features: int, lags: int, categorical: tuple[int, ...]) -> tuple[int, ...]:
        """The columns of this view that hold category codes."""
        vectors = 0 if self.is_computed else self.n_vectors(lags)
        return tuple(vector * n_features + column for vector in range(vectors) for column in categorical)


VIEWS = {
    view.name: view
    for view in (
        View("trimmed", trim=0.2),
        View("all"),
        View("recent", sample="recent"),
        View("movement", input="movement"),
        View("past", input="past"),
        # those of keys have to be the last ones: the compiled step expects one there
        View("key", input="relative"),
        # For records that are independent of each other, as payments: how a key moves says little of them, and the
        # columns of level and spread hide odd values. Beyond MAX_SPREADS, values count by their logarithm: a few keys
        # that are off by hundreds of spreads would decide the scale of a feature. One odd value counts little among
        # many usual ones, and a flag that is rarely 1 hides it. So beyond the middle of its column it counts by itself.
        View("key_values", input="key_value", middle=0.9, extremes=2.0),
    )
}
DEFAULT = ("trimmed", "all", "recent", "movement", "key")
GROUPS = {"default": DEFAULT, "fast": ("trimmed", "all", "key"), "events": ("trimmed", "all", "recent", "key_values")}
OF_KEYS = tuple(name for name, view in VIEWS.items() if view.is_of_keys)


def compressed_distances(distances: Float) -> Float:
    """Distances in spreads, beyond MAX_SPREADS by their logarithm, with 32 bits: `step.follow.compressed` of each."""
    return np.asarray((MAX_SPREADS * np.arcsinh(distances / MAX_SPREADS)).astype(np.float32).astype(np.float64))


def distances_of(compressed: Float) -> Float:
    """Distances in spreads, from those of `compressed_distances`."""
    return np.asarray(MAX_SPREADS * np.sinh(compressed / MAX_SPREADS))


def named_views(names: Iterable[Name]) -> tuple[str, ...]:
    """The names of views, with groups of them taken apart, each once and in order. Raises ValueError for another name.

    >>> named_views(["recent", "fast"])
    ('trimmed', 'all', 'recent', 'key')
    """
    names = list(names)
    unknown = [name for name in names if name not in VIEWS and name not in GROUPS]
    if unknown or not names:
        choices = ", ".join([*GROUPS, *VIEWS])
        raise ValueError(f"there is no view {', '.join(map(str, unknown)) or 'named'}; name some of {choices}")
    requested = {view for name in names for view in GROUPS.get(name, (name,))}
    if requested.issuperset(OF_KEYS):
        raise ValueError(f"name one of the views {' and '.join(OF_KEYS)}, not both")
    return tuple(view for view in VIEWS if view in requested)


@dataclass(frozen=True)
class LeftOut:
    """A view that rows are too wide for."""

    view: str
    columns: int
    limit: int

    def __str__(self) -> str:
        return f"{self.view}: it would have {self.columns} columns, at most {self.limit} are taken"


def fitting(
    names: Sequence[str], n_features: int, lags: int, limit: int
) -> tuple[tuple[View, ...], tuple[LeftOut, ...]]:
    """The views that rows of n_features fit, and those that they do not fit.

    limit: columns that the model takes at most; 0: any number.
    """
    views, left_out = [], []
    for view in (VIEWS[name] for name in names):
        width = view.n_vectors(lags) * n_features
        max_columns = limit if view.input == "record" else min(limit or view.widest, view.widest)
        if max_columns and width > max_columns:
            left_out.append(LeftOut(view.name, width, max_columns))
        else:
            views.append(view)
    return tuple(views), tuple(left_out)
