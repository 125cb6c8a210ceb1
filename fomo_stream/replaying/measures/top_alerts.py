"""The highest alerts of a replay, with their records and reasons, and the features and keys with most alerts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from fomo_stream.detector.keys import digest_of
from fomo_stream.records.explanation import key_in_sentence
from fomo_stream.replaying.blocks import Block

MAX_TOP_ALERTS = 100
MAX_LISTED_FEATURES = 20  # features that are the first reason of most alerts
MAX_LISTED_KEYS = 20  # keys with most alerts
MAX_COUNTED_KEYS = 100_000  # of a partition
MAX_RECORD_CHARACTERS = 2000  # characters of a record


class TopAlerts:
    """The highest alerts of the detector itself, one for each incident: the MAX_TOP_ALERTS with the highest `score`.

    Equal scores are ordered by descending `remembered_logit`, then by partition and offset.

    first_reasons: number of alerts by the feature of their first reason. by_key: for each key with alerts, by its
    digest: the key as text, the number of alerts, and the position of the highest.
    """

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []  # the highest first
        self.first_reasons: Counter[str] = Counter()
        self.by_key: dict[bytes, tuple[str, int, dict[str, Any]]] = {}
        self.count = 0  # of all alerts

    def add(self, block: Block) -> None:
        """Add the alerts of a block. Only records that enter the list are converted to text."""
        # an alert of a valid range may have no score: then it is the lowest
        score, logit = np.nan_to_num(block.results.score), np.nan_to_num(block.results.remembered_logit)
        places = np.flatnonzero(block.results.outlier)
        self.count += len(places)
        for place in places.tolist():
            if reasons := block.outputs[place].get("reasons"):
                self.first_reasons[reasons[0]["feature"]] += 1
            if block.keys and (key := block.keys[place]) is not None:
                self._add_to_key(key, _alert_position(block, place))
        if len(self.alerts) == MAX_TOP_ALERTS:
            places = places[score[places] >= _score(self.alerts[-1])]
        places = places[np.lexsort((block.offsets[places], -logit[places], -score[places]))]
        highest = {block.outputs[place]["incident"]: place for place in places[::-1].tolist()}  # by incident
        self.alerts = highest_per_incident(self.alerts + [_alert_report(block, place) for place in highest.values()])
        for alert in self.alerts:
            if not isinstance(alert["record"], str):
                alert["record"] = record_text(alert["record"])

    def _add_to_key(self, key: bytes | str, alert: dict[str, Any]) -> None:
        digest = digest_of(key)
        if digest in self.by_key or len(self.by_key) < MAX_COUNTED_KEYS:
            text, n, highest = self.by_key.get(digest, (key_in_sentence(key), 0, alert))
            self.by_key[digest] = text, n + 1, max(highest, alert, key=_score)


def _alert_report(block: Block, place: int) -> dict[str, Any]:
    result, label = block.outputs[place], int(block.labels[place])
    return {
        **_alert_position(block, place),
        "incident": result["incident"],
        "logit": _known(block.results.remembered_logit[place]),
        "p_value": _known(float(f"{block.results.p_value[place]:.3g}")),  # rounded as in the result
        "severity": result["severity"],
        "label": None if label < 0 else label,
        "record": block.fields[place],
        "reasons": result.get("reasons"),
        "explanation": result.get("explanation"),
    }


def _alert_position(block: Block, place: int) -> dict[str, Any]:
    return {
        "partition": block.partition,
        "offset": int(block.offsets[place]),
        "time": int(block.times[place]),
        "score": _known(block.results.score[place]),
    }


def _known(value: float) -> float | None:
    """Return a number; None for NaN, as of a record without a score."""
    return None if np.isnan(value) else float(value)


def _score(position: dict[str, Any]) -> float:
    return position["score"] or 0.0


def keys_report(parts: Sequence[TopAlerts]) -> list[dict[str, Any]]:
    """Return the MAX_LISTED_KEYS keys with most alerts: their number, their share of all alerts, and the highest."""
    merged: dict[bytes, tuple[str, int, dict[str, Any]]] = {}
    for part in parts:
        for digest, (text, n, highest) in part.by_key.items():
            _, before, other = merged.get(digest, (text, 0, highest))
            merged[digest] = text, before + n, max(other, highest, key=_score)
    total = sum(part.count for part in parts)
    order = sorted(merged.items(), key=lambda item: (-item[1][1], item[1][0], item[0]))[:MAX_LISTED_KEYS]
    return [{"key": text, "alerts": n, "share": n / total, "highest": highest} for _, (text, n, highest) in order]


def highest_per_incident(alerts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the highest of these alerts for each incident, at most MAX_TOP_ALERTS, the highest first."""
    order = sorted(alerts, key=lambda one: (-_score(one), -(one["logit"] or 0.0), one["partition"], one["offset"]))
    by_incident: dict[str, dict[str, Any]] = {}
    for alert in order:
        by_incident.setdefault(alert["incident"], alert)
    return list(by_incident.values())[:MAX_TOP_ALERTS]


def reasons_report(counts: Counter[str], features: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the features that are most often the first reason of an alert, and the number of these alerts."""
    order = sorted((name for name in features if counts[name]), key=lambda name: -counts[name])
    return [{"feature": name, "alerts": counts[name]} for name in order[:MAX_LISTED_FEATURES]]


def record_text(record: dict[str, Any]) -> str:
    """Return a record as JSON, cut at MAX_RECORD_CHARACTERS characters.

    >>> record_text({"flow": 3.5, "ok": None})
    '{"flow":3.5,"ok":null}'
    """
    try:
        text = orjson.dumps(record, default=str, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    except TypeError:  # integers beyond 64 bits, or lone surrogates
        text = json.dumps(record, default=str, separators=(",", ":"))
    return text if len(text) <= MAX_RECORD_CHARACTERS else text[: MAX_RECORD_CHARACTERS - 1] + "…"
