"""Tables: reading, messages for unusable files, and the split into context and queries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fomo_stream.errors import ConfigError
from pretrain.evaluation.tables import Table, draw_task, published_split, read_table, table_files

GOOD = {"X": np.arange(40.0).reshape(20, 2), "y": np.r_[np.zeros(18), np.ones(2)]}


def numbered(inliers: int, outliers: int, **more: Any) -> Table:
    """A table whose only column is the row's number."""
    labels = np.r_[np.zeros(inliers, int), np.ones(outliers, int)]
    rows = np.arange(len(labels), dtype=float)[:, None]
    return Table("made", rows, labels, **{"all_inliers": inliers, "all_outliers": outliers, **more})


@given(
    seed=st.integers(0, 1000),
    inliers=st.integers(8, 300),
    outliers=st.integers(1, 200),
    context=st.integers(2, 200),
    max_test=st.integers(0, 300).filter(lambda n: n != 1),
)
@example(seed=0, inliers=8, outliers=200, context=4, max_test=2)  # nearly all queries are outliers
def test_context_and_queries_share_no_row_and_weights_undo_the_cut(
    seed: int, inliers: int, outliers: int, context: int, max_test: int
) -> None:
    table = numbered(inliers, outliers, all_inliers=10 * inliers, all_outliers=3 * outliers)
    task = draw_task(table, seed, context, max_test)
    seen, asked = task.context[:, 0].astype(int), task.queries[:, 0].astype(int)
    assert len(set(seen) | set(asked)) == len(seen) + len(asked)
    assert (seen < inliers).all()
    assert ((asked >= inliers) == (task.labels == 1)).all()
    assert len(seen) == min(context, round(inliers / 2))
    whole = inliers - round(inliers / 2) + outliers
    assert len(asked) == (min(max_test, whole) if max_test else whole)
    assert 0 < task.labels.sum() < len(asked)
    assert task.outlier_weight * task.labels.sum() == pytest.approx(3 * outliers)
    assert task.inlier_weight * (task.labels == 0).sum() == pytest.approx(10 * (inliers - round(inliers / 2)))


@given(
    seed=st.integers(0, 1000),
    inliers=st.integers(8, 300),
    outliers=st.integers(1, 200),
    context=st.integers(2, 200),
    share=st.floats(0, 0.5),
)
def test_a_contaminated_context_has_its_share_of_outliers_which_are_no_queries(
    seed: int, inliers: int, outliers: int, context: int, share: float
) -> None:
    task = draw_task(numbered(inliers, outliers, all_outliers=3 * outliers), seed, context, 0, share)
    seen, asked = task.context[:, 0].astype(int), task.queries[:, 0].astype(int)
    count = min(round(share * len(seen)), outliers // 2)
    assert (seen >= inliers).sum() == count
    assert len(seen) == min(context, round(inliers / 2))
    assert len(set(seen) | set(asked)) == len(seen) + len(asked)
    assert task.labels.sum() == outliers - count
    assert task.outlier_weight * task.labels.sum() == pytest.approx(3 * (outliers - count))


@given(seed=st.integers(0, 1000), inliers=st.integers(8, 1500), outliers=st.integers(1, 300))
@example(seed=3, inliers=50_000, outliers=1000)
def test_the_published_split_takes_the_first_half_and_bootstraps_small_tables(
    seed: int, inliers: int, outliers: int
) -> None:
    shuffled = np.random.default_rng(seed).permutation(inliers + outliers)
    plain = numbered(inliers, outliers)
    table = replace(plain, rows=plain.rows[shuffled], labels=plain.labels[shuffled])
    np.random.seed(seed)  # by its published code
    count = len(shuffled)
    index = np.arange(count)
    if count < 1000:
        index = index[np.random.choice(index, 1000, replace=True)]
    if count > 50_000:
        np.random.seed(seed)
        index = index[np.random.choice(np.arange(count), 50_000, replace=False)]
    good, bad = index[table.labels[index] == 0], index[table.labels[index] == 1]
    if not len(bad):
        with pytest.raises(ConfigError, match="outliers"):
            published_split(table, seed)
        return
    half = round(0.5 * len(good))
    task = draw_task(published_split(table, seed), seed, 10**6, 0)
    assert (task.context == table.rows[good[:half]]).all()
    assert np.sort(task.queries[:, 0]).tolist() == np.sort(table.rows[np.r_[good[half:], bad], 0]).tolist()
    assert task.labels.sum() == len(bad)
    if count >= 1000:
        assert task.outlier_weight == pytest.approx(task.inlier_weight, rel=0.01)


def test_queries_are_shuffled_by_the_seed_and_outliers_are_kept_first() -> None:
    task, again, other = (draw_task(numbered(5000, 300), seed, 5000, 400) for seed in (0, 0, 1))
    assert (task.context == again.context).all()
    assert (task.queries == again.queries).all()
    assert set(task.context[:, 0]) != set(other.context[:, 0])
    assert task.labels.sum() == 200  # half of the cut, though 1 row in 10 is an outlier
    assert 60 < task.labels[:200].sum() < 140
    assert draw_task(numbered(20_000, 2500), 0, 100, 8000).labels.sum() == 2000  # 1 in 5 of all test rows is 1600


def test_a_digest_changes_with_anything_in_the_table() -> None:
    rows, labels = np.arange(12.0).reshape(6, 2), np.array([0, 0, 0, 0, 1, 1])
    base = Table("made", rows, labels, 4, 2)
    assert base.digest == Table("renamed", rows.copy(order="F"), labels.copy(), 4, 2).digest
    others = [
        Table("made", rows + 1e-9, labels, 4, 2),
        Table("made", rows.reshape(6, 2)[::-1], labels, 4, 2),
        Table("made", rows, labels[::-1], 4, 2),
        Table("made", rows, labels, 5, 2),
        Table("made", rows, labels, 4, 2, train_rows=4),
    ]
    assert len({base.digest, *(other.digest for other in others)}) == 1 + len(others)


def test_a_fixed_split_is_kept() -> None:
    task = draw_task(numbered(50, 10, train_rows=20), 3, 100, 0)
    assert sorted(task.context[:, 0]) == list(range(20))
    assert sorted(task.queries[:, 0]) == list(range(20, 60))
    assert task.inlier_weight == task.outlier_weight == 1.0


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_npz_and_csv_of_the_same_table_are_read_alike(tmp_path: Path) -> None:
    rows = GOOD["X"].copy()
    rows[3, 1], rows[5, 0] = np.nan, np.inf
    first = read_table(save(tmp_path / "t.npz", X=rows, y=GOOD["y"].astype(bool)[:, None]))
    lines = [",".join("" if np.isnan(v) else str(v) for v in [*row, y]) for row, y in zip(rows, GOOD["y"], strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,fault", *lines]))
    second = read_table(tmp_path / "t.csv")
    turned = [",".join(line.split(",")[i] for i in (2, 0, 1)) for line in ["a,b,fault", *lines]]
    (tmp_path / "u.csv").write_text("\n".join(turned))
    for table in (first, second, read_table(tmp_path / "u.csv", label="fault")):
        assert table.labels.tolist() == GOOD["y"].astype(int).tolist()
        assert np.isnan(table.rows[3, 1])
        assert np.isnan(table.rows[5, 0])  # infinite counts as missing
        assert np.nansum(table.rows) == pytest.approx(GOOD["X"].sum() - 7 - 10)
        assert (table.all_inliers, table.all_outliers, table.train_rows) == (18, 2, 0)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": GOOD["X"]}, "no array y"),
        ({"X": GOOD["X"].astype(str), "y": GOOD["y"]}, "must be numbers"),
        ({"X": np.array([None] * 20), "y": GOOD["y"]}, "cannot be read"),
        ({"X": GOOD["X"].ravel(), "y": GOOD["y"]}, "must have rows and columns"),
        ({"X": GOOD["X"], "y": GOOD["y"][:5]}, "20 rows and 5 labels"),
        ({"X": GOOD["X"], "y": GOOD["y"] * 2}, "one is 2.0"),
        ({"X": GOOD["X"], "y": np.zeros(20)}, "no outliers"),
        ({"X": GOOD["X"][10:], "y": np.r_[np.zeros(7), np.ones(3)]}, "7 inliers .* at least 8"),
        ({**GOOD, "n_train": 19}, "n_train is 19"),
        ({**GOOD, "n_in_full": 3}, "n_in_full and n_out_full are 3 and 2"),
    ],
)
def test_unusable_npz_is_refused_by_name(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    path = save(tmp_path / "bad.npz", **arrays)
    with pytest.raises(ConfigError, match=rf"bad\.npz.*{message}"):
        read_table(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read as CSV"),
        ("a,b\n" + "x,0\n" * 9 + "y,1\n", "a hold text"),
        ("a,b\n" + "1,no\n" * 9 + "2,yes\n", "'b', which holds text"),
        ("0.5,0\n" + "1,0\n" * 9 + "2,1\n", "first line looks like data"),
        ("b\n" + "0\n" * 9 + "1\n", "must have rows and columns"),
        ("a,b\n" + "1,0\n" * 9 + "2,\n", "one is nan"),
    ],
)
def test_unusable_csv_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(ConfigError, match=rf"bad\.csv.*{message}"):
        read_table(tmp_path / "bad.csv")


def test_damaged_files_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no tables"):
        table_files(tmp_path)
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04 and nothing more")
    with pytest.raises(ConfigError, match=r"torn\.npz cannot be read"):
        read_table(tmp_path / "torn.npz")
    (tmp_path / "torn.csv").write_text("a,b\n")
    with pytest.raises(ConfigError, match="same name"):
        table_files(tmp_path)


def test_tables_come_in_the_order_asked_for(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / f"{name}.csv").touch()
    (tmp_path / "notes.txt").touch()
    assert list(table_files(tmp_path)) == ["a", "b", "c"]
    assert list(table_files(tmp_path, ["c", "a"])) == ["c", "a"]
