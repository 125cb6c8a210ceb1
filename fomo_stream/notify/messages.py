"""What messages say: facts for programs, and texts from templates for people."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from traceback import walk_tb
from typing import Any, NamedTuple, NoReturn

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, UndefinedError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fomo_stream.errors import ConfigError
from fomo_stream.logs import Throttle, kv, place_of
from fomo_stream.notify.desk import Message
from fomo_stream.notify.events import NUMBERS, Event, iso, read_event
from fomo_stream.wording import clean, did_you_mean, in_time

log = logging.getLogger(__name__)

LONGEST = 100_000  # bytes of a template
SHOWN = 20  # incidents that a message about several lists

TEMPLATES = {
    "default": """\
{% set what = {"outlier": "outlier", "silence": "silence", "rate": "unusual rate"}[about] -%}
{% set who = (topic or "the stream") ~ ((" " ~ key) if key is not none else "") -%}
{% if kind == "several" -%}
{{ severity | upper }}: {{ held | length }} incidents in {{ topic or "the stream" }}
{% for one in held[:20] -%}
- {{ one.severity }}{{ ", ended" if one.kind == "closed" }}: \
{{ one.key if one.key is not none else one.incident }}{{ ": " ~ one.explanation if one.explanation }}
{% endfor -%}
{% if held | length > 20 %}- and {{ held | length - 20 }} more
{% endif -%}
{% elif kind == "closed" -%}
ENDED: {{ what }} in {{ who }}{{ " after " ~ lasted if lasted }}
{{ explanation if explanation }}
{% if alerts > 1 %}Alerts: {{ alerts }}
{% endif -%}
{% if began %}From {{ began }}{{ " to " ~ time if time }}
{% endif -%}
{% else -%}
{{ severity | upper }}: {{ what }} in {{ who }}{{ " goes on" if kind == "updated" }}
{{ explanation if explanation }}
{% for reason in reasons -%}
- {{ reason.feature }}: {{ reason.value | shown }}\
{% if reason.expected is not none %}, expected {{ reason.expected | shown }}{% endif %}\
{% if reason.usual is not none %}, usually {{ reason.usual | shown }}{% endif %}\
{% if reason.low is not none and reason.low != reason.high %} ({{ reason.low | shown }} to {{ reason.high | shown }})\
{% endif %}
{% endfor -%}
{% if kind == "updated" %}Alerts: {{ alerts }}{{ ", since " ~ began if began }}
{% endif -%}
{% if time %}{{ "Last" if about != "outlier" else "Record" }}: {{ place }} at {{ time }}
{% endif -%}
{% endif -%}
{% if kind != "several" %}Incident: {{ incident }}
{% endif -%}
{{ link if link }}
""",
    "short": """\
{% if kind == "several" %}{{ held | length }} incidents in {{ topic }}{% else -%}
{{ "ended" if kind == "closed" else severity }}{{ ", goes on" if kind == "updated" }}: {{ topic }}\
{{ " " ~ key if key is not none }}{% endif %}
{{ explanation if explanation }}
""",
}
WIDE = 6  # significant digits of a number


class Text(NamedTuple):
    """A message in words."""

    title: str
    body: str


def facts(message: Message, status_url: str | None = None) -> dict[str, Any]:
    """A message as JSON-ready values; None where nothing is known. These are also the names in templates."""
    event, first = message.event, message.first
    known = event.facts()
    began = event.began if event.began is not None else None if first is None else first.began
    if known["explanation"] is None and first is not None:
        known["explanation"] = first.facts()["explanation"]
    lasted = None
    if known["quiet_s"] is not None:
        lasted = in_time(known["quiet_s"])
    elif began is not None and event.timestamp is not None and event.timestamp >= began:
        lasted = in_time((event.timestamp - began) / 1000.0)
    where = "" if event.partition is None else f"[{event.partition}]"
    return {
        "id": message.id,
        "kind": message.kind,
        "about": event.about,
        "incident": event.incident,
        "severity": message.severity,
        "topic": event.topic,
        "partition": event.partition,
        "offset": event.offset,
        "place": f"{event.topic}{where}@{event.offset}",
        "time": iso(event.timestamp),
        "key": event.key,
        "explanation": known["explanation"],
        "reasons": known["reasons"],
        "alerts": message.alerts,
        "began": iso(began),
        "lasted": lasted,
        "of": known["of"],
        **{name: known[name] for name in NUMBERS},
        "held": [facts(one) for one in message.held],
        "link": status_url,
    }


class Template:
    """Writes the texts of messages: the title on the first line, then the body.

    source: `default`, `short`, or a file. It is tried with examples of each kind of message. Raises ConfigError, with
    file, line and what is wrong.
    """

    def __init__(self, source: str, status_url: str | None = None) -> None:
        self._link, self._throttle = status_url, Throttle()
        text, self._name = TEMPLATES.get(source), f"--template {source}"
        if text is None:
            text = _read(source)
        # Texts are no HTML. Names that do not exist are mistakes; and a template can call nothing that changes a value.
        environment = ImmutableSandboxedEnvironment(
            autoescape=False, undefined=StrictUndefined, keep_trailing_newline=True
        )
        environment.filters["shown"] = shown
        try:
            self._template = environment.from_string(text)
        except TemplateSyntaxError as error:
            raise ConfigError(f"{self._name} line {error.lineno}: {error.message}", _REMEDY) from None
        for example in examples():
            try:
                found = self._written(example)
            except Exception as error:  # whatever a template can do
                self._explain(error, facts(example, status_url))
            if not found.title:
                raise ConfigError(f"{self._name}: the first line, which is the title, is empty", _REMEDY)

    def text(self, message: Message) -> Text:
        """A message in words. Where the template fails, they are those of the default one."""
        try:
            return self._written(message)
        except Exception as error:
            if self._throttle.allow("template") is not None:
                log.warning(kv("template_failed", message=message.id, error=type(error).__name__, at=place_of(error)))
            return Template("default", self._link)._written(message)

    def _written(self, message: Message) -> Text:
        names = {**_for_chats(facts(message)), "link": self._link}
        lines = self._template.render(names).strip().splitlines()
        title = " ".join(lines[0].split()) if lines else ""
        return Text(title, "\n".join(line.rstrip() for line in lines[1:] if line.strip()))

    def _explain(self, error: Exception, names: Mapping[str, Any]) -> NoReturn:
        frames = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == "<template>"]
        where = f"{self._name} line {frames[-1]}" if frames else self._name
        what, hint = f"{type(error).__name__}: {error}", ""
        if isinstance(error, UndefinedError):
            what = str(error)
            quoted = what.split("'")
            wrong = (
                quoted[3] if "has no attribute" in what and len(quoted) > 3 else quoted[1] if len(quoted) > 1 else ""
            )
            reason = names["reasons"][0] if names["reasons"] else {}
            hint = did_you_mean(wrong, sorted({*names, *reason})) or f"; names are {', '.join(names)}"
        elif isinstance(error, TemplateError):
            what = error.message or type(error).__name__
        raise ConfigError(f"{where}: {what}{hint}", _REMEDY) from None


def _for_chats(value: Any) -> Any:
    """Facts whose texts call nobody and are no links."""
    if isinstance(value, dict):
        return {name: _for_chats(one) for name, one in value.items()}
    if isinstance(value, list):
        return list(map(_for_chats, value))
    return clean(value, for_chats=True) if isinstance(value, str) else value


_REMEDY = "see docs/notify.md for the names and an example"


def shown(value: Any) -> str:
    """A value of a record in a sentence.

    >>> shown(3.14159265), shown(True), shown(None), shown("idle")
    ('3.14159', 'true', 'missing', '"idle"')
    """
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        text = f"{value:.{WIDE}g}" if value else "0"
        return f"{value:.0f}" if "e+" in text and abs(value) < 1e15 else text
    return f'"{value}"'


def examples() -> Iterator[Message]:
    """Messages of every kind, with much and with little known."""
    place = {"topic": "sensors", "partition": 0, "offset": 1234, "timestamp": 1_760_000_000_000}
    reason = {"feature": "flow", "cause": "value", "share": 0.9, "value": 9.0, "usual": 3.0, "range": [2.0, 4.0]}
    numbers = {"score": 0.999, "surprise": 6.9, "severity": "critical"}
    said = {"reasons": [{**reason, "expected": 3.1}], "explanation": "flow is 9, usually 3 (2 to 4)"}
    alert = {**place, **numbers, **said, "outlier": True, "status": "ok", "incident": "0-1234"}
    ends = {name: {"offset": place["offset"], "timestamp": place["timestamp"]} for name in ("from", "to")}
    end = {"incident": "0-1234", "status": "closed", **{k: place[k] for k in ("topic", "partition")}, **ends}
    quiet = {**end, "incident": "0-1234-key-silent", "status": "silent", "of": "key", "quiet_s": 75.0}
    rate = {**end, "incident": "0-1234-partition-rate", "status": "rate", "of": "partition", "records_per_minute": 12.0}
    bare = {"outlier": True, "incident": "9", "offset": 8}

    def event(result: Mapping[str, Any], key: str | None = "pump-7") -> Event:
        return read_event({"fomo": result}, "fomo", key)

    first, last = event(alert), event({**alert, "offset": 1240})
    yield Message("opened", first, first, 1)
    yield Message("opened", event({**alert, "reasons": [{**reason, "value": None, "range": None}]}), first, 1)
    yield Message("updated", last, first, 7)
    closed = Message("closed", event({**end, **said, "records": 7, "worst": numbers}), first, 7)
    yield closed
    for one in (quiet, rate):
        opened = event({**one, "usual_gap_s": 11.6, "usual_per_minute": 1000.0, "explanation": "no record for 75 s"})
        yield Message("opened", opened, opened, 1)
        yield Message("closed", event({**one, "status": "closed"}), opened, 1)
    unknown = event(bare, None)  # nothing but its name
    yield Message("updated", unknown, None, 1)
    yield Message("closed", event({"incident": "9", "status": "closed"}, None), None, 1)
    yield Message("several", unknown, None, 25, (closed, *[Message("opened", unknown, unknown, 1)] * 24))


def _read(source: str) -> str:
    path = Path(source)
    if not path.is_file():
        hint = did_you_mean(source, TEMPLATES)
        raise ConfigError(
            f"--template {source}: there is no such file or template{hint}", "templates are default, short"
        )
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LONGEST + 1)
    except OSError as error:
        raise ConfigError(f"--template {source}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--template {source}: it is not UTF-8 text") from None
    if len(text) > LONGEST:
        raise ConfigError(f"--template {source}: it is longer than {LONGEST} bytes")
    return text
