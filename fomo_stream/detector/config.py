"""The settings of a detector, and its fingerprint: those that a saved state depends on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from fomo_stream.detector.changelog import Document, StoredEntries, check_same
from fomo_stream.detector.keys import MAX_KEYS
from fomo_stream.detector.views import DEFAULT, OF_KEYS, View, named_views
from fomo_stream.errors import ConfigError, StateError
from fomo_stream.limits import ALERT_RATE, MAX_CONTEXT, MAX_KNOWN_KEYS, MAX_LAGS, MAX_OWN_CONTEXTS, MAX_REASONS
from fomo_stream.model.architecture import Model

MIN_CONTEXT_ROWS = 4  # two halves of two rows can score each other
STEP = 32  # records between decisions
PEAK = 7  # over the alert rate: records that an extreme is above, every one of them
USUAL = 20  # over the alert rate: records that the beginning of an incident is above, except those that were outliers
LOW_RATE = 0.001  # alert rate down to which the history need not be longer


# Which records enter the reservoir that contexts are drawn from. Feedback counts with all. auto: every record that
# feedback does not call an outlier, and a trimmed view leaves out the most outlying; feedback: after the warm-up only
# records that feedback calls normal; all: as auto, but no view is trimmed.
POLICIES = ("auto", "feedback", "all")
EXPLAINED = ("none", "alerts", "all")  # which records get reasons; alerts: those that are called outliers
STUCK_VALUES = ("alert", "ignore")  # what a value that stands still is


@dataclass(frozen=True)
class DetectorConfig:
    """The settings of a detector. All counts are records or rows. Raises ConfigError for a value out of range."""

    context_size: int = 1000  # rows of a context, at most
    min_context: int = 200  # rows before scores begin
    alert_rate: float = ALERT_RATE
    admit: str = "auto"  # admission policy: auto, feedback or all
    views: tuple[str, ...] = DEFAULT  # what records are compared with: names of views
    lags: int = 0  # records that each record is compared together with: adds the view `past`
    calibration_size: int = 2000  # last records that p-values refer to; more where the alert rate needs more
    feedback_memory: int = 5000  # last records, at least, that feedback can still be about
    least_history: int = 5000  # rows of the history, at least: a stream without feedback can get it later
    adapt_after: int = 1000  # records after which a lasting shift is announced; 0: never
    refresh: float = 0.1  # share of the reservoir's rows that changed when a view of it is renewed
    recent_every: int = 256  # records after which the view of recent records is renewed
    lag: int = 32  # records between a trigger and its generation taking effect
    keys: int = MAX_KEYS  # keys that are known at the same time
    own_contexts: int = 64  # keys, at most, that have contexts of their own: the busiest ones
    memory: float = 1 / 3  # weight of the series' earlier records in a remembered score; 0: each record for itself
    seed: int = 0
    stuck_values: str = "alert"  # whether a value that stands still is an outlier: alert or ignore
    cycles: tuple[tuple[int, int], ...] = ()  # of a `Cycle` each; rows have a place in each at their end
    explain: str = "none"  # which records get reasons: none, alerts or all
    reasons: int = 3  # of a record, at most

    def __post_init__(self) -> None:
        def check(name: str, low: float, high: float) -> None:
            value = getattr(self, name)
            is_whole = isinstance(low, int)
            is_number = isinstance(value, Integral if is_whole else Real)
            if not is_number:
                raise ConfigError(f"{name} must be a {'whole ' if is_whole else ''}number, not {value!r}")
            if not low <= value <= high:
                raise ConfigError(f"{name} must be between {low} and {high}, not {value}")
            # NumPy's integers overflow, and JSON cannot write its numbers
            object.__setattr__(self, name, int(value) if is_whole else float(value))

        check("context_size", MIN_CONTEXT_ROWS, MAX_CONTEXT)
        check("min_context", MIN_CONTEXT_ROWS, self.context_size)
        check("alert_rate", 1e-5, 0.5)
        check("lags", 0, MAX_LAGS)
        check("calibration_size", 1, 1_000_000)
        check("feedback_memory", 0, 1_000_000)
        check("least_history", 0, 1_000_000)
        check("refresh", 0.01, 1.0)
        check("recent_every", STEP, 1_000_000)
        check("lag", 1, 1_000_000)
        check("keys", 1, MAX_KNOWN_KEYS)
        check("own_contexts", 0, MAX_OWN_CONTEXTS)
        check("memory", 0.0, 0.9)
        check("seed", 0, 2**63 - 1)
        check("adapt_after", 0, 1_000_000)
        check("reasons", 1, MAX_REASONS)
        for name, values in (("explain", EXPLAINED), ("admit", POLICIES), ("stuck_values", STUCK_VALUES)):
            if getattr(self, name) not in values:
                raise ConfigError(f"{name} must be one of {', '.join(values)}, not {getattr(self, name)!r}")
        try:
            object.__setattr__(self, "views", named_views(self.views))
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if "past" in self.views and not self.lags:
            raise ConfigError("the view past needs lags: the number of records before each that it looks at")

    @property
    def wanted_views(self) -> tuple[str, ...]:
        """The views by all settings: with lags also `past`; none that is trimmed where all is admitted."""
        past = ("past",) if self.lags and "past" not in self.views else ()
        views = [view for view in named_views(self.views + past) if view != "trimmed" or self.admit != "all"]
        return tuple(views) if set(views) - set(OF_KEYS) else ("all", *views)

    @property
    def are_independent(self) -> bool:
        """Return whether records are independent of each other, so that no incident goes on from one to the next."""
        return "key_values" in self.wanted_views

    @property
    def window_size(self) -> int:
        """Logits that p-values refer to: enough for p-values down to half the alert rate."""
        return max(self.calibration_size, int(np.ceil(2 / self.alert_rate)))

    @property
    def peak_size(self) -> int:
        """Last records that an extreme is above, every one of them."""
        return int(np.ceil(PEAK / self.alert_rate))

    @property
    def usual_size(self) -> int:
        """Last records that the beginning of an incident is above, except those that were outliers."""
        if self.are_independent:  # a longer past would hide what only one record shows
            return self.peak_size
        return min(int(np.ceil(USUAL / self.alert_rate)), self.history_scores)

    @property
    def history_rows(self) -> int:
        """Records whose rows the history keeps: for feedback, and for the context of recent records."""
        recent = self.context_size + max(self.recent_every, self.lag) + self.lag + 8 * STEP
        return max(self.least_history, self.feedback_memory, recent)

    @property
    def history_scores(self) -> int:
        """Records whose logits the history keeps: the same for all alert rates down to LOW_RATE."""
        window = max(self.window_size, self.peak_size, int(PEAK / LOW_RATE))
        return max(self.history_rows, window + STEP, self.context_size)


FORMAT = 13  # of a detector's state; raise it when entries change their name or their meaning
# These have to be the same as when the state was written, and these sizes, each with the settings it follows from.
FIXED = (
    "model",
    "kernel",
    "n_features",
    "categorical",
    "counters",
    "cycles",
    "context_size",
    "seed",
    "used_views",
    "lags",
    "memory",
    "keys",
)
NOT_IN_STATE = ("explain", "reasons", "stuck_values")  # settings that change no state
SIZES = {
    "history_rows": ("least_history", "feedback_memory", "context_size", "recent_every", "lag"),
    "history_scores": ("calibration_size", "alert_rate"),
}


def fingerprint_of(
    model: Model,
    n_features: int,
    views: Iterable[View],
    categorical: tuple[int, ...],
    counters: tuple[int, ...],
    config: DetectorConfig,
) -> dict[str, Any]:
    """The fingerprint of a detector, as plain values for JSON. views: those in use."""
    return {
        "format": FORMAT,
        "model": model.name,
        "kernel": model.kernel,
        "n_features": n_features,
        "categorical": list(categorical),
        "counters": list(counters),
        **{name: value for name, value in vars(config).items() if name not in NOT_IN_STATE},
        "views": list(config.views),
        "cycles": [list(cycle) for cycle in config.cycles],
        "used_views": [view.name for view in views],
        **{size: getattr(config, size) for size in SIZES},
    }


def check_entries(log: Document, entries: StoredEntries, now: Mapping[str, Any]) -> None:
    """Raise StateError when a detector with the fingerprint `now` cannot continue from the state in these entries.

    log: filled with the fingerprint in the entries.
    """
    stored = json.loads(log.recover(entries, "fingerprint"))
    if stored.get("format") != FORMAT:
        raise StateError(
            "another version of fomo-stream wrote the state: "
            f"it has format {stored.get('format', 'unknown')}, this one reads {FORMAT - 1} and {FORMAT}"
        )
    resized = [name for size, names in SIZES.items() if stored.get(size) != now[size] for name in names]
    check_same(stored, now, [*FIXED, *resized])
