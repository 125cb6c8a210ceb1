"""Two reports compared: what differs, whether by more than chance, and clear errors for other files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blocks import OWN, block, tallied

from fomo_stream.errors import ConfigError
from fomo_stream.replaying.comparison import compare_files, is_paired, matches

N = 8000


def made_report(quality: float, seed: int = 1, names: tuple[str, ...] = (OWN, "knn"), **more: Any) -> dict[str, Any]:
    """A report in which outliers of the same stream score higher by `quality`."""
    labels = (np.random.default_rng(7 + seed).random(N) < 0.03).astype(np.int8)
    rng = np.random.default_rng(seed)
    scores = {name: rng.normal(size=N) + quality * labels for name in names}
    report = tallied([block(scores, labels)], **more).report()
    report["source"] |= {"name": "sensors", "is_complete": True}
    settings, timing = {"alert_rate": 0.01, "context_size": 5000}, {"records_per_s": 5000.0 * quality}
    return {"format": 1, **report, "settings": settings, "timing": timing}


@pytest.fixture(scope="module")
def before() -> dict[str, Any]:
    return made_report(1.0)


def compared(folder: Path, before: dict[str, Any], after: dict[str, Any]) -> str:
    paths = folder / "a.json", folder / "b.json"
    for path, report in zip(paths, (before, after), strict=True):
        path.write_text(json.dumps(report))
    return compare_files(*paths)


def row(text: str, metric: str) -> str:
    return next(line for line in text.splitlines() if line.strip().startswith(metric))


def test_a_report_equals_itself(tmp_path: Path, before: dict[str, Any]) -> None:
    text = compared(tmp_path, before, before)
    assert "more than chance\n" not in text
    assert "All settings are the same." in text
    assert "compared window by window" in text
    assert "+0 to +0" in row(text, "auroc")


def test_a_better_replay_of_the_same_records_is_higher_by_more_than_chance(
    tmp_path: Path, before: dict[str, Any]
) -> None:
    after = made_report(2.0)
    after["settings"] |= {"context_size": 1000, "views": 3}
    text = compared(tmp_path, before, after)
    assert "compared window by window" in text
    assert row(text, "auroc").endswith("higher by more than chance")
    assert "context_size 5000 -> 1000; views (none) -> 3" in text
    assert "Speed: 5,000 records/s before, 10,000 after (+100 %)." in text
    counts = [report["detectors"][0]["counts"]["alerts"] for report in (before, after)]
    assert f"alerts: {counts[0]:,} before, {counts[1]:,} after" in text
    assert row(compared(tmp_path, after, before), "auroc").endswith("lower by more than chance")


def test_replays_of_other_records_are_not_paired(tmp_path: Path, before: dict[str, Any]) -> None:
    after = made_report(1.0, seed=2)
    assert not is_paired(before, after)
    text = compared(tmp_path, before, after)
    assert "as many records, but of other labels" in text  # so the alert rate alone is compared window by window
    after["windows"]["records"][0] += 1
    assert "The replays are of different records" in compared(tmp_path, before, after)
    assert "Labelled outliers: " in text


def test_detectors_are_matched_by_name_and_the_first_ones_with_each_other(before: dict[str, Any]) -> None:
    after = made_report(1.0, names=("our own", "river", "knn"))
    assert [(a["name"], b["name"]) for a, b in matches(before, after)] == [(OWN, "our own"), ("knn", "knn")]


def test_detectors_of_one_replay_only_are_named(tmp_path: Path, before: dict[str, Any]) -> None:
    text = compared(tmp_path, before, made_report(1.0, names=(OWN, "river")))
    assert "Only before: knn." in text
    assert "Only after: river." in text


def test_without_labels_the_alert_rate_is_compared(tmp_path: Path, before: dict[str, Any]) -> None:
    after = made_report(1.0, has_labels=False)
    text = compared(tmp_path, before, after)
    assert "The report after lacks labelled outliers, so only the alert rate can be compared." in text
    assert row(text, "auroc").endswith("not in both")
    assert "chance" in row(text, "alert rate")
    assert "Both reports lack labelled outliers" in compared(tmp_path, after, after)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1, 2]", "is not the report of a replay"),
        (b'{"format": 1}', "is not the report of a replay"),
        (b'{"format": 2, "detectors": [{}]}', "has format 2 and this version reads format 1"),
        (b'{"format": 1, "detectors": [{}]}', "is not a whole report"),
        (b'{"format": 1, "detectors": [5], "source": 3}', "is not a whole report"),
    ],
)
def test_other_files_are_refused_in_one_sentence(
    tmp_path: Path, before: dict[str, Any], content: bytes, message: str
) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(before))
    bad.write_bytes(content)
    for paths in ((good, bad), (bad, good)):
        with pytest.raises(ConfigError, match=message) as error:
            compare_files(*paths)
        assert "bad.json" in str(error.value)
        assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none\.json: No such file"):
        compare_files(tmp_path / "none.json", tmp_path / "none.json")


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path, before: dict[str, Any]) -> None:
    after = {**before, "source": {**before["source"], "name": "\x1b[31mred\n"}}
    text = compared(tmp_path, before, after)
    assert "\x1b" not in text
    assert "?[31mred?" in text
