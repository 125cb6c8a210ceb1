"""Command-line arguments to settings. The flags are built from the settings classes, so each is described once."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any, NoReturn

from fomo_stream import __version__
from fomo_stream.errors import ConfigError
from fomo_stream.settings.sources import AnySettings, BaseFlags, extra_of, load, option
from fomo_stream.wording import did_you_mean

KAFKA_FLAG = "--kafka."
GROUP_ORDER = (
    "Demo",
    "Input",
    "Output",
    "Labels",
    "Detectors",
    "Report",
    "Topics",
    "Delivery",
    "Broker",
    "Records",
    "Detector",
    "Throughput",
    "General",
)

INTROS = {
    "run": """Find outliers in a Kafka topic: score every record, without labels, training or tuning.

  fomo-stream --topic sensors --out anomalies     score a topic (the command name `run` may be left out)
  fomo-stream demo                                watch it work: embedded broker, simulated sensors
  fomo-stream score data.csv                      score a file or a pipe, without Kafka
  fomo-stream replay --topic sensors --last 7d    see how well it would have done on past records
  fomo-stream compare before.json after.json      say what changed between two replays
  fomo-stream redrive --dead-letters TOPIC        send dead letters back, after a fix
  fomo-stream doctor --topic sensors              check brokers, topics, permissions and settings
  fomo-stream group --topic sensors               show the group: settings, members, lag, state

Records are JSON objects; their numbers and booleans are the features. Each record is written to the output
topic with its key, headers and timestamp, and with its result in the field `fomo`. Each is scored exactly
once, even if processes are killed. Ctrl-C or SIGTERM stops the service cleanly.""",
    "demo": """Watch fomo-stream score a simulated sensor stream with injected faults, live in the terminal.

It starts an embedded broker in memory, sends sensor records to it in real time, and runs the same service
on them. The embedded broker has no transactions, so delivery is at least once. Nothing is downloaded.
Ctrl-C ends it.""",
    "score": """Score CSV or JSON lines, from a file or a pipe, without Kafka.

Each row is scored against the rows before it, then learned. With --context FILE, each row is scored against
the rows of that file only. Lines that are not records stay in their place, with a status.

  fomo-stream score data.csv -o scored.csv
  fomo-stream score data.csv --outliers-only             only the outliers, with the features that make them odd
  cat data.jsonl | fomo-stream score - | head""",
    "redrive": """Send dead letters back to the topics that they came from, after a fix.

  fomo-stream redrive --dead-letters sensors-dead-letters --dry-run     count them by reason
  fomo-stream redrive --dead-letters sensors-dead-letters               send all
  fomo-stream redrive --dead-letters sensors-dead-letters --reason not_json,too_large

Each goes back with its key, value, headers, timestamp and partition. Each is sent only once, even if the
command runs again or with other reasons, and stays in the topic of dead letters. A record that was cut to
fit that topic cannot be sent back.""",
    "group": """Show what a group has agreed on, its members, and the lag and the state of its partitions.

  fomo-stream group --topic sensors                                look; nothing is changed
  fomo-stream group --topic sensors --alerts pages --update-group  change what may change
  fomo-stream group --config fomo.toml --check                     would an instance be refused?

It takes all flags of the service, so give it the same environment and --config file as an instance. It shows
which settings differ here. With --update-group it changes those that are given and may change, while the
group has no members; the others stay as they are.""",
    "doctor": """Check a deployment and say what to do: brokers, replicas, permissions, topics, transactions, settings.

  fomo-stream doctor --topic sensors --config fomo.toml

It takes all flags of the service, so give it the same environment and --config file as an instance. It changes
nothing and reads no values of records. It exits with 0 if there is no problem; warnings are no problems.""",
    "replay": """Replay past records, and see how well fomo-stream would have done: an HTML report, and a summary here.

  fomo-stream replay --topic sensors --last 7d
  fomo-stream replay --topic sensors --group fomo-stream --from 2026-10-01 --to 2026-11-01 --label is_anomaly
  fomo-stream replay --file rows.csv --label is_anomaly --compare knn,river.HalfSpaceTrees

Records go through the same detector as in the service, in their order. The offsets and the state of a group are
never touched. With --group, the settings and features are those that the group has agreed on. It takes
all flags of the service, so it can be given the same environment and --config file; what only a running service
needs is ignored. Ctrl-C ends it with a report of what was replayed.""",
    "compare": """Compare two replays: what changed, and whether by more than chance.

  fomo-stream compare before.json after.json      files that `fomo-stream replay --json FILE` has written""",
}

EPILOG = """Each flag can also be set by an environment variable (FOMO_BATCH_SIZE for --batch-size) or in the TOML file
of --config (batch-size = 64). Flags win over the environment, and the environment wins over the file."""


def parse(cls: type[AnySettings], argv: Sequence[str], intro: str = "", command: str = "") -> AnySettings:
    """Settings of type `cls` from command-line arguments. Raises ConfigError, naming the mistake.

    intro: text at the top of `--help`; command: as typed, empty for `run`.

    >>> from fomo_stream.settings.service import ServiceSettings
    >>> parse(ServiceSettings, ["--topic", "sensors", "--batch-size=32"]).batch_size
    32
    """
    parser = build_parser(cls, intro, command)
    kafka, rest = _take_kafka(argv) if "kafka" in cls.model_fields else ({}, list(argv))
    known, unknown = parser.parse_known_args(rest)
    if unknown:
        word = unknown[0].split("=", 1)[0] if unknown[0].startswith("-") else unknown[0]
        if not word.startswith("-"):
            names = ["--file"] if os.path.isfile(word) else ["--topic", "--file"]
            meant = " or ".join(f"{name} {word}" for name in names if name in parser._option_string_actions)
            hint = f"; did you mean {meant}?" if meant else ""
            raise ConfigError(f"unexpected argument {word}{hint}; see --help")
        raise ConfigError(f"there is no flag {word}{did_you_mean(word, parser._option_string_actions)}; see --help")
    flags = vars(known)
    if kafka:
        flags["kafka"] = kafka
    return load(cls, flags)


def build_parser(cls: type[BaseFlags], intro: str = "", command: str = "") -> argparse.ArgumentParser:
    """A parser with one flag per field of `cls`, in the group that the field names."""
    parser = _Parser(
        prog=f"fomo-stream {command}".strip(),
        usage=f"fomo-stream {command + ' ' if command else ''}[FLAGS]"
        + "".join(f" {name.upper()}" for name, field in cls.model_fields.items() if extra_of(field).get("positional")),
        description=intro,
        epilog=EPILOG,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=34, width=110),
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        add_help=False,
    )
    groups = {name: parser.add_argument_group(name) for name in GROUP_ORDER}
    for name, field in cls.model_fields.items():
        extra = extra_of(field)
        text = _help_text(field)
        metavar = str(extra.get("metavar") or name.upper())
        if extra.get("positional"):
            parser.add_argument(name, metavar=name.upper(), nargs="?", help=text)
            continue
        group = groups[str(extra["group"])]
        if name == "kafka":
            group.add_argument(f"{KAFKA_FLAG}KEY", metavar=metavar, dest="kafka", help=text)
        elif field.annotation is bool:
            group.add_argument(option(name), action=argparse.BooleanOptionalAction, help=text)
        elif extra.get("words"):
            group.add_argument(option(name), dest=name, nargs="+", action="extend", metavar=metavar, help=text)
        else:
            metavar = choices_of(field.annotation) or metavar
            names = filter(None, (str(extra.get("short", "")), option(name)))
            group.add_argument(*names, dest=name, metavar=metavar, help=text)
    groups["General"].add_argument(
        "--version", action="version", version=f"fomo-stream {__version__}", help="print the version"
    )
    groups["General"].add_argument("-h", "--help", action="help", help="print this text")
    return parser


class _Parser(argparse.ArgumentParser):
    """Raises ConfigError instead of printing the usage, so that every mistake is reported in one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.replace("argument ", "", 1) if message.startswith("argument ") else message)


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
    if field.is_required():
        note = " (required)"
    elif field.default is False or field.default in (None, "", {}, ()):
        note = ""
    else:
        value = ",".join(field.default) if isinstance(field.default, tuple) else field.default
        note = f" (default: {value})"
    return f"{field.description}{note}".replace("%", "%%")


def choices_of(annotation: Any) -> str:
    """`{a,b}` for a Literal, else nothing."""
    values = getattr(annotation, "__args__", ())
    return "{" + ",".join(values) + "}" if values and all(isinstance(value, str) for value in values) else ""
