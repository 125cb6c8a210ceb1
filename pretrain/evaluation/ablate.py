"""Ablations: train every variant of a study, evaluate all on the same data, and write a table.

The directory of a study holds one run per variant and seed, the results of all evaluations, `results.csv`,
`report.md`, and pictures that compare the variants. Interrupted runs are resumed, and nothing is computed twice.
"""

from __future__ import annotations

import csv
import json
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from zlib import crc32

import numpy as np

from fomo_stream.errors import ConfigError, FomoError
from fomo_stream.limits import MAX_CONTEXT
from fomo_stream.model.checkpoint import save_model, shared_model
from fomo_stream.model.zero_shot import ZeroShotModel
from pretrain.evaluation.comparison import scoreboard
from pretrain.evaluation.detectors import Encoded
from pretrain.evaluation.plots import plot_comparison
from pretrain.evaluation.runs import Pending, Run, run_all
from pretrain.evaluation.studies import Variant
from pretrain.evaluation.tables import Task, draw_task, read_table, table_files
from pretrain.priors.mixture import BatchSource, DataConfig
from pretrain.training.config import TrainConfig
from pretrain.training.run_files import RunFiles, as_json, read_log, read_tensors, replace_file
from pretrain.training.train import Observer, train

HELD_BACK_SEED = 7_000_003  # of the held-back data; training seeds are small numbers
MAX_TEST = 2000  # query rows of a real table


@dataclass(frozen=True)
class Result:
    """One line of the table: a variant, with means over its seeds. Metrics in percent; sd: between seeds, 0 for one."""

    variant: str
    seeds: int
    steps: float
    train_seconds: float
    ms_per_step: float
    parameters: int
    loss: float  # of training, over the last quarter of the log
    auroc: float  # on held-back synthetic data
    auroc_sd: float
    aupr: float
    tables_auroc: float  # on real tables; NaN if there are none
    tables_auroc_sd: float
    tables_aupr: float


@dataclass(frozen=True)
class Ablation:
    """The plan of a study. held_back: the prior of the held-back data; datasets: the number of datasets drawn from it;
    tables: a folder of real tables, or None; contexts: the context rows in evaluation, by default those of training."""

    variants: Sequence[tuple[Variant, TrainConfig]]
    held_back: DataConfig
    out: Path
    seeds: int = 1
    datasets: int = 64
    tables: Path | None = None
    device: str = "auto"
    contexts: Sequence[int] = ()


def ablate(study: Ablation, title: str, observer: Observer) -> list[Result]:
    """Run the missing parts, and write the report after every variant. observer: follows the training runs.

    Raises FomoError if a training run was interrupted, and ConfigError if a model cannot be evaluated on a dataset.
    """
    results: list[Result] = []
    evaluated: list[Run] = []
    for variant, config in study.variants:
        for context in study.contexts or (min(config.data.context_max, MAX_CONTEXT),):
            label = f"{variant.label}, {context} in evaluation" if study.contexts else variant.label
            runs = []
            for seed in range(study.seeds):
                print(f"variant={label!r} seed={seed}", file=sys.stderr, flush=True)
                runs.append(_run(study, variant, replace(config, seed=seed), context, observer))
                evaluated += [replace(run, method=label) for run in runs[-1].real or runs[-1].synthetic]
            results.append(_summary(label, config, study, runs))
            write_report(results, study, title)
    plot_comparison({"auroc": scoreboard(evaluated, "auroc")[0]}, (), study.out)
    return results


@dataclass(frozen=True)
class _Finished:
    """One trained and evaluated run."""

    log: list[dict[str, float]]
    steps: int
    synthetic: list[Run]
    real: list[Run]


def held_back_data(base: DataConfig, variants: Sequence[DataConfig], contexts: Sequence[int] = ()) -> DataConfig:
    """The held-back data of a study: that of the base, with the width and the context size of the largest variant."""
    width = max(data.max_features for data in variants)
    context = min(MAX_CONTEXT, max([*contexts, *(data.context_max for data in variants)]))
    return replace(base, max_features=width, context_min=context, context_max=context, reuse=None)


def _run(study: Ablation, variant: Variant, config: TrainConfig, context: int, observer: Observer) -> _Finished:
    home = study.out / _slug(variant.label) / f"seed-{config.seed}"
    if not _complete(home, config):
        train(config, home, study.device, observer=observer)
        if not _complete(home, config):
            raise FomoError(f"stopped in {home}; run the same command again to continue")
    files = RunFiles(home)
    weights, step = files.lowest_loss() if files.best.exists() else files.weights()
    checkpoint = home / f"model-{step}.safetensors"
    if not checkpoint.exists():
        model = ZeroShotModel(config.network)
        model.load_state_dict(weights)
        save_model(model, checkpoint)
    name = f"{variant.label}/seed-{config.seed}/{shared_model(str(checkpoint), study.device).name}"
    method = {name: partial(Encoded, str(checkpoint), study.device)}
    synthetic = run_all(held_back_tasks(study, context), method, study.out / "synthetic.csv", context, 0, _silent)
    real = run_all(_tables(study, context), method, study.out / "tables.csv", context, MAX_TEST, _silent)
    if failed := [run for run in synthetic + real if run.error]:
        raise ConfigError(f"{name} cannot be evaluated on {failed[0].dataset}: {failed[0].error}")
    return _Finished(read_log(files.log), step, synthetic, real)


def _complete(home: Path, config: TrainConfig) -> bool:
    """Whether the run in `home` is finished."""
    files = RunFiles(home)
    if not files.state.exists():
        return False
    files.claim(config)
    about = read_tensors(files.state)[1]
    by_time = config.minutes is not None and float(about["elapsed"]) >= 60 * config.minutes
    return by_time or int(about["step"]) >= config.steps


def held_back_tasks(study: Ablation, context: int) -> list[Pending]:
    """Synthetic datasets that no training seed draws. Variants with smaller contexts use a part of the same rows."""
    data = study.held_back
    mark = f"{crc32(json.dumps(as_json(data)).encode()):08x}"  # other variants may need other data
    source = BatchSource(data, HELD_BACK_SEED)
    batch_of = lru_cache(maxsize=1)(source.batch)

    def draw(number: int) -> Task:
        batch = batch_of(number // data.batch)
        one = number % data.batch
        width = int(batch.n_features[one])
        context_rows, queries = batch.context[one, :context, :width], batch.queries[one, :, :width]
        labels = batch.labels[one].long()
        return Task(f"synthetic-{number}", 0, context_rows.double().numpy(), queries.double().numpy(), labels.numpy())

    return [Pending(f"synthetic-{number}", 0, partial(draw, number), mark) for number in range(study.datasets)]


def _tables(study: Ablation, context: int) -> list[Pending]:
    if study.tables is None:
        return []
    tables = [read_table(path) for path in table_files(study.tables).values()]
    return [Pending(t.name, 0, partial(draw_task, t, 0, context, MAX_TEST), t.digest) for t in tables]


def _summary(label: str, config: TrainConfig, study: Ablation, runs: list[_Finished]) -> Result:
    lines = [line for run in runs for line in (run.log[1:] or run.log)]  # the first line includes the warm-up
    last = [line["loss"] for run in runs for line in run.log[-max(1, len(run.log) // 4) :]]
    auroc, aupr = ([_mean(getattr(r, m) for r in run.synthetic) for run in runs] for m in ("auroc", "aupr"))
    real_auroc, real_aupr = ([_mean(getattr(r, m) for r in run.real) for run in runs] for m in ("auroc", "aupr"))
    return Result(
        variant=label,
        seeds=len(runs),
        steps=_mean(run.log[-1]["step"] for run in runs),
        train_seconds=round(_mean(run.log[-1]["seconds"] for run in runs), 1),
        ms_per_step=round(statistics.median(line["ms_per_step"] for line in lines), 2),
        parameters=sum(parameter.numel() for parameter in ZeroShotModel(config.network).parameters()),
        loss=round(_mean(last), 4),
        auroc=round(_mean(auroc), 2),
        auroc_sd=round(float(np.std(auroc)), 2),
        aupr=round(_mean(aupr), 2),
        tables_auroc=round(_mean(real_auroc), 2),
        tables_auroc_sd=round(float(np.std(real_auroc)), 2),
        tables_aupr=round(_mean(real_aupr), 2),
    )


def write_report(results: list[Result], study: Ablation, title: str) -> None:
    """The table as CSV and Markdown."""
    names = [entry.name for entry in fields(Result)]

    def write_csv(path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows(asdict(result) for result in results)

    replace_file(study.out / "results.csv", write_csv)
    text = markdown(results, study, title)
    replace_file(study.out / "report.md", lambda path: path.write_text(text, encoding="utf-8"))


def markdown(results: list[Result], study: Ablation, title: str) -> str:
    """The report."""
    data = study.held_back
    head = "variant|steps|ms/step|parameters|loss|AUROC|AUPR"
    lines = [
        f"# Ablation: {title}",
        "",
        f"{study.seeds} seed(s); evaluated on {study.datasets} held-back synthetic datasets of up to "
        f"{data.max_features} features, {data.queries} queries, half of them outliers; ± is the standard deviation "
        "between seeds. In percent.",
    ]
    if study.tables is not None:
        head += "|AUROC, tables|AUPR, tables"
        lines.append(f"Tables: {len(table_files(study.tables))} in {study.tables.name}, one random split each.")
    columns = head.split("|")
    lines += ["", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for r in results:
        cells = [
            r.variant,
            f"{r.steps:.0f}",
            f"{r.ms_per_step:.1f}",
            f"{r.parameters:,}",
            f"{r.loss:.3f}",
            f"{r.auroc:.2f} ± {r.auroc_sd:.2f}",
            f"{r.aupr:.2f}",
        ]
        if study.tables is not None:
            cells += [f"{r.tables_auroc:.2f} ± {r.tables_auroc_sd:.2f}", f"{r.tables_aupr:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return statistics.fmean(found) if found else float("nan")


def _slug(label: str) -> str:
    """A directory name from a label."""
    return re.sub(r"[^A-Za-z0-9.=+-]+", "_", label)


def _silent(line: str) -> None:
    """No output: evaluations are many and short."""
