"""TLS, SASL and least privilege: the permissions in the deployment guide are enough, and all are needed."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

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
from services import CLIENT, Command, command, readings, refusal

from fomo_stream.admin.redrive import send_dead_letters
from fomo_stream.cli.main import main
from fomo_stream.errors import BrokerError, NotPermittedError, TopicError
from fomo_stream.settings.commands import RedriveSettings
from fomo_stream.settings.service_settings import ServiceSettings

pytestmark = pytest.mark.slow

GUIDE = Path(__file__).parents[2] / "deploy" / "README.md"
USER, PASSWORD = "fomo", "correct-horse"
PRINCIPAL = f"User:{USER}"


class SecureKafka(Kafka):
    """Besides the open listener, whose clients may do anything, one with TLS, SASL and access control."""

    def options(self) -> dict[str, Any]:
        self.address = f"127.0.0.1:{free_ports()}"
        self.certificate = self._folder / "certificate.pem"
        files = ["-keyout", str(self._folder / "key.pem"), "-out", str(self.certificate)]
        subject = ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
        openssl = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        subprocess.run([*openssl, *files, *subject], check=True, capture_output=True)
        store = self._folder / "store.pem"
        store.write_text((self._folder / "key.pem").read_text() + self.certificate.read_text())
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        return {
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{self._port + 1},SECURE://{self.address}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap},SECURE://{self.address}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": store,
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secure.plain.sasl.jaas.config": f'{login} user_{USER}="{PASSWORD}";',
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    def permit(self, acls: list[AclBinding]) -> None:
        """Permit these, and nothing else."""
        everything = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        for done in (*self.admin.delete_acls([everything]).values(), *self.admin.create_acls(acls).values()):
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


def binding(kind: str, name: str, pattern: str, operation: str) -> AclBinding:
    """The permission of our user."""
    resource = ResourceType[kind.replace("-", "_").upper()], name, ResourcePatternType[pattern.upper()]
    return AclBinding(*resource, PRINCIPAL, "*", AclOperation[operation.upper()], AclPermissionType.ALLOW)


FOR_SERVICE, FOR_REDRIVE = (
    [binding(*acl) for acl in listed_acls(part)] for part in GUIDE.read_text().split("fomo-stream redrive", 1)
)


def named(acl: AclBinding) -> str:
    return f"{acl.operation.name.capitalize()} on {acl.restype.name.lower()} {acl.name}"


@pytest.fixture(scope="module")
def kafka() -> Iterator[SecureKafka]:
    home = kafka_home()
    if home is None:
        pytest.skip("KAFKA_HOME does not say where Apache Kafka is: access is controlled by nobody else here")
    for needed in ("java", "openssl"):
        if shutil.which(needed) is None:
            pytest.skip(f"there is no {needed}, which a secure broker needs")
    kafka = SecureKafka(home)
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
    words = (
        "transactional ids" if missing.restype == ResourceType.TRANSACTIONAL_ID else f"not permitted: {named(missing)};"
    )
    error = refusal(settings(kafka))
    assert isinstance(error, NotPermittedError)
    assert words in str(error)
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


def test_a_wrong_password_and_an_unknown_certificate_are_refused(kafka: SecureKafka) -> None:
    wrong = {**kafka.secrets(), "sasl.password": "wrong-horse"}
    unknown = {key: value for key, value in kafka.secrets().items() if key != "ssl.ca.location"}

    def refusal(client: dict[str, str]) -> str:
        with pytest.raises(BrokerError) as error:
            send_dead_letters(RedriveSettings(dead_letters="t", bootstrap=kafka.address, kafka=client))
        return str(error.value)

    with ThreadPoolExecutor(2) as pool:
        of_password, of_broker = pool.map(refusal, (wrong, unknown))
    assert "Authentication failed" in of_password
    assert "wrong-horse" not in of_password
    assert "certificate" in of_broker


def diagnosis(kafka: SecureKafka, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, str]]:
    """Exit code of the doctor, and its findings with their levels by check."""
    secrets = [f"--kafka.{key}={value}" for key, value in kafka.secrets().items()]
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
    acls = [
        binding("topic", "sensors", "literal", "describe"),
        binding("group", "fomo-stream", "literal", "describe"),
        binding("topic", "fomo-stream-sensors-state", "literal", "read"),
    ]
    secrets = [f"--kafka.{key}={value}" for key, value in kafka.secrets().items()]
    command = ["group", "--topic", "sensors", "--bootstrap", kafka.address, *secrets]
    kafka.permit(acls)
    assert main(command) == 0
    assert "group fomo-stream on topic sensors" in capsys.readouterr().out
    for missing in acls:
        kafka.permit([acl for acl in acls if acl is not missing])
        assert main(command) == NotPermittedError.exit_code
        shown = capsys.readouterr()
        assert named(missing) in shown.err
        assert shown.err.count("\n") == 1
        assert PASSWORD not in shown.err
