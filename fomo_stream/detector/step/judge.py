"""From logits to results: logits are remembered, compared with those before the last step, judged, and kept.

What is kept of a series comes as one value for each record; it counts at the first record of the series in the call,
and in the end every record has what follows from all of them, so that any of them can be written.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.model.kernels.compiling import exact_kernel
from fomo_stream.model.kernels.search import smaller

Float = NDArray[np.float64]
Single = NDArray[np.float32]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

GAP = 10  # records of its series after an alert in which an incident can continue
LIMIT = 100.0  # an incident continues while fewer than these of the last records are outliers, see `Alerts.step`
RAREST = 2.0**-50  # 1 - score, at least: so that no score is 1
ODD = 1.0  # logit above which the model finds a record odd at all
CRITICAL = 0.2  # of the alert rate: 1 - score of a critical outlier, at most
INFO, OUTLIER_WARNING, OUTLIER_CRITICAL = 1, 2, 3  # as in `Severity`

LOW, BIN, BINS = -12.0, 0.25, 168  # the bins are from -12 to 30; one more on each side has what is beyond
ASSUMED = 300.0  # records that are assumed to have come before the first one; their logits are those of `assumed_above`

UNKNOWN, OUTLIER, INLIER = 0, 1, 2  # verdicts of feedback
BEGINS = 2**31  # added to the number of a record's series if it is the first of it
FAR = 2**30  # ... and if any value of it is far, see `Bulk`
LESS = 2**29  # ... and if it is odd among all, but usual for its key: then its own logit is the remembered one


# What some earlier logits reach, at least ODD: the largest; how far it is above the median; what is clear above it, in
# heights; what is clear above the largest of those that were no outliers; and the median.
TOP, HEIGHT, CLEAR, USUAL, MEDIAN = range(5)


class Standards(NamedTuple):
    """What records are compared with between two steps, without those of greedy keys or with far values, and with."""

    ascending: Float  # (m,) the last remembered logits without them
    of_every: Float  # (k,) with them
    peaks: Float  # (2, 2, 5) without and with them, of own and of remembered logits; infinite: they are too few
    few: Float  # (2,) how many may be as high as one that is clear above those that were no outliers
    greedy: Int  # (g,) series of greedy keys
    above: Float  # (BINS + 3,) counts of this bin and all higher ones, see `Rarity`


class Scored(NamedTuple):
    """Ring buffers of what was said of the last s records, and which of their blocks were written."""

    logits: Single  # (s, views)
    remembered: Float  # (s,) NaN: no score
    by_key: Single  # (s,)
    series: NDArray[np.uint32]  # (s,) number of the series, and BEGINS, FAR, LESS
    verdict: NDArray[np.int8]  # (s,)
    outlier: Bool  # (s,)
    written: Bool  # (blocks,)


class Seen(NamedTuple):
    """Ring buffers of the last r records themselves, and which of their blocks were written."""

    rows: Float  # (r, 1 + lags, d)
    gaps: NDArray[np.uint8]  # (r, bytes) a bit for each feature
    moves: Single  # (r, MOVEMENT, d), or (0, MOVEMENT, d) without movement
    written: Bool  # (blocks,) of the rows
    relative: Single  # (r, RELATIVE, d), or (r, 0, d)
    relative_written: Bool  # (blocks,)


# -- logits of a record ----------------------------------------------------------------------------------------------


@exact_kernel
def combined(by_view, i, by_key, weight, rounded):
    """The logit of the i-th record: see `Scores.combined`. weight: NaN: there is none; rounded: from 32 bits."""
    total, views = 0.0, by_view.shape[1]
    for view in range(views):
        total += np.float64(np.float32(by_view[i, view])) if rounded else by_view[i, view]
    mean, key = total / views, np.float64(np.float32(by_key)) if rounded else np.float64(by_key)
    if math.isnan(weight):
        return key if key > mean else mean
    return mean if math.isnan(key) else (1.0 - weight) * mean + weight * key


@exact_kernel
def first_of_series(slots):
    """Of each record of series (n,), which is the first of its series among these (n,): a table by hash finds it."""
    n, size = len(slots), 2
    while size < 2 * n:
        size *= 2
    table, first = np.full(size, -1), np.empty(n, np.int64)
    for i in range(n):
        at = slots[i] & (size - 1)
        while table[at] >= 0 and slots[table[at]] != slots[i]:
            at = (at + 1) & (size - 1)
        if table[at] < 0:
            table[at] = i
        first[i] = table[at]
    return first


@exact_kernel
def remember(logit, by_view, by_key, weight, slots, begins, far, mean, count, sizes, memory):
    """Remembered logits (n,) of records with these scores; see `Memory`. mean, count: (n,) of the series; they change.

    weight: (n,) as in `Scores`, or (0,). sizes: (most + 2,) of a mean, by the number of its logits.
    """
    first, n, most = first_of_series(slots), len(logit), len(sizes) - 2
    out = np.empty(n)
    for i in range(n):
        k, of_key = first[i], not math.isnan(by_key[i])
        if begins[i]:
            mean[k], count[k] = 0.0, 0
        if len(weight):  # what is usual for the key is not remembered, as all records are of it
            x, alone = combined(by_view, i, np.nan, np.nan, False), False
        else:
            x = logit[i]
            alone = slots[i] > 0 and (of_key or x < combined(by_view, i, by_key[i], np.nan, False))
        out[i] = x
        if not math.isnan(x):
            before, size = np.float64(mean[k]), np.int64(count[k])
            if size > 0 and memory > 0.0 and not alone:
                out[i] = np.float32((1.0 - memory) * x + memory * before)
            if not far[i]:
                mean[k], count[k] = before + (x - before) / sizes[size + 1], min(size + 1, most)
        if len(weight) and of_key:
            out[i] = (1.0 - weight[i]) * out[i] + weight[i] * by_key[i]
    for i in range(n):
        mean[i], count[i] = mean[first[i]], count[first[i]]
    return out


# -- how rare a logit is ---------------------------------------------------------------------------------------------


@exact_kernel
def place_of(logit):
    """Where a logit is among the bins: its bin, and how far up in it. NaN, which a model may give, is in the first."""
    if math.isnan(logit):
        return 0.0
    return min(max((logit - LOW) / BIN + 1.0, 0.0), BINS + 1.0)


@exact_kernel
def assumed_above(logit):
    """Share of the assumed records above a logit: near 1 below 3, 1/2 at 3, and near 0 far above.

    It falls by + - * / and square roots only, whose last digits are the same on all processors.

    >>> [round(assumed_above(logit), 3) for logit in (-1.0, 3.0, 7.0, 13.0)]
    [0.947, 0.5, 0.053, 0.01]
    """
    distance = (logit - 3.0) / 2.0
    root = math.sqrt(1.0 + distance * distance)
    tail = 0.5 / (root * (root + abs(distance)))
    return tail if distance >= 0.0 else 1.0 - tail


@exact_kernel
def share_above(logit, above):
    """P of a logit: see `Rarity.above`."""
    at = place_of(logit)
    bin_ = int(at)
    found = above[bin_ + 1]
    # the two outer bins have no width: all logits in one are above, or below, all records in it
    if 0 < bin_ <= BINS:
        found += (above[bin_] - above[bin_ + 1]) * (1.0 - (at - bin_))
    return (found + ASSUMED * assumed_above(logit)) / (above[0] + ASSUMED)


@exact_kernel
def shares_above(logits, above):
    """P (n,) of logits (n,)."""
    out = np.empty(len(logits))
    for i in range(len(logits)):
        out[i] = share_above(logits[i], above)
    return out


@exact_kernel
def count_logits(counts, written, block, logits, steps_ago, weight, fading):
    """Add records with these logits (n,), so many steps ago (n,), to the counts of bins.

    weight: of a record of now; fading: what is left of that a step later.
    """
    shares = np.ones(1 + steps_ago.max())
    for k in range(1, len(shares)):
        shares[k] = shares[k - 1] * fading
    for i in range(len(logits)):
        counts[int(place_of(logits[i]))] += weight * shares[steps_ago[i]]
    for i in range(len(logits)):
        bin_ = int(place_of(logits[i]))
        counts[bin_], written[bin_ // block] = max(counts[bin_], 0.0), True


# -- judging ---------------------------------------------------------------------------------------------------------


@exact_kernel
def rise(peak, logit):
    """How far a logit is above the top, relative to its height: 0 for one that is not."""
    return max(logit - peak[TOP], 0.0) / peak[HEIGHT]


@exact_kernel
def greedy_of(top, series, least, times):
    """Which series (g,) have more than `least` of the highest logits, and so many times as many as of all.

    top: (n,) series of the highest logits; series: (m,) of all.
    """
    first, counts = first_of_series(top), np.zeros(len(top), np.int64)
    for i in range(len(top)):
        counts[first[i]] += 1
    found = np.zeros(len(top), np.bool_)
    for i in range(len(top)):
        if top[i] > 0 and counts[i] > least:
            of_all = 0
            for one in series:
                of_all += one == top[i]
            found[i] = counts[i] > len(top) * (times * (of_all / len(series)))
    return top[found]


@exact_kernel
def severities(outlier, score, alert_rate):
    """Severities (n,) of records by whether they are outliers (n,) and by their scores (n,).

    alert_rate: 0 if no record can be an outlier yet; then all are NONE.
    """
    out = np.zeros(len(score), np.int8)
    for i in range(len(score)):
        p = 1.0 - score[i]
        if outlier[i]:
            out[i] = OUTLIER_CRITICAL if p <= CRITICAL * alert_rate else OUTLIER_WARNING
        elif p <= alert_rate:
            out[i] = INFO
    return out


@exact_kernel
def judge(
    logit, by_view, by_key, weight, slots, begins, far, ordinary, mean, count, left, sizes, standards, memory, rate,
    rare, outliers, load, out, outlier, severity,
):  # fmt: skip
    """Judge the next records (n,); see `Alerts` for the rules.

    The first four are of `Scores`, the next four of the `Batch`. mean, count, left: (n,) of the series, changed; see
    `remember`; left: in how many more records an incident can continue. memory: weight of earlier logits; rate: of
    alerts; rare: 1 - score of a record that continues an incident, at most; outliers: since the last step; load: before
    it. Writes remembered logits, scores and p-values (3, n), which are outliers (n,), and severities (n,). Returns how
    many are outliers since the last step.
    """
    remembered = remember(logit, by_view, by_key, weight, slots, begins, far, mean, count, sizes, memory)
    first, n = first_of_series(slots), len(logit)
    for i in range(n):
        k, y, w = first[i], remembered[i], weight[i] if len(weight) else np.nan
        own = logit[i]
        if not own < combined(by_view, i, by_key[i], w, False):  # from 32 bits, as the history has it later
            own = combined(by_view, i, by_key[i], w, True)
        is_apart = far[i]
        for series in standards.greedy:
            is_apart |= series == slots[i]
        ascending = standards.of_every if is_apart else standards.ascending
        own_peak, its_peak = standards.peaks[int(is_apart), 0], standards.peaks[int(is_apart), 1]
        m = len(ascending)
        p = (1.0 + (m - smaller(ascending, y))) / (m + 1.0)
        own_rise, its_rise = rise(own_peak, own), rise(its_peak, y)
        top = own_rise > own_peak[CLEAR] or its_rise > its_peak[CLEAR]
        again = (own > own_peak[USUAL] or y > its_peak[USUAL]) and p * (m + 1.0) <= standards.few[int(is_apart)]
        # a beginning has no records before it that belong to it, so memory must not make it smaller
        counted = max(own, y) if own_rise > 0.0 else y
        above = 1.0 + 2.0 * max(own_rise, its_rise)
        rarity = max(share_above(counted, standards.above) / (above * above * above), RAREST)
        # in a constant stream, or after an odd record, the records before are all that is odd about a usual one
        follows = left[k] > 0 and not begins[i] and rarity <= rare and own > own_peak[MEDIAN]
        is_odd = by_key[i] > ODD
        for j in range(ordinary.shape[1]):
            is_odd |= not ordinary[i, j]
        outlier[i] = is_odd and (top or ((again or follows) and load + outliers < LIMIT))
        outliers += outlier[i]
        left[k] = GAP if outlier[i] else (0 if begins[i] or left[k] == 0 else left[k] - 1)
        out[0, i], out[1, i], out[2, i] = y, 1.0 - rarity, p
    for i in range(n):
        left[i] = left[first[i]]
    is_ready = math.isfinite(standards.peaks[1, 1, TOP])
    severity[:] = severities(outlier, out[1], rate if is_ready else 0.0)
    return outliers


# -- the history -----------------------------------------------------------------------------------------------------


@exact_kernel
def note_scored(kept, size, block, number, logit, by_view, by_key, weight, slots, begins, far, remembered, outlier):
    """Write the records from this number on into the ring buffers of `size` records."""
    n = len(logit)
    for i in range(max(0, n - size), n):
        at = (number + i) % size
        less = logit[i] < combined(by_view, i, by_key[i], weight[i] if len(weight) else np.nan, False)
        for view in range(by_view.shape[1]):
            kept.logits[at, view] = by_view[i, view]
        kept.remembered[at], kept.by_key[at] = remembered[i], by_key[i]
        kept.series[at] = slots[i] + BEGINS * begins[i] + FAR * far[i] + LESS * less
        kept.verdict[at], kept.outlier[at], kept.written[at // block] = UNKNOWN, outlier[i], True


@exact_kernel
def note_seen(kept, size, block, relative_block, number, vectors, gaps, relative):
    """Write vectors (n, vectors, d), gaps (n, d) and what is relative to the key (n, RELATIVE, d) likewise."""
    n, plain = len(vectors), kept.rows.shape[1]
    for i in range(max(0, n - size), n):
        at = (number + i) % size
        kept.rows[at] = vectors[i, :plain]
        if len(kept.moves):
            kept.moves[at] = vectors[i, plain:]
        kept.gaps[at] = 0
        for j in range(gaps.shape[1]):
            kept.gaps[at, j // 8] |= np.uint8(gaps[i, j]) << np.uint8(7 - j % 8)
        kept.written[at // block] = True
        note_relative(kept, at, relative_block, relative[i])


@exact_kernel
def note_relative(kept, at, block, relative):
    """Write what is relative to the key (RELATIVE, d); records of no known key, of which all is NaN, cost nothing."""
    is_known = False
    for a in range(kept.relative.shape[1]):
        for j in range(kept.relative.shape[2]):
            is_known |= not (math.isnan(relative[a, j]) and math.isnan(kept.relative[at, a, j]))
            kept.relative[at, a, j] = relative[a, j]
    if is_known:
        kept.relative_written[at // block] = True


@exact_kernel
def scored(kept, size, first, stop, prior):
    """The records from `first` to before `stop` that have a score and are no outliers by feedback.

    Their numbers, own and remembered logits, whether they are outliers, their series, and which have far values.
    """
    n, m = max(0, stop - first), 0
    logits, judged, by_key, verdict = kept.logits, kept.remembered, kept.by_key, kept.verdict
    series, flags = kept.series, kept.outlier
    numbers, slots, own, remembered = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n), np.empty(n)
    outlier, far = np.empty(n, np.bool_), np.empty(n, np.bool_)
    at = first % size - 1
    for number in range(first, stop):
        at = at + 1 if at + 1 < size else 0
        if math.isnan(judged[at]) or verdict[at] == OUTLIER:
            continue
        weight, of_series = prior / (prior + number) if prior > 0.0 else np.nan, np.int64(series[at])
        own[m] = judged[at] if of_series & LESS else combined(logits, at, by_key[at], weight, False)
        numbers[m], remembered[m], outlier[m] = number, judged[at], flags[at]
        slots[m], far[m] = of_series % LESS, of_series & FAR > 0
        m += 1
    return numbers[:m], own[:m], remembered[:m], outlier[:m], slots[:m], far[:m]
