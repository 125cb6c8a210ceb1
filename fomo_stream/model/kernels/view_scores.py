"""One call scores records in all views: missing values completed, extremes and likeness to known outliers added.

Contexts and the model come as handles (`handles`), which `fomo_stream.model.compiled` makes.
"""

from __future__ import annotations

import math

import numpy as np

from fomo_stream.model.kernels.compiling import exact_kernel
from fomo_stream.model.kernels.handles import WORDS, call, row, scalar, table, words_at
from fomo_stream.model.kernels.row_completion import CompletionRows, complete
from fomo_stream.model.kernels.search import smaller
from fomo_stream.model.kernels.statistics import READ

# Positions in the handle of a context, in the order of the fields, after those of `statistics`
KNOWN = READ + 1
ONCE, LOW, HIGH, OWN, VOTES, OUTLIERS, LIKENESS, UNLIKE = range(KNOWN + 7, KNOWN + 15)


@exact_kernel
def _completion_rows_at(h):
    at = KNOWN
    return CompletionRows(
        table(h, at, np.float64),
        row(h, at + 1, np.bool_),
        row(h, at + 2, np.float64),
        row(h, at + 3, np.float64),
        row(h, at + 4, np.float64),
        table(h, at + 5, np.float32),
        scalar(h, at + 6),
    )


@exact_kernel
def beyond(row, low, high):
    """log(1 + the largest distance of a row (d,) beyond the ranges, in their widths); see `Ranges`."""
    most = 0.0
    for j in range(row.shape[0]):
        width = high[j] - low[j]
        excess = max(low[j] - row[j], row[j] - high[j])
        if width > 0 and excess > 0 and np.isfinite(excess / width):
            most = max(most, excess / width)
    return math.log1p(most)


@exact_kernel
def _entries(rows, without, skips):
    """The rows (e, d) to be scored: each row (q, d) with its stand-ins, and `without` them where it has some.

    Also how many there are of each row (q,): 1, 2, or 0 if nothing is known of it and the view skips such rows.
    """
    q, d = rows.shape
    entries, counts = np.empty((2 * q, d)), np.empty(q, np.int64)
    n = 0
    for i in range(q):
        has_value, has_gap = not skips, False
        for j in range(d):
            a, b = rows[i, j], without[i, j]
            has_value |= not np.isnan(a)
            has_gap |= a != b and not (np.isnan(a) and np.isnan(b))
            entries[n, j] = a
        if has_gap:
            for j in range(d):
                entries[n + 1, j] = without[i, j]
        counts[i] = (2 if has_gap else 1) if has_value else 0
        n += counts[i]
    return entries[:n], counts


@exact_kernel
def _add_extremes(rows, h, logits):
    """Add to the logits (q,) of rows (q, d) how far these are beyond the ranges of a handle."""
    low, high, once = row(h, LOW, np.float64), row(h, HIGH, np.float64), scalar(h, ONCE)
    if low.shape[0]:
        for i in range(rows.shape[0]):
            logits[i] += once * beyond(rows[i], low, high)


@exact_kernel
def _add_likeness(like, h, logits):
    """Add to the logits (q,) what those among known outliers, like (q,), say."""
    share, unlike, once = scalar(h, LIKENESS), scalar(h, UNLIKE), scalar(h, ONCE)
    for i in range(like.shape[0]):
        logits[i] += once * (share * max(unlike - like[i], 0.0))


@exact_kernel
def _combine_entries(entry_logits, counts, h, logits, votes):
    """Write the logits (q,) of records, from those of their entries, and the votes (q,) of the context on them."""
    own, by_rank = row(h, OWN, np.float64), row(h, VOTES, np.float64)
    n = 0
    for i in range(counts.shape[0]):
        if counts[i]:
            logits[i] = entry_logits[n] if counts[i] == 1 else min(entry_logits[n], entry_logits[n + 1])
            votes[i] = by_rank[smaller(own, logits[i])]
        n += counts[i]


@exact_kernel
def score_views(rows, without, views, contexts, weights, score):
    """Return logits and votes, (2, v, q), of rows in all v views; NaN without a context.

    rows: (q, all columns) of all views side by side, NaN = missing; some values may stand in for missing ones, and are
    NaN in `without`. A row with any has the logit that is less outlying: with them, or completed. views: (v, 3) the
    first column of a view, the one after its last, and whether rows that are all NaN are left out. contexts: (v, q)
    addresses of handles, or 0. weights: address of the model's. score: address of the kernel that scores complete rows,
    `fuse_at` or `attend_at`.
    """
    q = rows.shape[0]
    out = np.empty((2, views.shape[0], q))
    out[:] = np.nan
    none = np.empty((0, 0), np.bool_)
    for v in range(views.shape[0]):
        first, last = views[v, 0], views[v, 1]
        start = 0
        while start < q:
            stop = start + 1
            while stop < q and contexts[v, stop] == contexts[v, start]:
                stop += 1
            if contexts[v, start]:
                h = words_at(contexts[v, start])
                entries, counts = _entries(rows[start:stop, first:last], without[start:stop, first:last], views[v, 2])
                completed = np.empty(entries.shape)
                # Twice at most, first in the context and then among known outliers: a loop, as the code of
                # `complete` is compiled once more wherever it is called.
                at, logits = contexts[v, start], np.empty(0)
                while at:
                    complete(entries, _completion_rows_at(words_at(at)), none, completed)
                    entry_logits = np.empty(entries.shape[0])
                    call(score, completed.ctypes.data, entries.shape[0], at, weights, entry_logits.ctypes.data)
                    if at == contexts[v, start]:
                        logits = entry_logits
                        _add_extremes(entries, h, logits)
                        at = h[OUTLIERS * WORDS]
                    else:
                        _add_likeness(entry_logits, h, logits)
                        at = 0
                _combine_entries(logits, counts, h, out[0, v, start:stop], out[1, v, start:stop])
            start = stop
    return out
