"""The command line: commands, flags, help, and mistakes without a traceback."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from flag_tables import SETTINGS

from fomo_stream.cli.main import COMMANDS, main
from fomo_stream.errors import ConfigError, FomoError
from fomo_stream.kafka.broker.clients import make_admin
from fomo_stream.logs import kv
from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.sources import extra_of, option

GUIDE = Path(__file__).parents[2] / "deploy" / "README.md"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--topik", "t"], "there is no flag --topik; did you mean --topic?"),
        (["--topic", "t", "--batch-size", "x"], "--batch-size x: "),
        (["dmo"], "there is no command dmo; did you mean demo?"),
        (["data.csv"], "there is no command data.csv; to score a file: fomo-stream score data.csv"),
        (["zzz"], "commands are run, demo, score"),
        (["score", "a.csv", "b.csv"], "unexpected argument b.csv; see --help"),
        (["replay", "data.csv"], "did you mean --topic data.csv or --file data.csv?"),
        (["doctor", "sensors"], "unexpected argument sensors; did you mean --topic sensors?"),
        (["--topic", "t", "--kafka.linger.ms"], "--kafka.linger.ms needs a value"),
        ([], "--topic is required"),
        (["redrive", "--dead-letters", "d", "--reason", "not_jsn"], "unknown reason not_jsn; did you mean not_json?"),
        (["redrive", "--dead-letters", "d", "--reason", ""], "name at least one reason"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.startswith("fomo-stream: ")
    assert error.count("\n") == 1


def errors(kind: type[FomoError] = FomoError) -> Iterator[type[FomoError]]:
    yield kind
    for one in kind.__subclasses__():
        yield from errors(one)


def test_the_guide_lists_every_exit_code() -> None:
    section = GUIDE.read_text().split("## Exit codes")[1].split("\n## ")[0]
    listed = [int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)]
    assert sorted(listed) == sorted({0, 130, 141, 142, 143, *(kind.exit_code for kind in errors())})


@pytest.mark.parametrize("command", SETTINGS)
def test_help_describes_every_flag(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    shown = "".join(capsys.readouterr().out.split())  # lines are wrapped, within words too
    for name, field in SETTINGS[command].model_fields.items():
        if extra_of(field).get("table"):
            continue  # only the configuration file has it
        assert (name.upper() if extra_of(field).get("positional") else option(name)) in shown
        assert "".join(str(field.description).split()) in shown
    assert command != "run" or all(f"fomo-stream{name}" in shown for name in COMMANDS if name != "run")


def test_a_log_line_is_one_line_without_terminal_codes() -> None:
    assert kv("schema", features="a\r\n\x1b[31mb") == 'schema features="a   [31mb"'


def test_a_client_setting_that_only_code_can_give_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^--kafka: .*error_cb.*cannot be set here"):
        make_admin(ServiceSettings(topic="t", kafka={"error_cb": "x"}))
    aws = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc", "security.protocol": "SASL_SSL"}
    aws |= {"sasl.oauthbearer.metadata.authentication.type": "aws_iam", "sasl.oauthbearer.config": "region=a"}
    with pytest.raises(ConfigError, match=r"^--kafka: [^\n]*'oauthbearer-aws' extra[^\n]*pip install [^\n]*$"):
        make_admin(ServiceSettings(topic="t", kafka=aws))


# A command that leaves an object behind which crashes when it is destroyed.
PROGRAM = """\
import confluent_kafka, ctypes, signal, fomo_stream.cli.main as cli
class InUse:
    __del__ = lambda self, read=ctypes.string_at: read(0)
def run(argv):
    def handler(*_, client=InUse()): pass
    signal.signal(signal.SIGINT, handler)
    print('done')
    return 0
cli.COMMANDS['run'] = run
cli.program()
"""


@pytest.mark.parametrize(
    ("waits", "code"),
    [
        ("time.sleep(60)", 12),
        # A call that keeps the interpreter to itself, or one when that is past running threads.
        ("import ctypes; ctypes.PyDLL(None).sleep(60)", -signal.SIGALRM),
    ],
)
def test_an_end_that_takes_too_long_is_cut_short(waits: str, code: int) -> None:
    program = (
        "import time; from fomo_stream.cli.signals import end_within; from fomo_stream.logs import configure_logging\n"
        f"configure_logging('info'); end_within(0.5); {waits}"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == code
    assert ("shutdown_cut_short after_s=0.5" in ended.stderr) == (code == 12)
    assert "Traceback" not in ended.stderr


# A service that never ends, told to stop twice at once and a third time later.
STOPPED = """\
import os, signal
from fomo_stream.cli import signals
class Service:
    is_loading = False
    stop = lambda self: print('stopping', flush=True)
signals.Signals().attach(Service())
for number in signal.SIGHUP, signal.SIGTERM, signal.SIGTERM, signal.SIGINT:
    os.kill(os.getpid(), number)
signals.AGAIN_S = 0
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_second_signal_ends_the_process_at_once_unless_it_is_the_same_as_the_first() -> None:
    ended = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (-signal.SIGTERM, "stopping\n"), ended.stderr


@pytest.mark.usefixtures("restored_logging")
def test_an_earlier_name_of_a_flag_or_variable_is_noted_in_the_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setenv("FOMO_KERNEL", "torch")
    expected = ["--still is called --stuck-values now", "FOMO_KERNEL is called"]
    for level in ("warning", "error"):
        monkeypatch.setenv("FOMO_LOG_LEVEL", level)
        assert main(["score", "/missing.csv", "--still", "ignore"]) == 2
        notes = [line for line in capsys.readouterr().err.splitlines() if "setting_renamed" in line]
        assert len(notes) == (len(expected) if level == "warning" else 0)
        assert all(text in note for text, note in zip(expected, notes, strict=False))
    monkeypatch.setenv("FOMO_WARM", "5x")  # a setting of an instance, which only its settings have
    assert main(["group", "--check", "--topic", "a"]) == 2
    assert not recwarn.list


def test_a_process_with_clients_of_kafka_ends_without_taking_them_apart() -> None:
    """An object that is in use by a thread of the client must not be destroyed while the interpreter ends."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_an_exit_code_and_no_traceback() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", PROGRAM]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, env=environment)
    assert (ended.returncode, ended.stderr) == (1, "")


@pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="needs unshare and root")
def test_sigterm_ends_the_first_process_of_a_container_while_it_imports(tmp_path: Path) -> None:
    """Such a process gets only signals that it handles."""
    (tmp_path / "pydantic.py").write_text("print('imports', flush=True)\ninput()\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-m", "fomo_stream.cli", "--topic", "t"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"imports\n"
        (child,) = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGTERM)
        try:
            assert parent.wait(timeout=5) == 128 + signal.SIGTERM
        finally:
            parent.kill()
