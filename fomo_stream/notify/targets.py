"""The targets of messages: webhooks, Alertmanager, and people through the library apprise.

The address of a target may hold a token, and its answer may repeat the message. So logs and errors name the scheme of a
target, the host of an HTTP target, and a status, and nothing else.
"""

from __future__ import annotations

import base64
import logging
import re
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from http.client import HTTPException
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, unquote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

import orjson

from fomo_stream import __version__
from fomo_stream.errors import ConfigError, needs_extra
from fomo_stream.notify.events import iso_text
from fomo_stream.notify.messages import Message
from fomo_stream.settings.notify import NotifySettings
from fomo_stream.wording import did_you_mean

TIMEOUT_S = 10.0  # for an answer of a server
MAX_BODY_BYTES = 1 << 20  # of an answer
RETRY_STATUSES = (408, 425, 429)  # statuses below 500 after which a message is sent again
INCIDENT_LABELS = {"alertname", "topic", "incident"}  # labels that all alerts about an incident share
ALERT_DURATION_S = 7 * 86_400.0  # an alert of Alertmanager fires so long if its end never comes

Clock = Callable[[], float]  # seconds since 1970


class Answer(NamedTuple):
    """The answer of a target. why: a reason without secrets."""

    kind: Literal["sent", "again", "refused"]
    why: str = ""


class Target(Protocol):
    """A target of messages. Each is used by one thread."""

    name: str  # without secrets
    is_for_people: bool  # people get a limited number of messages, programs get all

    def send(self, message: Message) -> Answer:
        """Send a message. Raises nothing that a target or a network can cause."""


def targets_of(settings: NotifySettings, now: Clock = time.time) -> list[Target]:
    """Return all targets that the settings name. Raises ConfigError. now: the time of day."""
    kinds = [(kind, url) for kind in ("webhook", "alertmanager", "to") for url in getattr(settings, kind)]
    programs: dict[str, type[Webhook] | type[Alertmanager]] = {"webhook": Webhook, "alertmanager": Alertmanager}
    targets: list[Target] = [
        programs[kind](url, settings.status_url, now) if kind in programs else AppriseTarget(url) for kind, url in kinds
    ]
    names = Counter(target.name for target in targets)
    for target, (_, url) in zip(targets, kinds, strict=True):
        if names[target.name] > 1:  # two may be at one host; the digest is the same whatever their order
            target.name += f"#{sha256(url.encode()).hexdigest()[:8]}"
    return targets


class _NoRedirects(HTTPRedirectHandler):
    """Refuses redirects, because they could take a secret to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


class HttpTarget:
    """A target over HTTP. Its certificate is verified. link: to the status page. Raises ConfigError."""

    flag, is_for_people = "", False

    def __init__(self, url: str, link: str | None, now: Clock) -> None:
        self._url, self._link, self._now = _checked_url(url, self.flag), link, now
        self.name = f"{self._url.scheme}://{self._url.netloc.rpartition('@')[2]}"
        self._opener = build_opener(ProxyHandler({}), _NoRedirects)

    def exchange(
        self, url: SplitResult, body: bytes | None = None, extra: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[Answer, bytes]:
        """POST a body, or GET without one, and return the answer. Raises nothing that a network or server can cause.

        extra: further headers.
        """
        headers = {"Content-Type": "application/json", "User-Agent": f"fomo-stream/{__version__}", **extra}
        login, _, host = url.netloc.rpartition("@")
        if login:
            headers["Authorization"] = f"Basic {base64.b64encode(unquote(login).encode()).decode()}"
        try:
            request = Request(url._replace(netloc=host).geturl(), body, headers)
            with self._opener.open(request, timeout=TIMEOUT_S) as response:
                # Only the status of a POST matters, so its body is not read: a body that is cut off changes nothing.
                return answer_of(response.status), b"" if body is not None else _read_body(response)
        except HTTPError as error:
            with error:
                return answer_of(error.code), b""
        except (OSError, UnicodeError, HTTPException) as error:
            cause = error.reason if isinstance(error, URLError) else error
            if isinstance(cause, ssl.SSLCertVerificationError):
                return Answer("again", f"its certificate is not trusted: {cause.verify_message}"), b""
            if isinstance(cause, TimeoutError):
                return Answer("again", f"no answer for {TIMEOUT_S:g} s"), b""
            return Answer("again", getattr(cause, "strerror", None) or type(cause).__name__), b""


class Webhook(HttpTarget):
    """Gets each message as JSON."""

    flag = "--webhook"

    def send(self, message: Message) -> Answer:
        texts = {"link": self._link, "title": message.title, "text": message.text}
        headers = {"Idempotency-Key": message.id.encode("ascii", "backslashreplace").decode()}
        return self.exchange(self._url, orjson.dumps({**message.facts, **texts}), headers)[0]


class Alertmanager(HttpTarget):
    """Gets an alert for each incident, which fires from its opening to its end, or for at most ALERT_DURATION_S.

    Severity and key are labels, and the end of an incident may have other ones than its opening. So at the end
    Alertmanager is asked for the labels of the alerts that fire.
    """

    flag = "--alertmanager"

    def __init__(self, url: str, link: str | None, now: Clock) -> None:
        super().__init__(url, link, now)
        path = self._url.path.rstrip("/").removesuffix("/api/v2/alerts")
        self._url = self._url._replace(path=f"{path}/api/v2/alerts")

    def send(self, message: Message) -> Answer:
        event, now = message.event, self._now()
        assert event is not None
        labels = {
            "alertname": f"Fomo{event.facts['about'].capitalize()}",
            **{name: event.facts[name] for name in ("topic", "partition", "key", "severity", "incident")},
        }
        labels = {name: str(value) for name, value in labels.items() if value not in (None, "")}
        label_sets = [labels]
        if message.kind == "closed":
            answer, firing = self._firing({name: labels[name] for name in labels.keys() & INCIDENT_LABELS})
            if answer.kind == "again":
                return answer
            label_sets = firing or [{**labels, "severity": severity} for severity in ("warning", "critical")]
        starts = now if event.began is None or not 0 < event.began <= now * 1000 else event.began / 1000
        alert: dict[str, Any] = {
            "annotations": {"summary": message.title, "description": message.text},
            "startsAt": _rfc3339(starts),
            "endsAt": _rfc3339(now if message.kind == "closed" else now + ALERT_DURATION_S),
            **({"generatorURL": self._link} if self._link else {}),
        }
        return self.exchange(self._url, orjson.dumps([{"labels": labels, **alert} for labels in label_sets]))[0]

    def _firing(self, labels: dict[str, str]) -> tuple[Answer, list[Any]]:
        """Ask for the labels of the firing alerts that have these labels; empty if Alertmanager does not say."""
        filters = urlencode([("filter", f"{name}={orjson.dumps(value).decode()}") for name, value in labels.items()])
        query = "&".join(filter(None, (self._url.query, filters)))
        answer, body = self.exchange(self._url._replace(query=query))
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            alerts = orjson.loads(body)
            return answer, [alert["labels"] for alert in alerts if labels.items() <= alert["labels"].items()]
        return answer, []


class AppriseTarget:
    """Slack, Teams, mail and others, through apprise. Raises ConfigError for an address that apprise cannot use."""

    is_for_people = True

    def __init__(self, url: str) -> None:
        scheme = url.partition("://")[0].lower() if "://" in url else ""
        self.name = f"{scheme}://"  # the host may be a token
        with needs_extra("--to", "notify"):
            import apprise
        self._apprise = apprise
        logger = logging.getLogger("apprise")  # its lines may hold addresses with tokens
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
        names = {"app_id": "fomo-stream", "app_desc": "fomo-stream", "app_url": ""}
        memory = apprise.PersistentStoreMode.MEMORY  # it writes no files
        self._service: Any = None
        with suppress(Exception):  # of a plugin; its text could hold the address
            asset = apprise.AppriseAsset(**names, secure_logging=True, storage_mode=memory)
            self._service = apprise.Apprise.instantiate(url, asset=asset, suppress_exceptions=True)
        if self._service is None:
            schemes = [str(scheme) for scheme in apprise.plugins.N_MGR.schemas()]
            hint = "; did you mean --webhook?" if scheme in ("http", "https") else did_you_mean(scheme, schemes)
            why = f"apprise knows no such address, or parts of it are missing{hint}"
            raise ConfigError(f"--to {self.name}...: {why}", "see https://appriseit.com/services for the addresses")
        if "overflow=" not in url:  # a service that takes only short messages would refuse a long one for good
            self._service.overflow_mode = apprise.OverflowMode.SPLIT

    def send(self, message: Message) -> Answer:
        kinds = self._apprise.NotifyType
        kind = kinds.FAILURE if message.severity == "critical" else kinds.WARNING
        content = {"body": message.text or message.title, "title": message.title if message.text else ""}
        content["body_format"] = self._apprise.NotifyFormat.TEXT
        try:
            with self._apprise.LogCapture(level=logging.WARNING, fmt="%(thread)d %(message)s") as log:
                sent = self._service.notify(notify_type=kinds.SUCCESS if message.kind == "closed" else kind, **content)
                lines = log.getvalue()
        except Exception as error:  # of a plugin; its text could hold the address
            return Answer("again", type(error).__name__)
        # apprise only returns whether it succeeded. The status is in its log, together with those of other threads.
        statuses = re.findall(rf"^{threading.get_ident()} .*error\s*=\s*([1-5]\d\d)\b", lines, re.MULTILINE)
        return Answer("sent") if sent else answer_of(int(statuses[-1]) if statuses else 0)


def _read_body(response: Any) -> bytes:
    """Return the body of an answer, at most about MAX_BODY_BYTES of it. Raises OSError if it takes too long."""
    body, end = bytearray(), time.monotonic() + TIMEOUT_S
    while len(body) < MAX_BODY_BYTES and (part := response.read1(MAX_BODY_BYTES)):
        body += part
        if time.monotonic() > end:
            raise TimeoutError
    return bytes(body)


def answer_of(status: int) -> Answer:
    """Return the answer that a status of HTTP means; 0: there was none."""
    why = f"HTTP {status}" if status else "it was not sent"
    if 200 <= status < 300:
        return Answer("sent")
    if status < 200 or status >= 500 or status in RETRY_STATUSES:
        return Answer("again", why)
    return Answer("refused", f"{why}, and redirects are not followed" if status < 400 else why)


def _checked_url(url: str, flag: str) -> SplitResult:
    """Return the parts of an HTTP address. Raises ConfigError, which shows only the scheme of the address."""
    with suppress(ValueError):  # a port is not a number, or a name cannot be that of a host
        parts, is_plain = urlsplit(url), url.isascii() and url.isprintable() and " " not in url
        is_http = is_plain and parts.scheme in ("http", "https") and parts.port != 0
        if is_http and (parts.hostname or "").encode("idna"):
            return parts
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    hint = "" if scheme in ("", "http", "https") else did_you_mean(scheme, ("http", "https")) or "; did you mean --to?"
    raise ConfigError(f"{flag} {scheme}://...: it is not an address of HTTP with a host, as https://host/path{hint}")


def _rfc3339(seconds: float) -> str:
    whole = iso_text(int(seconds * 1000)) or "1970-01-01T00:00:00Z"
    return f"{whole[:-1]}.{int(seconds * 1000) % 1000:03d}Z"
