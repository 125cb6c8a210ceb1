"""The working memory of a call: each part of the compiled step reads the arrays that the part before has written."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.step.follow import Batch, new_batch
from fomo_stream.model.kernels.compiling import exact_kernel
from fomo_stream.model.kernels.handles import Handle, first_of_row, first_of_table, row, words_at

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

WARMING_UP, CALIBRATING, OK = range(3)


class Visits(NamedTuple):
    """The k visits of n records by scopes, in the order of the records."""

    at: Int  # (k,) the record
    scope: Int  # (k,) 0: that of the partition; else that of a key
    number: Int  # (k,) number of the record in its scope
    shared: Int  # (k,) number of the record of the partition's scope that comes next
    judged: Bool  # (k,) whether its scope judges it; else it only learns it
    is_result: Bool  # (k,) whether the result of this visit is that of the record


class VisitScores(NamedTuple):
    """`Scores` of k visits."""

    logit: Float
    by_view: Float  # (k, views)
    by_key: Float
    weight: Float  # NaN = none
    confidence: Float
    generation: Int


class VisitResults(NamedTuple):
    """The results of k visits."""

    remembered: Float
    score: Float
    p_value: Float
    outlier: Bool
    severity: NDArray[np.int8]
    status: NDArray[np.int8]  # WARMING_UP, CALIBRATING or OK
    series: Int
    begins: Bool


class Work:
    """Working memory for n records, and for two visits of each.

    d: features; n_vectors: of a record; n_views: views whose mean is the logit; column_ranges: see `score_views`.
    """

    def __init__(self, n: int, d: int, n_vectors: int, n_views: int, column_ranges: Int) -> None:
        k = 2 * n
        self.size, self.batch = n, new_batch(n, d, n_vectors)
        self._blocks = [np.zeros((rows, k), kind) for rows, kind in BLOCK_SHAPES]
        whole, real, flag, grade = self._blocks
        self.visits = Visits(whole[0], whole[1], whole[2], whole[3], flag[0], flag[1])
        self.scores = VisitScores(real[0], np.zeros((k, n_views)), real[1], real[2], real[3], whole[4])
        self.judged = VisitResults(real[4], real[5], real[6], flag[2], grade[0], grade[1], whole[5], flag[3])
        self.rows, self.without = np.zeros((2, k, int(column_ranges[-1, 1])))
        self.contexts = np.zeros(len(column_ranges) * k, np.int64)
        self._handle = Handle(self.batch, self.visits, self.scores, self.judged, self.rows, self.without, self.contexts)
        self.address = self._handle.address

    def copies(self, at: Int | slice) -> tuple[VisitScores, VisitResults]:
        """Copy the scores and the results of some visits."""
        whole, real, flag, grade = (block[:, at].copy() for block in self._blocks)
        scores = VisitScores(real[0], self.scores.by_view[at].copy(), real[1], real[2], real[3], whole[4])
        return scores, VisitResults(real[4], real[5], real[6], flag[2], grade[0], grade[1], whole[5], flag[3])


BLOCK_SHAPES = (6, np.int64), (7, np.float64), (4, bool), (2, np.int8)  # rows of one type, of visits
VISITS = len(Batch._fields)
SCORES = VISITS + len(Visits._fields)
JUDGED = SCORES + len(VisitScores._fields)
ROWS, WITHOUT, CONTEXTS = range(JUDGED + len(VisitResults._fields), JUDGED + len(VisitResults._fields) + 3)


@exact_kernel
def visits_at(address, k):
    """Return the first k visits."""
    w = words_at(address)
    return Visits(
        first_of_row(w, VISITS, k, np.int64),
        first_of_row(w, VISITS + 1, k, np.int64),
        first_of_row(w, VISITS + 2, k, np.int64),
        first_of_row(w, VISITS + 3, k, np.int64),
        first_of_row(w, VISITS + 4, k, np.bool_),
        first_of_row(w, VISITS + 5, k, np.bool_),
    )


@exact_kernel
def scores_at(address, k):
    """Return the scores of the first k visits."""
    w = words_at(address)
    return VisitScores(
        first_of_row(w, SCORES, k, np.float64),
        first_of_table(w, SCORES + 1, k, np.float64),
        first_of_row(w, SCORES + 2, k, np.float64),
        first_of_row(w, SCORES + 3, k, np.float64),
        first_of_row(w, SCORES + 4, k, np.float64),
        first_of_row(w, SCORES + 5, k, np.int64),
    )


@exact_kernel
def judged_at(address, k):
    """Return the results of the first k visits."""
    w = words_at(address)
    return VisitResults(
        first_of_row(w, JUDGED, k, np.float64),
        first_of_row(w, JUDGED + 1, k, np.float64),
        first_of_row(w, JUDGED + 2, k, np.float64),
        first_of_row(w, JUDGED + 3, k, np.bool_),
        first_of_row(w, JUDGED + 4, k, np.int8),
        first_of_row(w, JUDGED + 5, k, np.int8),
        first_of_row(w, JUDGED + 6, k, np.int64),
        first_of_row(w, JUDGED + 7, k, np.bool_),
    )


@exact_kernel
def view_arrays_at(address, q):
    """Return the rows of q visits in all views, these without stand-ins for missing values, and the contexts, by
    view."""
    w = words_at(address)
    arrays = first_of_table(w, ROWS, q, np.float64), first_of_table(w, WITHOUT, q, np.float64)
    return arrays[0], arrays[1], row(w, CONTEXTS, np.int64)
