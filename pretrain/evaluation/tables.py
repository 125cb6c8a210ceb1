"""Labelled tables on disk, and their split into context rows and query rows.

The protocol: a random half of the inliers is the context, the other half and all outliers are the queries (paper,
section "Real-world Benchmark Datasets"). No row is in both, and the rows are shuffled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from fomo_stream.errors import ConfigError
from fomo_stream.records.arrays import open_arrays

Float = NDArray[np.float64]
Int = NDArray[np.int64]

SUFFIXES = (".npz", ".csv")
MIN_INLIERS = 8  # half of them make a context
KEPT_OUTLIERS = 2000  # minimum of outliers when the queries are cut, or half of the queries if that is fewer


@dataclass(frozen=True)
class Task:
    """One ranking problem. Rows are raw, NaN = missing.

    context: (n, d), inliers; queries: (q, d); labels: (q,), 1 = outlier. The weights: how many rows of the whole table
    one inlier and one outlier of the queries represent.
    """

    dataset: str
    seed: int
    context: Float
    queries: Float
    labels: Int
    inlier_weight: float = 1.0
    outlier_weight: float = 1.0


@dataclass(frozen=True)
class Table:
    """A labelled table. rows: (n, d), NaN = missing; labels: (n,), 1 = outlier.

    all_inliers, all_outliers: their number in the full table, if this is a part of it; train_rows: the first rows, all
    inliers, are the only source of the context (0: a random half of the inliers).
    """

    name: str
    rows: Float
    labels: Int
    all_inliers: int
    all_outliers: int
    train_rows: int = 0

    @property
    def digest(self) -> str:
        """Eight characters that depend on the whole content of the table."""
        found = crc32(f"{self.rows.shape} {self.all_inliers} {self.all_outliers} {self.train_rows}".encode())
        for part in (self.rows, self.labels):
            found = crc32(np.ascontiguousarray(part).data, found)
        return f"{found:08x}"


def table_files(folder: Path, names: Sequence[str] = ()) -> dict[str, Path]:
    """The tables of a folder by name (the file name without suffix), sorted; or only those in `names`.

    Raises ConfigError for a missing folder, a folder without tables, and unknown names.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; give a folder with tables (.npz with arrays X and y, or .csv)")
    files: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in SUFFIXES:
            if path.stem in files:
                raise ConfigError(f"{files[path.stem]} and {path} have the same name; rename one")
            files[path.stem] = path
    if not files:
        raise ConfigError(f"{folder} has no tables; put .npz files (arrays X and y) or .csv files there")
    if missing := [name for name in names if name not in files]:
        raise ConfigError(f"{folder} has no table {', '.join(missing)}; it has {', '.join(files)}")
    return {name: files[name] for name in names} if names else files


def read_table(path: Path, label: str | None = None) -> Table:
    """Read an .npz (X, y, and optionally n_in_full, n_out_full, n_train) or a .csv with a header.

    label: the column of a .csv that holds the labels, None = the last. Infinite values count as missing.
    Raises ConfigError with the name of the file if it cannot be evaluated.
    """
    extra: dict[str, int] = {}
    if path.suffix.lower() == ".npz":
        rows, labels, extra = _read_npz(path)
    else:
        rows, labels = _read_csv(path, label)
    if rows.ndim != 2 or not rows.size:
        raise ConfigError(f"{path}: X must have rows and columns, it has the shape {rows.shape}")
    if labels.shape != rows.shape[:1]:
        raise ConfigError(f"{path} has {len(rows)} rows and {labels.size} labels; give one label per row")
    if not np.isin(labels, (0, 1)).all():
        strange = next(value for value in labels.tolist() if value not in (0, 1))
        raise ConfigError(f"{path}: labels must be 0 (inlier) or 1 (outlier), one is {strange!r}")
    labels = labels.astype(np.int64)
    outliers = int(labels.sum())
    inliers = len(labels) - outliers
    if not outliers:
        raise ConfigError(f"{path} has no outliers (label 1), so it cannot be evaluated; leave it out")
    if inliers < MIN_INLIERS:
        raise ConfigError(f"{path} has {inliers} inliers (label 0), at least {MIN_INLIERS} are needed; leave it out")
    train = extra.get("n_train", 0)
    if train and not (MIN_INLIERS // 2 <= train < len(labels) and not labels[:train].any() and labels[train:].any()):
        raise ConfigError(
            f"{path}: n_train is {train}; the first {MIN_INLIERS // 2} or more rows must be inliers, "
            "and the rest must have outliers"
        )
    all_inliers, all_outliers = extra.get("n_in_full", inliers), extra.get("n_out_full", outliers)
    if all_inliers < inliers or all_outliers < outliers:
        raise ConfigError(
            f"{path}: n_in_full and n_out_full are {all_inliers} and {all_outliers}, but the table itself has "
            f"{inliers} inliers and {outliers} outliers; correct them or leave them out"
        )
    rows = np.where(np.isfinite(rows), rows, np.nan)
    return Table(path.stem, rows, labels, all_inliers, all_outliers, train)


def published_split(table: Table, seed: int) -> Table:
    """The table as the code of DTE (Livernoche et al. 2024) splits it: the first half of the inliers, in the order of
    the file, are the context.

    Fewer than 1,000 rows are bootstrapped to 1,000 before, so a row may be on both sides; of more than 50,000 a random
    part is taken. Raises ConfigError if no outlier is left.
    """
    count = len(table.labels)
    draws, chosen = np.random.RandomState(seed), np.arange(count)  # the generator of that code
    if count < 1000:
        chosen = draws.choice(count, 1000, replace=True)
    elif count > 50_000:
        chosen = draws.choice(count, 50_000, replace=False)
    order = chosen[np.argsort(table.labels[chosen], kind="stable")]  # inliers first
    labels, outliers = table.labels[order], int(table.labels[order].sum())
    known = int(table.labels.sum())
    if not outliers:
        raise ConfigError(f"{table.name}: the published split with seed {seed} has none of its {known} outliers")
    return replace(
        table,
        rows=table.rows[order],
        labels=labels,
        all_inliers=round((len(order) - outliers) * table.all_inliers / (count - known)),
        all_outliers=round(outliers * table.all_outliers / known),
        train_rows=round(0.5 * (len(order) - outliers)),
    )


def draw_task(table: Table, seed: int, context: int, max_test: int, contaminated: float = 0.0) -> Task:
    """Split a table, and cut the context to `context` rows and the queries to `max_test` >= 2 rows (0 = no limit).

    Outliers are kept first, and the weights of the task correct for the cut. contaminated: the share of the rows of
    the context that are outliers, drawn from at most half of all outliers, which are no queries then. Equal arguments
    give equal tasks.
    """
    inliers, outliers = np.flatnonzero(table.labels == 0), np.flatnonzero(table.labels == 1)
    if table.train_rows:
        train, test = inliers[: table.train_rows], np.arange(table.train_rows, len(table.labels))
    else:
        shuffled = np.random.default_rng(seed).permutation(inliers)
        half = round(0.5 * len(inliers))
        train, test = shuffled[:half], np.concatenate([shuffled[half:], outliers])
    rng = np.random.default_rng(1000 + seed)
    if len(train) > context:
        train = rng.choice(train, context, replace=False)
    if count := min(round(contaminated * len(train)), len(outliers) // 2):
        hidden = np.random.default_rng(2000 + seed).choice(outliers, count, replace=False)
        train, test = np.concatenate([train[count:], hidden]), np.setdiff1d(test, hidden)
    strange = table.labels[test] == 1
    # the rows that the test inliers represent: their share of all inliers of the full table
    whole_inliers = table.all_inliers * (~strange).sum() / len(inliers)
    if max_test and len(test) > max_test:
        bad, good = rng.permutation(test[strange]), rng.permutation(test[~strange])
        least = max(min(KEPT_OUTLIERS, max_test // 2), round(max_test * len(bad) / len(test)))
        bad = bad[: min(least, max_test - 1)]  # at least one inlier
        test = np.concatenate([bad, good[: max_test - len(bad)]])
    test = rng.permutation(test)
    labels = table.labels[test]
    return Task(
        table.name,
        seed,
        table.rows[train],
        table.rows[test],
        labels,
        float(whole_inliers / max(1, (labels == 0).sum())),
        float(table.all_outliers * strange.sum() / len(outliers) / labels.sum()),
    )


def _read_npz(path: Path) -> tuple[Float, NDArray[Any], dict[str, int]]:
    with open_arrays(path) as found:
        if missing := {"X", "y"} - set(found.files):
            raise ConfigError(f"{path} has no array {' and '.join(sorted(missing))}; X are the rows, y their labels")
        rows, labels = found["X"], np.asarray(found["y"]).ravel()
        extra = {name: int(found[name]) for name in ("n_in_full", "n_out_full", "n_train") if name in found.files}
    if rows.dtype.kind not in "biuf" or labels.dtype.kind not in "biuf":
        raise ConfigError(f"{path} holds text or objects; X and y must be numbers")
    return rows.astype(np.float64), labels, extra


def _read_csv(path: Path, label: str | None) -> tuple[Float, NDArray[Any]]:
    try:
        import pandas as pd
    except ImportError:
        raise ConfigError(f"{path}: reading .csv needs pandas; pip install 'fomo-stream[pretrain]'") from None
    try:
        frame = pd.read_csv(path)
    except (ValueError, OSError) as error:  # pandas' own errors are ValueErrors
        raise ConfigError(f"{path} cannot be read as CSV ({str(error).strip()})") from None
    names = [str(name) for name in frame.columns]
    if all(_is_number(name) for name in names):
        raise ConfigError(f"{path}: the first line looks like data; it must name the columns")
    column = names[-1] if label is None else label
    if column not in names:
        raise ConfigError(
            f"{path} has no column {column!r} for the labels; name one of {', '.join(names)} with --label"
        )
    frame.columns = pd.Index(names)
    labels, features = frame[column], frame.drop(columns=column)
    text = [name for name in features.columns if features[name].dtype.kind not in "biuf"]
    if text:
        raise ConfigError(f"{path}: {', '.join(text)} hold text; turn them into numbers or leave them out")
    if labels.dtype.kind not in "biuf":
        raise ConfigError(f"{path}: labels are in column {column!r}, which holds text; they must be 0 or 1 (--label)")
    return features.to_numpy(np.float64), labels.to_numpy()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
