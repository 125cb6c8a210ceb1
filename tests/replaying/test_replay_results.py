"""The result of a replay: rounded JSON, DataFrames, sentences, one HTML file, and text for a terminal."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from blocks import HOSTILE, OWN, block, incident, made_report, made_stream, measured
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from fomo_stream.errors import ConfigError
from fomo_stream.replaying.measures.summary import DAY_MS, summary
from fomo_stream.replaying.replay_result import PAGE, ReplayResult, html_text
from fomo_stream.replaying.report.terminal import ranked, terminal_text
from fomo_stream.replaying.report_files import json_text, json_value

MARKER = "<script>alert(1)</script>'\"\x1b[31m"
START = 1_759_276_800_000  # 2025-10-01


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return made_report(name=MARKER, rivals=("knn", f"mine:{MARKER}"))


@pytest.fixture(scope="module")
def unlabelled() -> dict[str, Any]:
    return made_report(3000, labels=False)


# -- JSON and DataFrames -----------------------------------------------------------------------------------------------

numbers = st.floats(allow_nan=True) | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.none() | st.text(max_size=5)
values = st.recursive(
    numbers, lambda part: st.lists(part, max_size=4) | st.dictionaries(st.text(), part, max_size=4), max_leaves=20
)


@given(values)
def test_rounding_gives_json_with_six_digits_and_changes_nothing_twice(value: Any) -> None:
    once = json_value(value)
    assert json_value(once) == once
    text = json_text(once)
    assert json.loads(text.encode()) == once  # also halves of characters
    assert "<" not in text


def test_a_saved_result_is_loaded_as_it_was_and_bytes_are_the_same(tmp_path: Path, report: dict[str, Any]) -> None:
    ReplayResult(report).save(tmp_path / "a.json")
    loaded = ReplayResult.load(tmp_path / "a.json")
    assert loaded.report == report
    loaded.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    with pytest.raises(ConfigError, match="cannot write"):
        loaded.save(tmp_path / "no" / "folder.json")


def test_frames_hold_what_the_report_says(report: dict[str, Any]) -> None:
    result, first = ReplayResult(report), report["detectors"][0]
    metrics = result.metrics
    assert list(metrics.index) == [OWN, "knn", f"mine:{MARKER}"]
    auroc = first["metrics"]["auroc"]
    for column, name in (("auroc", "value"), ("auroc_low", "low"), ("auroc_high", "high")):
        assert metrics[column].to_dict()[OWN] == auroc[name]
    assert metrics["seconds_per_record"].tolist() == [0.000125, 0.00025, 0.000375]
    assert metrics["alerts"].tolist() == [one["counts"]["alerts"] for one in report["detectors"]]
    assert result.timeline["max"].dropna().tolist() == [peak for peak in report["timeline"]["max"] if peak is not None]
    assert result.timeline.index[0].timestamp() * 1000 == report["timeline"]["start"][0]
    assert result.drift["psi"].isna().tolist() == [psi is None for psi in report["drift"]["psi"]]
    assert result.alerts["record"].tolist() == [alert["record"] for alert in report["alerts"]]
    without = ReplayResult({**report, "alerts": []}).alerts
    assert (len(without), without.columns.tolist()) == (0, result.alerts.columns.tolist())
    assert set(without.columns) == set(report["alerts"][0])
    worst = report["incidents"]["worst"]
    frame = result.incidents()
    assert frame["records"].tolist() == [one["records"] for one in worst]
    begins = [None if pd.isna(begin) else 1000 * begin.timestamp() for begin in frame["begin"]]
    assert begins == [one["begin"] for one in worst]
    line = repr(ReplayResult({**report, "source": {**report["source"], "is_complete": False}}))
    assert line.isprintable()
    assert f"stopped early; {first['counts']['alerts']} alerts in {report['incidents']['count']} incidents" in line


def test_a_plot_has_the_score_the_alerts_and_the_incidents(report: dict[str, Any]) -> None:
    for axis in ("time", "record"):
        figure = Figure()
        given = figure.subplots()
        drawn = ReplayResult({**report, "source": {**report["source"], "axis": axis}}).plot(given)
        assert drawn is given
        score, alerts = drawn.get_lines()
        assert np.size(score.get_xdata()) == len(report["timeline"]["start"])
        assert np.size(alerts.get_xdata()) == np.count_nonzero(report["timeline"]["alerts"])
        assert len(drawn.patches) == sum(one["begin"] is not None for one in report["incidents"]["worst"])
    figure.savefig(io.BytesIO())  # it can be drawn, whatever the name of the source


@pytest.mark.parametrize(
    ("library", "use"),
    [("pandas", lambda result: result.metrics), ("matplotlib", lambda result: result.plot())],
)
def test_a_missing_library_is_named_with_the_way_to_install_it(
    library: str, use: Callable[[ReplayResult], Any], report: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=rf"needs {library}.*; pip install 'fomo-stream\[notebook\]'"):
        use(ReplayResult(report))


# -- sentences ---------------------------------------------------------------------------------------------------------


def test_the_range_the_alerts_and_the_incidents_come_first() -> None:
    for seconds, when, often in (
        (100, " from 2025-10-01 00:00:00 to 2025-10-01 00:01:40 UTC", ""),
        (36_000, " from 2025-10-01 00:00 to 2025-10-01 10:00 UTC", ""),
        (10 * DAY_MS // 1000, " from 2025-10-01 to 2025-10-11 UTC", ", about 0.1 a day"),
    ):
        times = START + np.linspace(0, 1000 * seconds, 1000).astype(np.int64)
        made = block(np.zeros(1000), times=times, alerts=np.arange(1000) < 20, ended_incidents=[incident(20)])
        report = measured([made], has_labels=False)
        report["source"] |= {"name": "sensors", "is_complete": True}
        said = summary({**report, "settings": {"alert_rate": 0.01}})
        assert said[:2] == [
            f"1,000 records of sensors{when} were replayed; 2 % of those with a score were alerts "
            "(20; 1 % of normal records, at most, was asked for).",
            f"The alerts are 1 incident{often}: half have 20 or fewer alerts, the longest 20.",
        ]
        assert "There are no labels, so the quality of the scores is not known." in said


def test_quality_segments_and_other_detectors_are_described() -> None:
    report = measured(made_stream(1, 30_000, detectors=(OWN, "knn")))
    report["source"] |= {"name": "sensors", "is_complete": False}
    said = " ".join(summary(report))
    own = report["detectors"][0]
    auroc, n = own["metrics"]["auroc"], own["counts"]
    assert f"AUROC {auroc['value']:.2f} ({auroc['low']:.2f} to {auroc['high']:.2f})" in said
    assert f": of {n['segments']} labelled faults {n['segments_detected']} were found; half of these " in said
    assert f"the others are {own['metrics']['false_incidents']['value']:.3g} in 10,000 normal records." in said
    assert f"Labels are known for {n['labelled']:,} of 30,000 records that could be scored." in said
    assert "than fomo-stream, which is more than chance." in said
    assert "before it was stopped" in said
    assert "30 records could not be scored (not_json: 30)." in said
    assert "50 records got no score, because the detector was warming up." in said
    assert re.search(r"The alerts are 31 incidents, about [\d.]+ a day: 1 still open at the end; half have", said)


def test_a_notebook_shows_foreign_text_as_text(report: dict[str, Any]) -> None:
    result = ReplayResult(report)
    frame = r'<iframe sandbox="allow-scripts" style="[^"]*" srcdoc="([^"<>]*)"></iframe>'
    found = re.fullmatch(frame, result._repr_html_())
    assert found is not None  # not of the notebook's origin
    assert unescape(found[1]) == html_text(result.report)  # the same report gives the same bytes
    assert (PAGE / "uPlot-LICENSE").read_text().strip() in html_text(result.report)


@given(
    st.recursive(
        st.text() | st.sampled_from((HOSTILE, "\ud800", "{{script}}", "]]>", "<!--", "\\u003c")),
        lambda inner: st.dictionaries(st.text(), inner),
    )
)
def test_every_text_comes_back_as_it_is_and_ends_no_element(value: Any) -> None:
    text = html_text({"settings": {}, "notes": [value]})
    text.encode()
    (data,) = re.findall(r'id="data">([^<]*)</script>', text)
    assert not set(data) & set("<>&\u2028\u2029")
    assert json.loads(data)["notes"] == [value]
    assert text.count("<script") == 3


# -- the terminal ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 120])
@pytest.mark.parametrize("labels", [True, False])
def test_text_fits_and_keeps_its_numbers(
    monkeypatch: pytest.MonkeyPatch, width: int, labels: bool, report: dict[str, Any], unlabelled: dict[str, Any]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = report if labels else unlabelled
    own, text = shown["detectors"][0], terminal_text(shown, [Path("fomo-replay.html")], io.StringIO())
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("Warms up: the first records")
    assert lines[-1] == "Report: fomo-replay.html"
    assert "Worst incidents:" in lines
    assert f" {own['counts']['incidents' if labels and width >= 80 else 'alerts']:,}" in text
    assert "\x1b" not in text
    assert "…" not in text
    if labels:
        worst_first = {**report, "detectors": report["detectors"][::-1]}
        assert ranked(worst_first) == report["detectors"]  # by AUROC
        assert f"{own['metrics']['auroc']['value']:.3f}" in text
        false = f" {own['metrics']['false_incidents']['value']:.3g} "
        assert any(false in line for line in lines if line.startswith("fomo")) == (width >= 80)
    else:
        assert f"{100 * own['metrics']['alert_rate']['value']:.3g} %" in text
    assert ("±" in text) == (labels and width >= 80)


def test_only_a_terminal_gets_escapes_and_what_it_can_show(
    monkeypatch: pytest.MonkeyPatch, report: dict[str, Any]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    text = terminal_text(report, [], terminal)
    assert "\x1b[1m" in text  # our own detector is bold
    assert "\x1b[31m" not in text
    assert "�[31m" in text
    plain = terminal_text(report, [Path("bericht-ä.html")], io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert re.search(r"0\.\d{3} \+-\.\d{3}", plain.encode("ascii").decode())
