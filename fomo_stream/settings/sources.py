"""Reads settings from flags, environment and configuration file, and explains mistakes in them.

This module is the only reader of configuration files and of the variables FOMO_*.
"""

from __future__ import annotations

import os
import re
import shlex
import warnings
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_args

from pydantic import Field, PrivateAttr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from fomo_stream.errors import ConfigError, FomoWarning
from fomo_stream.settings.config_file import at_line, read_config
from fomo_stream.settings.removed import RENAMED, replacement_hint
from fomo_stream.wording import did_you_mean

ENV_PREFIX = "FOMO_"
TABLES = ("kafka", "registry")  # settings of clients: each is a table of the client's own settings
PLACEHOLDER = "{topic}"  # in names of topics and groups
SECTIONS = "topics"  # the table of the configuration file with a section for each topic
# Not in such a section.
OF_PROCESS = ("topic", "log_level", "health_port", "http_host", "show_keys", "otlp", "threads", "processes", "wait")

# Kubernetes sets such variables in every pod for each Service; these are of a Service whose name begins with `fomo`.
_SERVICE_VARIABLE = re.compile(
    r"FOMO_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)

LogLevel = Literal["debug", "info", "warning", "error"]
# What a setting of the service or of a replay affects. All instances of a group agree on the first three.
# state: the stored state of the group; a change needs --reset-state. group: results; it can change while the group has
# no members. outputs: like group, but only what is written, and where. scores: results of the instance that has it.
# running: no result. "": a setting of another command.
Effect = Literal["state", "group", "outputs", "scores", "running", ""]
AGREED: tuple[Effect, ...] = ("state", "group", "outputs")


def flag(
    group: str,
    default: Any,
    *,
    affects: Effect = "",
    metavar: str = "",
    words: bool = False,
    short: str = "",
    table: bool = False,
    repeated: bool = False,
    decides: tuple[str, ...] = (),
    **constraints: Any,
) -> Any:
    """Declare a setting with its group in `--help` and its default (`...`: required). The text below describes it.

    affects: what it affects; every list of settings by effect derives from it. decides: other settings of the agreement
    that depend on it. words: takes several words. repeated: may be given several times. short: a second name, such as
    -o. table: has no flag, but tables in the configuration file.
    """
    extra: Any = {
        "group": group,
        "affects": affects,
        "metavar": metavar,
        "words": words,
        "short": short,
        "table": table,
    }
    extra |= {"repeated": repeated, "decides": decides}
    return Field(default, json_schema_extra=extra, **constraints)


def suggestion_for(name: str, candidates: Iterable[str]) -> str:
    """Return a hint what to write instead of an unknown setting."""
    field = name.strip("-").replace("-", "_")
    others = [cls for cls in _commands() if field in (name.strip("_") for name in flags_of(cls))]
    commands = ", ".join(cls.__name__.removesuffix("Settings").lower().replace("service", "run") for cls in others)
    return replacement_hint(name) or (f": it is a flag of {commands}" if others else did_you_mean(name, candidates))


def flags_of(cls: type[BaseFlags]) -> list[str]:
    """Return the fields that have a flag: neither tables of the configuration file nor positional arguments."""
    about = {name: extra_of(field) for name, field in cls.model_fields.items()}
    return [name for name, extra in about.items() if not (extra.get("table") or extra.get("positional"))]


def with_default(cls: type[BaseFlags], name: str, default: Any, text: str = "") -> Any:
    """Return a setting of `cls` for another command, with another default and optionally another text."""
    field = copy(cls.model_fields[name])
    field.default, field.description = default, text or field.description
    return field


def settings_that_affect(cls: type[BaseFlags], *effects: Effect) -> tuple[str, ...]:
    """Return the settings that affect one of these, as names of fields, in the order of the flags."""
    return tuple(name for name, field in cls.model_fields.items() if extra_of(field).get("affects") in effects)


def settings_of_group(cls: type[BaseFlags], *groups: str) -> tuple[str, ...]:
    """Return the settings in these groups of `--help`, as names of fields, in the order of the flags."""
    return tuple(name for name, field in cls.model_fields.items() if extra_of(field).get("group") in groups)


def extra_of(field: FieldInfo) -> dict[str, Any]:
    """Return what `flag` has noted about a setting."""
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


class BaseFlags(BaseSettings):
    """The settings of every command: the configuration file and the log level."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, extra="forbid", env_ignore_empty=True, use_attribute_docstrings=True
    )

    has_sections: ClassVar[bool] = True  # whether the section of the topic counts

    _flags: Mapping[str, Any] = PrivateAttr({})  # those that `load` got
    _defaults: Mapping[str, Any] = PrivateAttr({})  # those for settings that nobody gave

    config: Path | None = flag("General", None, metavar="FILE", affects="running")
    """YAML or TOML file with settings, named like the flags"""
    log_level: LogLevel = flag("General", "warning", affects="running")
    """log lines of this level and of the levels above it"""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        for field in cls.model_fields.values():  # a text may have several lines
            field.description = " ".join((field.description or "").split())

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources in their order of precedence, highest first: flags, environment, file."""
        # Fields such as `from_`, whose names are words of Python without the underscore.
        words = {name: _variables().get(ENV_PREFIX + name[:-1].upper()) for name in cls.model_fields if name[-1] == "_"}

        tables = {name: table for name in TABLES if name in cls.model_fields and (table := _environment_table(name))}
        variables = {name: value for name, value in env_settings().items() if _variable(name) in _variables()}
        contents = [_with_registry_table(values) for values in (init_settings(), variables, tables)]
        contents.append({name: value for name, value in words.items() if value})
        earlier = {old: _variables().get(_variable(old)) for old, new in RENAMED.items() if new in cls.model_fields}
        contents.append(_with_present_names({old: value for old, value in earlier.items() if value}, _variable))
        sources: list[PydanticBaseSettingsSource] = [InitSettingsSource(settings_cls, values) for values in contents]
        path = init_settings().get("config") or _variables().get(f"{ENV_PREFIX}CONFIG")
        if path:
            topic = init_settings().get("topic") or _variables().get(f"{ENV_PREFIX}TOPIC")
            contents = [_with_registry_table(values) for values in _read_file(Path(path), cls, topic)]
            if init_settings().get("file") is not None:  # a named file is read instead of the topic
                for content in contents:
                    content.pop("topic", None)
            sources += [InitSettingsSource(settings_cls, content) for content in contents]
        return tuple(sources)


AnySettings = TypeVar("AnySettings", bound=BaseFlags)


def load(cls: type[AnySettings], flags: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> AnySettings:
    """Load settings from `flags`, environment and configuration file. Raises ConfigError, which names each mistake.

    defaults: of settings that none of these has, where they differ from those of the class.
    """
    _check_environment()
    flags = _with_present_names(flags, option)
    try:
        settings = cls(**flags)
        if missing := (defaults or {}).keys() & (cls.model_fields.keys() - settings.model_fields_set):
            settings = cls(**flags, **{name: (defaults or {})[name] for name in missing})
        settings._flags, settings._defaults = dict(flags), dict(defaults or {})
        return settings
    except ValidationError as error:
        problems = [_explain(cls, item, flags) for item in error.errors()]
        raise ConfigError("; ".join(dict.fromkeys(problems))) from None
    except SettingsError:  # a table in the environment is not JSON; its text may hold secrets
        raise ConfigError(
            f"{ENV_PREFIX}KAFKA is not a JSON object; use {ENV_PREFIX}KAFKA_SASL_PASSWORD and so on"
        ) from None


def reload_settings(settings: AnySettings) -> AnySettings:
    """Load the settings again, from the same flags and the present environment and file. Raises ConfigError."""
    return load(type(settings), settings._flags, settings._defaults)


def settings_as(cls: type[AnySettings], settings: BaseFlags) -> AnySettings:
    """Load the settings of another command from the same flags, environment and file. Raises ConfigError."""
    flags = {name: value for name, value in settings._flags.items() if name in cls.model_fields}
    return load(cls, flags, settings._defaults)


def files_of(settings: BaseFlags) -> tuple[Path, ...]:
    """Return the files that the settings are read from, which can change while a service runs."""
    return tuple(path for path in (settings.config, getattr(settings, "calendar", None)) if path is not None)


def option(name: str) -> str:
    """Return the flag of a setting: `batch_size` -> `--batch-size`, `from_` (`from` is a keyword) -> `--from`."""
    return "--" + name.strip("_").replace("_", "-")


def _variable(name: str) -> str:
    """Return the environment variable of a setting: `batch_size` -> `FOMO_BATCH_SIZE`."""
    return f"{ENV_PREFIX}{name.strip('_').upper()}"


def _with_present_names(values: Mapping[str, Any], shown: Callable[[str], str], where: str = "") -> dict[str, Any]:
    """Return the values of settings; an earlier name becomes the present one, with a FomoWarning.

    shown: returns how the user writes a setting here.
    """
    earlier = {old: new for old, new in RENAMED.items() if old in values}
    for old, new in earlier.items():
        message = f"{shown(old)}{where} is called {shown(new)} now, and the next release refuses the old name"
        warnings.warn(message, FomoWarning, stacklevel=2)
    present = {name: value for name, value in values.items() if name not in earlier}
    return {new: values[old] for old, new in earlier.items()} | present


def command_line(settings: BaseFlags, command: str, **changes: Any) -> str:
    """Return the command line with the flags that these settings were loaded with, and changes; secrets as ***."""
    return f"fomo-stream {command} {flags_text(type(settings), {**settings._flags, **changes})}".rstrip()


def flags_text(cls: type[BaseFlags], values: Mapping[str, Any]) -> str:
    """Return the flags that give these settings these values, for a shell; secrets as ***."""
    words = list[str]()
    for name, value in values.items():
        field, flag = cls.model_fields[name], option(name)
        if isinstance(value, dict):
            words += [f"{flag}.{key}=***" for key in value]
        elif isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif extra_of(field).get("repeated") and field.repr:
            words += [word for element in value for word in (flag, element)]
        elif extra_of(field).get("words"):
            words += [flag, *value]
        else:
            quoted = (f'"{name}"' if "," in name else name for name in value) if isinstance(value, tuple) else ()
            text = "***" if not field.repr else ",".join(quoted) or str(value)
            words += [f"{flag}={text}"] if text.startswith("-") else [flag, text]
    return shlex.join(words)


def _variables() -> dict[str, str]:
    """Return the environment variables that may be settings, with names in capitals: case does not matter."""
    variables = {name.upper(): value for name, value in os.environ.items() if not _SERVICE_VARIABLE.fullmatch(name)}
    addresses = {name for name, value in variables.items() if name.endswith("_PORT") and "://" in value}
    return {name: value for name, value in variables.items() if name.startswith(ENV_PREFIX) and name not in addresses}


def _check_environment() -> None:
    """Raise ConfigError for variables that look like settings but are not settings of any command.

    The message does not show their values.
    """
    settings, tables = set(map(str.upper, _all_settings() | {*RENAMED})), tuple(f"{name.upper()}_" for name in TABLES)
    words = [name.removeprefix(ENV_PREFIX) for name in _variables()]
    problems = [
        f"unknown setting {ENV_PREFIX}{word}{replacement_hint(word) or did_you_mean(word, settings, ENV_PREFIX)}"
        for word in words
        if word not in settings and not word.startswith(tables)
    ]
    if problems:
        raise ConfigError("; ".join(problems) + "; see --help for all, and correct the environment")


MAX_SHOWN_CHARACTERS = 100  # characters of a value that is refused


def _explain(cls: type[BaseFlags], error: Any, flags: Mapping[str, Any]) -> str:
    """Return one line for one validation error: the source of the value, the value, and the mistake."""
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "tuple_type":
        message = "write a list, or one text with commas"
    path = flags.get("config") or _variables().get(f"{ENV_PREFIX}CONFIG")
    if path and error["loc"] and extra_of(cls.model_fields[str(error["loc"][0])]).get("table"):
        return _explain_table(cls, error, message, Path(path), flags)
    if not error["loc"]:
        return str(message)
    name = str(error["loc"][0])
    variables = [_variable(name), *(_variable(old) for old, new in RENAMED.items() if new == name)]
    if error["type"] == "missing":
        field = cls.model_fields[name]
        shown = name.upper() if extra_of(field).get("positional") else option(name)
        return (
            f"{shown} is required ({field.description}); it can also be set by {variables[0]} or in the --config file"
        )
    where = option(name)
    if name not in flags:
        in_file = f"{_place_in_file(Path(path), [name], flags)}: {option(name)[2:]}" if path else where
        where = next((variable for variable in variables if variable in _variables()), in_file)
    is_secret = not cls.model_fields[name].repr
    value = ",".join(map(str, error["input"])) if isinstance(error["input"], list) else error["input"]
    shown = "" if is_secret or isinstance(value, dict) else f" {str(value)[:MAX_SHOWN_CHARACTERS]}"
    first = message[0] if message[1:2].isupper() else message[0].lower()  # a text of the user stays unchanged
    return f"{where}{shown}: {first}{message[1:]}"


def _explain_table(cls: type[BaseFlags], error: Any, message: str, path: Path, flags: Mapping[str, Any]) -> str:
    """Return one line for an error in a table of the configuration file: its line, its field, and a near match."""
    place = [part for part in error["loc"] if not str(part).startswith("function")]
    name, hint = str(place[-1]).replace("_", "-"), ""
    if error["type"] == "missing":
        message = "it is required"
    elif error["type"] == "extra_forbidden":
        table = get_args(cls.model_fields[str(place[0])].annotation)[0]
        names = [(field.alias or key).replace("_", "-") for key, field in table.model_fields.items()]
        message, hint = "unknown field", did_you_mean(name, names) or f"; fields are {', '.join(names)}"
    elif error["type"] == "literal_error":
        choices = re.findall(r"'([^']+)'", str(error["ctx"]["expected"]))
        message = f"{str(error['input'])[:60]!r} is not one of {', '.join(choices)}"
        hint = did_you_mean(str(error["input"]), choices)
    shown = "".join(f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    shown = shown.replace("_", "-").replace("from-", "from")
    return f"{_place_in_file(path, place, flags)}: {shown}: {message[0].lower()}{message[1:]}{hint}"


def _place_in_file(path: Path, place: list[Any], flags: Mapping[str, Any]) -> str:
    """Return the file and the line of a value for the topic of these flags: its section may have one of its own."""
    content = read_config(path)
    sections: Mapping[str, Any] = content.get(SECTIONS) or {}
    topic = flags.get("topic") or _variables().get(f"{ENV_PREFIX}TOPIC") or content.get("topic", ",".join(sections))
    section = _section_of(sections, str(topic))
    if section is not None and option(place[0]) in map(option, sections[section] or ()):
        place = [SECTIONS, section, *place]
    return f"--config {path}{at_line(path, place)}"


def _read_file(path: Path, cls: type[BaseFlags], topic: str | None) -> list[dict[str, Any]]:
    """Return the settings of the configuration file: those in the section of `topic`, if it has one, and the others.

    topic: None: the file names it, or else it is the list of all topics that have a section. Raises ConfigError.
    """
    content, fields = read_config(path), cls.model_fields
    sections = content.pop(SECTIONS, None)
    shared = _named_settings(path, content, fields, ())
    if sections is None or "topic" not in fields:
        return [shared]
    tables = sections.items() if isinstance(sections, dict) else []
    if not tables or not all(isinstance(table, dict | None) and _is_section(name) for name, table in tables):
        example = "`topics: {sensors: {key: machine}}`"
        raise ConfigError(f"--config {path}{at_line(path, (SECTIONS,))}: {SECTIONS} needs settings by topic: {example}")
    shared.setdefault("topic", ",".join(sections))
    try:
        section = _section_of(sections, str(topic or shared["topic"]))
    except re.error as error:
        text = f"{SECTIONS} has an invalid pattern, {error.pattern!r}: {error}"
        raise ConfigError(f"--config {path}{at_line(path, (SECTIONS, str(error.pattern)))}: {text}") from None
    named = {name: _named_settings(path, table or {}, fields, (SECTIONS, name)) for name, table in tables}
    return [named.get(section or "", {}), shared] if cls.has_sections else [shared]


def _section_of(sections: Mapping[str, Any], topic: str) -> str | None:
    """Return the name of the section of a topic, or the first pattern that matches it. Raises re.error."""
    patterns = [re.compile(name) for name in sections if name.startswith("^")]
    match = next((pattern.pattern for pattern in patterns if pattern.match(topic)), None)
    return topic if topic in sections else match


def _is_section(name: Any) -> bool:
    return isinstance(name, str) and re.fullmatch(r"\^.*|[a-zA-Z0-9._-]{1,249}", name) is not None


def _named_settings(
    path: Path, content: Mapping[str, Any], fields: Mapping[str, Any], place: tuple[str, ...]
) -> dict[str, Any]:
    """Return the settings of a table by their fields; names may have dashes or underscores. Raises ConfigError.

    place: the names that lead to the table; empty for the whole file.
    """
    names = {option(name)[2:].replace("-", "_"): name for name in fields}  # `from` is `from_`
    values = {names.get(key.replace("-", "_"), key): value for key, value in content.items()}
    if twice := [key for key in content if "_" in key and key.replace("_", "-") in content]:
        raise ConfigError(f"--config {path}{at_line(path, (*place, twice[0]))}: {twice[0]} is there twice, also with -")
    values = _with_present_names(values, lambda name: option(name)[2:], f" in {path}")
    for key in values:
        # one file can serve several commands
        if key == "config" or (key not in fields and key.replace("-", "_") not in _all_settings()):
            hint = suggestion_for(key, [option(name)[2:] for name in fields])
            raise ConfigError(f"--config {path}{at_line(path, (*place, key))}: unknown setting {key}{hint}")
        if place and key in OF_PROCESS:
            name = ".".join((*place, option(key)[2:]))
            raise ConfigError(f"--config {path}{at_line(path, (*place, key))}: {name} is for all topics: move it up")
        if key == "group" and place and place[-1].startswith("^") and PLACEHOLDER not in str(values[key]):
            name = ".".join((*place, key))
            text = f"{name}: each topic needs a group of its own: write {PLACEHOLDER} into its name"
            raise ConfigError(f"--config {path}{at_line(path, (*place, key))}: {text}")
    given = {key: value for key, value in values.items() if key in fields}
    # null: the default, also in a section, where it wins over the setting for all topics
    defaults = {
        key: fields[key].get_default(call_default_factory=True) for key, value in given.items() if value is None
    }
    return given | {key: value for key, value in defaults.items() if not fields[key].is_required()}


def _commands() -> list[type[BaseFlags]]:
    """Return the settings class of each command."""
    classes = []
    for name in ("service_settings", "commands", "replay", "notify"):
        module = import_module(f"{__package__}.{name}")
        classes += [cls for cls in vars(module).values() if isinstance(cls, type) and cls.__module__ == module.__name__]
    return [cls for cls in classes if issubclass(cls, BaseFlags)]


def _all_settings() -> set[str]:
    return {field.strip("_") for cls in _commands() for field in cls.model_fields}


def _with_registry_table(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with the address of a registry as a table, so that other sources can add to it."""
    url = values.get("registry")
    return {**values, "registry": {"url": url}} if isinstance(url, str) else values


def _environment_table(name: str) -> dict[str, str]:
    """Return `FOMO_KAFKA_SASL_PASSWORD=x` as `{"sasl.password": "x"}` (for kafka), so that secrets need no flag."""
    prefix = f"{ENV_PREFIX}{name.upper()}_"
    variables = {key.removeprefix(prefix): value for key, value in _variables().items() if key.startswith(prefix)}
    return {key.lower().replace("_", "."): value for key, value in variables.items()}
