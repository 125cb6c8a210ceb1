"""Rules and windows of maintenance in the configuration file, in a calendar and as flags, and mistakes in them."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from fomo_stream.cli.parser import parse
from fomo_stream.errors import ConfigError
from fomo_stream.settings.commands import ScoreSettings
from fomo_stream.settings.rule_spec import Rule, check_names, parse_table
from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.sources import reload_settings
from fomo_stream.settings.topic_selection import TopicCatalog

YAML = """\
time: at
timezone: Europe/Berlin
exclude: energy

rules:
  - name: warm is fine
    features: "*_temp"
    only: falls
  - name: small moves
    keys: [pump-*, fan-1]
    ignore: 5%
  - {name: range, features: rpm, valid: [0, null]}
maintenance:
  - name: cleaning
    from: 2026-03-28T01:00
    to: 2026-03-28T05:00
    repeat: FREQ=DAILY
"""
TOML = """\
time = "at"
timezone = "Europe/Berlin"
exclude = "energy"

[[rules]]
name = "warm is fine"
features = "*_temp"
only = "falls"

[[rules]]
name = "small moves"
keys = ["pump-*", "fan-1"]
ignore = "5%"

[[maintenance]]
name = "cleaning"
from = 2026-03-28T01:00:00
to = 2026-03-28T05:00:00
repeat = "FREQ=DAILY"
"""


def of_file(folder: Path, text: str, name: str = "fomo.yaml", *flags: str) -> ScoreSettings:
    path = folder / name
    path.write_text(text)
    return parse(ScoreSettings, ["rows.csv", "--config", str(path), *flags])


def refusal(folder: Path, text: str, name: str = "fomo.yaml") -> str:
    with pytest.raises(ConfigError) as error:
        of_file(folder, text, name)
    return str(error.value)


def test_both_kinds_of_files_say_the_same(tmp_path: Path) -> None:
    one, other = of_file(tmp_path, YAML), of_file(tmp_path, TOML, "fomo.toml")
    assert [rule.name for rule in one.all_rules] == ["warm is fine", "small moves", "range"]
    assert one.all_rules[:2] == other.all_rules
    assert one.windows == other.windows
    assert (one.time, one.exclude, one.windows[0].timezone) == ("at", ("energy",), "Europe/Berlin")


MISTAKES = [
    ("only: falls", "only: fals", 8, "rules[1].only: 'fals' is not one of rises, falls; did you mean falls?"),
    ("only: falls", "olny: falls", 8, "rules[1].olny: unknown field; did you mean only?"),
    ("ignore: 5%", "ignore: a bit", 11, "rules[2].ignore: write an amount"),
    ("ignore: 5%", "ignore: 5%\n    only: rises", 9, "it has only and ignore"),
    ("    ignore: 5%\n", "", 9, "it has none of them"),
    ("[0, null]", "[3, 1]", 12, "rules[3].valid: the lowest value comes first"),
    ("[0, null]", "3", 12, "rules[3].valid: write the lowest and the highest value"),
    ("[0, null]", "[null, null]", 12, "rules[3].valid: it has no limit"),
    ("features: rpm, ", "", 12, "needs features"),
    ("  - name: small moves\n    keys", "  - keys", 9, "rules[2].name: it is required"),
    ("2026-03-28T05:00", "2026-03-27", 14, "maintenance[1]: it ends"),
    ("2026-03-28T05:00", "next week", 16, "maintenance[1].to: write a time as 2026-10-01"),
    ("FREQ=DAILY", "every day", 17, "maintenance[1].repeat: write it as iCalendar does"),
    ("Europe/Berlin", "Europe/Berlni", None, "unknown time zone Europe/Berlni; did you mean Europe/Berlin?"),
    ("time: at", "tmie: at", 1, "unknown setting tmie; did you mean time?"),
    ("small moves", "range", None, "two rules are called range"),
    ("time: at", "- time", None, "cannot be read as YAML"),
]


@pytest.mark.parametrize(("right", "wrong", "line", "words"), MISTAKES)
def test_a_mistake_is_one_error_with_its_file_line_and_field(
    tmp_path: Path, right: str, wrong: str, line: int | None, words: str
) -> None:
    said = refusal(tmp_path, YAML.replace(right, wrong, 1))
    assert words in said
    assert "\n" not in said
    if line is not None:
        assert f"--config {tmp_path}/fomo.yaml line {line}: " in said


def test_a_mistake_in_the_section_of_a_topic_has_its_line(tmp_path: Path) -> None:
    section = "".join(f"    {line}\n" for line in YAML.replace("ignore: 5%", "ignore: 5 %%").splitlines())
    (tmp_path / "a.yaml").write_text(f"{YAML}topics:\n  t:\n{section}")
    line = YAML[: YAML.index("ignore")].count("\n") + 1
    with pytest.raises(ConfigError, match=rf"line {YAML.count(chr(10)) + 2 + line}: rules\[2\]\.ignore: "):
        parse(ServiceSettings, ["--topic", "t", "--config", str(tmp_path / "a.yaml")])
    table = TOML.replace("[[", "[[topics.t.").replace('ignore = "5%"', 'ignroe = "5%"')
    (tmp_path / "a.toml").write_text(f"[topics.t]\n{table}")
    with pytest.raises(ConfigError, match=r"line 14: rules\[2\]\.ignroe: unknown field"):
        parse(ServiceSettings, ["--topic", "t", "--config", str(tmp_path / "a.toml")])
    said = refusal(tmp_path, TOML.replace('only = "falls"', 'only = "fals"'), "fomo.toml")
    assert "fomo.toml line 8: rules[1].only: 'fals' is not one of" in said
    said = refusal(tmp_path, TOML.replace('ignore = "5%"', 'ignroe = "5%"'), "fomo.toml")
    assert "line 13: rules[2].ignroe: unknown field; did you mean ignore?" in said


def test_several_topics_have_another_latency_also_when_the_file_is_read_again(tmp_path: Path) -> None:
    (path := tmp_path / "fomo.yaml").write_text("")
    catalog = TopicCatalog(ServiceSettings, {"topic": "a,b", "group": "{topic}", "config": str(path)})
    settings, found = catalog.settings("a"), []
    for text in ("", "max-latency-ms: 50", "topics: {a: {max-latency-ms: 20}}", ""):
        path.write_text(text)
        found.append(reload_settings(settings).max_latency_ms)
    assert [settings.max_latency_ms, *found] == [1000, 1000, 50, 20, 1000]


def test_flags_are_rules_too() -> None:
    flags = ["--only-rises", "a,b", "--ignore", "a=2.5,c=5%", "--valid", "a=0:100,b=:3", "--min-severity", "critical"]
    made = {rule.name: rule for rule in parse(ScoreSettings, ["x.csv", *flags]).all_rules}
    assert made["--only-rises"].features == ("a", "b")
    assert (made["--ignore a"].amount, made["--ignore c"].amount) == ((2.5, 0.0), (0.0, 0.05))
    assert (made["--valid a"].valid, made["--valid b"].valid) == ((0.0, 100.0), (None, 3.0))
    assert made["--min-severity"].min_severity == "critical"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--ignore", "2.5"], "names no feature"),
        (["--ignore", "a=much"], "write an amount"),
        (["--valid", "a=5"], "with a colon between them"),
        (["--explain", "none", "--only-rises", "a"], "leave --explain none out"),
        (["--exclude", "a", "--features", "a,b"], "--exclude a is named by another flag"),
        (["--calendar", "/nowhere.ics"], "--calendar /nowhere.ics: cannot be read"),
    ],
)
def test_mistakes_in_flags_are_said(flags: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        parse(ScoreSettings, ["x.csv", *flags])


# --- calendars

CALENDAR = """\
BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//plant//EN
BEGIN:VEVENT
UID:1
SUMMARY:cleaning
DTSTART;TZID=Europe/Berlin:20260328T010000
DTEND;TZID=Europe/Berlin:20260328T050000
RRULE:FREQ=WEEKLY;BYDAY=SA
EXDATE;TZID=Europe/Berlin:20260404T010000
END:VEVENT
BEGIN:VEVENT
UID:2
SUMMARY:cleaning
DTSTART;VALUE=DATE:20260501
CATEGORIES:alerts
END:VEVENT
BEGIN:VEVENT
UID:3
SUMMARY:audit
DTSTART:20260601T060000Z
DURATION:PT2H
END:VEVENT
END:VCALENDAR
"""


def calendar(folder: Path, text: str) -> Any:
    path = folder / "plant.ics"
    path.write_text(text.replace("\n", "\r\n"))
    return parse(ScoreSettings, ["x.csv", "--calendar", str(path), "--timezone", "Asia/Tokyo"]).windows


def test_events_of_a_calendar_are_windows(tmp_path: Path) -> None:
    weekly, day, audit = calendar(tmp_path, CALENDAR)
    assert (weekly.name, weekly.timezone, weekly.repeat) == ("cleaning", "Europe/Berlin", "FREQ=WEEKLY;BYDAY=SA")
    assert weekly.without == (datetime(2026, 4, 4, 1),)
    assert (day.name, day.timezone, day.skip) == ("cleaning (2)", "Asia/Tokyo", "alerts")
    assert (day.from_, day.to) == (datetime(2026, 5, 1), datetime(2026, 5, 2))
    assert (audit.from_, audit.to) == (datetime(2026, 6, 1, 6), datetime(2026, 6, 1, 8))
    assert (audit.timezone, audit.skip) == ("UTC", "both")


def test_cancelled_events_and_moved_repetitions_of_a_calendar_are_no_windows(tmp_path: Path) -> None:
    begin = "BEGIN:VEVENT\nUID:1\nSUMMARY:moved\nRECURRENCE-ID;TZID=Europe/Berlin:"
    moved = f"{begin}20260411T010000\nDTSTART:20260411T120000\nDTEND:20260411T130000\nEND:VEVENT\n"
    gone = f"{begin}20260418T010000\nDTSTART:20260418T010000\nSTATUS:CANCELLED\nEND:VEVENT\n"
    text = CALENDAR.replace("UID:3", "STATUS:CANCELLED\nUID:3").replace("END:VCALENDAR", moved + gone + "END:VCALENDAR")
    weekly, _, single = calendar(tmp_path, text)
    assert weekly.without == (datetime(2026, 4, 4, 1), datetime(2026, 4, 11, 1), datetime(2026, 4, 18, 1))
    assert (single.name, single.from_, single.without) == ("moved", datetime(2026, 4, 11, 12), ())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing", "cannot be read as iCalendar"),
        ("BEGIN:VCALENDAR\nEND:VCALENDAR\n", "it has no event"),
        (CALENDAR.replace("DTSTART:20260601T060000Z\n", ""), "the event audit has no DTSTART"),
        (CALENDAR.replace("20260601T060000Z", "00010101T060000Z"), "a window is in the years 1970 to 2200"),
        (CALENDAR.replace("FREQ=WEEKLY", "FREQ=DAILY;INTERVAL=0"), "INTERVAL=0 is not supported"),
        (CALENDAR.replace("DURATION:PT2H\n", ""), "as iCalendar: the event audit: it ends (2026-06-01 06:00:00)"),
        (
            CALENDAR.replace("UID:3", "UID:3\nRECURRENCE-ID;RANGE=THISANDFUTURE:20260601T060000Z"),
            "the event audit moves all",
        ),
        (CALENDAR.replace("DURATION:PT2H", "DTSTART:20260602T060000Z"), "cannot be read as iCalendar"),  # twice
        (CALENDAR.replace("Europe/Berlin", "Europe/Nowhere"), "the event cleaning has the time zone Europe/Nowhere"),
    ],
)
def test_a_calendar_that_cannot_be_used_is_said(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match="--calendar") as error:
        calendar(tmp_path, text)
    assert words in str(error.value)


def test_patterns_are_bounded_in_number_and_size() -> None:
    for keys in (["k"] * 1001, ["k" * 201], ["k" * 200] * 501):
        with pytest.raises(ValueError, match=r"at most 1000 items|at most 200 characters|more than 100,000 characters"):
            parse_table(Rule, {"name": "r", "ignore": 1, "keys": keys})
    tables = [parse_table(Rule, {"name": f"{n}", "ignore": 1, "keys": ["k" * 200] * 100}) for n in range(30)]
    with pytest.raises(ValueError, match="the rules together have more than 400,000 characters"):
        check_names(tables, "rules")


# --- files that change


def test_settings_can_be_read_again(tmp_path: Path) -> None:
    settings = of_file(tmp_path, YAML, "fomo.yaml", "--alert-rate", "0.02")
    (tmp_path / "fomo.yaml").write_text(YAML.replace("only: falls", "only: rises"))
    again = reload_settings(settings)
    assert (settings.rules[0].only, again.rules[0].only, again.alert_rate) == ("falls", "rises", 0.02)
    (tmp_path / "fomo.yaml").write_text(YAML.replace("only: falls", "only: up"))
    with pytest.raises(ConfigError, match=r"line 8: rules\[1\]\.only"):
        reload_settings(settings)
