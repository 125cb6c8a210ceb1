"""Streams with records that are odd because of known features.

A case is a stream of inliers and what comes after it: some records of which the last one is odd, and the features that
are guilty of that. Only cases that the detector calls unlikely count: others get no reasons by default.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream import Detector, DetectorConfig, load_model
from fomo_stream.records.category_codes import category_code

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Rng = np.random.Generator

FAMILIES = ("independent", "correlated", "clustered", "heavy", "factors")
KINDS = ("value", "two values", "pair", "dependency", "category", "movement")
CONTEXT, AFTER = 1000, 200  # records of the context, and records that are scored after it
BLOCK = 4  # columns that see one cause
UNLIKELY, USUAL = 0.01, 0.2  # p-values: a case counts up to the one, and from the other on without its guilty features


class Case(NamedTuple):
    """Records after a stream; the last one is odd."""

    rows: Float  # (k, d)
    innocent: Float  # (k, d) the same without what makes it odd
    guilty: frozenset[int]  # one of them has to be found


class Stream(NamedTuple):
    """Inliers of a family, with what the cases of one kind are made from."""

    rows: Float  # (n, d)
    kind: str
    special: Int  # columns of a block, of a pair, or of categories; empty for other kinds
    categorical: tuple[int, ...]


def inliers(family: str, n: int, d: int, rng: Rng, memory: float = 0.0) -> Float:
    """Rows (n, d). memory: autocorrelation from one record to the next."""

    def latent(m: int) -> Float:
        values: Float = rng.normal(size=(n, m))
        for i in range(1, n if memory else 1):
            values[i] = memory * values[i - 1] + np.sqrt(1 - memory**2) * values[i]
        return values

    if family == "independent":
        z = latent(d)
        shapes = rng.integers(0, 3, d)
        return np.asarray(np.choose(shapes, [z, np.exp(0.6 * z), np.tanh(z)]), dtype=np.float64)
    if family == "correlated":
        return np.asarray(latent(d) @ rng.normal(size=(d, d)) / np.sqrt(d) + 0.3 * latent(d))
    if family == "clustered":
        k = 4
        which = rng.integers(0, k, n) if not memory else np.arange(n) * k // n
        spread = rng.uniform(0.3, 1.0, size=(k, d))
        return np.asarray(2.5 * rng.normal(size=(k, d))[which] + latent(d) * spread[which])
    if family == "heavy":
        size = np.sqrt(rng.chisquare(4, size=(n, 1)) / 4)
        return np.asarray((latent(d) @ rng.normal(size=(d, d)) / np.sqrt(d) + 0.5 * latent(d)) / size)
    causes = max(1, d // 4)
    return latent(causes) @ rng.normal(size=(causes, d)) + 0.25 * latent(d)


def stream(family: str, kind: str, d: int, rng: Rng) -> Stream:
    """A stream of a family, with the structure that a kind needs, in units of its own."""
    n = CONTEXT + AFTER
    rows = inliers(family, n, d, rng, memory=0.9 if kind == "movement" else 0.0)
    wanted = {"pair": 2, "dependency": BLOCK, "category": max(1, d // 5)}.get(kind, 0)
    special = rng.choice(d, size=wanted, replace=False)
    if kind in ("dependency", "pair"):
        cause = rng.normal(size=(n, 1)) * (1 if family != "heavy" else 1 / np.sqrt(rng.chisquare(4, size=(n, 1)) / 4))
        rows[:, special] = cause * rng.choice([-1, 1], wanted) + 0.2 * rng.normal(size=(n, wanted))
    unit, origin = 10 ** rng.uniform(-2, 3, d), rng.normal(size=d) * 10 ** rng.uniform(-1, 2, d)
    rows = (rows + origin) * unit
    categorical: tuple[int, ...] = ()
    if kind == "category":
        categorical = tuple(sorted(special.tolist()))
        share = 1.0 / np.arange(1, 9)
        rows[:, special] = rng.choice(CODES, p=share / share.sum(), size=(n, wanted))
    return Stream(rows, kind, special, categorical)


CODES = np.array([category_code(f"category {i}") for i in range(8)])
NEW_CODE = category_code("another category")


def case(given: Stream, rng: Rng) -> Case:
    """A case of the stream's kind."""
    rows, d = given.rows, given.rows.shape[1]
    before = rows[rng.integers(CONTEXT, len(rows))]
    row = before.copy()
    low, middle, high = np.nanquantile(rows[:, :], [0.01, 0.5, 0.99], axis=0)
    f = int(rng.integers(d))
    if given.kind in ("value", "two values"):
        guilty = rng.choice(d, size=1 if given.kind == "value" else 2, replace=False)
        size = rng.uniform(1.3, 4.0, len(guilty)) * rng.choice([-1, 1], len(guilty))
        row[guilty] = middle[guilty] + size * np.where(size > 0, (high - middle)[guilty], (middle - low)[guilty])
        return Case(row[None], before[None], frozenset(guilty.tolist()))
    if given.kind == "category":
        f = int(rng.choice(given.special))
        row[f] = NEW_CODE
    elif given.kind in ("pair", "dependency"):
        f = int(rng.choice(given.special))
        others = rows[rng.permutation(len(rows)), f]
        others = others[(others > low[f]) & (others < high[f])][:10]  # usual by themselves
        row[f] = max(others.tolist(), key=lambda value: abs(value - row[f]))
        guilty = given.special if given.kind == "pair" else np.array([f])
        return Case(row[None], before[None], frozenset(guilty.tolist()))
    else:
        return _moving(rows, f, low, high, rng)
    return Case(row[None], before[None], frozenset([f]))


def _moving(rows: Float, f: int, low: Float, high: Float, rng: Rng) -> Case:
    """A feature that stands still, jumps to and fro, or stays at one side, always within its usual range."""
    k = int(rng.integers(8, 17))
    start = int(rng.integers(CONTEXT, len(rows) - k))
    before = rows[start : start + k]
    block, width = before.copy(), high[f] - low[f]
    course = rng.integers(3)
    if course == 0:
        block[:, f] = block[0, f]
    elif course == 1:
        block[:, f] = low[f] + width * np.where(np.arange(k) % 2, 0.05, 0.95)
    else:
        block[:, f] = low[f] + width * rng.choice([0.03, 0.97]) * (1 + 0.02 * rng.normal(size=k))
    return Case(block, before, frozenset([f]))


def trained(given: Stream) -> Detector:
    """A detector after the stream. In the default views, movement alone seldom makes a record unlikely."""
    views = ("all", "movement") if given.kind == "movement" else ("default",)
    config = DetectorConfig(context_size=CONTEXT, min_context=CONTEXT, views=views, memory=0.0, alert_rate=UNLIKELY)
    detector = Detector(load_model("default", "cpu"), given.rows.shape[1], config, categorical=given.categorical)
    detector.process(given.rows)
    return detector


def cases(given: Stream, detector: Detector, n: int, rng: Rng) -> Iterator[Case]:
    """At most n cases: unlikely to the detector, and usual without what makes them odd."""
    for _ in range(5 * n):
        made = case(given, rng)
        odd, usual = (float(detector.score_rows(rows).p_value[-1]) for rows in (made.rows, made.innocent))
        if n and odd <= UNLIKELY and usual >= USUAL:
            n -= 1
            yield made


def all_cases(dimensions: tuple[int, ...], n: int, seed: int) -> Iterator[tuple[Stream, Detector, Case]]:
    """At most n cases of each kind, family and number of features, with their streams and detectors after these."""
    for d in dimensions:
        for a, family in enumerate(FAMILIES):
            for b, kind in enumerate(KINDS):
                rng = np.random.default_rng((seed, d, a, b))
                given = stream(family, kind, d, rng)
                detector = trained(given)
                for one in cases(given, detector, n, rng):
                    yield given, detector, one
