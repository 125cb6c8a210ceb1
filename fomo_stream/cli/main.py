"""The command line: `fomo-stream [run]`, `demo`, `score` and `redrive`.

Flags are built from the settings classes, so that each is described once. Heavy imports happen only once the
flags are known to be good: `--help` and a mistyped flag answer at once.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NoReturn

from fomo_stream import __version__
from fomo_stream.errors import ConfigError, FomoError, ShutdownError
from fomo_stream.logs import configure_logging, kv
from fomo_stream.settings.commands import DemoSettings, RedriveSettings, ScoreSettings
from fomo_stream.settings.service import ServiceSettings
from fomo_stream.settings.sources import AnySettings, BaseFlags, did_you_mean, load, option
from fomo_stream.threads import limit_threads

log = logging.getLogger(__name__)

KAFKA_FLAG = "--kafka."
SHUTDOWN_S = 24.0
GROUP_ORDER = ("Demo", "Topics", "Delivery", "Broker", "Input", "Records", "Detector", "Throughput", "General")

RUN_INTRO = """Score every record of a Kafka topic for outlyingness, with no labels, no training and no
tuning.

  fomo-stream --topic sensors --out anomalies     score a topic (the command name `run` may be left out)
  fomo-stream demo                                watch it work: embedded broker, simulated sensors
  fomo-stream score data.csv                      score a file or a pipe, without Kafka
  fomo-stream redrive --dead-letters TOPIC        send what could not be scored back, after a fix

Records are JSON objects; numbers and booleans in them are the features. Each is written to the output topic
with its key, headers and timestamp, and a result under `fomo`. Each is scored exactly once, whatever is
killed meanwhile; Ctrl-C or SIGTERM stops cleanly."""

DEMO_INTRO = """Watch fomo-stream score a simulated sensor stream with injected faults, live in the terminal.

It starts an embedded broker (in memory; it has no transactions, so delivery is at least once), feeds it
sensor records in real time, and runs the same service against it. Nothing is downloaded. Ctrl-C ends it."""

SCORE_INTRO = """Score CSV or JSON lines, from a file or a pipe, without Kafka.

Each row is scored against the rows before it, then learned; with --context FILE, against that file's rows
alone.

  fomo-stream score data.csv > scored.csv
  cat data.jsonl | fomo-stream score - | head"""

REDRIVE_INTRO = """Send dead letters back to the topics that they came from, after a fix.

  fomo-stream redrive --dead-letters sensors-dead-letters --dry-run     count them by reason
  fomo-stream redrive --dead-letters sensors-dead-letters               send all that are there now
  fomo-stream redrive --dead-letters sensors-dead-letters --reason not_json,too_large

Each goes back with its key, value, headers, timestamp and partition. It is sent once, however often this runs
and whichever reasons are asked for; the topic keeps it. One that was cut to fit its topic cannot be sent."""

EPILOG = """Each flag can also be an environment variable (--batch-size is FOMO_BATCH_SIZE) or a line in the
TOML file given by --config (batch-size = 64). A flag wins over the environment, which wins over the file."""


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing usage, so that every mistake is one clear line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.replace("argument ", "", 1) if message.startswith("argument ") else message)


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
    except BrokenPipeError:  # `fomo-stream score - | head`
        sys.stderr.close()
        return 141


def parse(cls: type[AnySettings], argv: Sequence[str], intro: str = "", command: str = "") -> AnySettings:
    """Settings of type `cls` from command-line arguments; a `ConfigError` says which flag is wrong and how.

    >>> parse(ServiceSettings, ["--topic", "sensors", "--batch-size=32"]).batch_size
    32
    """
    parser = build_parser(cls, intro, command)
    kafka, rest = _take_kafka(argv) if "kafka" in cls.model_fields else ({}, list(argv))
    known, unknown = parser.parse_known_args(rest)
    if unknown:
        word = unknown[0].split("=", 1)[0]
        if not word.startswith("-"):
            raise ConfigError(f"{unknown[0]} is one argument too many; see --help")
        raise ConfigError(f"there is no flag {word}{did_you_mean(word, parser._option_string_actions)}; see --help")
    flags = vars(known)
    if kafka:
        flags["kafka"] = kafka
    return load(cls, flags)


def build_parser(cls: type[BaseFlags], intro: str = "", command: str = "") -> argparse.ArgumentParser:
    """A parser with one flag per field of `cls`, in the groups that the fields name."""
    parser = _Parser(
        prog=f"fomo-stream {command}".strip(),
        usage=f"fomo-stream {command + ' ' if command else ''}[FLAGS]"
        + (" FILE" if "file" in cls.model_fields else ""),
        description=intro,
        epilog=EPILOG,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=34, width=110),
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        add_help=False,
    )
    groups = {name: parser.add_argument_group(name) for name in GROUP_ORDER}
    for name, field in cls.model_fields.items():
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        text = _help_text(field)
        metavar = str(extra.get("metavar") or name.upper())
        if extra.get("positional"):
            parser.add_argument(name, metavar="FILE", nargs="?", help=text)
            continue
        group = groups[str(extra["group"])]
        if name == "kafka":
            group.add_argument(f"{KAFKA_FLAG}KEY", metavar=metavar, dest="kafka", help=text)
        elif field.annotation is bool:
            group.add_argument(option(name), action=argparse.BooleanOptionalAction, help=text)
        else:
            group.add_argument(option(name), metavar=_choices(field.annotation) or metavar, help=text)
    groups["General"].add_argument(
        "--version", action="version", version=f"fomo-stream {__version__}", help="print the version"
    )
    groups["General"].add_argument("-h", "--help", action="help", help="print this text")
    return parser


def run(argv: Sequence[str]) -> int:
    """Score a topic until SIGTERM or Ctrl-C."""
    settings = parse(ServiceSettings, argv, RUN_INTRO)
    configure_logging(settings.log_level)
    limit_threads(settings.threads)
    from fomo_stream.kafka.service import Service  # torch and confluent_kafka
    from fomo_stream.ops.health import HealthServer
    from fomo_stream.ops.progress import ProgressLog

    service = Service(settings, observer=ProgressLog())

    def stop(number: int, _frame: object) -> None:
        log.info(kv("stopping", signal=signal.Signals(number).name))
        end_within(SHUTDOWN_S)
        service.stop()
        signal.signal(number, signal.SIG_DFL)  # a second one ends it at once

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    with ExitStack() as stack:
        if settings.health_port is not None:
            stack.enter_context(HealthServer(settings.health_port, service.not_live, service.not_ready))
        service.run()
    return 0


def end_within(seconds: float) -> None:
    """End this process at the latest after so long, whatever it waits for: some calls of the client know no limit."""

    def cut_short() -> None:
        effect = "what was not committed is read again by the next owner"
        log.error(kv("shutdown_cut_short", after_s=seconds, reason="the broker does not answer", effect=effect))
        os._exit(ShutdownError.exit_code)

    timer = threading.Timer(seconds, cut_short)
    timer.daemon = True
    signal.setitimer(signal.ITIMER_REAL, seconds + 0.5)  # ends even an interpreter that runs no threads any more
    timer.start()


def demo(argv: Sequence[str]) -> int:
    """Run the demonstration."""
    settings = parse(DemoSettings, argv, DEMO_INTRO, "demo")
    configure_logging(settings.log_level)
    limit_threads(settings.threads)
    from fomo_stream.demo.demo import run_demo

    return run_demo(settings)


def score(argv: Sequence[str]) -> int:
    """Score a file or standard input."""
    settings = parse(ScoreSettings, argv, SCORE_INTRO, "score")
    configure_logging(settings.log_level)
    limit_threads(settings.threads)
    from fomo_stream.cli.score import run_score

    return run_score(settings)


def redrive(argv: Sequence[str]) -> int:
    """Send dead letters back."""
    settings = parse(RedriveSettings, argv, REDRIVE_INTRO, "redrive")
    configure_logging(settings.log_level)
    from fomo_stream.kafka.redrive import redrive as send_back

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what is not committed is undone
    print(send_back(settings))
    return 0


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {"run": run, "demo": demo, "score": score, "redrive": redrive}


def _split_command(arguments: list[str]) -> tuple[str, list[str]]:
    if not arguments or arguments[0].startswith("-"):
        return "run", arguments
    if arguments[0] not in COMMANDS:
        hint = did_you_mean(arguments[0], COMMANDS)
        raise ConfigError(f"there is no command {arguments[0]}{hint or '; commands are ' + ', '.join(COMMANDS)}")
    return arguments[0], arguments[1:]


def _take_kafka(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Separate `--kafka.KEY=VALUE` and `--kafka.KEY VALUE` from the other arguments."""
    kafka: dict[str, str] = {}
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        if not word.startswith(KAFKA_FLAG):
            rest.append(word)
            continue
        key, equals, value = word.removeprefix(KAFKA_FLAG).partition("=")
        following = value if equals else next(words, None)
        if following is None:
            raise ConfigError(f"{word} needs a value: {word}=VALUE")
        kafka[key] = following
    return kafka, rest


def _help_text(field: Any) -> str:
    default = field.default
    shown = "" if field.is_required() or default in (None, "", {}, (), False) else f" (default: {default})"
    needed = " (needed)" if field.is_required() else ""
    return f"{field.description}{shown}{needed}".replace("%", "%%")


def _choices(annotation: Any) -> str:
    """`{a,b}` for a Literal, else nothing."""
    values = getattr(annotation, "__args__", ())
    return "{" + ",".join(values) + "}" if values and all(isinstance(value, str) for value in values) else ""
