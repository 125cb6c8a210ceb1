"""The ends of the values of columns, without those beyond a gap; see `fomo_stream.model.bulk`."""

from __future__ import annotations

import numpy as np

from fomo_stream.model.kernels.compiling import exact_kernel


@exact_kernel
def column_ends(ordered, counts, gap, aside_share, common_share):
    """Return the ends of each column, (9, d): the five of `Bulk`, the two smallest values that are not far, ascending,
    and the two largest. Where there is no such value they are infinite.

    ordered: (d, n) values, ascending; counts: (d,) how many of these. gap: how wide a gap is, in ranges of the values
    before it. aside_share: of the values, on either side, that can be far. common_share: of equal values.
    """
    d = len(counts)
    out = np.empty((9, d))
    for j in range(d):
        m = counts[j]
        out[:, j] = np.inf
        out[0, j] = out[2, j] = out[7, j] = out[8, j] = -np.inf
        out[4, j] = np.nan
        if m == 0:
            continue
        aside = int(aside_share * m)
        first, last = 0, m - 1
        end = _last_before_gap(ordered, j, m, aside, gap, 1.0)
        largest, usual = ordered[j, end], ordered[j, aside]
        out[1, j] = largest
        if largest > usual and aside:
            out[3, j] = largest + gap * (largest - usual)
        end = _last_before_gap(ordered, j, m, aside, gap, -1.0)
        smallest, usual = -ordered[j, m - 1 - end], -ordered[j, m - 1 - aside]
        out[0, j] = -smallest
        if smallest > usual and aside:
            out[2, j] = -(smallest + gap * (smallest - usual))
        while first < m and ordered[j, first] < out[2, j]:
            first += 1
        while last >= 0 and ordered[j, last] > out[3, j]:
            last -= 1
        for i in range(min(2, last - first + 1)):
            out[5 + i, j], out[8 - i, j] = ordered[j, first + i], ordered[j, last - i]
        middle = ordered[j, m // 2]
        if ordered[j, m // 10] == middle and ordered[j, m - 1 - m // 10] == middle:  # else far fewer are equal
            equal = 0
            for i in range(m):
                equal += ordered[j, i] == middle
            if equal >= common_share * m:
                out[4, j] = middle
    return out


@exact_kernel
def _last_before_gap(ordered, j, m, aside, gap, sign):
    """Return the place of the last of column j's m values before a gap. sign: -1 for the values' negatives, whose order
    is reversed.

    Ranges begin at the smallest value that cannot be far itself, number `aside`; without a range a gap does not exist.
    The values beyond a gap are at most as far apart as it is wide, except for those beyond a further gap.
    """
    end, first = m - 1, _sorted_value(ordered, j, m, aside, sign)
    start = m - 1 - aside
    before = _sorted_value(ordered, j, m, start, sign)
    if not (aside and _sorted_value(ordered, j, m, end, sign) - before > gap * (before - first)):
        return end
    i = start
    while i < end:
        value, above = _sorted_value(ordered, j, m, i, sign), _sorted_value(ordered, j, m, i + 1, sign)
        width, beyond = above - value, _sorted_value(ordered, j, m, end, sign) - above
        if value > first and width > gap * (value - first) and beyond <= width:
            end, i = i, start
        else:
            i += 1
    return end


@exact_kernel
def _sorted_value(ordered, j, m, i, sign):
    """Return value i of column j, or of its m values' negatives in ascending order."""
    return ordered[j, i] if sign > 0 else -ordered[j, m - 1 - i]
