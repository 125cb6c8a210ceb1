"""Look at records in all views: the columns of each view from the vectors of a batch, and one logit from all found."""

from __future__ import annotations

import numpy as np

from fomo_stream.detector.step.judge import combined
from fomo_stream.model.kernels.compiling import exact_kernel

RECORD, MOVEMENT, RELATIVE = range(3)  # what a view looks at: values of the record and before, its movement, or its key


@exact_kernel
def columns_of(vectors, relative, gaps, numeric, views, rows, without, contexts, generation):
    """Put the rows of a batch in all views side by side into rows (n, columns), and without what stands in for missing
    values; the addresses of their contexts (v, n), and the number of contexts that took effect before (n,).

    numeric: (d,) features that are no categories. views: (v, 7) of each what it looks at, how many vectors, how many
    records the first of its two contexts scores, the addresses of their handles (0: there is none), and their numbers.
    rows (n, 0) are left out: then a caller has made them.
    """
    end, vote = 0, 0
    for v in range(len(views)):
        what, count, cut = views[v, 0], views[v, 1], views[v, 2]
        vote += what != RELATIVE
        for i in range(len(vectors)):
            contexts[v, i] = views[v, 3 if i < cut else 4]
            generation[i] += views[v, 5 if i < cut else 6]
            for a in range(count if rows.shape[1] else 0):
                for j in range(len(numeric)):
                    if what == RELATIVE:
                        x = relative[i, a, j]
                    elif what == MOVEMENT:
                        x = vectors[i, vectors.shape[1] - count + a, j] if numeric[j] else np.nan
                    else:
                        x = vectors[i, a, j]
                    at = end + a * len(numeric) + j
                    rows[i, at], without[i, at] = x, np.nan if what == RECORD and a == 0 and gaps[i, j] else x
        end += count * len(numeric)
    for i in range(len(vectors)):
        generation[i] -= vote - 1 if contexts[0, i] else 0


@exact_kernel
def combine(found, n_views, by_view, by_key, logit, confidence):
    """Put logits by view (n, n_views), that of what is usual for the key (n,), combined ones (n,), and confidence (n,)
    of records into these arrays, from the logits and votes found (2, v, n): those of the key are of one view more."""
    for i in range(len(logit)):
        votes = 0.0
        for v in range(n_views):
            by_view[i, v] = found[0, v, i]
            votes += found[1, v, i]
        by_key[i] = found[0, n_views, i] if found.shape[1] > n_views else np.nan
        logit[i], confidence[i] = combined(by_view, i, by_key[i], np.nan, False), abs(votes / n_views)
