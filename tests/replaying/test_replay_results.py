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
from blocks import HOSTILE, OWN, RIVALS, block, incident, made_report, made_stream, measured
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
    untimed = ReplayResult({**report, "source": {**report["source"], "axis": "record"}})
    assert untimed.timeline.index[0] == report["timeline"]["start"][0]


def test_a_result_says_in_a_line_what_it_is(report: dict[str, Any]) -> None:
    own = report["detectors"][0]
    line = repr(ReplayResult({**report, "source": {**report["source"], "is_complete": False}}))
    assert line.isprintable()
    assert f"{own['counts']['alerts']} alerts in {report['incidents']['count']} incidents" in line
    assert f"AUROC {own['metrics']['auroc']['value']:.3f}>" in line
    assert "stopped early" in line


def test_incidents_are_those_of_the_report_with_their_times(report: dict[str, Any]) -> None:
    worst = report["incidents"]["worst"]
    frame = ReplayResult(report).incidents()
    for name in ("first", "last", "records", "surprise"):
        assert frame[name].tolist() == [one[name] for one in worst]
    begins = [None if pd.isna(begin) else 1000 * begin.timestamp() for begin in frame["begin"]]
    assert begins == [one["begin"] for one in worst]
    assert any(begins)
    assert not len(ReplayResult({**report, "incidents": {"count": 0, "worst": []}}).incidents())


@pytest.mark.parametrize("axis", ["time", "record"])
def test_a_plot_has_the_score_the_alerts_and_the_incidents(report: dict[str, Any], axis: str) -> None:
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
    [
        ("pandas", lambda result: result.metrics),
        ("pandas", lambda result: result.incidents()),
        ("matplotlib", lambda result: result.plot()),
    ],
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


def summed_up(made: Any, **more: Any) -> list[str]:
    report = measured([made], **more)
    report["source"] |= {"name": "sensors", "is_complete": True}
    return summary({**report, "settings": {"alert_rate": 0.01}})


@pytest.mark.parametrize(
    ("seconds", "when", "often"),
    [
        (100, " from 2025-10-01 00:00:00 to 2025-10-01 00:01:40 UTC", ""),
        (36_000, " from 2025-10-01 00:00 to 2025-10-01 10:00 UTC", ""),
        (10 * DAY_MS // 1000, " from 2025-10-01 to 2025-10-11 UTC", ", about 0.1 a day"),
    ],
)
def test_the_range_the_alerts_and_the_incidents_come_first(seconds: int, when: str, often: str) -> None:
    times = START + np.linspace(0, 1000 * seconds, 1000).astype(np.int64)
    made = block(np.zeros(1000), times=times, alerts=np.arange(1000) < 20, ended_incidents=[incident(20)])
    said = summed_up(made, has_labels=False)
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
    rate = own["metrics"]["false_incidents"]["value"]
    judged = n["true_incidents"] + n["false_incidents"]
    which = f"{judged} incidents with labels {n['true_incidents']} have a labelled fault in them"
    assert f"of {which}; the others are {rate:.3g} in 10,000 normal records." in said
    assert f"Labels are known for {n['labelled']:,} of 30,000 records that could be scored." in said
    assert "than fomo-stream, which is more than chance." in said
    assert "before it was stopped" in said
    assert "30 records could not be scored (not_json: 30)." in said
    assert "50 records got no score, because the detector was warming up." in said
    assert "strongly" in said
    assert re.search(r"The alerts are 31 incidents, about [\d.]+ a day: 1 still open at the end; half have", said)


def test_a_notebook_shows_foreign_text_as_text(report: dict[str, Any]) -> None:
    result = ReplayResult(report)
    frame = r'<iframe sandbox="allow-scripts" style="[^"]*" srcdoc="([^"<>]*)"></iframe>'
    found = re.fullmatch(frame, result._repr_html_())
    assert found is not None  # not of the notebook's origin
    assert unescape(found[1]) == html_text(result.report)


def test_the_same_report_gives_the_same_bytes_and_its_times_are_in_one_place(report: dict[str, Any]) -> None:
    before, text = json.dumps(report), html_text(report)
    assert json.dumps(report) == before
    assert html_text(report) == text
    later = {**report, "timing": {**report["timing"], "started": "2027-01-01T00:00:00Z", "seconds": 99.0}}
    lines = zip(text.splitlines(), html_text(later).splitlines(), strict=True)
    (differs,) = (one for one, other in lines if one != other)
    assert 'id="timing"' in differs
    assert (PAGE / "uPlot-LICENSE").read_text().strip() in text


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


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def shown_at(monkeypatch: pytest.MonkeyPatch, width: int, report: dict[str, Any], stream: io.StringIO) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    return terminal_text(report, [Path("fomo-replay.html")], stream).splitlines()


def test_detectors_are_ranked_by_auroc_if_there_are_labels(report: dict[str, Any], unlabelled: dict[str, Any]) -> None:
    worst_first = {**report, "detectors": report["detectors"][::-1]}
    assert [one["name"] for one in ranked(worst_first)] == [OWN, "knn", f"mine:{MARKER}"]
    assert [one["name"] for one in ranked(unlabelled)] == [OWN, *RIVALS]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("labels", [True, False])
def test_text_fits_and_keeps_its_numbers(
    monkeypatch: pytest.MonkeyPatch, width: int, labels: bool, report: dict[str, Any], unlabelled: dict[str, Any]
) -> None:
    shown = report if labels else unlabelled
    own, text = shown["detectors"][0], "\n".join(lines := shown_at(monkeypatch, width, shown, io.StringIO()))
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("Warms up: the first records")
    assert lines[-1] == "Report: fomo-replay.html"
    assert f" {own['counts']['incidents' if labels and width >= 80 else 'alerts']:,}" in text
    assert "\x1b" not in text
    assert "…" not in text
    if labels:
        assert f"{own['metrics']['auroc']['value']:.3f}" in text
        false = f" {own['metrics']['false_incidents']['value']:.3g} "
        assert any(false in line for line in lines if line.startswith("fomo")) == (width >= 80)
    else:
        assert f"{100 * own['metrics']['alert_rate']['value']:.3g} %" in text
    assert ("±" in text) == (labels and width >= 80)


def test_only_a_terminal_gets_escapes_and_never_those_of_a_name(
    monkeypatch: pytest.MonkeyPatch, report: dict[str, Any]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    text = "\n".join(shown_at(monkeypatch, 100, report, Terminal()))
    assert "\x1b[1m" in text  # our own detector is bold
    assert "\x1b[31m" not in text
    assert "�[31m" in text


def test_a_stream_without_unicode_gets_none(monkeypatch: pytest.MonkeyPatch, report: dict[str, Any]) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = terminal_text(report, [Path("bericht-ä.html")], io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    text.encode("ascii")
    assert re.search(r"0\.\d{3} \+-\.\d{3}", text)


def test_the_worst_incidents_are_told(monkeypatch: pytest.MonkeyPatch, report: dict[str, Any]) -> None:
    worst = [
        {"partition": 1, "first": i, "records": i + 1, "key": "p7" if i else None, "begin": START, "explanation": said}
        for i, said in enumerate((MARKER, None, "second", "third", "fourth"))
    ]
    more = {"incidents": {**report["incidents"], "worst": worst}}
    lines = shown_at(monkeypatch, 120, {**report, **more}, io.StringIO())
    first = lines.index("Worst incidents:") + 1
    assert [line.rpartition(":")[2].strip() for line in lines[first + 1 : first + 3]] == ["second", "third"]
    assert ", p7 (3 alerts): second" in lines[first + 1]
    assert "\x1b" not in "".join(lines)
    without = {"incidents": {**report["incidents"], "worst": []}}
    lines = shown_at(monkeypatch, 120, {**report, **without}, io.StringIO())
    assert not {"Worst incidents:", "You could try:"} & set(lines)
