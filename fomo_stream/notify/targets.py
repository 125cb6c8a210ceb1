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
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import SplitResult, urlsplit

import orjson

from fomo_stream.errors import ConfigError, needs_extra
from fomo_stream.notify.delivery import Answer
from fomo_stream.notify.desk import Audience, Message, Open
from fomo_stream.notify.events import About, iso
from fomo_stream.notify.messages import Template, facts
from fomo_stream.notify.posting import Poster, answer_of
from fomo_stream.settings.notify import TargetFlags
from fomo_stream.wording import did_you_mean

LARGEST_FILE = 1 << 20
REFRESH_S, LASTS_S = 60.0, 600.0  # Alertmanager is told again of what is open, which else ends by itself
BATCH = 500  # alerts in one request
ALERT_NAMES: dict[About, str] = {"outlier": "FomoOutlier", "silence": "FomoSilence", "rate": "FomoRate"}
SIGNATURE, IDEMPOTENCY = "Fomo-Signature", "Idempotency-Key"

Clock = Callable[[], float]  # seconds since 1970


class Target(Protocol):
    """Where messages go. Each is used by one thread."""

    name: str  # shows no secret
    audience: Audience

    def send(self, message: Message) -> Answer:
        """Send a message. Raises nothing that a target or a network can cause."""

    def refresh(self, incidents: Sequence[Open]) -> Answer | None:
        """Tell again of the incidents that are open; None: it needs no such thing."""


def targets_of(settings: TargetFlags, template: Template, now: Clock) -> list[Target]:
    """All targets that the settings name. Raises ConfigError. now: the time of day."""
    kinds: list[tuple[str, str]] = [("webhook", url) for url in settings.webhook]
    kinds += [("alertmanager", url) for url in settings.alertmanager]
    kinds += [("to", url) for url in settings.to]
    if settings.targets_file is not None:
        kinds += _lines(settings.targets_file)
    secret = _secret(settings)
    if secret is not None and "webhook" not in dict(kinds):
        raise ConfigError("a secret for webhooks is given, but no --webhook", "leave it out, or add the webhook")
    poster = Poster(_context(settings.target_ca), settings.target_timeout)
    words = Words(template, settings.status_url, now)
    found: list[Target] = []
    for kind, url in kinds:
        if kind == "to":
            found.append(People(url, template))
        elif kind == "webhook":
            found.append(Webhook(_checked(url, "--webhook"), poster, words, secret))
        else:
            found.append(Alertmanager(_checked(url, "--alertmanager"), poster, words))
    names: dict[str, int] = {}
    for target in found:  # two may be at one host
        names[target.name] = count = names.get(target.name, 0) + 1
        target.name += f"#{count}" if count > 1 else ""
    return found


class Words(NamedTuple):
    """What a message to a program is made with."""

    template: Template
    link: str | None  # to the status page
    now: Clock


class Webhook:
    """Posts each message as JSON. With a secret the body is signed, so that the receiver knows who has sent it.

    The header `Fomo-Signature: t=TIME,v1=HEX` has the time of sending (seconds since 1970) and the HMAC-SHA256 of
    `TIME.BODY` with the secret as key.
    """

    audience: Audience = "programs"

    def __init__(self, url: SplitResult, poster: Poster, words: Words, secret: bytes | None) -> None:
        self.name = _shown(url)
        self._url, self._poster, self._words, self._secret = url, poster, words, secret

    def send(self, message: Message) -> Answer:
        text = self._words.template.text(message)
        body = orjson.dumps({**facts(message, self._words.link), "title": text.title, "text": text.body})
        headers = {IDEMPOTENCY: _ascii(message.id)}
        if self._secret is not None:
            headers[SIGNATURE] = signature(self._secret, int(self._words.now()), body)
        return self._poster.post(self._url, body, headers)

    def refresh(self, incidents: Sequence[Open]) -> None:
        return None


def signature(secret: bytes, time: int, body: bytes) -> str:
    """The header that signs a body.

    >>> signature(b"key", 1700000000, b"{}")[:30]
    't=1700000000,v1=9d713ed406bb70'
    """
    return f"t={time},v1={hmac.new(secret, b'%d.%b' % (time, body), hashlib.sha256).hexdigest()}"


class Alertmanager:
    """Tells an Alertmanager of each incident: it fires from its opening to its end.

    Alertmanager ends an alert that is not told again. So open incidents are told every REFRESH_S seconds, to last for
    LASTS_S more.
    """

    audience: Audience = "programs"

    def __init__(self, url: SplitResult, poster: Poster, words: Words) -> None:
        self.name = _shown(url)
        path = url.path.rstrip("/")
        self._url = url._replace(path=path if path.endswith("/api/v2/alerts") else f"{path}/api/v2/alerts")
        self._poster, self._words = poster, words

    def send(self, message: Message) -> Answer:
        severities: Iterable[str] = [(message.first or message.event).severity]
        if message.first is None and message.kind == "closed":
            severities = ("warning", "critical")  # the severity of its opening is a label, and not known here
        return self._post([self._alert(message, severity) for severity in severities])

    def refresh(self, incidents: Sequence[Open]) -> Answer:
        for start in range(0, len(incidents), BATCH):
            some = incidents[start : start + BATCH]
            answer = self._post([self._alert(one.message("updated"), one.first.severity) for one in some])
            if answer.kind != "sent":
                return answer
        return Answer("sent")

    def _post(self, alerts: Sequence[dict[str, Any]]) -> Answer:
        return self._poster.post(self._url, orjson.dumps(alerts), {})

    def _alert(self, message: Message, severity: str) -> dict[str, Any]:
        event, now, link = message.event, self._words.now(), self._words.link
        labels = {"alertname": ALERT_NAMES[event.about], "topic": event.topic, "incident": event.incident}
        labels |= {"severity": severity, "key": event.key or ""}
        labels["partition"] = "" if event.partition is None else str(event.partition)
        text = self._words.template.text(message)
        began = (message.first or event).began
        starts = now if began is None or not 0 < began <= now * 1000 else began / 1000
        alert: dict[str, Any] = {
            "labels": {name: value for name, value in labels.items() if value},
            "annotations": {"summary": text.title, "description": text.body},
            "startsAt": _rfc3339(starts),
            "endsAt": _rfc3339(now if message.kind == "closed" else now + LASTS_S),
        }
        return alert | ({"generatorURL": link} if link else {})


class People:
    """Slack, Teams, mail and others, by the library apprise. Raises ConfigError for an address that it cannot use."""

    audience: Audience = "people"

    def __init__(self, url: str, template: Template) -> None:
        scheme = url.partition(":")[0].lower()
        with needs_extra("--to", "notify"):
            import apprise
        self._apprise, self._template = apprise, template
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
            known = sorted(str(one) for one in apprise.plugins.N_MGR.schemas())
            if "://" not in url:
                raise ConfigError("--to: an address begins with a scheme, as slack:// or mailtos://", _TO)
            if scheme not in known:
                hint = "; did you mean --webhook?" if scheme in ("http", "https") else did_you_mean(scheme, known)
                raise ConfigError(f"--to {scheme}://...: apprise knows no such address{hint}", _TO)
            raise ConfigError(f"--to {scheme}://...: parts of the address are missing or wrong", _TO)
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
        text = self._template.text(message)
        logger = logging.getLogger("apprise")
        self._failures.begin()
        logger.addHandler(self._failures)
        try:
            assert self._service is not None
            sent = self._service.notify(
                body=text.body or text.title,
                title=text.title if text.body else "",
                notify_type=kind or kinds.WARNING,
                body_format=self._apprise.NotifyFormat.TEXT,
            )
        except Exception as error:  # of a plugin; its text could hold the address
            return Answer("again", type(error).__name__)
        finally:
            logger.removeHandler(self._failures)
        return Answer("sent") if sent else answer_of(self._failures.status)

    def refresh(self, incidents: Sequence[Open]) -> None:
        return None


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
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 (raises ValueError)
    except ValueError:
        raise ConfigError(f"{flag}: an address is not a URL", "write it as https://host/path") from None
    if parts.scheme not in ("http", "https"):
        scheme = parts.scheme or "an address without scheme"
        hint = did_you_mean(scheme, ("http", "https"))
        hint = hint or ("; did you mean --to?" if parts.scheme else "; write it as https://host/path")
        raise ConfigError(f"{flag} {scheme}{'://...' if parts.scheme else ''}: it needs http:// or https://{hint}")
    is_plain = url.isascii() and url.isprintable() and " " not in url
    with suppress(UnicodeError):
        if is_plain and (parts.hostname or "").encode("idna"):
            return parts
    raise ConfigError(f"{flag} {parts.scheme}://...: it names no host, or has characters that a URL cannot have")


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


def _secret(settings: TargetFlags) -> bytes | None:
    if settings.webhook_secret_file is None:
        return None if settings.webhook_secret is None else settings.webhook_secret.encode()
    text = _file(settings.webhook_secret_file, "--webhook-secret-file").strip()
    if not text:
        raise ConfigError(f"--webhook-secret-file {settings.webhook_secret_file}: the file is empty")
    return text.encode()


def _file(path: Path, flag: str) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise ConfigError(f"{flag} {path}: it is larger than {LARGEST_FILE >> 20} MiB")
        return content.decode()
    except OSError as error:
        raise ConfigError(
            f"{flag} {path}: cannot be read: {error.strerror}", "check its name and permissions"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{flag} {path}: it is not UTF-8 text") from None


def _context(authority: Path | None) -> ssl.SSLContext:
    """TLS that verifies who answers, with the authorities of the system and perhaps one more. Raises ConfigError."""
    context = ssl.create_default_context()
    if authority is not None:
        try:
            context.load_verify_locations(cafile=str(authority))
        except ssl.SSLError:
            raise ConfigError(f"--target-ca {authority}: it has no certificates in the format PEM") from None
        except OSError as error:
            raise ConfigError(f"--target-ca {authority}: cannot be read: {error.strerror}") from None
    return context


def _shown(url: SplitResult) -> str:
    port = f":{url.port}" if url.port else ""
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    return f"{url.scheme}://{host}{port}"


def _rfc3339(seconds: float) -> str:
    whole = iso(int(seconds * 1000)) or "1970-01-01T00:00:00Z"
    return f"{whole[:-1]}.{int(seconds * 1000) % 1000:03d}Z"


def _ascii(text: str) -> str:
    """For a header."""
    return text.encode("ascii", "backslashreplace").decode()
