"""Turns command-line arguments into settings. The flags are built from the settings classes, which describe them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from fomo_stream import __version__
from fomo_stream.errors import ConfigError
from fomo_stream.settings.removed import RENAMED
from fomo_stream.settings.sources import TABLES, AnySettings, BaseFlags, extra_of, load, option, suggestion_for

GROUP_ORDER = (
    *("Demo", "Input", "Output", "Labels", "Detectors", "Report", "Targets", "Messages"),
    *("Topics", "Delivery", "Broker"),
    *("Records", "Alerts", "Schemas", "Detector", "Throughput", "General"),
)

EPILOG = """Each flag can also be set by an environment variable (FOMO_BATCH_SIZE for --batch-size) or in the YAML or
TOML file of --config (batch-size: 64), which can also have rules and windows of maintenance. Flags win over the
environment, and the environment wins over the file."""


def parse(cls: type[AnySettings], argv: Sequence[str], intro: str = "", command: str = "") -> AnySettings:
    """Return settings of type `cls` from command-line arguments. Raises ConfigError, which names the mistake.

    intro: text at the top of `--help`; command: its name, empty for `run`.

    >>> from fomo_stream.settings.service_settings import ServiceSettings
    >>> parse(ServiceSettings, ["--topic", "sensors", "--batch-size=32"]).batch_size
    32
    """
    return load(cls, parse_flags(cls, argv, intro, command))


def parse_flags(cls: type[BaseFlags], argv: Sequence[str], intro: str = "", command: str = "") -> dict[str, Any]:
    """Return the values of flags as they were written, by the fields of `cls`. Raises ConfigError."""
    parser = build_parser(cls, intro, command)
    tables, rest = _take_tables(argv, [name for name in TABLES if name in cls.model_fields])
    parsed, unknown = parser.parse_known_args(rest)
    if unknown:
        word = unknown[0].split("=", 1)[0] if unknown[0].startswith("-") else unknown[0]
        if not word.startswith("-"):
            suggestions = [f"{name} {word}" for name in ("--topic", "--file") if name in parser._option_string_actions]
            hint = f"; did you mean {' or '.join(suggestions)}?" if suggestions else ""
            raise ConfigError(f"unexpected argument {word}{hint}; see --help")
        raise ConfigError(f"there is no flag {word}{suggestion_for(word, parser._option_string_actions)}; see --help")
    flags = vars(parsed)
    for name, table in tables.items():
        flags[name] = {"url": flags[name], **table} if name in flags else table
    return flags


def build_parser(cls: type[BaseFlags], intro: str = "", command: str = "") -> argparse.ArgumentParser:
    """Return a parser with one flag per field of `cls`, in the group that the field names."""
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
        if extra.get("table"):
            continue
        group = groups[str(extra["group"])]
        if name == "kafka":
            group.add_argument("--kafka.KEY", metavar=metavar, dest="kafka", help=text)
        elif field.annotation is bool:
            group.add_argument(option(name), dest=name, action=argparse.BooleanOptionalAction, help=text)
        elif extra.get("words"):
            group.add_argument(option(name), dest=name, nargs="+", action="extend", metavar=metavar, help=text)
        elif extra.get("repeated"):
            group.add_argument(option(name), dest=name, action="append", metavar=metavar, help=text)
        else:
            metavar = choices_of(field.annotation) or metavar
            names = filter(None, (str(extra.get("short", "")), option(name)))
            group.add_argument(*names, dest=name, metavar=metavar, help=text)
    for old, new in RENAMED.items():
        if new in cls.model_fields:
            parser.add_argument(option(old), dest=old, help=argparse.SUPPRESS)
    version, general = f"fomo-stream {__version__}", groups["General"]
    general.add_argument("--version", action="version", version=version, help="print the version")
    general.add_argument("-h", "--help", action="help", help="print this text")
    return parser


class _Parser(argparse.ArgumentParser):
    """Raises ConfigError instead of printing the usage, so that every mistake is reported in one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.replace("argument ", "", 1) if message.startswith("argument ") else message)


def _take_tables(argv: Sequence[str], names: Sequence[str]) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Separate `--kafka.KEY=VALUE`, `--kafka.KEY VALUE`, and those of other tables, from the other arguments."""
    tables: dict[str, dict[str, str]] = {}
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        name = next((name for name in names if word.startswith(f"--{name}.")), None)
        if name is None:
            rest.append(word)
            continue
        key, equals, value = word.removeprefix(f"--{name}.").partition("=")
        following = value if equals else next(words, None)
        if following is None:
            raise ConfigError(f"{word} needs a value: {word}=VALUE")
        tables.setdefault(name, {})[key] = following
    return tables, rest


def _help_text(field: Any) -> str:
    if field.is_required():
        note = " (required)"
    elif field.default is False or field.default in (None, "", {}, ()) or " (default: " in field.description:
        note = ""
    else:
        value = ",".join(field.default) if isinstance(field.default, tuple) else field.default
        note = f" (default: {value})"
    return f"{field.description}{note}".replace("%", "%%")


def choices_of(annotation: Any) -> str:
    """Return `{a,b}` for a Literal, else an empty text."""
    values = getattr(annotation, "__args__", ())
    return "{" + ",".join(values) + "}" if values and all(isinstance(value, str) for value in values) else ""
