"""Records of a topic of alerts, as the service writes them."""

from __future__ import annotations

from typing import Any

from fomo_stream.notify.events import Event, read_event

TIME = 1_760_000_000_000  # milliseconds since 1970
REASON = {"feature": "flow", "cause": "value", "share": 0.9, "value": 9.0, "usual": 3.0, "range": [2.0, 4.0]}
SAID = {"reasons": [{**REASON, "expected": 3.1}], "explanation": "flow is 9, usually 3 (2 to 4)"}


def alert(offset: int, incident: int | None = None, severity: str = "warning", **changes: Any) -> dict[str, Any]:
    """The result of an alert; the first of its incident, unless another one is named."""
    place = {"topic": "sensors", "partition": 0, "offset": offset, "timestamp": TIME + 1000 * offset}
    name = f"0-{offset if incident is None else incident}"
    more = {"outlier": True, "severity": severity, "score": 0.999, "surprise": 6.9, "status": "ok", "incident": name}
    return {**place, **more, **SAID, **changes}


def closed(first: int, last: int, records: int = 1, **changes: Any) -> dict[str, Any]:
    """The sum of an incident."""
    begin, end = ({"offset": one, "timestamp": TIME + 1000 * one} for one in (first, last))
    worst = {**begin, "score": 0.999, "remembered_logit": 6.0, "p_value": 0.001, "severity": "warning"}
    about = {"incident": f"0-{first}", "status": "closed", "topic": "sensors", "partition": 0, "from": begin, "to": end}
    return {**about, "records": records, "span": 1 + last - first, "surprise": 6.9, "worst": worst, **SAID, **changes}


def silent(offset: int, key: str = "s-17") -> dict[str, Any]:
    """The opening of a silence."""
    place = {"topic": "sensors", "partition": 0, "from": {"offset": offset, "timestamp": TIME + 1000 * offset}}
    more = {"incident": f"0-{offset}-key-silent", "status": "silent", "of": "key", "key": key, "severity": "warning"}
    said = {"quiet_s": 75.0, "usual_gap_s": 11.6, "explanation": f"no record of key {key} for 75 s"}
    return {**more, **place, **said}


def heard(offset: int, after: int, key: str = "s-17") -> dict[str, Any]:
    """The end of a silence."""
    back = {"offset": after, "timestamp": TIME + 1000 * after}
    return {**silent(offset, key), "status": "closed", "to": back, "quiet_s": float(after - offset)}


def event(result: dict[str, Any], key: str | None = "pump-7") -> Event:
    return read_event({"flow": 9.0, "fomo": result}, "fomo", key)
