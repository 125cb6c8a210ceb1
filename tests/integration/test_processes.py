"""`--processes`: several instances that one command starts and ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from brokers import Broker, wait_for
from services import Running, changed, command, content_of, readings, sensors, unique

from fomo_stream.cli.main import main


@pytest.mark.usefixtures("real_kafka")
def test_processes_share_the_work_end_together_and_give_the_results_of_one(broker: Broker, tmp_path: Path) -> None:
    settings = sensors(broker, partitions=2, instance_id="a", processes=2)
    broker.produce(settings.topic, readings(400))
    with command(tmp_path / "first.log", settings) as first:
        first.wait_for_log("assigned topic=" + settings.topic + " partition=0")
        first.wait_for_log("assigned topic=" + settings.topic + " partition=1")
        wait_for(lambda: len(broker.members(settings.group)) == 2, "both to be members")
        assert set(broker.members(settings.group)) == {"a-0", "a-1"}
        broker.read(settings.out, at_least=50)
        children = Path(f"/proc/{first.process.pid}/task/{first.process.pid}/children")
        os.kill(int(children.read_text().split()[1]), signal.SIGKILL)
        assert first.process.wait(60) == 128 + signal.SIGKILL
    assert f"process_ended number=1 exit_code={128 + signal.SIGKILL}" in first.text()
    broker.produce(settings.topic, readings(200, start=400, seed=1))
    with command(tmp_path / "second.log", settings) as second:
        outputs = broker.read(settings.out, at_least=600)
        assert second.terminate() == 0
    assert {line.rpartition(" ")[2] for line in second.text().splitlines()} == {"process=0", "process=1"}
    alone = changed(settings, group=unique("alone"), out=unique("alone"), instance_id=None, processes=1)
    with Running(alone):
        expected = broker.read(alone.out, at_least=600)
    assert sorted(map(content_of, outputs)) == sorted(map(content_of, expected))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--health-port", "65535"), "has fewer above it"),
        (("--reset-state",), "start once with it and --processes 1"),
    ],
)
def test_settings_that_do_not_suit_several_are_refused(
    flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str], restored_logging: None
) -> None:
    assert main(["--topic", "sensors", "--out", "scores", "--processes", "2", *flags]) == 2
    assert message in capsys.readouterr().err
