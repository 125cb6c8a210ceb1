"""Other detectors, run over the same rows: each row is scored, then learned, in order (prequentially)."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.errors import ConfigError
from fomo_stream.logs import kv, place_of
from fomo_stream.replaying.blocks import Judgement
from fomo_stream.replaying.detectors.complete_rows import CompleteRows
from fomo_stream.replaying.detectors.factories import (
    KNN,
    NAMED,
    PYSAD,
    RIVER,
    check_rivals,
    make_detector,
    protocol_of,
)
from fomo_stream.replaying.detectors.neighbours import Neighbours
from fomo_stream.replaying.detectors.own_scores import OwnScores

__all__ = ["Rival", "check_rivals", "make_rival"]

log = logging.getLogger(__name__)

Float = NDArray[np.float64]

LARGEST = 1e300  # infinite scores are cut to this size


class Rival:
    """Another detector: its scores, and p-values and alerts from its own earlier scores.

    A score does not depend on how rows are split over calls, nor on other detectors: each has the global random
    numbers of Python and NumPy to itself, from the same seed on.
    """

    def __init__(self, name: str, score: Callable[[Float], Float], config: DetectorConfig, warm_up: int = 0) -> None:
        """score: of the next rows (n, d), raw, NaN = missing. warm_up: records whose scores are left out."""
        self.name = name
        self._score = score
        self._own = OwnScores(config)
        self._warm_up = warm_up
        self._records = 0

    def judge(self, rows: Float) -> Judgement:
        """Score each of the next n rows (n, d), raw, NaN = missing, then learn it. Raises ConfigError if it fails."""
        with np.errstate(all="ignore"):
            scores = np.clip(self._scores(rows), -LARGEST, LARGEST)
        scores[: max(0, self._warm_up - self._records)] = np.nan
        self._records += len(rows)
        return self._own.judge(scores)

    def _scores(self, rows: Float) -> Float:
        try:
            scores = np.asarray(self._score(rows.copy()), dtype=np.float64)
        except (
            Exception,
            SystemExit,
        ) as error:  # the text of its error may hold values
            log.debug(kv("detector_failed", name=self.name), exc_info=True)
            raise self._failure(
                rows, f"{type(error).__name__} at {place_of(error)}", "; --log-level debug shows more"
            ) from None
        if scores.shape != (len(rows),):
            raise self._failure(rows, f"scores of {len(rows)} rows have the shape {scores.shape}")
        return scores.copy()

    def _failure(self, rows: Float, why: str, more: str = "") -> ConfigError:
        first, last = self._records + 1, self._records + len(rows)
        return ConfigError(
            f"{self.name} failed among records {first:,} to {last:,} of a partition: {why}; leave it out of --compare, "
            f"or correct it{more}"
        )


def make_rival(
    spec: str, n_features: int, features: Sequence[str], config: DetectorConfig, categorical: Sequence[int] = ()
) -> Rival:
    """The detector that a word of `--compare` names, for rows of these features.

    categorical: columns with category codes. Raises ConfigError, in one sentence, if it cannot be made.
    """
    if spec == KNN:
        whole, neighbours = CompleteRows(n_features, categorical), Neighbours(n_features, config)
        return Rival(spec, lambda rows: neighbours.judge(whole.complete(rows)), config)
    numbers = _RandomNumbers(config.seed)
    with numbers.own():
        warm_up = NAMED[spec].warm_up if spec in NAMED else 0
        detector = NAMED[spec].make(config.seed) if spec in NAMED else make_detector(spec, n_features, config.seed)
    score = _scorer(detector, features, CompleteRows(n_features, categorical))

    def with_own_numbers(rows: Float) -> Float:
        with numbers.own():
            return score(rows)

    return Rival(spec, with_own_numbers, config, warm_up)


def _scorer(detector: Any, features: Sequence[str], whole: CompleteRows) -> Callable[[Float], Float]:
    protocol = protocol_of(detector)
    if protocol == RIVER:

        def of_river(rows: Float) -> Float:
            records = (dict(zip(features, row, strict=True)) for row in whole.complete(rows).tolist())
            return _one_by_one(records, detector.score_one, detector.learn_one, len(rows))

        return of_river
    if protocol == PYSAD:
        return lambda rows: _one_by_one(
            iter(whole.complete(rows)), detector.score_partial, detector.fit_partial, len(rows)
        )
    judge: Callable[[Float], Float] = detector.judge
    return judge


def _one_by_one(
    records: Iterator[Any], score: Callable[[Any], Any], learn: Callable[[Any], Any], n_records: int
) -> Float:
    """Scores (n,): each record is scored, then learned. A score of None is no score."""
    scores = np.empty(n_records)
    for i, record in enumerate(records):
        found = score(record)
        scores[i] = np.nan if found is None else np.asarray(found, dtype=np.float64).item()
        learn(record)
    return scores


class _RandomNumbers:
    """The global random numbers of Python and NumPy, from a seed on, apart from those of everybody else."""

    def __init__(self, seed: int) -> None:
        python, state = random.Random(seed), np.random.RandomState(seed % 2**32)
        self._states = python.getstate(), state.get_state()

    @contextmanager
    def own(self) -> Iterator[None]:
        """Go on with these numbers; afterwards others go on with theirs."""
        others = random.getstate(), np.random.get_state()
        self._set(*self._states)
        try:
            yield
        finally:
            self._states = random.getstate(), np.random.get_state()
            self._set(*others)

    @staticmethod
    def _set(python: Any, state: Any) -> None:
        random.setstate(python)
        np.random.set_state(state)
