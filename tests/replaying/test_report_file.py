"""The report of a replay as a file: the same bytes again, small, and every text in it as text."""

from __future__ import annotations

import copy
import json
import re
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_reports import made_report
from report_shapes import HOSTILE, HOSTILE_SHAPE, LARGEST, SMALLEST, Shape

from fomo_stream.cli.parser import parse
from fomo_stream.replaying.report.html import PAGE, command_line, html_text
from fomo_stream.settings.replay import ReplaySettings, option_values


@pytest.mark.parametrize("shape", [Shape(), SMALLEST, HOSTILE_SHAPE], ids=["usual", "smallest", "hostile"])
def test_the_same_report_gives_the_same_bytes_and_its_times_are_in_one_place(shape: Shape) -> None:
    report, again = made_report(shape), made_report(shape)
    before = copy.deepcopy(report)
    text = html_text(report)
    assert report == before
    again["timing"] |= {"started": "2027-01-01T00:00:00Z", "seconds": 99.0, "records_per_s": 1.0}
    first, second = text.splitlines(), html_text(again).splitlines()
    (differs,) = (one for one, other in zip(first, second, strict=True) if one != other)
    assert 'id="timing"' in differs
    assert html_text(report) == text


def test_the_largest_report_is_small_and_has_the_licence_of_the_plots() -> None:
    text = html_text(made_report(LARGEST))
    assert len(text.encode()) < 1_500_000
    assert (PAGE / "uPlot-LICENSE").read_text().strip() in text


@given(st.recursive(st.text() | st.sampled_from((HOSTILE, "\ud800", "{{script}}", "]]>", "<!--", "\\u003c")),
                    lambda inner: st.dictionaries(st.text(), inner)))  # fmt: skip
def test_every_text_comes_back_as_it_is_and_ends_no_element(value: Any) -> None:
    text = html_text({"settings": {}, "notes": [value]})
    text.encode()
    (data,) = re.findall(r'id="data">([^<]*)</script>', text)
    assert not set(data) & set("<>&\u2028\u2029")
    assert json.loads(data)["notes"] == [value]
    assert text.count("<script") == 3


@pytest.mark.parametrize(
    "given_settings",
    [
        {
            "topic": "sensors",
            "from_": "0:812,1:790",
            "to": "0:900,1:790",
            "compare": ("knn", "my:factory"),
            "alert_rate": 0.001,
        },
        {"file": "my rows.csv", "label": "it's", "grid": ("alert_rate=0.01,0.001", "context_size=500,1000"), "jobs": 2},
        {"topic": "-odd", "group": "g", "features": ("a", "b"), "report": "none"},
    ],
)
def test_the_command_gives_the_same_settings_again(given_settings: dict[str, Any]) -> None:
    settings = ReplaySettings(**given_settings)
    values = json.loads(json.dumps(option_values(settings)))
    is_topic = "topic" in given_settings
    ranges = [{"partition": 0, "from": 812, "to": 900}, {"partition": 1, "from": 790, "to": 790}]
    source = {"kind": "topic" if is_topic else "file", "ranges": ranges if "from_" in given_settings else []}
    line = command_line({"source": source, "settings": values})
    assert line is not None
    program, command, *words = shlex.split(line)
    assert (program, command) == ("fomo-stream", "replay")
    assert parse(ReplaySettings, words).model_dump() == settings.model_dump()
    assert len(words) <= 3 * len(given_settings)  # defaults are left out


@pytest.mark.parametrize("asked", [{}, {"last": "7d"}, {"from_": "2026-10-01", "to": "2026-11-01"}])
def test_the_command_names_the_offsets_that_were_replayed(asked: dict[str, str]) -> None:
    """A topic grows, and the last days are others tomorrow."""
    ranges = [{"partition": 0, "from": 3, "to": 9}, {"partition": 2, "from": 4, "to": 4}]
    report = {"source": {"kind": "topic", "ranges": ranges}, "settings": {"topic": "t", **asked}}
    line = command_line(report)
    assert line is not None
    assert sorted(line.split()[2:]) == sorted(["--topic", "t", "--from", "0:3,2:4", "--to", "0:9,2:4"])


@pytest.mark.parametrize("source", [{"kind": "memory"}, {"kind": "file", "is_complete": False}])
def test_there_is_no_command_for_what_it_could_not_read_again(source: dict[str, Any]) -> None:
    assert command_line({"source": source, "settings": {"file": "DataFrame"}}) is None


def test_the_scripts_are_short_enough_to_be_read() -> None:
    for path in [*PAGE.glob("*.js"), *PAGE.glob("*.css")]:
        if not path.name.startswith("uPlot"):
            assert len(path.read_text().splitlines()) < 350, path
