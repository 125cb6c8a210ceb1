"""Look at records in all views: the columns of each view from the vectors of a batch, and their logits and votes."""

from __future__ import annotations

import numpy as np

from fomo_stream.detector.step.judge import combined
from fomo_stream.model.kernels.compiling import exact_kernel
from fomo_stream.model.kernels.views import score_views

RECORD, MOVEMENT, RELATIVE = range(3)  # what a view looks at: values of the record and before, its movement, or its key


@exact_kernel
def look(vectors, relative, gaps, numeric, views, contexts, numbers, cuts, model):
    """Scores of the records of a batch (n,): logits by view (n, v), of what is usual for the key, and combined, the
    number of contexts that took effect, and confidence (n,).

    numeric: (d,) features that are no categories. views: (v + 1, 2) of each what it looks at, and how many vectors; the
    last one is that of the key, or of 0 vectors. contexts, numbers: (v + 1, 2) addresses of handles and numbers of the
    contexts that score the first `cuts` (v + 1,) records, and the others; 0: none. model: address of its handle.
    """
    n, d, n_views = len(vectors), gaps.shape[1], len(views) - 1
    width = 0
    for v in range(len(views)):
        width += views[v, 1] * d
    rows, columns = np.empty((n, width)), np.empty((len(views), 3), np.int64)
    without, addresses = np.empty((n, width)), np.zeros((len(views), n), np.int64)
    generation, end = np.zeros(n, np.int64), 0
    for v in range(len(views)):
        kind, count = views[v, 0], views[v, 1]
        columns[v, 0], columns[v, 1], columns[v, 2] = end, end + count * d, kind == RELATIVE
        for i in range(n):
            of = 0 if i < cuts[v] else 1
            addresses[v, i] = contexts[v, of]
            generation[i] += numbers[v, of]
            for a in range(count):
                for j in range(d):
                    at = end + a * d + j
                    if kind == RELATIVE:
                        rows[i, at] = relative[i, a, j]
                    elif kind == MOVEMENT:
                        rows[i, at] = vectors[i, vectors.shape[1] - count + a, j] if numeric[j] else np.nan
                    else:
                        rows[i, at] = vectors[i, a, j]
                    without[i, at] = np.nan if kind == RECORD and a == 0 and gaps[i, j] else rows[i, at]
        end = columns[v, 1]
    found = score_views(rows, without, columns, addresses, model)
    by_view, by_key = np.empty((n, n_views)), np.empty(n)
    logit, confidence = np.empty(n), np.empty(n)
    for i in range(n):
        votes = 0.0
        for v in range(n_views):
            by_view[i, v] = found[0, v, i]
            votes += found[1, v, i]
        by_key[i] = found[0, n_views, i]
        logit[i], confidence[i] = combined(by_view, i, by_key[i], np.nan, False), abs(votes / n_views)
        generation[i] -= n_views - 1 if addresses[0, i] else 0
    return logit, by_view, by_key, generation, confidence
