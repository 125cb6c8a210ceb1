"""Means, spreads and whitening of a context's rows: in an order of additions that no processor or library changes."""

from __future__ import annotations

import math

import numpy as np

from fomo_stream.model.kernels.compiling import kernel

MOST_FEATURES = 64  # of more, a library is faster
SWEEPS = 30  # far more than are ever needed
PRECISION = 1e-15


@kernel
def moments(rows):
    """Mean and standard deviation (2, d) of the columns of rows (n, d)."""
    n, d = rows.shape
    out = np.zeros((2, d))
    for i in range(n):
        for j in range(d):
            out[0, j] += rows[i, j]
    for j in range(d):
        out[0, j] /= n
    for i in range(n):
        for j in range(d):
            out[1, j] += (rows[i, j] - out[0, j]) * (rows[i, j] - out[0, j])
    for j in range(d):
        out[1, j] = math.sqrt(out[1, j] / n)
    return out


@kernel
def _shrunk_covariance(z):
    """Covariance (d, d) of z-scores (n, d), shrunk towards a multiple of the identity (OAS, Chen et al. 2010)."""
    n, d = z.shape
    cov = np.zeros((d, d))
    for i in range(n):
        for a in range(d):
            for b in range(d):
                cov[a, b] += z[i, a] * z[i, b]
    trace = squares = 0.0
    for a in range(d):
        for b in range(d):
            cov[a, b] /= n
        if cov[a, a] < 1e-12:  # constants: leave them as they are
            cov[a, a] += 1.0
    for a in range(d):
        trace += cov[a, a]
        for b in range(d):
            squares += cov[a, b] * cov[a, b]
    top = (1.0 - 2.0 / d) * squares + trace * trace
    bottom = (n + 1.0 - 2.0 / d) * (squares - trace * trace / d)
    rho = min(max(top / max(bottom, 1e-30), 0.0), 1.0) if bottom > 0 else 1.0
    for a in range(d):
        for b in range(d):
            cov[a, b] *= 1.0 - rho
        cov[a, a] += rho * trace / d
    return cov


@kernel
def _rotate(x, y, cosine, sine):
    for j in range(x.shape[0]):
        a, b = x[j], y[j]
        x[j] = cosine * a - sine * b
        y[j] = sine * a + cosine * b


@kernel
def _dot(x, y):
    total = 0.0
    for j in range(x.shape[0]):
        total += x[j] * y[j]
    return total


@kernel
def _eigen(matrix):
    """Eigenvectors, as rows (d, d), and eigenvalues (d,) of a symmetric matrix without negative eigenvalues.

    By rotations of its rows until all are orthogonal to each other (one-sided Jacobi; Hestenes 1958). Their lengths are
    then the eigenvalues, and the same rotations of the identity are the eigenvectors.
    """
    d = matrix.shape[0]
    rows, vectors = matrix.copy(), np.eye(d)
    smallest = 0.0
    for a in range(d):
        smallest = max(smallest, _dot(rows[a], rows[a]))
    smallest *= PRECISION * PRECISION
    for _ in range(SWEEPS):
        rotated = False
        for a in range(d - 1):
            for b in range(a + 1, d):
                dot, aa, bb = _dot(rows[a], rows[b]), _dot(rows[a], rows[a]), _dot(rows[b], rows[b])
                if abs(dot) <= PRECISION * math.sqrt(aa * bb) + smallest:
                    continue
                rotated = True
                zeta = (bb - aa) / (2.0 * dot)
                tangent = (1.0 if zeta >= 0 else -1.0) / (abs(zeta) + math.sqrt(1.0 + zeta * zeta))
                cosine = 1.0 / math.sqrt(1.0 + tangent * tangent)
                _rotate(rows[a], rows[b], cosine, cosine * tangent)
                _rotate(vectors[a], vectors[b], cosine, cosine * tangent)
        if not rotated:
            break
    values = np.empty(d)
    for a in range(d):
        values[a] = math.sqrt(_dot(rows[a], rows[a]))
    return vectors, values


@kernel
def whitening(z):
    """Inverse square root (d, d) of the shrunk covariance of z-scores (n, d), d <= MOST_FEATURES."""
    d = z.shape[1]
    vectors, values = _eigen(_shrunk_covariance(z))
    out = np.zeros((d, d))
    for i in range(d):
        weight = 1.0 / math.sqrt(max(values[i], 1e-12))
        for a in range(d):
            scaled = weight * vectors[i, a]
            for b in range(d):
                out[a, b] += scaled * vectors[i, b]
    return out
