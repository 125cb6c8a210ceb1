"""The result of a replay: rounded JSON, DataFrames, and pages that show foreign text as text."""

from __future__ import annotations

import copy
import io
import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.errors import ConfigError
from fomo_stream.replaying.report.terminal import ranked, terminal_text
from fomo_stream.replaying.results import ReplayResult, load_report
from fomo_stream.replaying.tally.plain import plain
from fomo_stream.replaying.writing import json_text

MARKER = "<script>alert(1)</script>'\"\x1b[31m"
START = 1_759_276_800_000  # 2025-10-01


def detector(name: str, kind: str, auroc: float | None, precision: float | None = 0.5) -> dict[str, Any]:
    def interval(value: float | None) -> dict[str, Any] | None:
        return None if value is None else {"value": value, "low": value - 0.02, "high": value + 0.01}

    ranking = dict.fromkeys(("auroc", "average_precision", "precision_at_rate", "recall_at_rate"), interval(precision))
    known = {**ranking, "auroc": interval(auroc)} if auroc is not None else dict.fromkeys(ranking)
    return {
        "name": name,
        "kind": kind,
        "settings": None,
        "metrics": {**known, "alert_rate": {"value": 0.0123456789, "low": None, "high": None}, "delay_s": None},
        "counts": {"records": 1000, "outliers": 20, "alerts": 12345, "true_alerts": 8, "segments": 3},
        "calibration": {"requested": [0.01, 0.1], "realised": [0.02, 0.11], "of_inliers": None},
    }


def made_report(labels: bool = True, axis: str = "time") -> dict[str, Any]:
    """A small report with two rivals, of which one is better than our own detector."""
    names = ["fomo-stream", "knn", f"mine:{MARKER}"]
    auroc = [0.9, 0.95, None] if labels else [None] * 3
    span = {"start": [START, START + 60_000], "end": [START + 60_000, START + 120_000]}
    of_one = {"auroc": [0.9, math.nan], "alerts": [1, 2], "alert_rate": [0.01, 0.02]}
    return {
        "format": 1,
        "source": {"name": MARKER, "scored": 1000, "axis": axis, "is_complete": True},
        "notes": ["Warms up.", f"A {MARKER} note."],
        "summary": [f"Records of {MARKER}.", "All is well."],
        "settings": {},
        "versions": {},
        "timing": {"seconds": 2.0, "seconds_per_record": {"fomo-stream": 0.0002, "knn": 0.00001}},
        "detectors": [
            detector(name, "own" if name == "fomo-stream" else "rival", one)
            for name, one in zip(names, auroc, strict=True)
        ],
        "windows": {**span, "records": [500, 500], "outliers": None, "by_detector": dict.fromkeys(names, of_one)},
        "timeline": {"start": span["start"], "records": [5, 6], "max": [1.0, 2.0], "alerts": [0, 1], "outliers": None},
        "drift": {"features": ["a", "b"], "psi": [[0.1, 0.2], [0.3, 0.4]], "missing": [[0, 0], [0, 1]], "median": []},
        "partitions": [],
        "alerts": [{"partition": 0, "offset": 7, "time": START, "score": 0.99, "label": None, "record": MARKER}],
    }


numbers = st.floats(allow_nan=True) | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.none() | st.text(max_size=5)
values = st.recursive(numbers, lambda part: st.lists(part, max_size=4) | st.dictionaries(st.text(), part, max_size=4))


@given(values)
def test_rounding_gives_json_with_six_digits_and_changes_nothing_twice(value: Any) -> None:
    once = plain(value)
    assert plain(once) == once
    text = json_text(once)
    assert json.loads(text.encode()) == once  # also halves of characters
    assert "<" not in text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_six_digits_are_kept(value: float) -> None:
    assert plain(value) == pytest.approx(value, rel=1e-5, abs=1e-320)
    assert float(f"{plain(value):.6g}") == plain(value)
    assert type(plain(np.float64(value))) is float


def test_numpy_becomes_plain() -> None:
    given_ = {1: np.array([1.23456789, np.nan]), "n": np.int64(3), "b": np.True_, "t": (1, -0.0), "p": Path("x")}
    assert plain(given_) == {"1": [1.23457, None], "n": 3, "b": True, "t": [1, 0.0], "p": "x"}
    assert str(plain(-0.0)) == "0.0"


def test_a_saved_result_is_loaded_as_it_was_and_bytes_are_the_same(tmp_path: Path) -> None:
    result = ReplayResult(made_report())
    result.save(tmp_path / "a.json")
    loaded = ReplayResult.load(tmp_path / "a.json")
    assert loaded.report == result.report
    loaded.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"a,b\n1,2", "is not JSON"),
        (b"[1]", "is not the report of a replay"),
        (b'{"format": 2, "detectors": [{}]}', "has format 2 and this version reads format 1"),
    ],
)
def test_other_files_are_refused_in_one_sentence(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "other.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        load_report(path)
    assert words in str(error.value)
    assert str(path) in str(error.value)
    with pytest.raises(ConfigError, match="cannot write"):
        ReplayResult(made_report()).save(tmp_path / "no" / "folder.json")


def test_metrics_have_a_row_for_each_detector() -> None:
    metrics = ReplayResult(made_report()).metrics
    assert list(metrics.index) == ["fomo-stream", "knn", f"mine:{MARKER}"]
    assert metrics.loc["fomo-stream", ["auroc", "auroc_low", "auroc_high"]].tolist() == [0.9, 0.88, 0.91]
    assert metrics["seconds_per_record"].tolist()[:2] == [0.0002, 0.00001]
    assert metrics["alerts"].tolist() == [12345] * 3


def test_frames_hold_what_the_report_says() -> None:
    result = ReplayResult(made_report())
    assert result.timeline["max"].tolist() == [1.0, 2.0]
    assert str(result.timeline.index[0]) == "2025-10-01 00:00:00+00:00"
    assert result.windows.groupby("detector")["alerts"].sum().to_dict() == dict.fromkeys(result.metrics.index, 3)
    assert result.drift.set_index(["feature", "start"])["psi"].tolist() == [0.1, 0.2, 0.3, 0.4]
    assert result.calibration["realised"].tolist() == [0.02, 0.11] * 3
    assert result.alerts["record"].tolist() == [MARKER]
    assert ReplayResult(made_report(axis="record")).timeline.index[0] == START


def test_an_empty_report_has_empty_frames() -> None:
    result = ReplayResult({"format": 1, "source": {"axis": "time"}, "detectors": []})
    frames = result.metrics, result.timeline, result.windows, result.alerts, result.drift, result.calibration
    assert [len(frame) for frame in frames] == [0] * 6
    assert result.summary == ""


class Tags(HTMLParser):
    """Collects the tags of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.frames: list[dict[str, str | None]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "iframe":
            self.frames.append(dict(attrs))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_notebook_shows_foreign_text_as_text() -> None:
    result = ReplayResult(made_report())
    shown = Tags(result._repr_html_())
    assert set(shown.tags) == {"div", "p", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "iframe"}
    assert f"Records of {MARKER}." in shown.text
    assert f"mine:{MARKER}" in shown.text
    (frame,) = shown.frames
    assert frame["sandbox"] == "allow-scripts"  # not of the notebook's origin
    assert (frame["srcdoc"] or "").startswith("<!")


def test_a_plot_is_the_timeline_in_a_frame() -> None:
    from fomo_stream.replaying.report.html import html_text

    result = ReplayResult(made_report())
    (frame,) = Tags(result.plot()._repr_html_()).frames
    assert frame["srcdoc"] == html_text(result.report, only="timeline")


# --- the terminal --------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def shown_at(monkeypatch: pytest.MonkeyPatch, width: int, report: dict[str, Any], stream: io.StringIO) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    return terminal_text(report, [Path("fomo-replay.html")], stream).splitlines()


def test_detectors_are_ranked_by_auroc_if_there_are_labels() -> None:
    assert [one["name"] for one in ranked(made_report())] == ["knn", "fomo-stream", f"mine:{MARKER}"]
    without = made_report(labels=False)
    assert [one["name"] for one in ranked(without)] == [one["name"] for one in without["detectors"]]
    tied = copy.deepcopy(made_report())
    tied["detectors"] = [detector("a", "own", 0.9, 0.1), detector("b", "rival", 0.9, 0.2)]
    assert [one["name"] for one in ranked(tied)] == ["b", "a"]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("labels", [True, False])
def test_text_fits_and_keeps_its_numbers(monkeypatch: pytest.MonkeyPatch, width: int, labels: bool) -> None:
    lines = shown_at(monkeypatch, width, made_report(labels), io.StringIO())
    assert max(map(len, lines)) <= width
    assert lines[0] == "Warms up."
    assert lines[-1] == "Report: fomo-replay.html"
    text = "\n".join(lines)
    assert "12,345" in text
    assert "\x1b" not in text
    assert "…" not in text
    assert ("0.950" in text) == labels
    assert ("±" in text) == (labels and width >= 80)
    assert ("1.23 %" in text) == (not labels)


def test_only_a_terminal_gets_escapes_and_never_those_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    text = "\n".join(shown_at(monkeypatch, 100, made_report(), Terminal()))
    assert "\x1b[1m" in text  # our own detector is bold
    assert "\x1b[31m" not in text
    assert "�[31m" in text


def test_a_stream_without_unicode_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setenv("COLUMNS", "100")
    text = terminal_text(made_report(), [Path("bericht-ä.html")], stream)
    text.encode("ascii")
    assert "0.950 +-.015" in text


def test_a_report_of_an_ended_replay_says_so_first(monkeypatch: pytest.MonkeyPatch) -> None:
    report = made_report()
    report["source"]["is_complete"] = False
    assert shown_at(monkeypatch, 80, report, io.StringIO())[0].startswith("Not complete")


def test_the_highest_alerts_are_explained_once_for_each_run_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    report = made_report()
    of = {(0, 7): MARKER, (0, 8): "near", (1, 8): "elsewhere", (0, 90): None, (0, 99): "far", (0, 300): "fourth"}
    report["alerts"] = [
        {"partition": partition, "offset": offset, "time": START, "score": 0.9, "explanation": text}
        for (partition, offset), text in of.items()
    ]
    lines = shown_at(monkeypatch, 120, report, io.StringIO())
    at = lines.index("Highest alerts:")
    assert [line.split()[0] for line in lines[at + 1 : at + 4]] == ["0-7", "1-8", "0-99"]
    assert "fourth" not in "".join(lines)
    assert "\x1b" not in "".join(lines)
    report["alerts"] = [alert | {"explanation": None} for alert in report["alerts"]]
    assert "Highest alerts:" not in shown_at(monkeypatch, 120, report, io.StringIO())
