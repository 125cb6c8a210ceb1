"""What a state is of: only what is the same in all that counts can go on with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.errors import StateError

FORMAT = 1  # of a detector's state; to be raised when its entries mean something else
# What has to be as it was when the state was written: all these, and of these sizes what they follow from.
FIXED = ("format", "model", "n_features", "categorical", "context_size", "horizon", "seed")
SIZES = {
    "memory_rows": ("calibration_size", "feedback_memory", "adapt_after", "lag"),
    "memory_scores": ("calibration_size", "alert_rate"),
}


def fingerprint_of(model: str, n_features: int, categorical: tuple[int, ...], config: DetectorConfig) -> dict[str, Any]:
    """What a detector is, as JSON can hold it."""
    return {
        "format": FORMAT,
        "model": model,
        "n_features": n_features,
        "categorical": list(categorical),
        **vars(config),
        **{size: getattr(config, size) for size in SIZES},
    }


def check_fingerprint(found: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise StateError when a detector that is `now` cannot go on with the state of one that was as `found`."""
    resized = [name for size, names in SIZES.items() if found.get(size) != now[size] for name in names]
    check_same(found, now, [*FIXED, *resized])


def check_same(found: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise StateError that says which of the named values are others now.

    >>> check_same({"seed": 1, "lag": 8, "horizon": 5}, {"seed": 2, "lag": 8, "horizon": 6}, ["seed", "lag", "horizon"])
    Traceback (most recent call last):
    fomo_stream.errors.StateError: seed is 1 in the state, 2 now; horizon is 5 in the state, 6 now
    """
    wrong = [name for name in dict.fromkeys(names) if found.get(name) != now[name]]
    if wrong:
        raise StateError(
            "; ".join(f"{name} is {found.get(name, 'unknown')} in the state, {now[name]} now" for name in wrong)
        )
