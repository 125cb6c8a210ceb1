"""The text of messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from fomo_stream.notify.events import Event
from fomo_stream.wording import clean, counted

MessageKind = Literal["opened", "closed", "held"]


class Message(NamedTuple):
    """What a target gets. event: what it is about; None: it only says what was held back."""

    id: str  # the same for each copy of it
    kind: MessageKind
    severity: str
    title: str
    text: str  # several lines
    event: Event | None

    @property
    def facts(self) -> dict[str, Any]:
        """What it says, as JSON-ready values; None where nothing is known."""
        return {"id": self.id, "kind": self.kind, **({} if self.event is None else self.event.facts)}


def message_of(kind: MessageKind, event: Event, link: str | None = None) -> Message:
    """The message that an incident has opened or closed. link: to the status page.

    What others wrote, such as keys, calls nobody and is no link in chats.
    """
    known: dict[str, Any] = {
        name: clean(one, for_chats=True) if isinstance(one, str) else one for name, one in event.facts.items()
    }
    about, severity = known["about"], known["severity"]
    title = f"{about} in {known['topic'] or 'the stream'} {known['key'] or ''}"
    lines = [known["explanation"]]
    if kind == "closed":
        title = f"ENDED: {title}" + (f" after {known['lasted']}" if known["lasted"] else "")
        lines += [f"Alerts: {known['alerts']}"] if known["alerts"] > 1 else []
        if known["began"]:
            lines.append(f"From {known['began']}" + (f" to {known['time']}" if known["time"] else ""))
    else:
        title = f"{severity.upper()}: {title}"
        if known["time"]:
            lines.append(f"{'Record' if about == 'outlier' else 'Last'}: {known['place']} at {known['time']}")
    text = "\n".join(line for line in (*lines, f"Incident: {known['incident']}", link) if line)
    return Message(f"{event.identity}:{kind}", kind, severity, " ".join(title.split()), text, event)


def held_message(counts: Counter[str], first: Sequence[Message], link: str | None) -> Message:
    """The message that says how many were held back. counts: by kind and severity; first: the first ones of them."""
    severity = "critical" if counts["critical"] else "warning"
    n = counts["opened"] + counts["closed"]
    said = f"{counted(n, 'message')} held back: {counts['opened']} opened, {counts['closed']} ended"
    lines = [f"- {one.title}" for one in first]
    lines += [f"- and {n - len(first)} more"] if n > len(first) else []
    text = "\n".join([*lines, link] if link else lines)
    return Message(f"held:{first[0].id}:{n}", "held", severity, f"{severity.upper()}: {said}", text, None)
