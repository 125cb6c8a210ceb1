"""Run detectors on many ranking problems. Every run is kept in a CSV file, so nothing is computed twice."""

from __future__ import annotations

import csv
import io
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fomo_stream.errors import ConfigError
from pretrain.evaluation.detectors import Method
from pretrain.evaluation.ranking_metrics import Metrics, ranking_metrics
from pretrain.evaluation.tables import Task
from pretrain.training.run_files import replace_file


@dataclass(frozen=True)
class Run:
    """One line of the CSV file.

    auroc, aupr, f1: percent; nonfinite: number of scores that were not finite; error: the message of a failed run,
    whose metrics are NaN.
    """

    dataset: str
    seed: int
    method: str
    context: int  # limits of the run, in rows
    max_test: int
    data: str = ""  # digest of the dataset, see `Pending`
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
    """A task that is drawn only when a run needs it.

    data: a digest of the source, so that runs on an older table with the same name do not count; "" where the name
    determines the data.
    """

    dataset: str
    seed: int
    draw: Callable[[], Task]
    data: str = ""


def run_method(method: Method, task: Task, name: str, context: int, max_test: int, data: str) -> Run:
    """Fit, score, measure. An exception of the detector is stored in `error`."""
    base = Run(task.dataset, task.seed, name, context, max_test, data, *_sizes(task))
    try:
        with warnings.catch_warnings(action="ignore"):  # of the methods; they would be repeated in every run
            began = time.perf_counter()
            detector = method(task.seed)
            detector.fit(task.context.copy())
            fitted = time.perf_counter()
            scores = np.asarray(detector.score(task.queries.copy()), dtype=np.float64)
            done = time.perf_counter()
    except Exception as error:  # from foreign code; the other runs must go on
        return replace(base, error=f"{type(error).__name__}: {' '.join(str(error).split())}"[:300])
    bad = ~np.isfinite(scores)
    if bad.any():  # NaN and minus infinity get the lowest rank, plus infinity the highest
        usual = scores[~bad] if not bad.all() else np.zeros(1)
        scores = np.nan_to_num(scores, nan=usual.min(), posinf=usual.max() + 1, neginf=usual.min() - 1)
    weights = task.inlier_weight, task.outlier_weight
    each = [ranking_metrics(task.labels, ranking, *weights) for ranking in np.atleast_2d(scores)]
    quality = Metrics(*np.mean(each, axis=0).tolist())
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
    """Run every method on every task, except for the runs that the CSV file `results` has; failed runs are repeated.

    report: gets a line per task that had something to run, instead of stderr. Returns the runs of these tasks and
    methods, with those from the file, in the order of tasks and methods.
    """
    tell = report or (lambda line: print(line, file=sys.stderr, flush=True))
    kept = [run for run in read_runs(results) if not run.error]
    _write_runs(results, kept)
    done = {run.key: run for run in kept}
    found = []
    for pending in tasks:
        task = None
        news: list[str] = []
        for name, method in methods.items():
            key = (pending.dataset, pending.seed, name, context, max_test, pending.data)
            if key not in done:
                task = task or pending.draw()
                run = run_method(method, task, name, context, max_test, pending.data)
                _append_run(results, run)
                done[key] = run
                news.append(f"{name}={'failed' if run.error else f'{run.auroc:.2f}'}")
            found.append(done[key])
        if news:
            tell(f"dataset={pending.dataset} seed={pending.seed} auroc: {' '.join(news)}")
    return found


def read_runs(path: Path) -> list[Run]:
    """The runs in a CSV file; none if it does not exist. An incomplete last line is left out.

    Raises ConfigError for any other file.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    reader = csv.DictReader(lines)
    if lines and set(reader.fieldnames or ()) != {field.name for field in fields(Run)}:
        raise ConfigError(f"{path} is not a results file of this version; move it away or choose another --out")
    types = {field.name: {"int": int, "float": float, "str": str}[str(field.type)] for field in fields(Run)}
    try:
        return [Run(**{name: types[name](value) for name, value in line.items()}) for line in reader]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({error}); move it away or choose another --out") from None


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
