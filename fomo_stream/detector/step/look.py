"""Look at records in all views: the columns of each view from the vectors of a batch, and their logits and votes."""

from __future__ import annotations

import numpy as np

from fomo_stream.detector.step.judge import combined
from fomo_stream.model.kernels.compiling import exact_kernel
from fomo_stream.model.kernels.views import score_views

RECORD, MOVEMENT, RELATIVE = range(3)  # what a view looks at: values of the record and before, its movement, or its key


@exact_kernel
def look(vectors, relative, gaps, numeric, views, model, rows, without):
    """Logits and votes (2, v + 1, n) of the records of a batch in all views, and what follows from them: the combined
    logits (n,), logits by view (n, v), those of what is usual for the key (n,), the number of contexts that took effect
    (n,), and confidence (n,).

    numeric: (d,) features that are no categories. views: (v + 1, 8) of each what it looks at, how many vectors, its
    columns, how many of the records the first of its two contexts scores, the addresses of their handles (0: there is
    none), and their numbers; the last view is that of the key, or has no columns. model: address of the handle of its
    weights. rows, without: (n, columns) of all views side by side, see `score_views`; (0, 0): those of the vectors.
    """
    n, d, n_views = len(vectors), gaps.shape[1], len(views) - 1
    columns, contexts = np.empty((n_views + 1, 3), np.int64), np.empty((n_views + 1, n), np.int64)
    generation, is_made, end = np.zeros(n, np.int64), rows.shape[1] > 0, 0
    if not is_made:
        rows, without = np.empty((n, views[:, 2].sum())), np.empty((n, views[:, 2].sum()))
    for v in range(n_views + 1):
        what, cut = views[v, 0], views[v, 3]
        columns[v, 0], columns[v, 1], columns[v, 2] = end, end + views[v, 2], what == RELATIVE
        for i in range(n):
            contexts[v, i] = views[v, 4 if i < cut else 5]
            generation[i] += views[v, 6 if i < cut else 7]
            for a in range(0 if is_made else views[v, 1]):
                for j in range(d):
                    at = end + a * d + j
                    if what == RELATIVE:
                        rows[i, at] = relative[i, a, j]
                    elif what == MOVEMENT:
                        rows[i, at] = vectors[i, vectors.shape[1] - views[v, 1] + a, j] if numeric[j] else np.nan
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
    return found, logit, by_view, by_key, generation, confidence
