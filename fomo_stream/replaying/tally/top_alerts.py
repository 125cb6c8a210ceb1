"""The highest alerts of a replay, with their records as text."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson

from fomo_stream.detector.results import Severity
from fomo_stream.replaying.blocks import Block
from fomo_stream.replaying.tally.spec import Arrays

TOP = 100
TEXT_LENGTH = 2000  # characters of a record


class TopAlerts:
    """The TOP alerts of the detector itself by `remembered_logit`; of equal ones, by partition and offset."""

    def __init__(self, alerts: list[dict[str, Any]] | None = None) -> None:
        self.alerts = alerts or []  # the highest first

    def add(self, block: Block) -> None:
        """Take the alerts of a block. Only records that enter the list are written as text."""
        logit = block.results.remembered_logit
        places = np.flatnonzero(block.results.outlier)
        if len(self.alerts) == TOP:
            places = places[logit[places] >= self.alerts[-1]["logit"]]
        if not len(places):
            return
        places = places[np.lexsort((block.offsets[places], -logit[places]))][:TOP]
        entered = [_alert(block, int(place)) for place in places]
        self.alerts = sorted([*self.alerts, *entered], key=_order)[:TOP]
        for alert in self.alerts:
            if not isinstance(alert["record"], str):
                alert["record"] = record_text(alert["record"])

    def merge(self, other: TopAlerts) -> None:
        """Take the alerts of another partition."""
        self.alerts = sorted([*self.alerts, *other.alerts], key=_order)[:TOP]

    def arrays(self) -> Arrays:
        """The alerts, to be stored."""
        return {"json": np.frombuffer(json.dumps(self.alerts).encode("ascii"), np.uint8)}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> TopAlerts:
        """As `arrays` gave them."""
        return cls(json.loads(arrays["json"].tobytes()))


def _order(alert: dict[str, Any]) -> tuple[float, int, int]:
    return -alert["logit"], alert["partition"], alert["offset"]


def _alert(block: Block, place: int) -> dict[str, Any]:
    results, label = block.results, int(block.labels[place])
    return {
        "partition": block.partition,
        "offset": int(block.offsets[place]),
        "time": int(block.times[place]),
        "score": float(results.score[place]),
        "logit": float(results.remembered_logit[place]),
        "p_value": float(results.p_value[place]),
        "severity": Severity(int(results.severity[place])).name.lower(),
        "label": None if label < 0 else label,
        "record": block.fields[place],
        "reasons": None,
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
