"""The command line: commands, flags, help, and mistakes without a traceback."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from fomo_stream.broker import make_admin
from fomo_stream.cli import COMMANDS, main, parse
from fomo_stream.errors import ConfigError
from fomo_stream.logs import ClientLog, kv
from fomo_stream.settings import ScoreSettings, ServiceSettings


def test_run_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def run(argv: Sequence[str]) -> int:
        seen.append(list(argv))
        return 0

    monkeypatch.setitem(COMMANDS, "run", run)
    assert main(["--topic", "t"]) == main(["run", "--topic", "t"]) == 0
    assert seen == [["--topic", "t"]] * 2


def test_flags_become_settings() -> None:
    settings = parse(
        ServiceSettings,
        [
            "--topic",
            "t",
            "--features",
            "a,b.c",
            "--scores-only",
            "--kafka.linger.ms",
            "7",
            "--kafka.sasl.mechanism=PLAIN",
        ],
    )
    assert settings.features == ("a", "b.c")
    assert settings.scores_only
    assert settings.kafka == {"linger.ms": "7", "sasl.mechanism": "PLAIN"}


def test_a_boolean_flag_can_be_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOMO_SCORES_ONLY", "true")
    assert parse(ServiceSettings, ["--topic", "t"]).scores_only
    assert not parse(ServiceSettings, ["--topic", "t", "--no-scores-only"]).scores_only


def test_score_takes_a_file_or_standard_input() -> None:
    assert parse(ScoreSettings, ["data.csv", "--batch-size", "9"]).file == "data.csv"
    assert parse(ScoreSettings, ["--batch-size", "9", "-"]).file == parse(ScoreSettings, []).file == "-"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--topik", "t"], "there is no flag --topik; did you mean --topic?"),
        (["--topic"], "--topic: expected one argument"),
        (["--topic", "t", "--batch-size", "x"], "--batch-size x: "),
        (["dmo"], "there is no command dmo; did you mean demo?"),
        (["zzz"], "commands are run, demo, score"),
        (["score", "a.csv", "b.csv"], "b.csv"),
        (["--topic", "t", "--kafka.linger.ms"], "--kafka.linger.ms needs a value"),
        ([], "--topic is needed"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.startswith("fomo-stream: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", ["run", "demo", "score"])
def test_help_describes_every_flag(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(flag in text for flag in ("--context-size", "--alert-rate", "--config", "(default: 1000)"))


def test_help_and_mistakes_do_not_wait_for_torch_or_kafka() -> None:
    code = (
        "import sys; from fomo_stream.cli import main\n"
        "assert main(['--topik', 't']) == 2\n"
        "assert not {'torch', 'confluent_kafka', 'sklearn', 'river'} & set(sys.modules)"
    )
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stderr=subprocess.DEVNULL)
    assert time.perf_counter() - began < 5


def test_a_repeating_client_log_line_is_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    client_log = ClientLog("consumer")
    with caplog.at_level(logging.INFO):
        for _ in range(100):
            client_log.log(logging.WARNING, "%s [%s] %s", "FAIL", "rdkafka#1", "connect refused")
        client_log.log(logging.WARNING, "%s [%s] %s", "CONFWARN", "rdkafka#1", "is a producer property")
    assert [record.getMessage() for record in caplog.records] == [
        'kafka_client client=consumer kind=FAIL message="connect refused"'
    ]


def test_a_log_line_is_one_line_without_terminal_codes() -> None:
    assert kv("schema", features="a\r\n\x1b[31mb") == 'schema features="a   [31mb"'


def test_a_client_setting_that_only_code_can_give_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^--kafka: .*error_cb.*cannot be set here"):
        make_admin(ServiceSettings(topic="t", kafka={"error_cb": "x"}))


def test_parse_reports_unknown_flags_of_clients_as_unknown() -> None:
    with pytest.raises(ConfigError, match="there is no flag --kafka"):
        parse(ScoreSettings, ["--kafka.linger.ms=3"])
