"""A group at work: others are refused without disturbing it; `fomo-stream group` shows and changes its agreement."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from brokers import Broker, wait_for
from services import Running, changed, readings, refusal, results, sensors, unique

from fomo_stream.cli.main import main
from fomo_stream.errors import AgreementError
from fomo_stream.kafka.group.group_log import GroupLog
from fomo_stream.settings.service_settings import ServiceSettings

RECORDS = 120


pytestmark = pytest.mark.usefixtures("real_kafka")


class Done(NamedTuple):
    """The exit code of a command, and what it has printed."""

    code: int
    out: str
    err: str


Look = Callable[..., Done]


@pytest.fixture
def look(capsys: pytest.CaptureFixture[str], restored_logging: None) -> Look:
    """`fomo-stream group`, in this process."""

    def run(settings: ServiceSettings, *flags: str) -> Done:
        of_broker = ["--bootstrap", settings.bootstrap, *(f"--kafka.{k}={v}" for k, v in settings.kafka.items())]
        capsys.readouterr()
        code = main(["group", "--topic", settings.topic, "--group", settings.group, *of_broker, *flags])
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def member(broker: Broker, real_kafka: None) -> Iterator[Running]:
    """An instance at work on three partitions, which has scored all records."""
    settings = sensors(broker, partitions=3, categorical="site", instance_id="one", feedback=unique("labels"))
    broker.produce(settings.topic, readings(RECORDS))
    with Running(settings) as running:
        wait_for(lambda: broker.committed(settings.group, settings.topic) == RECORDS, "all to be committed")
        yield running


def test_an_instance_with_other_settings_is_refused_and_the_one_of_its_name_loses_nothing(
    broker: Broker, member: Running
) -> None:
    before = dict(member.member.pipeline.partitions)
    for changes, words in (
        ({"features": "temperature"}, "--features temperature,site differs .* temperature,motor.rpm,site"),
        ({"out": "elsewhere", "wait": True}, "--out is .*-scores in the group, elsewhere here"),
    ):
        error = refusal(changed(member.settings, **changes))
        assert isinstance(error, AgreementError)
        assert re.search(words, str(error))
    assert member.member.pipeline.partitions == before  # the very same tasks: none was revoked and assigned again
    assert member.service.ready
    assert not broker.partitions("elsewhere")


def test_it_shows_what_the_group_has_agreed_on_and_what_is_otherwise_here(member: Running, look: Look) -> None:
    settings = member.settings
    before = dict(member.member.pipeline.partitions)
    lines = look(settings, "--context-size", "100", "--out", "elsewhere").out.splitlines()
    assert lines[0] == f"group {settings.group} on topic {settings.topic}"
    rows = {line.split()[0]: line.split()[1:] for line in lines[3:-1]}
    assert set(rows["features"][0].split(",")) == {"temperature", "motor.rpm", "site"}
    assert rows["categorical"] == ["site"]
    assert rows["context-size"] == ["100"]
    assert rows["out"] == [settings.out, "elsewhere"]
    assert rows["feedback"] == [settings.feedback, "none", "(default)"]
    assert lines[-1].startswith("2 settings of an instance here would be different: it would be refused while")
    same = ("--context-size", "100", "--feedback", str(settings.feedback))
    assert look(settings, *same).out.splitlines()[-1] == "the settings given here agree with the group's"
    assert "it would be refused (seed)" in look(settings, *same, "--seed", "3").out
    assert member.member.pipeline.partitions == before  # the very same: it has disturbed nobody
    assert member.service.ready


def test_a_check_tells_whether_an_instance_could_join_and_nothing_is_changed_while_there_are_members(
    member: Running, look: Look, tmp_path: Path
) -> None:
    settings = member.settings
    before = GroupLog(settings).entries(b"settings/"), GroupLog(settings).entries(b"schema/")
    same = ["--check", "--context-size", "100", "--feedback", str(settings.feedback), "--alert-rate", "0.05"]
    assert look(settings, *same).code == 0
    for flags, words in (
        ([*same, "--lags", "3"], "--lags is 0 in the group, 3 here"),  # can never change
        ([*same, "--features", "temperature"], "differs from the features of group"),
        ([*same, "--out", "elsewhere"], "stop the group first, which has 1 member (in Kubernetes: scale to 0"),
        (["--update-group", "--out", "elsewhere"], "stop the group first, which has 1 member "),
    ):
        refused = look(settings, *flags)
        assert refused.code == 10
        assert words in refused.err
        assert refused.err.count("\n") == 1
    assert look(changed(settings, group=unique("nobody")), "--check").code == 8
    config = tmp_path / "fomo.yaml"
    config.write_text("max-latency-ms: 30\nrules: [{name: a, when: b}]\n")
    refused = look(settings, *same, "--config", str(config))  # the group would take it, but no instance could start
    assert (refused.code, "rules[1].when: unknown field" in refused.err) == (2, True)
    assert (GroupLog(settings).entries(b"settings/"), GroupLog(settings).entries(b"schema/")) == before


def test_settings_that_are_given_are_changed_and_others_stay(broker: Broker, look: Look) -> None:
    settings = sensors(broker, feedback=unique("labels"))
    broker.produce(settings.topic, readings(60))
    assert look(settings, "--update-group", "--out", "x").code == 8  # it has never run
    with Running(settings):
        broker.read(settings.out, at_least=60)
    moved, alerts = unique("elsewhere"), unique("alerts")
    assert look(settings, "--check", "--context-size", "100", "--out", "elsewhere").code == 0
    shown = look(settings, "--update-group", "--out", moved, "--feedback-memory", "77", "--context-size", "100")
    assert shown.code == 0, shown.err
    assert sorted(line.split() for line in shown.out.splitlines()[1:]) == [
        ["--feedback-memory", "5000", "->", "77"],
        ["--out", settings.out, "->", moved],
    ]
    held_by_none = ("--alert-rate", "0.02", "--admit", "feedback", "--features", "motor.rpm,temperature")
    others = "the group does not hold --alert-rate, --admit: each instance has its own value"
    assert look(settings, "--update-group", *held_by_none).out.splitlines() == ["nothing was changed", others]
    assert others in look(settings, *held_by_none).out
    for flags, code, words in (
        (("--out", "none"), 2, "--out none needs --alerts"),  # impossible with what the group has
        (("--alerts", moved), 2, "must be different topics"),
        (("--out", "x", "--features", "temperature"), 10, "--features temperature differs from the features of group"),
        (("--out", "x", "--lags", "3"), 10, "--lags is 0 in the group, 3 here"),
    ):
        refused = look(settings, "--update-group", *flags)
        assert refused.code == code
        assert words in refused.err
    assert f"none -> {alerts}" in look(settings, "--update-group", "--alerts", alerts).out
    broker.produce(settings.topic, readings(60, start=60))
    with Running(changed(settings, out=moved, alerts=alerts, feedback_memory=77)):  # as agreed
        outputs = results(broker.read(moved, at_least=60))
    assert [output["n"] for output in outputs] == list(range(60, 120))
    assert all(output["fomo"]["score"] is not None for output in outputs)  # the state is kept
    assert len(broker.read(settings.out)) == 60
