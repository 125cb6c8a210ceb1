"""The fingerprint of a detector: the model, features and settings that a saved state depends on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from fomo_stream.detector.changelog import Document, StoredEntries, check_same
from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.views import View
from fomo_stream.errors import StateError
from fomo_stream.model.zero_shot import ZeroShotModel

FORMAT = 6  # of a detector's state; raise it when entries change their name or their meaning
# These have to be the same as when the state was written, and these sizes, each with the settings it follows from.
FIXED = ("model", "kernel", "n_features", "categorical", "context_size", "seed", "used_views", "lags", "memory")
SIZES = {
    "history_rows": ("least_history", "calibration_size", "feedback_memory", "context_size", "recent_every", "lag"),
    "history_scores": ("calibration_size", "alert_rate"),
}


def fingerprint_of(
    model: ZeroShotModel, n_features: int, views: Iterable[View], categorical: tuple[int, ...], config: DetectorConfig
) -> dict[str, Any]:
    """The fingerprint of a detector, as plain values for JSON. views: those in use."""
    return {
        "format": FORMAT,
        "model": model.name,
        "kernel": model.kernel,
        "n_features": n_features,
        "categorical": list(categorical),
        **{
            name: value for name, value in vars(config).items() if name not in ("explain", "reasons")
        },  # change no state
        "views": list(config.views),
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
            f"it has format {stored.get('format', 'unknown')}, this one reads {FORMAT}"
        )
    resized = [name for size, names in SIZES.items() if stored.get(size) != now[size] for name in names]
    check_same(stored, now, [*FIXED, *resized])
