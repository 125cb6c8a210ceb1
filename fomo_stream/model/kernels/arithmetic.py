"""Functions of one number that a compiler can use in vector loops, and binary searches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fomo_stream.model.kernels.compiling import inline_kernel, kernel
from fomo_stream.model.kernels.lanes import span

LOG2E = np.float32(1.4426950408889634)
STRIDE = 64  # values of a sorted table that are compared at once
SQRT_HALF_BITS = 0x3FE6A09E667F3BCD  # of sqrt(1/2) as float64, and as float32
SQRT_HALF_BITS_SINGLE = 0x3F3504F3


def _reinterpreted(source: Any, target: Any, llvm: Any) -> Any:
    @intrinsic
    def reinterpret(_typing: Any, bits: Any) -> Any:
        def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], llvm)

        return target(source), codegen

    return reinterpret


single_of_bits = _reinterpreted(types.int32, types.float32, ir.FloatType())
_as_float64 = _reinterpreted(types.int64, types.float64, ir.DoubleType())
bits_of_single = _reinterpreted(types.float32, types.int32, ir.IntType(32))
_bits_of = _reinterpreted(types.float64, types.int64, ir.IntType(64))


@inline_kernel
def exp_of_negative(x):
    """exp(x) of a float32 x <= 0, to 2 units in the last place; 2 ** -126 below -87.

    2 to the whole part by the exponent's bits, times a polynomial of the fraction.
    """
    t = max(x * LOG2E, np.float32(-126.0))
    whole = np.int32(t - np.float32(0.5))  # towards zero: the nearest integer of a negative number
    part = t - np.float32(whole)  # in [-1/2, 1/2]
    p = np.float32(1.535336188319500e-4)
    p = p * part + np.float32(1.339887440266574e-3)
    p = p * part + np.float32(9.618437357674640e-3)
    p = p * part + np.float32(5.550332471162809e-2)
    p = p * part + np.float32(2.402264791363012e-1)
    p = p * part + np.float32(6.931472028550421e-1)
    p = p * part + np.float32(1.0)
    return p * single_of_bits((whole + np.int32(127)) << np.int32(23))


@inline_kernel
def log(x):
    """log(x) of a normal positive float64, to 1e-15: 2 atanh((m - 1) / (m + 1)) of the mantissa m, by its series."""
    bits = _bits_of(x) - np.int64(SQRT_HALF_BITS)
    exponent = bits >> np.int64(52)
    m = _as_float64(_bits_of(x) - (exponent << np.int64(52)))  # in [sqrt(1/2), sqrt(2))
    s = (m - 1.0) / (m + 1.0)
    q = s * s
    p = 1.0 / 21.0
    p = p * q + 1.0 / 19.0
    p = p * q + 1.0 / 17.0
    p = p * q + 1.0 / 15.0
    p = p * q + 1.0 / 13.0
    p = p * q + 1.0 / 11.0
    p = p * q + 1.0 / 9.0
    p = p * q + 1.0 / 7.0
    p = p * q + 1.0 / 5.0
    p = p * q + 1.0 / 3.0
    p = p * q + 1.0
    return np.float64(exponent) * 0.6931471805599453 + 2.0 * s * p


@kernel
def log_all(x):
    """log of each of x (n,), in place: a loop of its own, so that several logarithms run at once."""
    for i in range(x.shape[0]):
        x[i] = log(x[i])


@inline_kernel
def asinh(x):
    """asinh(x), float32, to 1e-6; sizes beyond 1e18 count as 1e18, whose square is finite."""
    size = min(abs(x), np.float32(1e18))
    y = size + np.sqrt(size * size + np.float32(1.0))
    bits = bits_of_single(y) - np.int32(SQRT_HALF_BITS_SINGLE)
    exponent = bits >> np.int32(23)
    m = single_of_bits(bits_of_single(y) - (exponent << np.int32(23)))  # in [sqrt(1/2), sqrt(2))
    s = (m - np.float32(1.0)) / (m + np.float32(1.0))
    q = s * s
    p = np.float32(1.0 / 9.0)
    p = p * q + np.float32(1.0 / 7.0)
    p = p * q + np.float32(1.0 / 5.0)
    p = p * q + np.float32(1.0 / 3.0)
    p = p * q + np.float32(1.0)
    out = np.float32(exponent) * np.float32(0.6931471805599453) + np.float32(2.0) * s * p
    return out if x >= 0 else -out


@inline_kernel
def gelu(x):
    """x times the normal distribution function, float32; erf by Abramowitz & Stegun 7.1.26, to 1.5e-7."""
    a = abs(x) * np.float32(0.7071067811865476)
    t = np.float32(1.0) / (np.float32(1.0) + np.float32(0.3275911) * a)
    p = np.float32(1.061405429)
    p = p * t - np.float32(1.453152027)
    p = p * t + np.float32(1.421413741)
    p = p * t - np.float32(0.284496736)
    p = p * t + np.float32(0.254829592)
    erf = np.float32(1.0) - p * t * exp_of_negative(-a * a)
    return np.float32(0.5) * x * (np.float32(1.0) + (erf if x >= 0 else -erf))


@kernel
def _polynomial(coefficients, x):
    total = 0.0
    for c in coefficients:
        total = total * x + c
    return total


# The inverse normal distribution function by rational approximations (Cephes, ndtri): P / Q in the middle and tails.
_P0 = (-59.9633501014107895, 98.0010754185999661, -56.6762857469070293, 13.9312609387279680, -1.23916583867381258)
_Q0 = (
    1.0,
    1.95448858338141760,
    4.67627912898881538,
    86.3602421390890591,
    -225.462687854119371,
    200.260212380060660,
    -82.0372256168333340,
    15.9056225126211695,
    -1.18331621121330003,
)
_P1 = (
    4.05544892305962420,
    31.5251094599893866,
    57.1628192246421288,
    44.0805073893200835,
    14.6849561928858024,
    2.18663306850790268,
    -0.140256079171354496,
    -0.0350424626827848203,
    -8.57456785154685413e-4,
)
_Q1 = (
    1.0,
    15.7799883256466750,
    45.3907635128879211,
    41.3172038254672030,
    15.0425385692907503,
    2.50464946208309416,
    -0.142182922854787789,
    -0.0380806407691578277,
    -9.33259480895457427e-4,
)
_P2 = (
    3.23774891776946036,
    6.91522889068984212,
    3.93881025292474443,
    1.33303460815807543,
    0.201485389549179082,
    0.0123716634817820022,
    3.01581553508235416e-4,
    2.65806974686737551e-6,
    6.23974539184983294e-9,
)
_Q2 = (
    1.0,
    6.02427039364742014,
    3.67983563856160859,
    1.37702099489081330,
    0.216236993594496636,
    0.0134204006088543190,
    3.28014464682127739e-4,
    2.89247864745380684e-6,
    6.79019408009981274e-9,
)
_TAIL = 0.13533528323661269  # exp(-2)


@kernel
def normal_quantile(p):
    """The inverse of the normal distribution function, p in (0, 1)."""
    upper = p > 1.0 - _TAIL
    y = 1.0 - p if upper else p
    if y > _TAIL:
        y -= 0.5
        q = y * y
        return (y + y * (q * _polynomial(_P0, q) / _polynomial(_Q0, q))) * 2.50662827463100050
    x = math.sqrt(-2.0 * log(y))
    z = 1.0 / x
    ratio = _polynomial(_P1, z) / _polynomial(_Q1, z) if x < 8.0 else _polynomial(_P2, z) / _polynomial(_Q2, z)
    out = x - log(x) / x - z * ratio
    return out if upper else -out


@kernel
def search(tables, x, counts):
    """Count how many of each ascending tables[c] (> n,) are smaller than x[c], into counts (c,): all binary searches
    advance together, so that their steps do not wait for each other."""
    for c in range(x.shape[0]):
        counts[c] = 0
    n = tables.shape[1]
    while n > 1:
        half = n >> 1
        for c in range(x.shape[0]):
            counts[c] += half if tables[c, counts[c] + half - 1] < x[c] else 0
        n -= half
    for c in range(x.shape[0]):
        counts[c] += 1 if tables[c, counts[c]] < x[c] else 0


@kernel
def count_up_to(table, x):
    """Return how many values of an ascending table are at most x."""
    low, n = 0, table.shape[0]
    while n > 1:
        half = n >> 1
        low += half if table[low + half - 1] <= x else 0
        n -= half
    return low + (1 if table[low] <= x else 0)


@kernel
def count_smaller(table, last, x):
    """Return how many values of an ascending table are smaller than x.

    Without branches, which a processor would often predict wrongly: it counts whole blocks of STRIDE by their last
    values, and then within one block. table: padded with infinity, by at least 1, to a multiple of STRIDE; last: the
    last value of each block but the final one.
    """
    full = np.int32(0)
    for b in range(last.shape[0]):
        full += np.int32(last[b] < x)
    within = np.int32(0)
    block = span(table, full * STRIDE, STRIDE)
    for i in range(STRIDE):
        within += np.int32(block[i] < x)
    return full * STRIDE + within
