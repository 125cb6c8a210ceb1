"""The text of messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from fomo_stream.notify.events import Event
from fomo_stream.wording import clean, counted

MessageKind = Literal["opened", "closed", "held"]


class Message(NamedTuple):
    """A message to a target, about an event; event None: it only says what was held back."""

    id: str  # equal for repeated copies
    kind: MessageKind
    severity: str
    title: str
    text: str  # several lines
    event: Event | None

    @property
    def facts(self) -> dict[str, Any]:
        """The content as JSON-ready values; None for unknown values."""
        return {"id": self.id, "kind": self.kind, **({} if self.event is None else self.event.facts)}


def message_of(kind: MessageKind, event: Event, link: str | None = None) -> Message:
    """Return the message that an incident has opened or closed. link: to the status page.

    Texts of others, such as keys, are cleaned so that they cannot mention people or become links in chats.
    """
    facts: dict[str, Any] = {
        name: clean(fact, for_chats=True) if isinstance(fact, str) else fact for name, fact in event.facts.items()
    }
    about, severity = facts["about"], facts["severity"]
    title = f"{about} in {facts['topic'] or 'the stream'} {facts['key'] or ''}"
    lines = [facts["explanation"]]
    if kind == "closed":
        title = f"ENDED: {title}" + (f" after {facts['lasted']}" if facts["lasted"] else "")
        lines += [f"Alerts: {facts['alerts']}"] if facts["alerts"] > 1 else []
        if facts["began"]:
            lines.append(f"From {facts['began']}" + (f" to {facts['time']}" if facts["time"] else ""))
    else:
        title = f"{severity.upper()}: {title}"
        if facts["time"]:
            lines.append(f"{'Record' if about == 'outlier' else 'Last'}: {facts['place']} at {facts['time']}")
    text = "\n".join(line for line in (*lines, f"Incident: {facts['incident']}", link) if line)
    return Message(f"{event.identity}:{kind}", kind, severity, " ".join(title.split()), text, event)


def held_message(counts: Counter[str], first: Sequence[Message], link: str | None) -> Message:
    """Return the message that says how many were held back. counts: by kind and severity; first: the first of them."""
    severity = "critical" if counts["critical"] else "warning"
    n = counts["opened"] + counts["closed"]
    title = f"{counted(n, 'message')} held back: {counts['opened']} opened, {counts['closed']} ended"
    lines = [f"- {message.title}" for message in first]
    lines += [f"- and {n - len(first)} more"] if n > len(first) else []
    text = "\n".join([*lines, link] if link else lines)
    return Message(f"held:{first[0].id}:{n}", "held", severity, f"{severity.upper()}: {title}", text, None)
