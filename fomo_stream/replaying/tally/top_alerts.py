"""The highest alerts of a replay, with their records as text and their reasons, and what most alerts are about."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson

from fomo_stream.detector.results import Severity
from fomo_stream.records.explanation import sentence
from fomo_stream.records.reasons import reasons_of
from fomo_stream.records.schema import Schema
from fomo_stream.replaying.blocks import Block
from fomo_stream.replaying.tally.spec import Arrays, Int, TallySpec

TOP = 100
FEATURES = 20  # that are listed as the first reason of alerts
TEXT_LENGTH = 2000  # characters of a record


class TopAlerts:
    """The TOP alerts of the detector itself by `remembered_logit`; of equal ones, by partition and offset.

    firsts: (d,) of all alerts, how many have each feature as the first of their reasons.
    """

    def __init__(self, spec: TallySpec, alerts: list[dict[str, Any]] | None = None, firsts: Int | None = None) -> None:
        self._spec = spec
        self.alerts = alerts or []  # the highest first
        self.firsts = np.zeros(len(spec.features), np.int64) if firsts is None else firsts

    def add(self, block: Block) -> None:
        """Take the alerts of a block. Only records that enter the list are written as text."""
        logit = block.results.remembered_logit
        places = np.flatnonzero(block.results.outlier)
        for reasons in [block.results.reasons[place] for place in places.tolist()]:
            if reasons:
                self.firsts[reasons[0].feature] += 1
        if len(self.alerts) == TOP:
            places = places[logit[places] >= self.alerts[-1]["logit"]]
        if not len(places):
            return
        places = places[np.lexsort((block.offsets[places], -logit[places]))][:TOP]
        entered = [_alert(block, int(place), self._spec) for place in places]
        self.alerts = sorted([*self.alerts, *entered], key=_order)[:TOP]
        for alert in self.alerts:
            if not isinstance(alert["record"], str):
                alert["record"] = record_text(alert["record"])

    def merge(self, other: TopAlerts) -> None:
        """Take the alerts of another partition."""
        self.alerts = sorted([*self.alerts, *other.alerts], key=_order)[:TOP]
        self.firsts = self.firsts + other.firsts

    def reasons(self) -> list[dict[str, Any]]:
        """The features that are most often the first reason of an alert, and of how many."""
        order = np.argsort(-self.firsts, kind="stable")[:FEATURES].tolist()
        counts = ((self._spec.features[feature], int(self.firsts[feature])) for feature in order)
        return [{"feature": name, "alerts": count} for name, count in counts if count]

    def arrays(self) -> Arrays:
        """The alerts, to be stored."""
        return {"json": np.frombuffer(json.dumps(self.alerts).encode("ascii"), np.uint8), "firsts": self.firsts}

    @classmethod
    def from_arrays(cls, spec: TallySpec, arrays: Arrays) -> TopAlerts:
        """As `arrays` gave them, for the same spec."""
        return cls(spec, json.loads(arrays["json"].tobytes()), arrays["firsts"])


def _order(alert: dict[str, Any]) -> tuple[float, int, int]:
    return -alert["logit"], alert["partition"], alert["offset"]


def _alert(block: Block, place: int, spec: TallySpec) -> dict[str, Any]:
    results, label = block.results, int(block.labels[place])
    record, reasons, because, text = block.fields[place], results.reasons[place], None, None
    if reasons is not None:
        schema = Schema(spec.features, spec.categorical)
        earlier = float(results.remembered_logit[place] - results.logit[place])
        because, text = reasons_of(reasons, schema, record), sentence(reasons, schema, record, earlier)
    return {
        "partition": block.partition,
        "offset": int(block.offsets[place]),
        "time": int(block.times[place]),
        "score": float(results.score[place]),
        "logit": float(results.remembered_logit[place]),
        "p_value": float(results.p_value[place]),
        "severity": Severity(int(results.severity[place])).name.lower(),
        "label": None if label < 0 else label,
        "record": record,
        "reasons": because,
        "explanation": text,
    }


def record_text(record: dict[str, Any]) -> str:
    """A record as JSON, cut at TEXT_LENGTH characters.

    >>> record_text({"flow": 3.5, "ok": None})
    '{"flow":3.5,"ok":null}'
    """
    try:
        text = orjson.dumps(record, default=str, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    except TypeError:  # integers beyond 64 bits, or lone surrogates
        text = json.dumps(record, default=str, separators=(",", ":"))
    return text if len(text) <= TEXT_LENGTH else text[: TEXT_LENGTH - 1] + "…"
