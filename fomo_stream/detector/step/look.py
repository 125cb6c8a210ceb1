"""Look at records in all views: the columns of each view from the vectors of a batch, and their logits and votes."""

from __future__ import annotations

import numpy as np

from fomo_stream.detector.step.judge import combined
from fomo_stream.model.kernels.compiling import exact_kernel
from fomo_stream.model.kernels.views import score_views

RECORD, MOVEMENT, RELATIVE = range(3)  # what a view looks at: values of the record and before, its movement, or its key


@exact_kernel
def look(vectors, relative, gaps, numeric, views, model):
    """Logits by view (n, v), of what is usual for the key (n,), and combined (n,), the number of contexts that took
    effect (n,), and confidence (n,) of the records of a batch.

    numeric: (d,) features that are no categories. views: (v + 1, 7) of each what it looks at, how many vectors, how
    many of the records the first of its two contexts scores, the addresses of their handles (0: there is none), and
    their numbers; the last view is that of the key, or of 0 vectors. model: address of the handle of its weights.
    """
    n, d, n_views = len(vectors), gaps.shape[1], len(views) - 1
    rows, columns = np.empty((n, views[:, 1].sum() * d)), np.empty((n_views + 1, 3), np.int64)
    without, contexts, generation, end = (
        np.empty(rows.shape),
        np.empty((n_views + 1, n), np.int64),
        np.zeros(n, np.int64),
        0,
    )
    for v in range(n_views + 1):
        what, count, cut = views[v, 0], views[v, 1], views[v, 2]
        columns[v, 0], columns[v, 1], columns[v, 2] = end, end + count * d, what == RELATIVE
        for i in range(n):
            contexts[v, i] = views[v, 3 if i < cut else 4]
            generation[i] += views[v, 5 if i < cut else 6]
            for a in range(count):
                for j in range(d):
                    at = end + a * d + j
                    if what == RELATIVE:
                        rows[i, at] = relative[i, a, j]
                    elif what == MOVEMENT:
                        rows[i, at] = vectors[i, vectors.shape[1] - count + a, j] if numeric[j] else np.nan
                    else:
                        rows[i, at] = vectors[i, a, j]
                    without[i, at] = np.nan if what == RECORD and a == 0 and gaps[i, j] else rows[i, at]
        end = columns[v, 1]
    found = score_views(rows, without, columns, contexts, model)
    by_view, by_key, logit, confidence = np.empty((n, n_views)), np.empty(n), np.empty(n), np.empty(n)
    for i in range(n):
        votes = 0.0
        for v in range(n_views):
            by_view[i, v] = found[0, v, i]
            votes += found[1, v, i]
        by_key[i] = found[0, n_views, i]
        logit[i], confidence[i] = combined(by_view, i, by_key[i], np.nan, False), abs(votes / n_views)
        generation[i] -= n_views - 1 if contexts[0, i] else 0
    return logit, by_view, by_key, generation, confidence
