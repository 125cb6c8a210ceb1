"""Runs other detectors over the same rows: each row is scored, then learned, in order (prequentially)."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from pkgutil import resolve_name
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from fomo_stream.detector.config import STEP, DetectorConfig
from fomo_stream.detector.rarity import is_calibrated, p_values
from fomo_stream.errors import ConfigError
from fomo_stream.logs import kv, raised_at
from fomo_stream.replaying.blocks import BlockJudgement
from fomo_stream.wording import did_you_mean

log = logging.getLogger(__name__)

Float = NDArray[np.float64]

RIVER, PYSAD, ROWS = ("score_one", "learn_one"), ("score_partial", "fit_partial"), ("judge",)
PROTOCOLS = (RIVER, PYSAD, ROWS)
KNN, TREES, SVM = KNOWN_RIVALS = ("knn", "river.HalfSpaceTrees", "river.OneClassSVM")
WARM_UP_RECORDS = {TREES: 250}  # first records to ignore: their scores are 0 until the first window is full
MAX_SCORE = 1e300  # larger scores are cut to this size
MAX_VALUE = 1e100  # larger values are cut to this size, so that their squares are finite
N_NEIGHBOURS = 5
ROUNDING = 1e-12  # a column with a smaller deviation, relative to its mean, counts as constant


class Rival:
    """Another detector: its scores, and alerts by p-values among its own earlier scores.

    A score does not depend on how rows are split over calls.
    """

    def __init__(self, spec: str, features: Sequence[str], config: DetectorConfig, categorical: Sequence[int]) -> None:
        self.name = spec
        self._features, self._own, self._records = features, ConformalAlerts(config), 0
        self._whole = CompleteRows(len(features), categorical)
        self._detector = _make_rival(spec, len(features), config)
        protocols = (names for names in PROTOCOLS if all(hasattr(self._detector, name) for name in names))
        self._protocol = next(protocols, None)
        if self._protocol is None:
            lacks = "none of the methods " + ", ".join("/".join(methods) for methods in PROTOCOLS)
            raise ConfigError(f"--compare {spec} gives a {type(self._detector).__name__}, which has {lacks}")

    def judge(self, rows: Float) -> BlockJudgement:
        """Score each of the next n rows (n, d), raw, NaN = missing, then learn it. Raises ConfigError if it fails."""
        try:
            with np.errstate(all="ignore"):
                scores = np.array(self._scores(rows.copy()), dtype=np.float64)
            why = "" if scores.shape == (len(rows),) else f"scores of {len(rows)} rows have the shape {scores.shape}"
        except (Exception, SystemExit) as error:  # its text is not shown, because it may hold values
            log.debug(kv("detector_failed", name=self.name), exc_info=True)
            why = f"{type(error).__name__} at {raised_at(error)}; --log-level debug shows more"
        if why:
            first, last = self._records + 1, self._records + len(rows)
            which = f"{self.name} failed among records {first:,} to {last:,} of a partition"
            raise ConfigError(f"{which}: {why}; leave it out of --compare, or correct it")
        scores = np.clip(scores, -MAX_SCORE, MAX_SCORE)
        scores[: max(0, WARM_UP_RECORDS.get(self.name, 0) - self._records)] = np.nan
        self._records += len(rows)
        return self._own.judge(scores)

    def _scores(self, rows: Float) -> Any:
        if self._protocol == ROWS:
            return self._detector.judge(self._whole.complete(rows) if self.name == KNN else rows)
        records: Iterator[Any] = iter(self._whole.complete(rows))
        if self._protocol == RIVER:
            records = (dict(zip(self._features, row.tolist(), strict=True)) for row in records)
        assert self._protocol is not None
        score, learn = (getattr(self._detector, name) for name in self._protocol)
        scores = np.empty(len(rows))
        for i, record in enumerate(records):
            value = score(record)
            scores[i] = np.nan if value is None else np.asarray(value, dtype=np.float64).item()
            learn(record)
        return scores


class ConformalAlerts:
    """Compares each score with the last `window_size` scores before the last step (split conformal).

    A step is every `STEP` records, as in our own detector. So a result does not depend on how records are split over
    calls. A record is an alert if its p-value is at most the alert rate, once there are enough scores for that.
    """

    def __init__(self, config: DetectorConfig) -> None:
        self._alert_rate = config.alert_rate
        self._size = config.window_size
        self._recent = np.empty(0)  # the window, in order of time
        self._ascending = np.empty(0)  # the same scores, ascending
        self._since: list[Float] = []  # scores since the last step
        self._records = 0  # since the last step, with those without a score

    def judge(self, scores: Float) -> BlockJudgement:
        """Judge the next n records by their scores (n,); NaN: no score, which does not enter the window."""
        alert = np.zeros(len(scores), dtype=bool)
        start = 0
        while start < len(scores):
            part = slice(start, start + STEP - self._records)
            part_scores, has_score = scores[part], ~np.isnan(scores[part])
            if is_calibrated(len(self._ascending), self._alert_rate):
                alert[part] = has_score & (p_values(part_scores, self._ascending) <= self._alert_rate)
            self._since.append(part_scores[has_score])
            self._records += len(part_scores)
            start += len(part_scores)
            if self._records == STEP:
                self._step()
        return BlockJudgement(scores, alert)

    def _step(self) -> None:
        """Add the scores since the last step to the window, and remove the oldest."""
        self._recent = np.concatenate([self._recent, *self._since])[-self._size :]
        self._ascending = np.sort(self._recent)
        self._since, self._records = [], 0


class CompleteRows:
    """Fills gaps in rows from earlier rows; the result does not depend on how rows are split over calls.

    A missing value becomes the mean of the column so far (0 before its first value). A category becomes the share of
    earlier records with the same value.
    """

    def __init__(self, n_features: int, categorical: Sequence[int] = ()) -> None:
        self._total, self._count = np.zeros(n_features), np.zeros(n_features)
        self._categories: dict[int, Counter[float]] = {column: Counter() for column in categorical}

    def complete(self, rows: Float) -> Float:
        """Return the next rows (n, d) without gaps; NaN = missing."""
        rows = np.clip(rows, -MAX_VALUE, MAX_VALUE)
        for column in self._categories:
            rows[:, column] = self._shares(column, rows[:, column])
        is_known = ~np.isnan(rows)
        # cumsum adds one row after the other, so any split of the rows gives the same numbers
        total = np.cumsum(np.vstack([self._total, np.where(is_known, rows, 0.0)]), axis=0)
        count = np.cumsum(np.vstack([self._count, is_known]), axis=0)
        self._total, self._count = total[-1], count[-1]
        mean = total[:-1] / np.maximum(count[:-1], 1.0)
        return np.where(is_known, rows, mean)

    def _shares(self, column: int, codes: Float) -> Float:
        counts, shares, n = self._categories[column], np.full(len(codes), np.nan), self._count[column]
        for i, code in enumerate(codes.tolist()):
            if code == code:
                shares[i] = counts[code] / max(1.0, n)
                counts[code] += 1
                n += 1
        return shares


class NearestNeighbours:
    """Scores a row by its mean Euclidean distance to the 5 nearest of the `context_size` rows before it.

    Columns are z-scored: less the mean and divided by the standard deviation of the last `context_size` rows before
    the last step, where a step is every `STEP` rows; a constant column is not divided. Only the scaling waits for a
    step: each row is compared with all rows before it. No score before `min_context` rows. The scores do not depend on
    how rows are split over calls.
    """

    def __init__(self, n_features: int, config: DetectorConfig) -> None:
        self._size = config.context_size
        self._nearest = min(N_NEIGHBOURS, config.context_size)
        self._warm_up = max(config.min_context, self._nearest)
        self._records = 0  # rows so far
        self._rows = np.empty((0, n_features))  # raw: the last rows before the last step, and the rows since
        self._mean, self._scale = np.zeros(n_features), np.ones(n_features)

    def judge(self, rows: Float) -> Float:
        """Return the scores (n,) of the next rows (n, d), which have no missing values; NaN during the warm-up."""
        scores = [np.empty(0)]
        while len(rows):
            part, rows = np.split(rows, [STEP - self._records % STEP])
            scores.append(self._distances(part))
            if self._records % STEP == 0:
                self._rows = self._rows[-self._size :]
                self._mean, deviation = self._rows.mean(axis=0), self._rows.std(axis=0)
                self._scale = np.where(deviation > ROUNDING * np.abs(self._mean), deviation, 1.0)
        return np.concatenate(scores)

    def _distances(self, rows: Float) -> Float:
        """Return the scores of the next rows (n, d), which must not go beyond the present step."""
        before = self._records + np.arange(len(rows))
        place = len(self._rows) + np.arange(len(rows))[:, None]
        self._rows, self._records = np.concatenate([self._rows, rows]), self._records + len(rows)
        if before[-1] < self._warm_up:
            return np.full(len(rows), np.nan)
        scaled = (self._rows - self._mean) / self._scale
        distance = cdist(scaled[-len(rows) :], scaled)
        column = np.arange(len(scaled))
        # a row is compared with the rows before it, at most `context_size` of them
        distance[(column >= place) | (column < place - self._size)] = np.inf
        nearest = np.sort(np.partition(distance, self._nearest - 1, axis=1)[:, : self._nearest], axis=1)
        return np.where(before < self._warm_up, np.nan, nearest.mean(axis=1))


def check_rivals(specs: Sequence[str]) -> None:
    """Raise ConfigError, in one sentence, if one of these is unknown; make none of them."""
    for i, spec in enumerate(specs):
        if spec in specs[:i]:
            raise ConfigError(f"--compare names {spec} twice; name each once")
        if spec not in KNOWN_RIVALS:
            _factory(spec)


def _make_rival(spec: str, n_features: int, config: DetectorConfig) -> Any:
    """Make the detector that a word of `--compare` names. Raises ConfigError, in one sentence, if that fails."""
    if spec == KNN:
        return NearestNeighbours(n_features, config)
    if spec in KNOWN_RIVALS:
        from river import anomaly, preprocessing

        if spec == TREES:  # it expects values from 0 to 1
            return preprocessing.MinMaxScaler() | anomaly.HalfSpaceTrees(seed=config.seed)
        return preprocessing.StandardScaler() | anomaly.OneClassSVM()
    factory, seed = _factory(spec), config.seed % 2**32
    arguments = {"n_features": n_features, "seed": seed, "random_state": seed}
    try:
        parameters = list(signature(factory).parameters)
    except (TypeError, ValueError):  # compiled functions may have no signature
        parameters = []
    try:
        return factory(**{name: value for name, value in arguments.items() if name in parameters})
    except Exception as error:  # the factory is not ours
        raise ConfigError(f"--compare {spec} failed: {_in_words(error)}; leave it out, or correct it") from error


def _factory(spec: str) -> Callable[..., Any]:
    """Return the object that `module:factory` names; the module may lie in the current directory."""
    if ":" not in spec:
        hint = did_you_mean(spec, KNOWN_RIVALS) or f"; name {', '.join(KNOWN_RIVALS)}"
        raise ConfigError(f"--compare {spec}: unknown detector{hint}; or write module:factory for one of your own")
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)  # as `python -m` does
    try:
        factory: object = resolve_name(spec)
    except Exception as error:  # the module is not ours
        raise ConfigError(f"--compare {spec} cannot be imported: {_in_words(error)}; correct it") from error
    if not callable(factory):
        raise ConfigError(f"--compare {spec} is not a function or class that makes a detector; name one")
    return factory


def _in_words(error: Exception) -> str:
    """Return an exception of foreign code in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
