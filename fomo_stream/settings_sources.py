"""Where settings come from: flags, environment and configuration file; and what is said of mistakes in them.

This module is the only reader of the environment and of configuration files.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from fomo_stream.errors import ConfigError

ENV_PREFIX = "FOMO_"
KAFKA_ENV_PREFIX = "FOMO_KAFKA_"


def flag(group: str, default: Any, text: str, *, metavar: str = "", **constraints: Any) -> Any:
    """A setting with its place in `--help`, its default and its one-line description."""
    return Field(default, description=text, json_schema_extra={"group": group, "metavar": metavar}, **constraints)


class BaseFlags(BaseSettings):
    """What every command shares: where settings come from and how much is logged."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", env_ignore_empty=True)

    config: Path | None = flag("General", None, "TOML file with settings, named like the flags", metavar="FILE")
    log_level: Literal["debug", "info", "warning", "error"] = flag("General", "info", "least severe line to log")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order of precedence, highest first: flags, environment, file."""
        sources = [init_settings, env_settings]
        if "kafka" in cls.model_fields:
            sources.append(InitSettingsSource(settings_cls, _kafka_environment(os.environ)))
        path = init_settings().get("config") or os.environ.get(f"{ENV_PREFIX}CONFIG")
        if path:
            sources.append(InitSettingsSource(settings_cls, _read_file(Path(path), cls.model_fields)))
        return tuple(sources)


AnySettings = TypeVar("AnySettings", bound=BaseFlags)


def load(cls: type[AnySettings], flags: Mapping[str, Any]) -> AnySettings:
    """Settings from `flags`, environment and configuration file; a `ConfigError` says what is wrong."""
    try:
        return cls(**flags)
    except ValidationError as error:
        problems = [_explain(cls, item, flags) for item in error.errors()]
        raise ConfigError("; ".join(dict.fromkeys(problems))) from None
    except SettingsError:  # a table in the environment is no JSON; its text may hold secrets
        raise ConfigError(
            f"{ENV_PREFIX}KAFKA is no JSON object; use {KAFKA_ENV_PREFIX}SASL_PASSWORD and so on"
        ) from None


def option(name: str) -> str:
    """The flag of a setting: `batch_size` -> `--batch-size`."""
    return "--" + name.replace("_", "-")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?` when something known resembles `word`, else nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _explain(cls: type[BaseFlags], error: Any, flags: Mapping[str, Any]) -> str:
    """One line for one validation error: where the value came from, what it is, what is wrong with it."""
    message = error["msg"].removeprefix("Value error, ")
    if not error["loc"]:
        return str(message)
    name = str(error["loc"][0])
    if error["type"] == "missing":
        text = cls.model_fields[name].description if name in cls.model_fields else ""
        also = f"{ENV_PREFIX}{name.upper()} or a line in the --config file"
        return f"{option(name)} is needed ({text}); it can also be {also}"
    where = option(name)
    if name not in flags:
        variable = f"{ENV_PREFIX}{name.upper()}"
        where = variable if variable in os.environ else f"{name.replace('_', '-')} in the configuration file"
    shown = "" if name == "kafka" or isinstance(error["input"], dict) else f" {error['input']}"
    return f"{where}{shown}: {message[0].lower()}{message[1:]}"


def _read_file(path: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Settings from a TOML file; dashes and underscores in names are the same."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"--config {path}: cannot be read as TOML: {reason}") from None
    values = {key.replace("-", "_"): value for key, value in content.items()}
    for key in values:
        if key not in fields or key == "config":
            names = [name.replace("_", "-") for name in fields]
            shown = key.replace("_", "-")
            raise ConfigError(f"--config {path}: there is no setting {shown}{did_you_mean(shown, names)}")
    return values


def _kafka_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """`FOMO_KAFKA_SASL_PASSWORD=x` -> `{"kafka": {"sasl.password": "x"}}`, so that secrets need no flag."""
    found = {
        name.removeprefix(KAFKA_ENV_PREFIX).lower().replace("_", "."): value
        for name, value in environment.items()
        if name.startswith(KAFKA_ENV_PREFIX)
    }
    return {"kafka": found} if found else {}


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested tables to dotted keys, values as librdkafka reads them (`true`, `10`, `text`)."""
    flat: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = str(value).lower() if isinstance(value, bool) else str(value)
    return flat
