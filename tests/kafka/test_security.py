"""Secrets stay secret."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from fomo_stream.cli.main import main
from fomo_stream.kafka.broker import clients
from fomo_stream.kafka.broker.clients import make_admin
from fomo_stream.logs import ClientLog
from fomo_stream.settings.service_settings import ServiceSettings

SECRET = "hunter2"  # is in every secret below
PASSWORD = f"{SECRET}-password"


@pytest.fixture(scope="module")
def pem() -> tuple[str, str]:
    """A private key, encrypted, and its certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command makes the key, and is not here")
    options = ["-newkey", "rsa:2048", "-passout", f"pass:{PASSWORD}", "-subj", "/CN=test", "-keyout", "-", "-out", "-"]
    made = subprocess.run(["openssl", "req", "-x509", *options], check=True, capture_output=True, text=True).stdout
    key, begin, certificate = made.partition("-----BEGIN CERTIFICATE-----")
    return key, begin + certificate


def tls(key: str, certificate: str) -> list[str]:
    return ["--kafka.security.protocol=SSL", f"--kafka.ssl.key.pem={key}", f"--kafka.ssl.certificate.pem={certificate}"]


def sasl(mechanism: str) -> list[str]:
    return ["--kafka.security.protocol=SASL_SSL", f"--kafka.sasl.mechanism={mechanism}"]


@pytest.mark.slow
@pytest.mark.usefixtures("restored_logging")
def test_no_secret_is_shown_when_a_start_fails(
    pem: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(clients, "START_TIMEOUT_S", 1.0)
    monkeypatch.setenv("FOMO_KAFKA_SASL_PASSWORD", PASSWORD)
    file = tmp_path / "fomo.toml"
    file.write_text(f'[kafka]\n"sasl.username" = "u"\n"sasl.password" = "{PASSWORD}"\n')
    jwt = [*sasl("OAUTHBEARER"), "--kafka.enable.sasl.oauthbearer.unsecure.jwt=true"]
    token = f"--kafka.sasl.oauthbearer.config=principal={SECRET} scope={SECRET} {SECRET}"
    where = ["--bootstrap", "127.0.0.1:1", "--log-level", "debug", "--kafka.debug=all"]
    run, redrive = ["--topic", "t", *where], ["redrive", "--dead-letters", "t", *where]
    for arguments, code, words in (
        ([*run, *sasl("PLAIN"), "--config", str(file)], 7, "no broker answers"),
        ([*redrive, *sasl("SCRAM-SHA-512"), "--kafka.sasl.username=u"], 7, "no broker answers"),
        ([*run, *jwt, token], 7, "sasl.oauthbearer.config"),
        ([*redrive, *tls(*pem), f"--kafka.ssl.key.password={SECRET}-wrong"], 2, "ssl.key.pem"),
        ([*redrive, f"--kafka.sasl.pasword={PASSWORD}"], 2, "sasl.pasword"),
    ):
        assert main(arguments) == code
        text = "".join(capfd.readouterr())
        assert words in text
        assert "Traceback" not in text
        assert ("kafka_client" in text) == (code == 7)  # there were lines that could show a secret
        assert not [secret for secret in (SECRET, *pem[0].splitlines()[1:-1]) if secret in text], text[-2000:]


def test_no_secret_is_in_any_line_of_the_client(pem: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Above, one line of each kind was logged; here all of them count."""
    lines: list[str] = []
    monkeypatch.setattr(ClientLog, "log", lambda _self, *arguments: lines.append(str(arguments)))
    kafka = {"debug": "all", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u"}
    kafka |= {"ssl.key.pem": pem[0], "ssl.certificate.pem": pem[1]}
    secrets = ("sasl.password", "ssl.key.password", "ssl.keystore.password")
    kafka |= dict.fromkeys((*secrets, "sasl.oauthbearer.client.secret", "sasl.oauthbearer.config"), PASSWORD)
    settings = ServiceSettings(topic="t", bootstrap="127.0.0.1:1", kafka=kafka)
    assert SECRET not in f"{settings!r} {settings}"
    admin = make_admin(settings)
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=1)
    admin.poll(0.1)
    assert len(lines) > 100
    assert not [secret for secret in (SECRET, *pem[0].splitlines()[1:-1]) if secret in "".join(lines)]
