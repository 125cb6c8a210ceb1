"""The command line: `fomo-stream [run]`, `demo`, `score`, `replay`, `compare`, `redrive`, `group` and `doctor`.

Each command imports its large packages only after its flags were parsed, so `--help` and mistakes are answered at once.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from fomo_stream.cli.parser import INTROS, parse
from fomo_stream.cli.signals import Signals
from fomo_stream.errors import ConfigError, FomoError
from fomo_stream.logs import configure_logging, quiet_clients
from fomo_stream.settings.commands import DemoSettings, DoctorSettings, GroupSettings, RedriveSettings, ScoreSettings
from fomo_stream.settings.replay import CompareSettings, ReplaySettings
from fomo_stream.settings.service import ServiceSettings
from fomo_stream.settings.sources import AnySettings
from fomo_stream.threads import limit_threads
from fomo_stream.wording import did_you_mean

log = logging.getLogger(__name__)

SWITCH_S = 0.001  # a record waits at most so long for the thread that builds contexts; Python's own value is 5 ms


def program() -> NoReturn:
    """`main`, as a program.

    Where a broker does not answer, threads may still be in a call of the Kafka client, and objects of the client may
    still be in use. The process could crash if the interpreter took these apart, so it ends without that.
    """
    try:
        code = main()
    except Exception:  # a defect of this program
        traceback.print_exc()
        code = 1
    if "confluent_kafka" in sys.modules:
        for stream in (sys.stdout, sys.stderr):
            try:
                if stream is not None and not stream.closed:
                    stream.flush()
            except OSError:  # the reader of a pipe has ended, or a disk is full
                code = code or 1
        os._exit(code)
    sys.exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        name, rest = _split_command(arguments)
        return COMMANDS[name](rest)
    except FomoError as error:
        print(f"fomo-stream: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # as of `fomo-stream group | head`
        sys.stderr.close()
        return 141


def run(argv: Sequence[str]) -> int:
    """Score a topic until SIGTERM or Ctrl-C."""
    settings = _settings(ServiceSettings, argv, "run")
    signals = Signals()
    limit_threads(settings.threads)
    sys.setswitchinterval(SWITCH_S)
    from fomo_stream.kafka.service import Service  # torch and confluent_kafka
    from fomo_stream.ops.monitor import Monitor

    monitor = Monitor(settings)
    service = Service(settings, observer=monitor)
    signals.attach(service)
    with monitor.serve(service):
        service.run()
    return 0


def demo(argv: Sequence[str]) -> int:
    """Run the demonstration."""
    settings = _settings(DemoSettings, argv, "demo")
    limit_threads(settings.threads)
    from fomo_stream.demo.demo import run_demo

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    return run_demo(settings)


def score(argv: Sequence[str]) -> int:
    """Score a file or standard input."""
    settings = _settings(ScoreSettings, argv, "score")
    limit_threads(settings.threads)
    from fomo_stream.cli.score import run_score

    return run_score(settings)


def replay(argv: Sequence[str]) -> int:
    """Replay a topic or a file, and report."""
    settings = _settings(ReplaySettings, argv, "replay")
    limit_threads(1)  # until the replay begins, with the threads that the group has agreed on
    from fomo_stream.replaying.command import run_replay

    return run_replay(settings)


def compare(argv: Sequence[str]) -> int:
    """Compare two replays."""
    settings = _settings(CompareSettings, argv, "compare")
    from fomo_stream.replaying.comparison import compare_files

    print(compare_files(settings.before, settings.after))
    return 0


def redrive(argv: Sequence[str]) -> int:
    """Send dead letters back."""
    settings = _settings(RedriveSettings, argv, "redrive")
    from fomo_stream.admin.redrive import redrive as send_back

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: an open transaction is aborted
    print(send_back(settings))
    return 0


def group(argv: Sequence[str]) -> int:
    """Show a group, or change its agreement."""
    settings = _settings(GroupSettings, argv, "group")
    from fomo_stream.admin.group import check_group, look_at_group, update_group

    action = check_group if settings.check else update_group if settings.update_group else look_at_group
    with quiet_clients():
        print(action(settings))
    return 0


def doctor(argv: Sequence[str]) -> int:
    """Check a deployment; the exit code is that of the first problem."""
    settings = _settings(DoctorSettings, argv, "doctor")
    from fomo_stream.admin.doctor import examine

    with quiet_clients():
        text, code = examine(settings)
    print(text)
    return code


def _settings(cls: type[AnySettings], argv: Sequence[str], command: str) -> AnySettings:
    """The settings of a command; from now on it logs as they say."""
    settings = parse(cls, argv, INTROS[command], "" if command == "run" else command)
    configure_logging(settings.log_level)
    return settings


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    command.__name__: command for command in (run, demo, score, replay, compare, redrive, group, doctor)
}


def _split_command(arguments: list[str]) -> tuple[str, list[str]]:
    if not arguments or arguments[0].startswith("-"):
        return "run", arguments
    if arguments[0] not in COMMANDS:
        name = arguments[0]
        hint = did_you_mean(name, COMMANDS) or f"; commands are {', '.join(COMMANDS)}"
        if "." in name or os.path.isfile(name):
            hint = f"; to score a file: fomo-stream score {name}"
        raise ConfigError(f"there is no command {name}{hint}")
    return arguments[0], arguments[1:]
