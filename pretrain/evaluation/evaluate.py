"""Run detectors over many ranking problems and keep every run in a CSV, so that nothing is ever computed twice."""

from __future__ import annotations

import csv
import io
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fomo_stream.errors import ConfigError
from pretrain.evaluation.detectors import Method
from pretrain.evaluation.tables import Float, Int, Task
from pretrain.training.run_files import replace_file

METRICS = ("auroc", "aupr", "f1")


@dataclass(frozen=True)
class Run:
    """One line of the CSV. auroc, aupr, f1: percent; nonfinite: how many scores were no numbers; error: why it failed,
    then the metrics are NaN."""

    dataset: str
    seed: int
    method: str
    context: int  # the limits that it ran under, in rows
    max_test: int
    data: str = ""  # what the dataset was drawn from, see `Pending`
    n_context: int = 0
    n_queries: int = 0
    n_outliers: int = 0
    n_features: int = 0
    auroc: float = float("nan")
    aupr: float = float("nan")
    f1: float = float("nan")
    fit_seconds: float = float("nan")
    score_seconds: float = float("nan")
    nonfinite: int = 0
    error: str = ""

    @property
    def key(self) -> tuple[str, int, str, int, int, str]:
        return self.dataset, self.seed, self.method, self.context, self.max_test, self.data


class Pending(NamedTuple):
    """A task that is only drawn when somebody needs it.

    data: a digest of what it is drawn from, so that runs on a table of the same name that has changed since do not
    count; "" where the name says it all.
    """

    dataset: str
    seed: int
    draw: Callable[[], Task]
    data: str = ""


class Metrics(NamedTuple):
    auroc: float
    aupr: float
    f1: float


def ranking_metrics(labels: Int, scores: Float, inlier_weight: float = 1.0, outlier_weight: float = 1.0) -> Metrics:
    """AUROC, AUPR (average precision) and F1 at the true number of outliers, all in [0, 1]; ties count as chance.

    labels: (q,), 1 = outlier, both kinds present; scores: (q,), finite; the weights are those of a `Task`. F1: as much
    weight is flagged as there is in outliers, so that precision = recall = F1; rows that tie across the threshold are
    flagged in equal parts. Needs NumPy alone, because a machine lent for training may have no scikit-learn.
    """
    order = np.argsort(-scores, kind="stable")
    scores, strange = scores[order], labels[order] == 1
    starts = np.flatnonzero(np.concatenate([[True], scores[1:] != scores[:-1]]))  # of the groups of equal scores
    hits = np.add.reduceat(np.where(strange, outlier_weight, 0.0), starts)
    misses = np.add.reduceat(np.where(strange, 0.0, inlier_weight), starts)
    found, flagged, total = hits.cumsum(), (hits + misses).cumsum(), hits.sum()
    share = np.clip((total - (flagged - hits - misses)) / (hits + misses), 0.0, 1.0)
    return Metrics(
        float((misses * (found - hits / 2)).sum() / (total * misses.sum())),
        float((hits * found / flagged).sum() / total),
        float((share * hits).sum() / total),
    )


def run_method(method: Method, task: Task, name: str, context: int, max_test: int, data: str = "") -> Run:
    """Fit, score, measure. What a detector cannot do with these rows ends up in `error`."""
    base = Run(task.dataset, task.seed, name, context, max_test, data, *_sizes(task))
    try:
        began = time.perf_counter()
        detector = method(task.seed)
        detector.fit(task.context.copy())
        fitted = time.perf_counter()
        scores = np.asarray(detector.score(task.queries.copy()), dtype=np.float64)
        done = time.perf_counter()
    except Exception as error:  # foreign code, and the other detectors and tables are still to come
        return replace(base, error=f"{type(error).__name__}: {' '.join(str(error).split())}"[:300])
    bad = ~np.isfinite(scores)
    if bad.any():  # the lowest rank, but for plus infinity
        usual = scores[~bad] if not bad.all() else np.zeros(1)
        scores = np.nan_to_num(scores, nan=usual.min(), posinf=usual.max() + 1, neginf=usual.min() - 1)
    quality = ranking_metrics(task.labels, scores, task.inlier_weight, task.outlier_weight)
    return replace(
        base,
        **{name: round(100 * value, 4) for name, value in quality._asdict().items()},
        fit_seconds=round(fitted - began, 4),
        score_seconds=round(done - fitted, 4),
        nonfinite=int(bad.sum()),
    )


def run_all(
    tasks: Iterable[Pending],
    methods: Mapping[str, Method],
    results: Path,
    context: int,
    max_test: int,
    report: Callable[[str], None] | None = None,
) -> list[Run]:
    """Run every method on every task, but for what `results` already has; failed runs are tried again.

    Returns the runs of these tasks and methods, those found in the file included, in the order of tasks and methods.
    """
    tell = report or (lambda line: print(line, file=sys.stderr, flush=True))
    kept = [run for run in read_runs(results) if not run.error]
    _write_runs(results, kept)
    done = {run.key: run for run in kept}
    found = []
    for pending in tasks:
        task = None
        for name, method in methods.items():
            key = (pending.dataset, pending.seed, name, context, max_test, pending.data)
            if key not in done:
                task = task or pending.draw()
                run = run_method(method, task, name, context, max_test, pending.data)
                _append_run(results, run)
                done[key] = run
                what = f"error={run.error!r}" if run.error else f"auroc={run.auroc:.2f} aupr={run.aupr:.2f}"
                seconds = f"fit_s={run.fit_seconds:.2f} score_s={run.score_seconds:.2f}"
                tell(f"dataset={run.dataset} seed={run.seed} method={name} {what} {seconds}")
            found.append(done[key])
    return found


def read_runs(path: Path) -> list[Run]:
    """The runs in a CSV, none if it does not exist. A last line that was cut off is left out.

    Raises ConfigError for a file that is something else.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    reader = csv.DictReader(lines)
    known = {field.name for field in fields(Run)}
    if lines and set(reader.fieldnames or ()) not in (known, known - {"data"}):  # older files have no `data`
        raise ConfigError(f"{path} is no file of results of this version; move it away or give another --out")
    types = {field.name: {"int": int, "float": float, "str": str}[str(field.type)] for field in fields(Run)}
    try:
        return [Run(**{name: types[name](value) for name, value in line.items()}) for line in reader]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({error}); move it away or give another --out") from None


def _sizes(task: Task) -> tuple[int, int, int, int]:
    return len(task.context), len(task.queries), int(task.labels.sum()), task.context.shape[1]


def _write_runs(path: Path, runs: Sequence[Run]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [field.name for field in fields(Run)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(run) for run in runs)
    replace_file(path, lambda beside: beside.write_text(text.getvalue(), encoding="utf-8", newline=""))


def _append_run(path: Path, run: Run) -> None:
    with path.open("a", newline="", encoding="utf-8") as file:
        csv.DictWriter(file, [field.name for field in fields(Run)], lineterminator="\n").writerow(asdict(run))
