"""Records of a topic of alerts, as the service writes them; and a run of what notify decides, by a simulated clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fomo_stream.notify.delivery import Answer, Outbox
from fomo_stream.notify.events import Event, read_event
from fomo_stream.notify.messages import Message, message_of
from fomo_stream.notify.policy import Policy

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


def rate(offset: int) -> dict[str, Any]:
    """The opening of an unusual rate."""
    place = {"topic": "sensors", "partition": 0, "from": {"offset": offset, "timestamp": TIME + 1000 * offset}}
    more = {"incident": f"0-{offset}-partition-rate", "status": "rate", "of": "partition", "severity": "critical"}
    numbers = {
        "records_per_minute": 12.0,
        "usual_per_minute": 1000.0,
        "explanation": "12 records a minute, usually 1000",
    }
    return {**more, **place, **numbers}


def event(result: dict[str, Any], key: str | None = "pump-7") -> Event:
    return read_event({"flow": 9.0, "fomo": result}, "fomo", key)


class Simulated:
    """Policy, and an outbox for each target, as `Messenger` has them, by a clock that only moves here.

    targets: what each answers at a time. per_hour: messages to each target, at most.
    """

    def __init__(self, *targets: Callable[[float], Answer], per_hour: int = 0) -> None:
        self.now = 0.0
        self.policy = Policy()
        self.next: dict[int, int] = {}
        self.boxes = [(answers, Outbox(per_hour, lambda: 1.0)) for answers in targets]
        self.arrived: list[list[Message]] = [[] for _ in targets]  # by target
        self.answered: list[list[Message]] = [[] for _ in targets]  # taken, or refused for good

    def read(self, event: Event | None, offset: int, partition: int = 0) -> None:
        self.next[partition] = offset + 1
        kind = None if event is None else self.policy.take(event)
        if event is not None and kind is not None:
            for _, box in self.boxes:
                box.add(message_of(kind, event), partition, offset, self.now)
        self.send()

    def committable(self, partition: int = 0) -> int:
        firsts = [box.first_waiting() for _, box in self.boxes]
        return min([self.next[partition], *(one[partition] for one in firsts if partition in one)])

    def send(self) -> None:
        """Everything that can be sent now."""
        for number, (answers, box) in enumerate(self.boxes):
            while (job := box.next(self.now)) is not None:
                answer = answers(self.now)
                box.answered(job, answer, self.now)
                if answer.kind == "sent":
                    self.arrived[number].append(job.message)
                if answer.kind != "again":
                    self.answered[number].append(job.message)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while True:
            self.now = min([end, *(max(box.due, self.now) for _, box in self.boxes)])
            self.send()
            if self.now >= end:
                return


def always(_now: float) -> Answer:
    return Answer("sent")


def told(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Kind and incident of each message."""
    return [(one.kind, "" if one.event is None else one.event.incident) for one in messages]
