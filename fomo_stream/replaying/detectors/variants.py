"""Our own detector with other settings, as `--grid` names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

from fomo_stream.errors import ConfigError
from fomo_stream.settings.replay import ReplaySettings
from fomo_stream.settings.sources import load
from fomo_stream.wording import did_you_mean

MAX_VARIANTS = 32  # detectors at the same time
# Settings that can vary while detectors take the same rows.
VARIED = ("alert_rate", "context_size", "min_context", "views", "lags", "admit", "adapt_after", "seed", "model")


def variants(settings: ReplaySettings) -> list[tuple[str, ReplaySettings]]:
    """Return name and settings of each combination of the values in `settings.grid`, in their order.

    A name is, for example, "alert_rate=0.001 context_size=5000". A combination that equals the settings themselves is
    left out. Raises ConfigError, in one sentence, for an unknown name or an invalid value.
    """
    grid = _parse_grid(settings.grid)
    if (count := prod(map(len, grid.values()))) > MAX_VARIANTS:
        raise ConfigError(f"--grid names {count:,} combinations; at most {MAX_VARIANTS} fit in one replay: name fewer")
    made: dict[str, ReplaySettings] = {}
    for combination in product(*grid.values()) if grid else ():
        variant = _with_values(settings, dict(zip(grid, combination, strict=True)))
        if any(getattr(variant, name) != getattr(settings, name) for name in VARIED):
            made.setdefault(" ".join(f"{name}={_value_text(getattr(variant, name))}" for name in grid), variant)
    return list(made.items())


def _parse_grid(words: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of each setting as they are written."""
    grid: dict[str, list[str]] = {}
    for word in " ".join(words).split():
        written, equals, text = word.partition("=")
        values = [value for value in text.split(",") if value]
        if not equals or not values:
            raise ConfigError(f"--grid {word}: write a setting and its values, such as alert_rate=0.01,0.001")
        name = written.lstrip("-").replace("-", "_")
        if name not in VARIED:
            others = f"; it may name {', '.join(VARIED)}; replay once for each value of others"
            hint = did_you_mean(name, VARIED) or others
            raise ConfigError(f"--grid {written}: it does not take this setting{hint}")
        if name in grid:
            raise ConfigError(f"--grid names {name} twice; write all its values in one word: {name}=A,B")
        grid[name] = list(dict.fromkeys(values))
    return grid


def _with_values(settings: ReplaySettings, values: Mapping[str, str]) -> ReplaySettings:
    """Return the settings with some values replaced, which are checked and explained like values of flags."""
    changed = {name: value.replace("+", ",") if name == "views" else value for name, value in values.items()}
    every = {name: getattr(settings, name) for name in type(settings).model_fields if name != "config"}
    default = type(settings).model_fields["min_context"].default
    if not settings.is_given("min_context") and settings.min_context == min(default, settings.context_size):
        every.pop("min_context")  # the default, which follows the size of the context
    try:
        checked = load(type(settings), {**every, **changed})
        checked.detector_config()
    except ConfigError as error:
        raise ConfigError(f"--grid: {error}") from None
    return settings.model_copy(update={name: getattr(checked, name) for name in VARIED})


def _value_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "+".join(value) if isinstance(value, tuple) else str(value)
