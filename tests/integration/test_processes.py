"""`--processes`: several instances that one command starts and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from brokers import Broker, free_ports, wait_for
from services import Running, changed, command, content_of, readings, sensors, unique

from fomo_stream.cli.main import main
from fomo_stream.errors import ConfigError
from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.topic_selection import TopicCatalog


@pytest.mark.usefixtures("real_kafka")
def test_processes_share_the_work_end_together_and_give_the_results_of_one(broker: Broker, tmp_path: Path) -> None:
    first_port = free_ports(2)
    settings = sensors(broker, partitions=2, instance_id="a", processes=2, health_port=first_port)
    broker.produce(settings.topic, readings(400))
    with command(tmp_path / "first.log", settings) as first:
        first.wait_for_log("assigned topic=" + settings.topic + " partition=0")
        first.wait_for_log("assigned topic=" + settings.topic + " partition=1")
        wait_for(lambda: len(broker.members(settings.group)) == 2, "both to be members")
        assert set(broker.members(settings.group)) == {"a-0", "a-1"}
        for port in (first_port, first_port + 1):
            with urlopen(f"http://127.0.0.1:{port}/livez", timeout=60) as answer:
                assert answer.status == 200
        broker.read(settings.out, at_least=50)
        children = Path(f"/proc/{first.process.pid}/task/{first.process.pid}/children")
        os.kill(int(children.read_text().split()[1]), signal.SIGKILL)
        assert first.process.wait(60) == 128 + signal.SIGKILL
    assert f"process_ended number=1 exit_code={128 + signal.SIGKILL}" in first.text()
    broker.produce(settings.topic, readings(200, start=400, seed=1))
    with command(tmp_path / "second.log", settings) as second:
        outputs = broker.read(settings.out, at_least=600)
        second.process.send_signal(signal.SIGHUP)  # its terminal was closed
        assert second.process.wait(60) == 0
    assert {line.rpartition(" ")[2] for line in second.text().splitlines()} == {"process=0", "process=1"}
    alone = changed(settings, group=unique("alone"), out=unique("alone"), processes=1)
    with Running(alone):
        expected = broker.read(alone.out, at_least=600)
    assert sorted(map(content_of, outputs)) == sorted(map(content_of, expected))


# Processes that wait for a signal.
WAITING = """\
import os, signal, sys
from fomo_stream.cli.processes import fork_members
from fomo_stream.cli.signals import Signals
from fomo_stream.settings.topic_selection import ProcessSettings
number, code = fork_members(ProcessSettings(topic="t", processes=2))
if number < 0:
    sys.exit(code)
Signals()
os.write(1, b"%d\\n" % number)  # at once
while True:
    signal.pause()
"""


def test_all_end_when_one_of_them_is_stopped_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE) as parent:
        try:
            assert parent.stdout is not None
            assert {parent.stdout.readline() for _ in range(2)} == {b"0\n", b"1\n"}
            child = int(Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()[0])
            assert os.getpgid(child) == os.getpgid(parent.pid)  # Ctrl-Z suspends both
            os.kill(child, signal.SIGTERM)
            assert parent.wait(60) == 1
        finally:
            parent.kill()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--health-port", "65535"), "has fewer above it"),
        (("--reset-state",), "start once with --processes 1"),
    ],
)
def test_settings_that_do_not_suit_several_are_refused(
    flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str], restored_logging: None
) -> None:
    assert main(["--topic", "sensors", "--out", "scores", "--processes", "2", *flags]) == 2
    assert message in capsys.readouterr().err


def test_each_process_has_an_instance_id_of_its_own_also_in_a_section(tmp_path: Path) -> None:
    config = tmp_path / "fomo.yaml"
    config.write_text("group: 'g-{topic}'\ntopics: {'^a': {instance-id: x}, '^b': {}, '^c': {reset-state: true}}\n")
    flags = {"config": config, "topic": "^[abc]", "out": "none", "alerts": "alerts-{topic}", "processes": 4}
    catalog = TopicCatalog(ServiceSettings, flags, member=3)
    assert [catalog.settings(topic).instance_id for topic in ("a", "b")] == ["x-3", None]
    with pytest.raises(ConfigError, match=r"topic c: --reset-state .* --processes 1"):
        catalog.settings("c")
    assert TopicCatalog(ServiceSettings, flags).settings("c").reset_state
