"""Make results of logits: remember each logit, compare it with those before the last step, judge the record, keep it.

`judge_visits` is the loop over records. The arrays of a scope come by address: its ring buffers, the earlier logits
that records are compared with, and the remembered state of its series.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.step.follow import batch_at
from fomo_stream.detector.step.slots import first_of_series
from fomo_stream.detector.step.work import CALIBRATING, OK, WARMING_UP, judged_at, scores_at, visits_at
from fomo_stream.model.kernels.compiling import exact_kernel
from fomo_stream.model.kernels.handles import cube, row, table, words_at
from fomo_stream.model.kernels.search import smaller

Float = NDArray[np.float64]
Single = NDArray[np.float32]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

EXTREME = 2.0  # times the clear distance: a logit so far above all others is an outlier in any case
INCIDENT_GAP = 10  # records of its series after an alert in which an incident can continue
MAX_LOAD = 100.0  # outliers among the last records, see `Alerts.step`; with more, an incident does not continue
MIN_TAIL_SHARE = 2.0**-50  # 1 - score, at least: so that no score is 1
ODD_LOGIT = 1.0  # logit above which the model finds a record odd at all
CRITICAL_SHARE = 0.2  # of the alert rate: the largest 1 - score of a critical outlier
INFO, OUTLIER_WARNING, OUTLIER_CRITICAL = 1, 2, 3  # as in `Severity`

LOW, BIN, BINS = -12.0, 0.25, 168  # bins of logits from -12 to 30; one more bin on each side counts those beyond
ASSUMED = 300.0  # records that are assumed to have come before the first one; their logits are those of `assumed_above`

UNKNOWN, OUTLIER, INLIER = 0, 1, 2  # verdicts of feedback
BEGINS_FLAG = 2**31  # added to the number of a record's series if it is the first of it
FAR_FLAG = 2**30  # ... and if any value of it is far, see `Bulk`
LESS_FLAG = 2**29  # ... and if it is odd for all, but usual for its key: then its own logit is the remembered one


# The peak of some earlier logits, at least ODD_LOGIT: the largest; its height above the median; how many heights above
# it a logit is clearly larger; the logit that is clearly larger than all that were not outliers; and the median.
TOP, HEIGHT, CLEAR, USUAL, MEDIAN = range(5)


class EarlierLogits(NamedTuple):
    """The earlier logits that records are compared with between two steps.

    Ordinary ones are those without greedy keys and without far values.
    """

    ascending: Float  # (m,) the last remembered logits, ordinary ones
    of_every: Float  # (k,) the last remembered logits, all
    peaks: Float  # (2, 2, 5) peaks of ordinary and of all records, of own and of remembered logits; infinite: too few
    greedy: Int  # (g,) series of greedy keys
    above: Float  # (BINS + 3,) counts of this bin and all higher ones, see `Rarity`


class ScoreRings(NamedTuple):
    """Ring buffers of the scores of the last s records, and which of their blocks were written."""

    logits: Single  # (s, views)
    remembered: Float  # (s,) NaN: no score
    by_key: Single  # (s,)
    series: NDArray[np.uint32]  # (s,) number of the series, and BEGINS_FLAG, FAR_FLAG, LESS_FLAG
    verdict: NDArray[np.int8]  # (s,)
    outlier: Bool  # (s,)
    written: Bool  # (blocks,)


class RowRings(NamedTuple):
    """Ring buffers of the last r records themselves, and which of their blocks were written."""

    rows: Float  # (r, 1 + lags, d)
    gaps: NDArray[np.uint8]  # (r, bytes) a bit for each feature
    moves: Single  # (r, MOVEMENT_VECTORS, d), or (0, MOVEMENT_VECTORS, d) without movement
    written: Bool  # (blocks,) of the rows
    relative: Single  # (r, RELATIVE_VECTORS, d), or (r, 0, d)
    relative_written: Bool  # (blocks,)


# The addresses of a scope: three handles, and the number of its series in results
FIXED, EARLIER_LOGITS, MEMORY, SERIES, N_ADDRESSES = range(5)
# Positions in the handle FIXED, after the fields of `ScoreRings` and of `RowRings`
RING = 13  # rows in the ring, rows in an entry of the log, relative rows in an entry; scores in the ring, in an entry
TALLY = 14  # see `N_TALLY`
OF_MEAN = 15  # (most + 2,) see `_remembered`
LIMITS = 16  # MEMORY_WEIGHT, RATE, ...
OUTLIERS = 17  # (1,) since the last step
# A tally: records so far; the numbers of them where `judge_visits` stops, up to which there is room, and up to which
# the addresses of the scope are valid
RECORDS, BOUND, ROOM_END, ADDRESSED_UNTIL, N_TALLY = range(5)
# weight of remembered logits; alert rate; 1 - score of a record that continues an incident, at most; outliers before
# the last step; whether still values alert; whether records are independent of each other
MEMORY_WEIGHT, RATE, CONTINUES, LOAD, STILL, INDEPENDENT = range(6)


@exact_kernel
def _score_rings_at(h):
    return ScoreRings(
        table(h, 0, np.float32),
        row(h, 1, np.float64),
        row(h, 2, np.float32),
        row(h, 3, np.uint32),
        row(h, 4, np.int8),
        row(h, 5, np.bool_),
        row(h, 6, np.bool_),
    )


@exact_kernel
def _row_rings_at(h):
    return RowRings(
        cube(h, 7, np.float64),
        table(h, 8, np.uint8),
        cube(h, 9, np.float32),
        row(h, 10, np.bool_),
        cube(h, 11, np.float32),
        row(h, 12, np.bool_),
    )


@exact_kernel
def _earlier_logits_at(address):
    h = words_at(address)
    return EarlierLogits(
        row(h, 0, np.float64),
        row(h, 1, np.float64),
        cube(h, 2, np.float64),
        row(h, 3, np.int64),
        row(h, 4, np.float64),
    )


# -- logits of a record ----------------------------------------------------------------------------------------------


@exact_kernel
def combined(by_view, i, by_key, weight, rounded):
    """Return the logit of the i-th record: see `Scores.combined`. weight: NaN = none; rounded: add float32 values."""
    total, views = 0.0, by_view.shape[1]
    for view in range(views):
        total += np.float64(np.float32(by_view[i, view])) if rounded else by_view[i, view]
    mean, key = total / views, np.float64(np.float32(by_key)) if rounded else np.float64(by_key)
    if math.isnan(weight):
        return key if key > mean else mean
    return mean if math.isnan(key) else (1.0 - weight) * mean + weight * key


@exact_kernel
def _remembered(logit, by_view, i, by_key, weight, of_key, far, before, size, sizes, memory):
    """Return the remembered logit of the i-th record, the new mean of its series, and the number of logits in the mean.

    weight: see `combined`; of_key: whether its series belongs to a key; before, size: mean and number so far; sizes:
    (most + 2,) the weight of a mean by the number of its logits. See `Memory`.
    """
    knows_key, most = not math.isnan(by_key), len(sizes) - 2
    if math.isnan(weight):
        x = logit
        alone = of_key and (knows_key or x < combined(by_view, i, by_key, weight, False))
    else:  # in the scope of a key: the part of the view `key` is not remembered, because all records have this key
        x, alone = combined(by_view, i, np.nan, np.nan, False), False
    out = x
    if not math.isnan(x):
        if size > 0 and memory > 0.0 and not alone:
            out = np.float64(np.float32((1.0 - memory) * x + memory * before))
        if not far:
            before, size = np.float64(np.float32(before + (x - before) / sizes[size + 1])), min(size + 1, most)
    if not math.isnan(weight) and knows_key:
        out = (1.0 - weight) * out + weight * by_key
    return out, before, size


@exact_kernel
def remember(logit, by_view, by_key, weight, slots, begins, far, mean, count, sizes, memory):
    """Return the remembered logits (n,) of records with these scores; see `Memory`. weight: (n,) as in `Scores`, or
    (0,).

    mean, count: (n,) of the series of each record; the values at the first record of a series are read, and the values
    after all records are written to each.
    """
    first, n = first_of_series(slots), len(logit)
    out = np.empty(n)
    for i in range(n):
        k, w = first[i], weight[i] if len(weight) else np.nan
        before, size = (0.0, 0) if begins[i] else (np.float64(mean[k]), np.int64(count[k]))
        out[i], mean[k], count[k] = _remembered(
            logit[i], by_view, i, by_key[i], w, slots[i] > 0, far[i], before, size, sizes, memory
        )
    for i in range(n):
        mean[i], count[i] = mean[first[i]], count[first[i]]
    return out


# -- how rare a logit is ---------------------------------------------------------------------------------------------


@exact_kernel
def bin_position(logit):
    """Return the position of a logit: its bin, plus its part of the bin's width. NaN, which a model may give, is in bin
    0."""
    if math.isnan(logit):
        return 0.0
    return min(max((logit - LOW) / BIN + 1.0, 0.0), BINS + 1.0)


@exact_kernel
def assumed_above(logit):
    """Return the share of the assumed records above a logit: near 1 below 3, 1/2 at 3, and near 0 far above.

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
    """Return the probability of a larger logit: see `Rarity.above`."""
    at = bin_position(logit)
    bin_ = int(at)
    count = above[bin_ + 1]
    # the two outer bins have no width: all logits in one are above, or below, all records in it
    if 0 < bin_ <= BINS:
        count += (above[bin_] - above[bin_ + 1]) * (1.0 - (at - bin_))
    return (count + ASSUMED * assumed_above(logit)) / (above[0] + ASSUMED)


@exact_kernel
def shares_above(logits, above):
    """Return the probabilities (n,) of logits larger than these (n,)."""
    out = np.empty(len(logits))
    for i in range(len(logits)):
        out[i] = share_above(logits[i], above)
    return out


@exact_kernel
def count_logits(counts, written, block, logits, steps_ago, weight, fading):
    """Add records with these logits (n,), which came `steps_ago` (n,) steps ago, to the counts of bins.

    weight: of a new record; fading: the factor of the weight for each step of age.
    """
    shares = np.ones(1 + steps_ago.max())
    for k in range(1, len(shares)):
        shares[k] = shares[k - 1] * fading
    for i in range(len(logits)):
        counts[int(bin_position(logits[i]))] += weight * shares[steps_ago[i]]
    for i in range(len(logits)):
        bin_ = int(bin_position(logits[i]))
        counts[bin_], written[bin_ // block] = max(counts[bin_], 0.0), True


# -- judging ---------------------------------------------------------------------------------------------------------


@exact_kernel
def rise(peak, logit):
    """Return how far a logit is above the top of a peak, in heights of the peak: 0 for a logit that is not above."""
    return max(logit - peak[TOP], 0.0) / peak[HEIGHT]


@exact_kernel
def greedy_of(top, series, least, times):
    """Return the series (g,) that have more than `least` of the highest logits, and more than `times` their share of
    all.

    top: (n,) series of the highest logits; series: (m,) of all.
    """
    first, counts = first_of_series(top), np.zeros(len(top), np.int64)
    for i in range(len(top)):
        counts[first[i]] += 1
    is_greedy = np.zeros(len(top), np.bool_)
    for i in range(len(top)):
        if top[i] > 0 and counts[i] > least:
            of_all = 0
            for number in series:
                of_all += number == top[i]
            is_greedy[i] = counts[i] > len(top) * (times * (of_all / len(series)))
    return top[is_greedy]


@exact_kernel
def severity_of(outlier, score, alert_rate):
    """Return the severity of a record, from its score and whether it is an outlier. alert_rate: 0 while calibrating."""
    p = 1.0 - score
    if outlier:
        return OUTLIER_CRITICAL if p <= CRITICAL_SHARE * alert_rate else OUTLIER_WARNING
    return INFO if p <= alert_rate else 0


@exact_kernel
def severities(outlier, score, alert_rate):
    """Return the severities (n,) of records."""
    out = np.zeros(len(score), np.int8)
    for i in range(len(score)):
        out[i] = severity_of(outlier[i], score[i], alert_rate)
    return out


@exact_kernel
def judge_visits(work, n, k, start, scope_addresses, learn):
    """Judge k visits of n records from `start` on, and keep them if `learn`, until a scope reaches its BOUND.

    Returns the visit after the last one judged. work: the address of `Work`; scope_addresses: (scopes, N_ADDRESSES).
    See `Alerts` for the conditions. Without `learn` nothing changes, and all visits are judged.
    """
    batch, visits, scores, out = batch_at(work, n), visits_at(work, k), scores_at(work, k), judged_at(work, k)
    ids = np.empty(k - start, np.int64)
    for e in range(start, k):
        ids[e - start] = visits.scope[e] << 32
        if visits.scope[e] == 0:
            ids[e - start] = batch.slots[visits.at[e]]
    first = first_of_series(ids)
    mean, count, left = np.zeros(k - start, np.float32), np.zeros(k - start, np.uint8), np.zeros(k - start, np.uint8)
    outliers = np.full(len(scope_addresses), -1, np.int64)  # since the last step of each scope; -1: not looked up yet
    for e in range(start, k):
        i, s, f = visits.at[e], visits.scope[e], first[e - start]
        fixed, slot = words_at(scope_addresses[s, FIXED]), np.int64(0)
        begins, weight = visits.number[e] == 0, scores.weight[e]
        if s == 0:
            slot, begins = batch.slots[i], batch.begins[i]
        tally, limits = row(fixed, TALLY, np.int64), row(fixed, LIMITS, np.float64)
        out.series[e], out.begins[e] = slot if s == 0 else scope_addresses[s, SERIES], begins
        is_judged = scope_addresses[s, EARLIER_LOGITS] != 0 and visits.judged[e]
        out.status[e] = WARMING_UP
        if is_judged:
            memory = words_at(scope_addresses[s, MEMORY])
            means, counts, lefts = row(memory, 0, np.float32), row(memory, 1, np.uint8), row(memory, 2, np.uint8)
            if f == e - start and slot < len(means):
                mean[f], count[f], left[f] = means[slot], counts[slot], lefts[slot]
            if outliers[s] < 0:
                outliers[s] = row(fixed, OUTLIERS, np.int64)[0]
            if begins:
                mean[f], count[f] = 0.0, 0
            y, mean[f], count[f] = _remembered(
                scores.logit[e], scores.by_view, e, scores.by_key[e], weight, slot > 0, batch.far[i],
                np.float64(mean[f]), np.int64(count[f]), row(fixed, OF_MEAN, np.float64), limits[MEMORY_WEIGHT],
            )  # fmt: skip
            is_outlier, left[f] = _judge_visit(
                y,
                e,
                i,
                slot,
                begins,
                left[f],
                outliers[s],
                batch,
                scores,
                _earlier_logits_at(scope_addresses[s, EARLIER_LOGITS]),
                limits,
                out,
            )
            outliers[s] += is_outlier
            out.outlier[e] = is_outlier
            if limits[STILL] and limits[RATE] * (visits.number[e] + 1.0) >= 1.0 - 1e-9:
                for j in range(batch.still.shape[1]):
                    if batch.still[i, j] > 0:
                        out.outlier[e], out.severity[e] = True, max(out.severity[e], np.int8(OUTLIER_WARNING))
            if learn:
                means[slot], counts[slot], lefts[slot] = mean[f], count[f], left[f]
                row(fixed, OUTLIERS, np.int64)[0] = outliers[s]
        else:
            out.remembered[e] = out.score[e] = out.p_value[e] = np.nan
            out.outlier[e], out.severity[e] = False, 0
        if learn:
            ring = row(fixed, RING, np.int64)
            number = tally[RECORDS]
            note_seen(
                _row_rings_at(fixed), ring[0], ring[1], ring[2], number, i, batch.vectors, batch.gaps, batch.relative
            )
            note_scored(
                _score_rings_at(fixed), ring[3], ring[4], number, e, scores.logit, scores.by_view, scores.by_key,
                weight, slot, begins, batch.far[i], out.remembered[e], out.outlier[e],
            )  # fmt: skip
            tally[RECORDS] = number + 1
            if number + 1 == tally[BOUND]:
                return e + 1
    return k


@exact_kernel
def _judge_visit(y, e, i, slot, begins, left, outliers, batch, scores, earlier, limits, out):
    """Write the result of visit e, whose remembered logit is y; returns whether it is an outlier, and in how many more
    records its incident can continue. left: the same number before the visit; outliers: since the last step."""
    logit, by_key, weight, rate = scores.logit[e], scores.by_key[e], scores.weight[e], limits[RATE]
    own = logit
    if not own < combined(scores.by_view, e, by_key, weight, False):  # from 32 bits: later records compare with these
        own = combined(scores.by_view, e, by_key, weight, True)
    compares_with_every = batch.far[i]
    for series in earlier.greedy:
        compares_with_every |= series == slot
    # a record of a greedy key, or with a far value, is compared with all records; other records without these
    ascending = earlier.of_every if compares_with_every else earlier.ascending
    own_peak, remembered_peak = earlier.peaks[int(compares_with_every), 0], earlier.peaks[int(compares_with_every), 1]
    m = len(ascending)
    p = (1.0 + (m - smaller(ascending, y))) / (m + 1.0)
    own_rise, remembered_rise = rise(own_peak, own), rise(remembered_peak, y)
    # `peak_of` has seen to it that a peak is at least ODD_LOGIT
    is_extreme = own_rise > EXTREME * own_peak[CLEAR] or remembered_rise > EXTREME * remembered_peak[CLEAR]
    is_clear = own > own_peak[USUAL] or y > remembered_peak[USUAL]
    # the first record of an incident follows normal ones: their memory must not make it smaller
    counted = max(own, y) if own_rise > 0.0 else y
    above = 1.0 + 2.0 * max(own_rise, remembered_rise)
    tail_share = max(share_above(counted, earlier.above) / (above * above * above), MIN_TAIL_SHARE)
    # Memory alone does not continue an incident: after an odd record, and in a constant stream, the remembered logit of
    # a normal record is high, too, so its own logit has to be above the median (one spike made 20 alerts).
    continues = left > 0 and not begins and tail_share <= limits[CONTINUES] and own > own_peak[MEDIAN]
    # a record whose values are those of nearly all records is not an outlier, unless it is odd for its key
    is_uncommon = by_key > ODD_LOGIT
    for j in range(batch.is_common.shape[1]):
        is_uncommon |= not batch.is_common[i, j]
    is_ready = math.isfinite(earlier.peaks[1, 1, TOP])
    if limits[INDEPENDENT]:  # no incident continues, and the whole past counts
        continues = is_ready and tail_share <= rate and not compares_with_every
    is_outlier = is_uncommon and (is_extreme or ((is_clear or continues) and limits[LOAD] + outliers < MAX_LOAD))
    out.remembered[e], out.score[e], out.p_value[e] = y, 1.0 - tail_share, p
    out.severity[e] = severity_of(is_outlier, 1.0 - tail_share, rate if is_ready else 0.0)
    out.status[e] = OK if is_ready else CALIBRATING
    if is_outlier:
        return is_outlier, INCIDENT_GAP
    return is_outlier, 0 if begins or left == 0 else left - 1


# -- the history -----------------------------------------------------------------------------------------------------


@exact_kernel
def note_scored(kept, size, block, number, e, logit, by_view, by_key, weight, slot, begins, far, remembered, outlier):
    """Write the scores of visit e, the record of this number, into the ring buffers of `size` records."""
    at = number % size
    less = logit[e] < combined(by_view, e, by_key[e], weight, False)
    for view in range(by_view.shape[1]):
        kept.logits[at, view] = by_view[e, view]
    kept.remembered[at], kept.by_key[at] = remembered, by_key[e]
    kept.series[at] = slot + BEGINS_FLAG * begins + FAR_FLAG * far + LESS_FLAG * less
    kept.verdict[at], kept.outlier[at], kept.written[at // block] = UNKNOWN, outlier, True


@exact_kernel
def note_seen(kept, size, block, relative_block, number, i, vectors, gaps, relative):
    """Write the i-th record into the ring buffers: of vectors (n, vectors, d), gaps (n, d), relative
    (n, RELATIVE_VECTORS, d)."""
    at, plain = number % size, kept.rows.shape[1]
    for j in range(gaps.shape[1]):
        for vector in range(plain):
            kept.rows[at, vector, j] = vectors[i, vector, j]
        if len(kept.moves):
            for move in range(kept.moves.shape[1]):
                kept.moves[at, move, j] = vectors[i, plain + move, j]
    kept.gaps[at] = 0
    for j in range(gaps.shape[1]):
        kept.gaps[at, j // 8] |= np.uint8(gaps[i, j]) << np.uint8(7 - j % 8)
    kept.written[at // block] = True
    note_relative(kept, at, relative_block, relative[i])


@exact_kernel
def note_relative(kept, at, block, relative):
    """Write the values relative to the key (RELATIVE_VECTORS, d). A block where all was and stays NaN is not marked:
    records without a known key add nothing to the log."""
    is_known = False
    for a in range(kept.relative.shape[1]):
        for j in range(kept.relative.shape[2]):
            is_known |= not (math.isnan(relative[a, j]) and math.isnan(kept.relative[at, a, j]))
            kept.relative[at, a, j] = relative[a, j]
    if is_known:
        kept.relative_written[at // block] = True


@exact_kernel
def scored(kept, size, first, stop, prior):
    """Return the records from `first` to before `stop` that have a score and that feedback does not call outliers.

    Their numbers, own and remembered logits, whether they are outliers, their series, and whether they have far values.
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
        own[m] = judged[at] if of_series & LESS_FLAG else combined(logits, at, by_key[at], weight, False)
        numbers[m], remembered[m], outlier[m] = number, judged[at], flags[at]
        slots[m], far[m] = of_series % LESS_FLAG, of_series & FAR_FLAG > 0
        m += 1
    return numbers[:m], own[:m], remembered[:m], outlier[:m], slots[:m], far[:m]
