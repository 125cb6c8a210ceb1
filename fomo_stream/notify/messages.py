"""What messages say: facts for programs, and a text for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from fomo_stream.notify.events import About, Event, iso
from fomo_stream.wording import clean, counted, in_time

Told = Literal["opened", "closed", "held"]

WHAT: dict[About, str] = {"outlier": "outlier", "silence": "silence", "rate": "unusual rate"}


class Message(NamedTuple):
    """What a target gets. event: what it is about; None: it only says what was held back."""

    id: str  # the same for each copy of it
    kind: Told
    severity: str
    title: str
    text: str  # several lines
    event: Event | None


def message_of(kind: Told, event: Event, link: str | None = None) -> Message:
    """The message that an incident has opened or closed. link: to the status page.

    What others wrote, such as keys, calls nobody and is no link in chats.
    """
    known = {
        name: clean(one, for_chats=True) if isinstance(one, str) else one for name, one in facts(kind, event).items()
    }
    what = f"{WHAT[event.about]} in {known['topic'] or 'the stream'} {known['key'] or ''}"
    lines = [known["explanation"]]
    if kind == "closed":
        title = f"ENDED: {what}" + (f" after {known['lasted']}" if known["lasted"] else "")
        lines += [f"Alerts: {event.alerts}"] if event.alerts > 1 else []
        if known["began"]:
            lines.append(f"From {known['began']}" + (f" to {known['time']}" if known["time"] else ""))
    else:
        title = f"{event.severity.upper()}: {what}"
        if known["time"]:
            which = "Record" if event.about == "outlier" else "Last"
            lines.append(f"{which}: {known['place']} at {known['time']}")
    text = "\n".join(line for line in (*lines, f"Incident: {known['incident']}", link) if line)
    return Message(_id(kind, event), kind, event.severity, " ".join(title.split()), text, event)


def held_message(counts: Counter[str], first: Sequence[Message], link: str | None) -> Message:
    """The message that says how many were held back. counts: by kind and severity; first: the first ones of them."""
    severity = "critical" if counts["critical"] else "warning"
    n = counts["opened"] + counts["closed"]
    said = f"{counted(n, 'message')} held back: {counts['opened']} opened, {counts['closed']} ended"
    lines = [f"- {one.title}" for one in first]
    lines += [f"- and {n - len(first)} more"] if n > len(first) else []
    text = "\n".join([*lines, link] if link else lines)
    return Message(f"held:{first[0].id}:{n}", "held", severity, f"{severity.upper()}: {said}", text, None)


def facts(kind: Told, event: Event) -> dict[str, Any]:
    """A message as JSON-ready values; None where nothing is known."""
    lasted = None
    if event.facts["quiet_s"] is not None:
        lasted = in_time(event.facts["quiet_s"])
    elif event.began is not None and event.timestamp is not None and event.timestamp >= event.began:
        lasted = in_time((event.timestamp - event.began) / 1000.0)
    where = "" if event.partition is None else f"[{event.partition}]"
    names = ("about", "incident", "severity", "topic", "partition", "offset", "key", "alerts")
    return {
        "id": _id(kind, event),
        "kind": kind,
        **{name: getattr(event, name) for name in names},
        "place": f"{event.topic}{where}@{event.offset}",
        "time": iso(event.timestamp),
        "began": iso(event.began),
        "lasted": lasted,
        **event.facts,
    }


def _id(kind: Told, event: Event) -> str:
    return f"{event.identity}:{kind}"
