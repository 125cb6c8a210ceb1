"""`fomo-stream group` shows a group that is at work and disturbs nobody; `--update-group` changes its agreement."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from brokers import Broker, wait_for
from services import Running, make_settings, readings, results, unique
from test_operations import changed

from fomo_stream.cli.main import main
from fomo_stream.kafka.group.log import GroupLog
from fomo_stream.settings.service import ServiceSettings

RECORDS = 120


@pytest.fixture(autouse=True)
def _needs_groups(broker: Broker) -> None:
    if not broker.is_kafka:
        pytest.skip("the embedded broker does not describe groups")


@dataclass
class Done:
    """What a command has printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Look:
    """`fomo-stream group`, in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, settings: ServiceSettings, *flags: str) -> Done:
        of_broker = ["--bootstrap", settings.bootstrap, *(f"--kafka.{k}={v}" for k, v in settings.kafka.items())]
        self._capsys.readouterr()
        code = main(["group", "--topic", settings.topic, "--group", settings.group, *of_broker, *flags])
        return Done(code, *self._capsys.readouterr())


@pytest.fixture
def look(capsys: pytest.CaptureFixture[str], restored_logging: None) -> Look:
    return Look(capsys)


@pytest.fixture(scope="module")
def member(broker: Broker) -> Iterator[Running]:
    """An instance at work on three partitions, which has scored all records."""
    if not broker.is_kafka:
        pytest.skip("the embedded broker does not describe groups")
    topic = unique("sensors")
    broker.create_topic(topic, partitions=3)
    broker.produce(topic, readings(RECORDS))
    settings = make_settings(broker, topic, categorical="site", instance_id="one", feedback=unique("labels"))
    with Running(settings) as running:
        broker.read(settings.out, at_least=RECORDS)
        wait_for(lambda: broker.committed(settings.group, topic) == RECORDS, "all to be committed")
        yield running


def test_it_shows_agreement_members_lag_and_state(broker: Broker, member: Running, look: Look) -> None:
    settings = member.settings
    before = dict(member.member.pipeline.tasks)
    shown = look(settings, "--json").json
    assert shown["status"] == "stable"
    assert set(shown["agreement"]["features"]) == {"temperature", "motor.rpm", "site"}
    assert shown["agreement"]["settings"]["feedback"] == settings.feedback
    (only,) = shown["members"]
    assert (only["name"], only["partitions"]) == ("one", [0, 1, 2])
    partitions = shown["partitions"]
    assert sum(one["committed"] for one in partitions) == sum(one["end"] for one in partitions) == RECORDS
    assert {one["lag"] for one in partitions} == {0}
    assert all(one["state_written"] is not None for one in partitions)
    assert member.member.pipeline.tasks == before  # the very same: it has disturbed nobody
    assert member.service.ready


def test_it_tells_given_settings_that_differ_from_defaults_that_differ(member: Running, look: Look) -> None:
    differences = look(member.settings, "--json", "--out", "elsewhere").json["agreement"]["differences"]
    given = {one["name"]: one["given"] for one in differences}
    assert given == {"out": True, "context-size": False, "feedback": False}
    (out,) = (one for one in differences if one["name"] == "out")
    assert (out["agreed"], out["own"], out["changeable"]) == (member.settings.out, "elsewhere", True)


def test_the_text_is_aligned_and_names_what_differs(member: Running, look: Look) -> None:
    done = look(member.settings, "--out", "elsewhere")
    assert done.code == 0
    assert done.err == ""
    lines = done.out.splitlines()
    assert lines[0].endswith("stable, 1 member")
    (out,) = (line.split() for line in lines if line.startswith("out "))
    assert out == ["out", member.settings.out, "elsewhere"]
    rows = [line for line in lines if line.split()[1:2] == ["one"] and "ago" in line]
    assert len(rows) == 3
    assert len({line.index("one") for line in rows}) == 1


def test_an_agreement_is_not_changed_while_the_group_has_members(member: Running, look: Look) -> None:
    before = GroupLog(member.settings).entries(b"settings/")
    done = look(member.settings, "--update-group", "--out", "elsewhere")
    assert done.code == 10
    assert "stop the group first, which has 1 member " in done.err
    assert done.err.count("\n") == 1
    assert GroupLog(member.settings).entries(b"settings/") == before


def test_a_check_tells_whether_an_instance_could_join(member: Running, look: Look) -> None:
    settings = member.settings
    before = GroupLog(settings).entries(b"settings/"), GroupLog(settings).entries(b"schema/")
    same = ["--check", "--context-size", "100", "--feedback", str(settings.feedback), "--alert-rate", "0.05"]
    assert look(settings, *same).code == 0
    for flags, words in (
        (("--lags", "3"), "--lags is 0 in the group, 3 here"),  # can never change
        (("--features", "temperature"), "differs from the features of group"),
        (("--out", "elsewhere"), "stop the group first, which has 1 member (in Kubernetes: scale to 0"),
    ):
        refused = look(settings, *same, *flags)
        assert refused.code == 10
        assert words in refused.err
    assert look(changed(settings, group=unique("nobody")), "--check").code == 8
    assert (GroupLog(settings).entries(b"settings/"), GroupLog(settings).entries(b"schema/")) == before


def test_a_check_allows_what_may_change_while_the_group_has_no_members(broker: Broker, look: Look) -> None:
    topic = unique("sensors")
    broker.create_topic(topic, partitions=1)
    settings = make_settings(broker, topic)
    with Running(settings) as running:
        wait_for(lambda: running.scores(0), "the group to agree")
    assert look(settings, "--check", "--context-size", "100", "--out", "elsewhere").code == 0
    assert look(settings, "--check", "--context-size", "100", "--out", "elsewhere", "--lags", "3").code == 10


def test_what_does_not_exist_is_one_line_and_its_exit_code(broker: Broker, member: Running, look: Look) -> None:
    settings = member.settings
    other = unique("nobody")
    for wrong, code, words in (
        (changed(settings, group=other), 8, f"group {other} has never run on topic {settings.topic}"),
        (changed(settings, topic=other), 8, f"there is no topic {other}"),
        (changed(settings, bootstrap="127.0.0.1:1"), 7, "no broker answers"),
    ):
        done = look(wrong)
        assert (done.code, done.out) == (code, "")
        assert words in done.err
        assert done.err.count("\n") == 1
    assert not broker.partitions(other)
    assert not broker.partitions(f"{other}-{settings.topic}-state")


def test_settings_that_are_given_are_changed_and_others_stay(broker: Broker, look: Look) -> None:
    topic = unique("sensors")
    broker.create_topic(topic, partitions=1)
    broker.produce(topic, readings(60))
    settings = make_settings(broker, topic, feedback=unique("labels"))
    assert look(settings, "--update-group", "--out", "x").code == 8  # it has never run
    with Running(settings):
        broker.read(settings.out, at_least=60)
    moved = unique("elsewhere")
    shown = look(settings, "--update-group", "--out", moved, "--feedback-memory", "77", "--context-size", "100")
    assert shown.code == 0, shown.err
    assert sorted(line.split() for line in shown.out.splitlines()[1:]) == [
        ["--feedback-memory", "5000", "->", "77"],
        ["--out", settings.out, "->", moved],
    ]
    again = look(settings, "--update-group", "--out", moved)
    assert again.out == "nothing was changed\n"
    held_by_none = ("--alert-rate", "0.02", "--admit", "feedback", "--features", "motor.rpm,temperature")
    own = look(settings, "--update-group", *held_by_none)
    assert own.code == 0, own.err
    others = "the group does not hold --alert-rate, --admit: each instance has its own value"
    assert own.out.splitlines() == ["nothing was changed", others]
    assert others in look(settings, *held_by_none).out
    as_json = look(settings, "--json", "--update-group", *held_by_none).json
    assert as_json == {"group": settings.group, "changes": [], "not_held": ["--alert-rate", "--admit"]}
    features = look(settings, "--update-group", "--out", "x", "--features", "temperature")
    assert (features.code, features.out) == (10, "")
    assert "--features temperature differs from the features of group" in features.err
    alerts = unique("alerts")
    for flags, words in (  # each is possible only with, or only without, what the group has
        (("--out", "none"), "--out none needs --alerts"),
        (("--alerts", moved), "must be six different topics"),
    ):
        impossible = look(settings, "--update-group", *flags)
        assert impossible.code == 2
        assert words in impossible.err
    assert f"none -> {alerts}" in look(settings, "--update-group", "--alerts", alerts).out
    assert f"{moved} -> none" in look(settings, "--update-group", "--out", "none").out
    assert f"none -> {moved}" in look(settings, "--update-group", "--out", moved).out
    refused = look(settings, "--update-group", "--out", "x", "--lags", "3")
    assert refused.code == 10
    assert "--lags is 0 in the group, 3 here" in refused.err
    assert "--reset-state" in refused.err
    empty = look(settings, "--json", "--out", moved, "--alerts", alerts, "--feedback-memory", "77").json
    assert (empty["status"], empty["members"]) == ("empty", [])
    assert {one["name"] for one in empty["agreement"]["differences"]} == {"context-size", "feedback"}
    broker.produce(topic, readings(60, start=60))
    with Running(changed(settings, out=moved, alerts=alerts, feedback_memory=77)):  # as agreed
        assert [one["n"] for one in results(broker.read(moved, at_least=60))] == list(range(60, 120))
    assert len(GroupLog(settings).entries(b"settings/")) == 5  # the first instance, and four changes
