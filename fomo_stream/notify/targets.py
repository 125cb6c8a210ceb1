"""Where messages are sent: webhooks, Alertmanager, and people by the library apprise.

A target's address may hold a token, and what it answers may repeat the message. So logs and errors name the scheme and
the host of a target, a status, and nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import SplitResult, urlencode, urlsplit

import orjson

from fomo_stream.errors import ConfigError, needs_extra
from fomo_stream.notify.delivery import Answer
from fomo_stream.notify.events import About, Event, iso
from fomo_stream.notify.messages import Message, facts
from fomo_stream.notify.posting import Poster, answer_of
from fomo_stream.settings.notify import NotifySettings
from fomo_stream.wording import did_you_mean

LASTS_S = 7 * 86_400.0  # an alert fires for so long where its end is not told
ALERT_NAMES: dict[About, str] = {"outlier": "FomoOutlier", "silence": "FomoSilence", "rate": "FomoRate"}
SIGNATURE, IDEMPOTENCY = "Fomo-Signature", "Idempotency-Key"

Clock = Callable[[], float]  # seconds since 1970


class Target(Protocol):
    """Where messages go. Each is used by one thread."""

    name: str  # shows no secret
    is_for_people: bool  # who get a limited number of messages; programs are told everything

    def send(self, message: Message) -> Answer:
        """Send a message. Raises nothing that a target or a network can cause."""


def targets_of(settings: NotifySettings, now: Clock) -> list[Target]:
    """All targets that the settings name. Raises ConfigError. now: the time of day."""
    kinds: list[tuple[str, str]] = [("webhook", url) for url in settings.webhook]
    kinds += [("alertmanager", url) for url in settings.alertmanager]
    kinds += [("to", url) for url in settings.to]
    if settings.targets_file is not None:
        kinds += _lines(settings.targets_file)
    secret, link = _secret(settings), settings.status_url
    if secret is not None and "webhook" not in dict(kinds):
        raise ConfigError("a secret for webhooks is given, but no --webhook", "leave it out, or add the webhook")
    poster = Poster(_context(settings.target_ca), settings.target_timeout)
    found: list[Target] = []
    for kind, url in kinds:
        if kind == "to":
            found.append(People(url))
        elif kind == "webhook":
            found.append(Webhook(_checked(url, "--webhook"), poster, secret, link, now))
        else:
            found.append(Alertmanager(_checked(url, "--alertmanager"), poster, link, now))
    names: dict[str, int] = {}
    for target in found:  # two may be at one host
        names[target.name] = count = names.get(target.name, 0) + 1
        target.name += f"#{count}" if count > 1 else ""
    return found


class Webhook:
    """Posts each message as JSON. With a secret the body is signed, so that the receiver knows who has sent it.

    The header `Fomo-Signature: t=TIME,v1=HEX` has the time of sending (seconds since 1970) and the HMAC-SHA256 of
    `TIME.BODY` with the secret as key.
    """

    is_for_people = False

    def __init__(self, url: SplitResult, poster: Poster, secret: bytes | None, link: str | None, now: Clock) -> None:
        self.name = _shown(url)
        self._url, self._poster, self._secret, self._link, self._now = url, poster, secret, link, now

    def send(self, message: Message) -> Answer:
        assert message.event is not None
        more = {"link": self._link, "title": message.title, "text": message.text}
        body = orjson.dumps({**facts(message.kind, message.event), **more})
        headers = {IDEMPOTENCY: message.id.encode("ascii", "backslashreplace").decode()}
        if self._secret is not None:
            headers[SIGNATURE] = signature(self._secret, int(self._now()), body)
        return self._poster.exchange(self._url, body, headers)[0]


def signature(secret: bytes, time: int, body: bytes) -> str:
    """The header that signs a body.

    >>> signature(b"key", 1700000000, b"{}")[:30]
    't=1700000000,v1=9d713ed406bb70'
    """
    return f"t={time},v1={hmac.new(secret, b'%d.%b' % (time, body), hashlib.sha256).hexdigest()}"


class Alertmanager:
    """Tells an Alertmanager of each incident: it fires from its opening to its end, or for LASTS_S at most.

    The severity and the key of the opening are labels, and the end of an incident may have others. So at the end
    Alertmanager is asked for the labels of what fires.
    """

    is_for_people = False

    def __init__(self, url: SplitResult, poster: Poster, link: str | None, now: Clock) -> None:
        self.name = _shown(url)
        path = url.path.rstrip("/")
        self._url = url._replace(path=path if path.endswith("/api/v2/alerts") else f"{path}/api/v2/alerts")
        self._poster, self._link, self._now = poster, link, now

    def send(self, message: Message) -> Answer:
        event, now = message.event, self._now()
        assert event is not None
        every = [_labels(event, event.severity)]
        if message.kind == "closed":
            answer, firing = self._firing(event)
            if answer.kind == "again":
                return answer
            every = firing or [_labels(event, severity) for severity in ("warning", "critical")]
        starts = now if event.began is None or not 0 < event.began <= now * 1000 else event.began / 1000
        alert: dict[str, Any] = {
            "annotations": {"summary": message.title, "description": message.text},
            "startsAt": _rfc3339(starts),
            "endsAt": _rfc3339(now if message.kind == "closed" else now + LASTS_S),
            **({"generatorURL": self._link} if self._link else {}),
        }
        return self._poster.exchange(self._url, orjson.dumps([{"labels": labels, **alert} for labels in every]))[0]

    def _firing(self, event: Event) -> tuple[Answer, list[Any]]:
        """The labels of the alerts about an incident, as far as Alertmanager says them."""
        names = {"alertname", "incident", "topic"}
        labels = {name: value for name, value in _labels(event, "").items() if name in names}
        wanted = [("filter", f"{name}={orjson.dumps(value).decode()}") for name, value in labels.items()]
        query = "&".join(filter(None, (self._url.query, urlencode(wanted))))
        answer, body = self._poster.exchange(self._url._replace(query=query))
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            return answer, [one["labels"] for one in orjson.loads(body) if labels.items() <= one["labels"].items()]
        return answer, []


def _labels(event: Event, severity: str) -> dict[str, str]:
    partition = "" if event.partition is None else str(event.partition)
    labels = {"alertname": ALERT_NAMES[event.about], "topic": event.topic, "partition": partition}
    labels |= {"key": event.key or "", "severity": severity, "incident": event.incident}
    return {name: value for name, value in labels.items() if value}


class People:
    """Slack, Teams, mail and others, by the library apprise. Raises ConfigError for an address that it cannot use."""

    is_for_people = True

    def __init__(self, url: str) -> None:
        scheme = url.partition(":")[0].lower()
        with needs_extra("--to", "notify"):
            import apprise
        self._apprise = apprise
        logger = logging.getLogger("apprise")  # its lines may hold addresses with tokens
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
        asset = apprise.AppriseAsset(
            app_id="fomo-stream",
            app_desc="fomo-stream",
            app_url="",
            secure_logging=True,
            storage_mode=apprise.PersistentStoreMode.MEMORY,  # it writes no files
        )
        try:
            self._service = apprise.Apprise.instantiate(url, asset=asset, suppress_exceptions=True)
        except Exception:  # a defect of a plugin; its text could hold the address
            self._service = None
        if self._service is None:
            known = [str(one) for one in apprise.plugins.N_MGR.schemas()]
            if scheme in known:
                raise ConfigError(f"--to {scheme}://...: parts of the address are missing or wrong", _TO)
            if "://" not in url:
                raise ConfigError("--to: an address begins with a scheme, as slack:// or mailtos://", _TO)
            hint = "; did you mean --webhook?" if scheme in ("http", "https") else did_you_mean(scheme, known)
            raise ConfigError(f"--to {scheme}://...: apprise knows no such address{hint}", _TO)
        if "overflow=" not in url:  # a service that takes only short messages would refuse a long one for good
            self._service.overflow_mode = apprise.OverflowMode.SPLIT
        host = ""
        if scheme in ("mailto", "mailtos", "json", "jsons", "http", "https"):  # of others it may be a token
            with suppress(ValueError):
                host = urlsplit(url).hostname or ""
        self.name = f"{scheme}://{host}"
        self._failures = _Failures()

    def send(self, message: Message) -> Answer:
        kinds = self._apprise.NotifyType
        kind = kinds.SUCCESS if message.kind == "closed" else kinds.FAILURE if message.severity == "critical" else None
        logger = logging.getLogger("apprise")
        self._failures.begin()
        logger.addHandler(self._failures)
        try:
            assert self._service is not None
            sent = self._service.notify(
                body=message.text or message.title,
                title=message.title if message.text else "",
                notify_type=kind or kinds.WARNING,
                body_format=self._apprise.NotifyFormat.TEXT,
            )
        except Exception as error:  # of a plugin; its text could hold the address
            return Answer("again", type(error).__name__)
        finally:
            logger.removeHandler(self._failures)
        return Answer("sent") if sent else answer_of(self._failures.status)


_TO = "see https://appriseit.com/services for the addresses"


class _Failures(logging.Handler):
    """The status in what apprise logs: its methods only say whether they have succeeded."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.status, self._thread = 0, 0

    def begin(self) -> None:
        """Forget what was logged."""
        self.status, self._thread = 0, threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread and (found := re.search(r"error\s*=\s*([1-5]\d\d)\b", record.getMessage())):
            self.status = int(found[1])


# --- settings


def _checked(url: str, flag: str) -> SplitResult:
    """An address of HTTP. Raises ConfigError, which shows no more of it than its scheme."""
    scheme, is_plain = url.partition(":")[0].lower(), url.isascii() and url.isprintable() and " " not in url
    if scheme not in ("http", "https"):
        if "://" not in url:
            raise ConfigError(f"{flag}: an address without scheme; write it as https://host/path")
        hint = did_you_mean(scheme, ("http", "https")) or "; did you mean --to?"
        raise ConfigError(f"{flag} {scheme}://...: it needs http:// or https://{hint}")
    with suppress(ValueError):  # of a port that is no number, or a name that no host can have
        parts = urlsplit(url)
        if is_plain and parts.port != 0 and (parts.hostname or "").encode("idna"):
            return parts
    raise ConfigError(f"{flag}: an address is not a URL with a host", "write it as https://host/path")


def _lines(path: Path) -> list[tuple[str, str]]:
    """The targets in a file: each with its kind. Raises ConfigError."""
    found = []
    for number, line in enumerate(_file(path, "--targets-file").splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        kind, url = words if len(words) == 2 else ("to", words[0])
        if len(words) > 2 or kind not in ("to", "webhook", "alertmanager"):
            hint = did_you_mean(kind, ("webhook", "alertmanager")) if "://" not in kind else ""
            where = f"--targets-file {path} line {number}"
            raise ConfigError(f"{where}: write an address, or webhook or alertmanager and an address{hint}")
        found.append((kind, url))
    if not found:
        raise ConfigError(f"--targets-file {path}: it names no target")
    return found


def _secret(settings: NotifySettings) -> bytes | None:
    if settings.webhook_secret_file is None:
        return None if settings.webhook_secret is None else settings.webhook_secret.encode()
    if text := _file(settings.webhook_secret_file, "--webhook-secret-file").strip():
        return text.encode()
    raise ConfigError(f"--webhook-secret-file {settings.webhook_secret_file}: the file is empty")


def _file(path: Path, flag: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{flag} {path}: cannot be read: {reason}", "check its name and permissions") from None


def _context(authority: Path | None) -> ssl.SSLContext:
    """TLS that verifies who answers, with the authorities of the system and perhaps one more. Raises ConfigError."""
    context = ssl.create_default_context()
    if authority is not None:
        try:
            context.load_verify_locations(cafile=str(authority))
        except OSError as error:
            reason = "it has no certificates in PEM" if isinstance(error, ssl.SSLError) else error.strerror
            raise ConfigError(f"--target-ca {authority}: cannot be read: {reason}") from None
    return context


def _shown(url: SplitResult) -> str:
    port = f":{url.port}" if url.port else ""
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    return f"{url.scheme}://{host}{port}"


def _rfc3339(seconds: float) -> str:
    whole = iso(int(seconds * 1000)) or "1970-01-01T00:00:00Z"
    return f"{whole[:-1]}.{int(seconds * 1000) % 1000:03d}Z"
