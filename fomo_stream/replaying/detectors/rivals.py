"""Other detectors, run over the same rows: each row is scored, then learned, in order (prequentially)."""

from __future__ import annotations

import logging
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from inspect import Parameter, signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.alerts import is_calibrated, p_values
from fomo_stream.detector.config import STEP, DetectorConfig
from fomo_stream.errors import ConfigError
from fomo_stream.logs import kv, place_of
from fomo_stream.replaying.blocks import Judgement
from fomo_stream.replaying.detectors.rows import CompleteRows, Neighbours
from fomo_stream.wording import did_you_mean

log = logging.getLogger(__name__)

Float = NDArray[np.float64]

RIVER, PYSAD, ROWS = ("score_one", "learn_one"), ("score_partial", "fit_partial"), ("judge",)
PROTOCOLS = (RIVER, PYSAD, ROWS)
KNN, TREES, SVM = NAMED = ("knn", "river.HalfSpaceTrees", "river.OneClassSVM")
WARM_UP = {TREES: 250}  # records whose scores say nothing: all are 0 until the first window is full
LARGEST = 1e300  # infinite scores are cut to this size


class Rival:
    """Another detector: its scores, and p-values and alerts from its own earlier scores.

    A score does not depend on how rows are split over calls, nor on other detectors: each has the global random
    numbers of Python and NumPy to itself, from the same seed on.
    """

    def __init__(self, spec: str, features: Sequence[str], config: DetectorConfig, categorical: Sequence[int]) -> None:
        self.name = spec
        self._features, self._own, self._records = features, OwnScores(config), 0
        self._whole = CompleteRows(len(features), categorical)
        self._numbers = _RandomNumbers(config.seed)
        with self._numbers.own():
            self._detector = _made(spec, len(features), config)
        self._protocol = next((one for one in PROTOCOLS if all(hasattr(self._detector, name) for name in one)), None)
        if self._protocol is None:
            lacks = "none of the methods " + ", ".join("/".join(methods) for methods in PROTOCOLS)
            raise ConfigError(f"--compare {spec} gives a {type(self._detector).__name__}, which has {lacks}")

    def judge(self, rows: Float) -> Judgement:
        """Score each of the next n rows (n, d), raw, NaN = missing, then learn it. Raises ConfigError if it fails."""
        try:
            with np.errstate(all="ignore"), self._numbers.own():
                scores = np.array(self._scores(rows.copy()), dtype=np.float64)
        except (Exception, SystemExit) as error:  # the text of its error may hold values
            log.debug(kv("detector_failed", name=self.name), exc_info=True)
            why = f"{type(error).__name__} at {place_of(error)}"
            raise self._failure(rows, why, "; --log-level debug shows more") from None
        if scores.shape != (len(rows),):
            raise self._failure(rows, f"scores of {len(rows)} rows have the shape {scores.shape}")
        scores = np.clip(scores, -LARGEST, LARGEST)
        scores[: max(0, WARM_UP.get(self.name, 0) - self._records)] = np.nan
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

    def _failure(self, rows: Float, why: str, more: str = "") -> ConfigError:
        first, last = self._records + 1, self._records + len(rows)
        return ConfigError(
            f"{self.name} failed among records {first:,} to {last:,} of a partition: {why}; leave it out of --compare, "
            f"or correct it{more}"
        )


class OwnScores:
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

    def judge(self, scores: Float) -> Judgement:
        """The judgements of the next n records from their scores (n,); NaN: no score, which no window keeps."""
        p, alert = np.full(len(scores), np.nan), np.zeros(len(scores), dtype=bool)
        start = 0
        while start < len(scores):
            part = slice(start, start + STEP - self._records)
            found = scores[part]
            has_score = ~np.isnan(found)
            p[part] = np.where(has_score, p_values(found, self._ascending), np.nan)
            if is_calibrated(len(self._ascending), self._alert_rate):
                alert[part] = p[part] <= self._alert_rate
            self._since.append(found[has_score])
            self._records += len(found)
            start += len(found)
            if self._records == STEP:
                self._step()
        return Judgement(scores, p, alert)

    def _step(self) -> None:
        """The scores since the last step join the window, and the oldest leave it."""
        new = np.concatenate(self._since)
        every = np.concatenate([self._recent, new])
        too_many = max(0, len(every) - self._size)
        gone, self._recent = every[:too_many], every[too_many:]
        joined = np.sort(new)
        self._ascending = np.insert(self._ascending, np.searchsorted(self._ascending, joined), joined)
        gone = np.sort(gone)  # equal scores leave one by one
        places = np.searchsorted(self._ascending, gone) + np.arange(len(gone)) - np.searchsorted(gone, gone)
        self._ascending = np.delete(self._ascending, places)
        self._since, self._records = [], 0


class _RandomNumbers:
    """The global random numbers of Python and NumPy, from a seed on, apart from those of everybody else."""

    def __init__(self, seed: int) -> None:
        self._states: Any = random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def own(self) -> Iterator[None]:
        """Go on with these numbers; afterwards others go on with theirs."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        mine, self._states = self._states, (random.getstate(), np.random.get_state())
        random.setstate(mine[0])
        np.random.set_state(mine[1])


# --- from a name to a detector -------------------------------------------------------------------------------


def check_rivals(specs: Sequence[str]) -> None:
    """Raise ConfigError, in one sentence, if one of these cannot be compared with; makes none of them."""
    for i, spec in enumerate(specs):
        if spec in specs[:i]:
            raise ConfigError(f"--compare names {spec} twice; name each once")
        if spec not in NAMED:
            _arguments(spec, _factory(spec))


def _made(spec: str, n_features: int, config: DetectorConfig) -> Any:
    """The detector that a word of `--compare` names. Raises ConfigError, in one sentence, if it cannot be made."""
    if spec == KNN:
        return Neighbours(n_features, config)
    if spec in NAMED:
        from river import anomaly, preprocessing

        if spec == TREES:  # it expects values from 0 to 1
            return preprocessing.MinMaxScaler() | anomaly.HalfSpaceTrees(seed=config.seed)
        return preprocessing.StandardScaler() | anomaly.OneClassSVM()
    factory, seed = _factory(spec), config.seed % 2**32
    given = {"n_features": n_features, "seed": seed, "random_state": seed}
    try:
        return factory(**{name: given[name] for name in _arguments(spec, factory)})
    except ConfigError:
        raise
    except Exception as error:  # the factory is not ours
        raise ConfigError(
            f"--compare {spec}: the factory failed: {_in_words(error)}; leave it out, or correct it"
        ) from error


def _factory(spec: str) -> Callable[..., Any]:
    """The object that `module:factory` names; the module may lie in the current directory."""
    module_name, colon, name = spec.partition(":")
    if not (colon and module_name and name):
        known = did_you_mean(spec, NAMED) or f"; name {', '.join(NAMED)}"
        raise ConfigError(
            f"--compare {spec}: there is no such detector{known}; or write module:factory for one of your own"
        )
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)  # as `python -m` does
    try:
        factory: Any = import_module(module_name)
    except Exception as error:  # the module is not ours
        raise ConfigError(f"--compare {spec}: {module_name} cannot be imported: {_in_words(error)}") from error
    for part in name.split("."):
        if not hasattr(factory, part):
            hint = did_you_mean(part, [other for other in dir(factory) if not other.startswith("_")])
            raise ConfigError(f"--compare {spec}: {module_name} has no {name}{hint}")
        factory = getattr(factory, part)
    if not callable(factory):
        raise ConfigError(f"--compare {spec}: {name} is not a function or class that makes a detector")
    return factory  # type: ignore[no-any-return]


def _arguments(spec: str, factory: Callable[..., Any]) -> list[str]:
    """Names of the arguments that the factory takes of those that we give."""
    try:
        parameters = signature(factory).parameters.values()
    except (TypeError, ValueError):  # compiled functions may have no signature
        return []
    named = {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}
    taken = [p.name for p in parameters if p.kind in named and p.name in ("n_features", "seed", "random_state")]
    variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is Parameter.empty and p.kind not in variable]
    if unknown := [name for name in needed if name not in taken]:
        raise ConfigError(
            f"--compare {spec}: the factory needs the argument {unknown[0]}; write a function of your own that takes "
            "none, or only n_features or seed"
        )
    return taken


def _in_words(error: Exception) -> str:
    """An exception of foreign code, in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
