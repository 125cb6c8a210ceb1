"""TLS, SASL and least privilege: the permissions in the deployment guide are enough, and all are needed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "notify"))

import pytest
from brokers import Kafka, free_ports, kafka_home, wait_for
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from documents import listed_acls
from made_alerts import alert
from receivers import Receiver, Reply, Request, certificate, receiving, server_context
from services import CLIENT, Command, Running, changed, command, in_thread, readings, refusal, results

from fomo_stream.admin.redrive import send_dead_letters
from fomo_stream.cli.main import main
from fomo_stream.errors import BrokerError, NotPermittedError, TopicError
from fomo_stream.kafka import certificates
from fomo_stream.kafka.broker import clients
from fomo_stream.kafka.group.written_topics import WrittenTopics
from fomo_stream.notify import notifier
from fomo_stream.settings.commands import RedriveSettings
from fomo_stream.settings.notify import NotifySettings
from fomo_stream.settings.service_settings import ServiceSettings

pytestmark = pytest.mark.slow

GUIDE = Path(__file__).parents[2] / "deploy" / "README.md"
USER, PASSWORD = "fomo", "correct-horse"


RENEWED = "fomo-renewed"  # another user, whom a renewed certificate names
OAUTH = "org.apache.kafka.common.security.oauthbearer"
LIFE_S = 5  # of a token


class IdentityProvider:
    """Gives out signed tokens over HTTPS, and the key that checks them; calls itself `url`."""

    def __init__(self, folder: Path) -> None:
        self.secret = "hunter2-secret"
        self.tokens: list[str] = []
        self._key, self.certificate = os.urandom(32), certificate(folder)

    def serve(self, keys: Receiver, endpoint: Receiver) -> None:
        key = {"kty": "oct", "kid": "a", "alg": "HS256", "use": "sig", "k": _base64(self._key)}
        keys.firing = lambda _request: Reply(body=json.dumps({"keys": [key]}).encode())
        endpoint.answer = self._token
        self.keys_url, self.token_url = f"{keys.url}/keys", f"{endpoint.url}/token"

    def _token(self, request: Request) -> Reply:
        login = f"Basic {base64.b64encode(f'{USER}-client:{self.secret}'.encode()).decode()}"
        if request.headers["Authorization"] != login or b"grant_type=client_credentials" not in request.body:
            return Reply(401, body=b'{"error": "invalid_client"}')
        now = int(time.time())
        claims = {"sub": USER, "aud": "kafka", "iat": now, "exp": now + LIFE_S, "scope": "stream"}
        text = ".".join(_base64(json.dumps(part).encode()) for part in ({"alg": "HS256", "kid": "a"}, claims))
        self.tokens.append(f"{text}.{_base64(hmac.digest(self._key, text.encode(), hashlib.sha256))}")
        answer = {"access_token": self.tokens[-1], "token_type": "Bearer", "expires_in": LIFE_S}
        return Reply(headers=(("Content-Type", "application/json"),), body=json.dumps(answer).encode())

    def client(self) -> dict[str, str]:
        """Settings of a client that logs in with a token."""
        return {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": f"{USER}-client",
            "sasl.oauthbearer.client.secret": self.secret,
            "sasl.oauthbearer.scope": "stream",
            "sasl.oauthbearer.token.endpoint.url": self.token_url,
        }


def _base64(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


class Authority:
    """Signs the certificates of clients."""

    def __init__(self, folder: Path) -> None:
        self.certificate, self._key = folder / "authority.pem", folder / "authority-key.pem"
        self._run("-x509", "-days", "2", "-subj", "/CN=authority", "-keyout", self._key, "-out", self.certificate)

    def sign(self, user: str, folder: Path) -> tuple[bytes, bytes]:
        """A new certificate of this user, and its key."""
        key, request = folder / "new-key.pem", folder / "request.pem"
        self._run("-subj", f"/CN={user}", "-keyout", key, "-out", request)
        by: list[Any] = ["-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial", "-days", "2"]
        signed = subprocess.run(["openssl", "x509", "-req", "-in", request, *by], check=True, capture_output=True)
        return signed.stdout, key.read_bytes()

    def _run(self, *arguments: Any) -> None:
        command = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", *arguments]
        subprocess.run(command, check=True, capture_output=True)


class SecureKafka(Kafka):
    """Besides the open listener, whose clients may do anything, two with TLS and access control: with SASL, and mutual.

    provider: its tokens are accepted.
    """

    def __init__(self, home: Path, provider: IdentityProvider) -> None:
        self._provider = provider
        super().__init__(home)

    def options(self) -> dict[str, Any]:
        port = free_ports()
        self.address, self.mutual_address = f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"
        self.certificate = certificate(self._folder)  # and its key
        self.authority = Authority(self._folder)
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        listeners = f"PLAINTEXT://{self.bootstrap},SECURE://{self.address},MUTUAL://{self.mutual_address}"
        tokens = "listener.name.secure.oauthbearer"
        return {
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{self._port + 1}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL,MUTUAL:SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.certificate,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority.certificate,
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
            "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
            "listener.name.secure.plain.sasl.jaas.config": f'{login} user_{USER}="{PASSWORD}";',
            f"{tokens}.sasl.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required;",
            f"{tokens}.sasl.server.callback.handler.class": f"{OAUTH}.OAuthBearerValidatorCallbackHandler",
            f"{tokens}.sasl.oauthbearer.jwks.endpoint.url": self._provider.keys_url,
            f"{tokens}.sasl.oauthbearer.expected.audience": "kafka",
            f"{tokens}.connections.max.reauth.ms": 3_600_000,  # a connection ends with its token
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    def environment(self) -> dict[str, str]:
        """The address of an identity provider must be allowed."""
        return {"JAVA_TOOL_OPTIONS": f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._provider.keys_url}"}

    def permit(self, acls: list[AclBinding]) -> None:
        """Permit these, and nothing else. What is permitted before and after is so at every moment."""
        for done in self.admin.create_acls(acls).values():
            done.result(20)
        everything = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        others = [acl for acl in self.admin.describe_acls(everything).result(20) if acl not in acls]
        fields = "restype", "name", "resource_pattern_type", "principal", "host", "operation", "permission_type"
        filters = [AclBindingFilter(*(getattr(acl, field) for field in fields)) for acl in others]
        for done in self.admin.delete_acls(filters).values() if filters else ():
            done.result(20)

    def secrets(self) -> dict[str, str]:
        """Settings that a client needs for the secure listener."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.certificate),
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }


def binding(kind: str, name: str, pattern: str, operation: str, user: str = USER) -> AclBinding:
    """The permission of a user."""
    resource = ResourceType[kind.replace("-", "_").upper()], name, ResourcePatternType[pattern.upper()]
    return AclBinding(*resource, f"User:{user}", "*", AclOperation[operation.upper()], AclPermissionType.ALLOW)


PARTS = GUIDE.read_text().split("fomo-stream redrive", 1)
FOR_SERVICE, FOR_REDRIVE = ([binding(*acl) for acl in listed_acls(part)] for part in PARTS)
TO_NOTIFY = ("topic", "sensors-alerts", "literal", "read"), ("group", "sensors-alerts-notify", "prefixed", "read")
FOR_NOTIFY = [binding(*acl) for acl in TO_NOTIFY]
FOR_RENEWED = [binding(*acl, RENEWED) for acl in (*listed_acls(PARTS[0]), *TO_NOTIFY)]


def named(acl: AclBinding) -> str:
    return f"{acl.operation.name.capitalize()} on {acl.restype.name.lower()} {acl.name}"


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IdentityProvider]:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl, which a secure broker needs")
    provider = IdentityProvider(tmp_path_factory.mktemp("provider"))
    with receiving() as keys, receiving(server_context(provider.certificate)) as endpoint:
        provider.serve(keys, endpoint)
        yield provider


@pytest.fixture(scope="module")
def kafka(provider: IdentityProvider) -> Iterator[SecureKafka]:
    home = kafka_home()
    if home is None:
        pytest.skip("KAFKA_HOME does not say where Apache Kafka is: access is controlled by nobody else here")
    if shutil.which("java") is None:
        pytest.skip("there is no java, which a secure broker needs")
    kafka = SecureKafka(home, provider)
    try:
        for topic in ("sensors", "sensors-scores", "sensors-alerts", "sensors-dead-letters"):
            kafka.create_topic(topic, 2)
        kafka.create_topic("fomo-stream-sensors-state", 2, config={"cleanup.policy": "compact"})
        kafka.produce("sensors", [*readings(60), b"{"])
        yield kafka
    finally:
        kafka.remove()


def settings(kafka: SecureKafka, **kafka_settings: str) -> ServiceSettings:
    secure = {**CLIENT, **kafka.secrets(), **kafka_settings}
    return ServiceSettings(
        topic="sensors",
        alerts="sensors-alerts",
        bootstrap=kafka.address,
        features=("temperature", "motor.rpm"),
        min_context=10,
        kafka=secure,
    )


def test_the_permissions_of_the_guide_are_enough_to_score_and_to_redrive(kafka: SecureKafka, tmp_path: Path) -> None:
    kafka.permit(FOR_SERVICE)
    with command(tmp_path / "service", settings(kafka)) as service:
        wait_for(lambda: kafka.committed("fomo-stream", "sensors") == 61, "all to be committed")
        assert service.terminate() == 0
    assert PASSWORD not in service.text()
    assert len(kafka.read("sensors-scores")) == 60
    kafka.permit(FOR_REDRIVE)
    flags = [f"--kafka.{key}={value}" for key, value in kafka.secrets().items()]
    redrive = Command(
        tmp_path / "redrive", "redrive", "--dead-letters", "sensors-dead-letters", "--bootstrap", kafka.address, *flags
    )
    assert redrive.process.wait(60) == 0, redrive.text()
    assert len(kafka.read("sensors")) == 62


@pytest.mark.parametrize("missing", FOR_SERVICE, ids=named)
def test_the_service_names_a_permission_that_is_missing(kafka: SecureKafka, missing: AclBinding) -> None:
    kafka.permit([acl for acl in FOR_SERVICE if acl is not missing])
    is_of_transactions = missing.restype == ResourceType.TRANSACTIONAL_ID
    error = refusal(settings(kafka))
    assert isinstance(error, NotPermittedError)
    assert ("transactional ids" if is_of_transactions else f"not permitted: {named(missing)};") in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize("missing", FOR_REDRIVE, ids=named)
def test_redrive_names_a_permission_that_is_missing(kafka: SecureKafka, missing: AclBinding) -> None:
    kafka.produce("sensors-dead-letters", [b"{"], headers=[("fomo-source-topic", b"sensors")])
    kafka.permit([acl for acl in FOR_REDRIVE if acl is not missing])
    settings = RedriveSettings(dead_letters="sensors-dead-letters", bootstrap=kafka.address, kafka=kafka.secrets())
    refusals = (NotPermittedError, TopicError)  # a topic that may not even be described looks as if it was not there
    with pytest.raises(refusals, match=rf"{missing.restype.name[:5].lower()}\S* .*{missing.name}") as error:
        send_dead_letters(settings).check()  # letters of a topic that may not be described are left alone
    assert "\n" not in str(error.value)


def test_a_wrong_password_and_an_unknown_certificate_are_refused(
    kafka: SecureKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "START_TIMEOUT_S", 2.0)
    wrong = {**kafka.secrets(), "sasl.password": "wrong-horse"}
    unknown = {key: value for key, value in kafka.secrets().items() if key != "ssl.ca.location"}
    for client, words in ((wrong, "Authentication failed"), (unknown, "certificate")):
        with pytest.raises(BrokerError, match=words) as error:
            send_dead_letters(RedriveSettings(dead_letters="t", bootstrap=kafka.address, kafka=client))
        assert "wrong-horse" not in str(error.value)


def diagnosis(kafka: SecureKafka, capsys: pytest.CaptureFixture[str], **changes: str) -> tuple[int, dict[str, str]]:
    """Exit code of the doctor, and its findings with their levels by check. changes: of the settings of the client."""
    secrets = [f"--kafka.{key}={value}" for key, value in {**kafka.secrets(), **changes}.items()]
    capsys.readouterr()
    topics = ["--topic", "sensors", "--alerts", "sensors-alerts"]
    code = main(["doctor", "--json", *topics, "--bootstrap", kafka.address, *secrets])
    found: dict[str, str] = {}
    for one in json.loads(capsys.readouterr().out)["findings"]:
        found[one["check"]] = found.get(one["check"], "") + f"{one['level']}: {one['what']} -> {one['remedy']}; "
    return code, found


@pytest.mark.usefixtures("restored_logging")
def test_the_doctor_is_content_with_the_permissions_of_the_guide(
    kafka: SecureKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka.permit(FOR_SERVICE)
    code, found = diagnosis(kafka, capsys)
    assert code == 0, found
    assert found["permissions"].startswith("ok: this user may do what the service needs, on 5 topics and the group")
    assert found["broker settings"].startswith("not checked: this user may not read the brokers' configuration")
    assert "not checked: __consumer_offsets, __transaction_state: " in found["replicas"]
    assert "ok: the broker gives transactions to this user" in found["transactions"]


@pytest.mark.usefixtures("restored_logging")
def test_a_group_can_be_looked_at_by_a_user_who_may_only_look(
    kafka: SecureKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    looking = ("topic", "sensors", "describe"), ("group", "fomo-stream", "describe")
    state = ("topic", "fomo-stream-sensors-state", "read")
    acls = [binding(kind, name, "literal", operation) for kind, name, operation in (*looking, state)]
    secrets = [f"--kafka.{key}={value}" for key, value in kafka.secrets().items()]
    for missing in (None, *acls):
        kafka.permit([acl for acl in acls if acl is not missing])
        code = main(["group", "--topic", "sensors", "--bootstrap", kafka.address, *secrets])
        shown = capsys.readouterr()
        if missing is None:
            assert code == 0
            assert "group fomo-stream on topic sensors" in shown.out
        else:
            assert code == NotPermittedError.exit_code
            assert named(missing) in shown.err
            assert shown.err.count("\n") == 1
        assert PASSWORD not in shown.err
        others = WrittenTopics(settings(kafka)).without(["sensors", "sensors-scores", state[1]])  # for a pattern
        assert others == ["sensors", *(["sensors-scores"] if missing is acls[2] else [])]


# --- tokens of an identity provider


def wait_until_scored(kafka: SecureKafka, start: int) -> None:
    """Send ten records, numbered from `start`, and wait for their scores."""
    kafka.produce("sensors", readings(10, start))
    sent = set(range(start, start + 10))
    wait_for(lambda: sent <= {one["n"] for one in results(kafka.read("sensors-scores"))}, "the scores", every=0.5)


@pytest.mark.usefixtures("restored_logging")
def test_tokens_are_enough_for_all_clients_and_are_renewed(
    kafka: SecureKafka,
    provider: IdentityProvider,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """The authority of the token endpoint is one that this machine trusts, as that of a public one would be."""
    monkeypatch.setenv("SSL_CERT_FILE", str(provider.certificate))
    kafka.permit(FOR_SERVICE)
    code, found = diagnosis(kafka, capsys, **provider.client())
    assert code == 0, found
    options = {**provider.client(), "debug": "security,conf"}
    with command(tmp_path / "service", settings(kafka, **options)) as service:
        wait_until_scored(kafka, 1000)
        first = len(provider.tokens)
        wait_for(lambda: len(provider.tokens) >= 2 * first, "each client to need another token")
        wait_until_scored(kafka, 2000)
        assert service.terminate() == 0
    text = service.text()
    assert "lost" not in text
    signatures = [token.rsplit(".", 1)[1] for token in provider.tokens]
    assert not [secret for secret in (provider.secret, *signatures) if secret in text]


def test_a_login_that_the_identity_provider_refuses_is_named_without_the_secret(
    kafka: SecureKafka, provider: IdentityProvider
) -> None:
    wrong = {"sasl.oauthbearer.client.secret": "wrong-horse", "https.ca.location": str(provider.certificate)}
    error = refusal(settings(kafka, **{**provider.client(), **wrong}))
    assert isinstance(error, BrokerError)
    assert "invalid_client" in str(error)
    assert "wrong-horse" not in str(error)


# --- renewed certificates


def test_renewed_certificates_are_used_without_a_restart(
    kafka: SecureKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The broker reads the name of the user from the certificate: here the renewed one names another user."""
    caplog.set_level("INFO")
    monkeypatch.setattr(certificates, "CHECK_S", 0.2)
    monkeypatch.setattr(notifier, "TOPIC_POLL_S", 0.3)
    place, key_place = tmp_path / "tls.crt", tmp_path / "tls.key"
    files = {
        "ssl.ca.location": str(kafka.certificate),
        "ssl.certificate.location": str(place),
        "ssl.key.location": str(key_place),
    }
    for path, content in zip((place, key_place), kafka.authority.sign(USER, tmp_path), strict=True):
        path.write_bytes(content)
    kafka.permit([*FOR_SERVICE, *FOR_NOTIFY, *FOR_RENEWED])
    of_registry = certificates.Certificates(changed(settings(kafka), registry={"url": "http://127.0.0.1:1", **files}))
    mutual: dict[str, Any] = {
        "bootstrap": kafka.mutual_address,
        "kafka": {**CLIENT, "security.protocol": "SSL", **files},
    }
    with receiving() as told, Running(changed(settings(kafka), **mutual)) as running:
        options = NotifySettings(alerts="sensors-alerts", webhook=(told.url,), start="earliest", **mutual)
        with in_thread(notifier.Notifier(options)):

            def both_work(start: int) -> None:
                wait_until_scored(kafka, start)
                kafka.produce("sensors-alerts", [{"fomo": alert(start)}], ["a"])
                told.wait_for(lambda requests: requests[-1:] and requests[-1].json["offset"] == start)

            both_work(3000)
            member = running.member
            certificate, key = kafka.authority.sign(RENEWED, tmp_path)
            place.write_bytes(certificate)  # and not yet its key
            said = 'certificates_not_used reason="--'
            wait_for(lambda: f"{said}kafka" in caplog.text and f"{said}registry" in caplog.text, "both to be seen")
            both_work(3100)
            assert not of_registry.are_renewed
            key_place.write_bytes(key)
            wait_for(lambda: running.service.ready and running.service.member is not member, "new clients")
            wait_for(lambda: "certificates_renewed topic=sensors-alerts" in caplog.text, "new clients of notify")
            kafka.permit(FOR_RENEWED)
            both_work(3200)
            wait_for(lambda: of_registry.are_renewed, "the new files of the registry to be taken")
    assert "defect" not in caplog.text
    places = [(one["fomo"]["partition"], one["fomo"]["offset"]) for one in results(kafka.read("sensors-scores"))]
    assert len(places) == len(set(places))
