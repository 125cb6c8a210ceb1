"""The highest alerts of a replay, with their records as text and their reasons, and what most alerts are about."""

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
MAX_LISTED_FEATURES = 20  # that are listed as the first reason of alerts
MAX_LISTED_KEYS = 20  # that are listed, those with most alerts
MAX_COUNTED_KEYS = 100_000  # of a partition that are counted
MAX_RECORD_CHARACTERS = 2000  # characters of a record


class TopAlerts:
    """The highest alert of each incident of the detector itself, the TOP of these by `score`.

    Of equal scores the first is that of higher `remembered_logit`, then of lower partition and offset.

    first_reasons: of all alerts, how many have each feature as the first of their reasons. by_key: of each key with
    alerts, by its digest: the key as text, how many, and the place of the highest.
    """

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []  # the highest first
        self.first_reasons: Counter[str] = Counter()
        self.by_key: dict[bytes, tuple[str, int, dict[str, Any]]] = {}
        self.count = 0  # alerts

    def add(self, block: Block) -> None:
        """Take the alerts of a block. Only records that enter the list are written as text."""
        score, logit = block.results.score, block.results.remembered_logit
        places = np.flatnonzero(block.results.outlier)
        self.count += len(places)
        for place in places.tolist():
            if reasons := block.outputs[place].get("reasons"):
                self.first_reasons[reasons[0]["feature"]] += 1
            if block.keys and (key := block.keys[place]) is not None:
                self._add_to_key(key, _alert_position(block, place))
        if len(self.alerts) == MAX_TOP_ALERTS:
            places = places[score[places] >= self.alerts[-1]["score"]]
        places = places[np.lexsort((block.offsets[places], -logit[places], -score[places]))]
        of_incident = {block.outputs[place]["incident"]: place for place in places[::-1].tolist()}  # its highest
        self.alerts = highest_per_incident(
            self.alerts + [_alert_report(block, place) for place in of_incident.values()]
        )
        for alert in self.alerts:
            if not isinstance(alert["record"], str):
                alert["record"] = record_text(alert["record"])

    def _add_to_key(self, key: bytes | str, its: dict[str, Any]) -> None:
        digest = digest_of(key)
        if digest in self.by_key or len(self.by_key) < MAX_COUNTED_KEYS:
            text, n, highest = self.by_key.get(digest, (key_in_sentence(key), 0, its))
            self.by_key[digest] = text, n + 1, max(highest, its, key=lambda one: one["score"])


def _alert_report(block: Block, place: int) -> dict[str, Any]:
    result, label = block.outputs[place], int(block.labels[place])
    return {
        **_alert_position(block, place),
        "incident": result["incident"],
        "logit": float(block.results.remembered_logit[place]),
        "p_value": float(f"{block.results.p_value[place]:.3g}"),  # as in its result
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
        "score": float(block.results.score[place]),
    }


def keys_report(parts: Sequence[TopAlerts]) -> list[dict[str, Any]]:
    """The KEYS keys that alert most: how many alerts each has, their share of all alerts, and the highest one."""
    merged: dict[bytes, tuple[str, int, dict[str, Any]]] = {}
    for part in parts:
        for digest, (text, n, highest) in part.by_key.items():
            _, before, other = merged.get(digest, (text, 0, highest))
            merged[digest] = text, before + n, max(other, highest, key=lambda one: one["score"])
    total = sum(part.count for part in parts)
    order = sorted(merged.items(), key=lambda item: (-item[1][1], item[1][0], item[0]))[:MAX_LISTED_KEYS]
    return [{"key": text, "alerts": n, "share": n / total, "highest": highest} for _, (text, n, highest) in order]


def highest_per_incident(alerts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The highest of these alerts of each incident, and the TOP of these, the highest first."""
    order = sorted(alerts, key=lambda one: (-one["score"], -one["logit"], one["partition"], one["offset"]))
    of_incident: dict[str, dict[str, Any]] = {}
    for one in order:
        of_incident.setdefault(one["incident"], one)
    return list(of_incident.values())[:MAX_TOP_ALERTS]


def reasons_report(counts: Counter[str], features: tuple[str, ...]) -> list[dict[str, Any]]:
    """The features that are most often the first reason of an alert, and of how many."""
    order = sorted((name for name in features if counts[name]), key=lambda name: -counts[name])
    return [{"feature": name, "alerts": counts[name]} for name in order[:MAX_LISTED_FEATURES]]


def record_text(record: dict[str, Any]) -> str:
    """A record as JSON, cut at TEXT_LENGTH characters.

    >>> record_text({"flow": 3.5, "ok": None})
    '{"flow":3.5,"ok":null}'
    """
    try:
        text = orjson.dumps(record, default=str, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    except TypeError:  # integers beyond 64 bits, or lone surrogates
        text = json.dumps(record, default=str, separators=(",", ":"))
    return text if len(text) <= MAX_RECORD_CHARACTERS else text[: MAX_RECORD_CHARACTERS - 1] + "…"
