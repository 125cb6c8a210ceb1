"""One call scores records in all views: missing values completed, extremes and likeness to known outliers added.

Contexts and the model come as handles (`handles`), which `fomo_stream.model.compiled` makes.
"""

from __future__ import annotations

import math

import numpy as np

from fomo_stream.model.kernels.compiling import exact_kernel
from fomo_stream.model.kernels.handles import (
    WORDS,
    doubles,
    doubles_2,
    doubles_3,
    number,
    singles,
    singles_2,
    singles_3,
    singles_4,
    truths,
    words_at,
)
from fomo_stream.model.kernels.network import Weights, score_rows
from fomo_stream.model.kernels.statistics import Described, Transform

# Positions in a handle, in the order of the fields
DESCRIBED = 11  # after those of `Transform`
READ = DESCRIBED + 9
COMPLETION = READ + 1
KNOWN, SCALE, NEAREST, ONCE, LOW, HIGH, OWN, VOTES, OUTLIERS, LIKENESS, UNLIKE = range(COMPLETION + 1, COMPLETION + 12)


@exact_kernel
def _weights_at(address):
    h = words_at(address)
    return Weights(
        number(h, 0) != 0.0,
        doubles(h, 1),
        number(h, 2),
        singles_2(h, 3),
        singles(h, 4),
        singles_3(h, 5),
        singles_3(h, 6),
        singles_2(h, 7),
        singles_3(h, 8),
        singles_2(h, 9),
        singles_2(h, 10),
        singles(h, 11),
        singles(h, 12),
        number(h, 13),
    )


@exact_kernel
def _transform_at(h):
    return Transform(
        truths(h, 0),
        doubles(h, 1),
        truths(h, 2),
        number(h, 3),
        doubles(h, 4),
        doubles(h, 5),
        doubles_2(h, 6),
        doubles_2(h, 7),
        doubles(h, 8),
        doubles_2(h, 9),
        doubles_2(h, 10),
    )


@exact_kernel
def _described_at(h):
    return Described(
        singles_4(h, DESCRIBED),
        doubles_3(h, DESCRIBED + 1),
        doubles(h, DESCRIBED + 2),
        number(h, DESCRIBED + 3),
        doubles(h, DESCRIBED + 4),
        doubles(h, DESCRIBED + 5),
        singles_2(h, DESCRIBED + 6),
        singles_2(h, DESCRIBED + 7),
        singles(h, DESCRIBED + 8),
    )


@exact_kernel
def complete(rows, columns, known, scale, nearest, lacking, out):
    """Rows (q, d), NaN = missing, into out, completed by the context with these columns (d, n). See `Completion`.

    nearest: how many rows of the context have a say. lacking: (d, n) values of the context that are known to none, or
    (0, 0).
    """
    d, n = columns.shape
    apart, near = np.empty(n), np.empty(min(nearest, n), np.int64)
    for i in range(rows.shape[0]):
        has_gap = has_value = False
        for j in range(d):
            out[i, j] = rows[i, j]
            if known[j]:
                has_gap |= np.isnan(rows[i, j])
                has_value |= not np.isnan(rows[i, j])
        if not has_gap:
            continue
        if has_value:
            _distances(rows[i], columns, known, scale, lacking, apart)
            _nearest(apart, near)
        for j in range(d):
            if known[j] and np.isnan(rows[i, j]):
                if has_value:
                    out[i, j] = _middle(columns[j], near)
                else:
                    out[i, j] = np.sort(columns[j])[(n - 1) // 2]


@exact_kernel
def _distances(row, columns, known, scale, lacking, apart):
    """Squared distances apart (n,) of a row (d,) in the values that it has."""
    apart[:] = 0.0
    for j in range(row.shape[0]):
        if known[j] and not np.isnan(row[j]):
            x, factor, column = row[j], 1.0 / scale[j], columns[j]
            for i in range(apart.shape[0]):
                z = (column[i] - x) * factor
                apart[i] += z * z
    if lacking.shape[0]:
        for j in range(row.shape[0]):
            if known[j] and np.isnan(row[j]):
                for i in range(apart.shape[0]):
                    if lacking[j, i]:
                        apart[i] = np.inf


@exact_kernel
def _nearest(apart, near):
    """The rows near (k,), k <= n, of the smallest of apart (n,); the first ones of those that are equally far."""
    filled = 0
    for i in range(apart.shape[0]):
        if filled == near.shape[0]:
            if not apart[i] < apart[near[filled - 1]]:
                continue
            filled -= 1
        at = filled
        while at > 0 and apart[near[at - 1]] > apart[i]:
            near[at] = near[at - 1]
            at -= 1
        near[at] = i
        filled += 1


@exact_kernel
def _middle(column, near):
    """The middle one, or the lower of two, of the values of `near` (k,) in a column (n,)."""
    k = near.shape[0]
    for a in range(k):
        before = 0
        for b in range(k):
            x, y = column[near[a]], column[near[b]]
            before += 1 if y < x or (y == x and b < a) else 0
        if before == (k - 1) // 2:
            return column[near[a]]
    return column[near[0]]


@exact_kernel
def _logits_at(rows, h, weights):
    """Logits (q,) of rows (q, d), NaN = missing, against the context of a handle."""
    completed, none = np.empty(rows.shape), np.empty((0, 0), np.bool_)
    columns, nearest = doubles_2(h, COMPLETION), np.int64(number(h, NEAREST))
    complete(rows, columns, truths(h, KNOWN), doubles(h, SCALE), nearest, none, completed)
    return score_rows(completed, _transform_at(h), _described_at(h), weights, singles_2(h, READ))


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
def _score_in(rows, h, weights):
    """Logits (q,) of rows (q, d), NaN = missing, in the view whose context the handle is of."""
    logits = _logits_at(rows, h, weights)
    low, high, once = doubles(h, LOW), doubles(h, HIGH), number(h, ONCE)
    if low.shape[0]:
        for i in range(rows.shape[0]):
            logits[i] += once * beyond(rows[i], low, high)
    if h[OUTLIERS * WORDS]:
        like, share, unlike = (
            _logits_at(rows, words_at(h[OUTLIERS * WORDS]), weights),
            number(h, LIKENESS),
            number(h, UNLIKE),
        )
        for i in range(rows.shape[0]):
            logits[i] += once * (share * max(unlike - like[i], 0.0))
    return logits


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
def _count_smaller(ascending, x):
    """How many values of an ascending array are smaller than x."""
    low, high = 0, ascending.shape[0]
    while low < high:
        middle = (low + high) >> 1
        if ascending[middle] < x:
            low = middle + 1
        else:
            high = middle
    return low


@exact_kernel
def _score_run(rows, without, skips, address, weights, logits, votes):
    """Logits (q,) and votes (q,) of rows (q, d) that one context scores."""
    h = words_at(address)
    entries, counts = _entries(rows, without, skips)
    found = _score_in(entries, h, weights)
    own, by_rank = doubles(h, OWN), doubles(h, VOTES)
    n = 0
    for i in range(rows.shape[0]):
        if counts[i]:
            logits[i] = found[n] if counts[i] == 1 else min(found[n], found[n + 1])
            if by_rank.shape[0]:
                votes[i] = by_rank[_count_smaller(own, logits[i])]
        n += counts[i]


@exact_kernel
def score_views(rows, without, views, contexts, weights):
    """Logits and votes, (2, v, q), of rows in all v views; NaN where there is no context.

    rows: (q, all columns) of all views side by side, NaN = missing; some values may stand in for missing ones, and are
    NaN in `without`. A row with any has the logit that is less outlying: with them, or completed. views: (v, 3) the
    first column of a view, the one after its last, and whether rows that are all NaN are left out. contexts: (v, q)
    addresses of handles, or 0. weights: address of the model's.
    """
    q = rows.shape[0]
    out = np.full((2, views.shape[0], q), np.nan)
    of_model = _weights_at(weights)
    for v in range(views.shape[0]):
        first, last = views[v, 0], views[v, 1]
        start = 0
        while start < q:
            stop = start + 1
            while stop < q and contexts[v, stop] == contexts[v, start]:
                stop += 1
            if contexts[v, start]:
                part, bare = rows[start:stop, first:last], without[start:stop, first:last]
                logits, votes = out[0, v, start:stop], out[1, v, start:stop]
                _score_run(part, bare, views[v, 2] != 0, contexts[v, start], of_model, logits, votes)
            start = stop
    return out
