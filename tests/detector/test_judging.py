"""Compiled judging agrees with that in plain Python, for records of all kinds, however they are split over calls."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from plain_judge import PlainJudge, Record
from streams import CONFIG

from fomo_stream.detector.alerts import Alerts
from fomo_stream.detector.config import STEP, DetectorConfig
from fomo_stream.detector.history import History
from fomo_stream.detector.keys import Keys
from fomo_stream.detector.results import Scores
from fomo_stream.detector.series import MEMORY, OPEN
from fomo_stream.detector.step.follow import RELATIVE_VECTORS, Batch
from fomo_stream.detector.step.judge import BOUND, EARLIER_LOGITS, FIXED, N_ADDRESSES, OUTLIER, UNKNOWN, judge_visits
from fomo_stream.detector.step.judge import MEMORY as SERIES_MEMORY
from fomo_stream.detector.step.work import Work
from fomo_stream.model.kernels.handles import Handle

D, VIEWS, KEYS = 2, 3, 30


class Judged:
    """Alerts and a history, without the rest of a detector. prior: of the scope of one key; 0: of a partition."""

    def __init__(self, config: DetectorConfig, prior: float) -> None:
        keys = Keys(KEYS, [OPEN, *MEMORY])
        for number in range(1, KEYS):
            keys.take(bytes([number]) * 16, number)
        self.alerts, self.scope = Alerts(config, keys), int(prior > 0)
        self.history = History(D, VIEWS, 200, config.history_scores, 0, movement=False, relative=False, prior=prior)
        self.work = Work(STEP, D, 1, VIEWS, np.array([[0, D, 0]]))
        columns = tuple(keys.columns[name] for name in ("mean", "logits", "open"))
        self.handles = Handle(*self.history.rings, *self.alerts.kernel_arrays), Handle(columns)
        self.history.tally[BOUND] = -1  # it never stops

    def judge(self, batch: Batch, scores: Scores, learn: bool) -> tuple[np.ndarray, ...]:
        """Judge records that are of one step: remembered logits, scores, p-values, outliers, and severities."""
        n, work = len(scores), self.work
        numbers, weight = self.history.records + np.arange(n), np.full(n, np.nan)
        given = scores.logit, scores.by_view, scores.by_key, weight if scores.weight is None else scores.weight
        visits = np.arange(n), np.full(n, self.scope), numbers, numbers, np.ones(n, bool), np.ones(n, bool)
        for here, values in zip((*work.batch, *work.visits, *work.scores), (*batch, *visits, *given), strict=False):
            here[:n] = values
        seats, address = np.zeros((2, N_ADDRESSES), np.int64), self.alerts.earlier_logits(self.history).address
        seats[self.scope, [FIXED, SERIES_MEMORY, EARLIER_LOGITS]] = (
            *(handle.address for handle in self.handles),
            address,
        )
        assert judge_visits(work.address, n, n, 0, seats, learn) == n
        if learn and self.history.records - self.alerts.stepped == STEP:
            self.alerts.step(self.history)
        return tuple(array[:n].copy() for array in work.judged[:5])

    def verdict(self, numbers: np.ndarray, is_outlier: bool) -> None:
        """Feedback on records, all with another verdict before."""
        self.history.judge(numbers, np.full(len(numbers), OUTLIER if is_outlier else UNKNOWN, np.int8))
        self.alerts.note(numbers, self.history.remembered(numbers), -1.0 if is_outlier else 1.0)


def stream(n: int, seed: int, prior: float) -> tuple[Batch, Scores]:
    """Records of some keys, one of which is always wild; with bursts, far values, and logits of what is usual."""
    rng = np.random.default_rng(seed)
    slots = np.where(rng.random(n) < 0.3, 0, rng.integers(1, KEYS - 1, n)) * (not prior)
    by_view = rng.normal(size=(n, VIEWS)) + 4.0 * (np.arange(n) // 50 % 4 == 3)[:, None] * (rng.random((n, 1)) < 0.5)
    wild = (rng.random(n) < 0.1) & (not prior)
    slots[wild], by_view[wild] = KEYS - 1, by_view[wild] + 9.0
    by_key = np.where(rng.random(n) < 0.5, np.nan, 1.5 * rng.normal(size=n))
    far, ordinary = rng.random(n) < 0.05, np.repeat(rng.random((n, 1)) < 0.1, D, axis=1)
    by_view[far] += 6.0
    weights = np.asarray(prior / (prior + np.arange(n)), np.float64) if prior else None
    scores = Scores.of(by_view, np.ones(n, np.int64), np.ones(n), by_key, weights)
    less = (rng.random(n) < 0.1) & (slots > 0)
    begins = np.arange(n) == 0 if prior else rng.random(n) < 0.02
    unknown, none = np.full((n, 3, D), np.nan), np.zeros((n, D), bool)
    relative, still = np.full((n, RELATIVE_VECTORS, D), np.nan), np.zeros((n, D), np.int64)
    batch = Batch(np.zeros((n, 1, D)), none, slots, begins, relative, unknown, still, far, ordinary)
    return batch, replace(scores, logit=np.where(less, scores.logit - 3.0, scores.logit))


@pytest.mark.parametrize(
    ("rate", "prior", "memory", "views"),
    [
        (0.03, 0.0, 1 / 3, "default"),
        (0.03, 200.0, 0.9, "default"),
        (0.1, 0.0, 0.0, "events"),
        (0.1, 200.0, 1 / 3, "events"),
    ],
)
def test_compiled_judging_agrees_with_plain_python(rate: float, prior: float, memory: float, views: str) -> None:
    n, seed = 600, round(prior + 100 * rate)
    rng, config = np.random.default_rng(seed), replace(CONFIG, alert_rate=rate, memory=memory, views=(views,))
    batch, scores = stream(n, seed, prior)
    columns = scores.logit, scores.by_view, scores.by_key, batch.slots, batch.begins, batch.far, batch.is_common[:, 0]
    plain, one, told = PlainJudge(config, prior), Judged(config, prior), np.zeros(0, np.int64)
    found, parts, at = list[Record](), list[tuple[np.ndarray, ...]](), 0
    while at < n:
        part = slice(at, at + int(rng.integers(1, 1 + STEP - at % STEP)))
        if rng.random() < 0.5:
            one.judge(batch.part(part), scores[part], learn=False)  # changes nothing
        parts.append(one.judge(batch.part(part), scores[part], learn=True))
        found += [plain.judge(Record(*record)) for record in zip(*(x[part].tolist() for x in columns), strict=True)]
        at = part.stop
        if rng.random() < 0.1:  # some records are called outliers, those of the last time are not any more
            one.verdict(told, False)
            past, new = told, np.unique(rng.integers(max(0, at - 60), at, 5))
            one.verdict(new, True)
            for numbers, is_outlier in ((past, False), (new, True)):
                for number in numbers.tolist():
                    plain.past[number].is_taken_back = is_outlier
            told = new
    *reals, outlier, severity = (np.concatenate(values) for values in zip(*parts, strict=True))
    for name, values in zip(("remembered", "score", "p_value"), reals, strict=True):
        np.testing.assert_allclose(values, [getattr(record, name) for record in found], atol=1e-9, err_msg=name)
    assert outlier.tolist() == [record.outlier for record in found]
    assert severity.tolist() == [record.severity for record in found]
    assert set(severity.tolist()) == {0, 1, 2, 3}
