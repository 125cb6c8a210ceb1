"""Secrets stay secret."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

import fomo_stream
import pretrain
from fomo_stream.kafka.broker.clients import make_admin
from fomo_stream.logs import ClientLog
from fomo_stream.settings.service_settings import ServiceSettings


def test_no_file_of_arrays_may_hold_objects() -> None:
    """Other ways to execute input are rules of ruff."""
    modules = [path for root in (fomo_stream, pretrain) for path in Path(str(root.__file__)).parent.rglob("*.py")]
    assert len(modules) > 100
    assert [path for path in modules if "allow_pickle=True" in path.read_text()] == []


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


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """The command, with all log lines of it and of the Kafka client."""
    return subprocess.Popen(
        [sys.executable, "-m", "fomo_stream.cli", *arguments, "--log-level", "debug", "--kafka.debug=all"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def tls(key: str, certificate: str) -> list[str]:
    return ["--kafka.security.protocol=SSL", f"--kafka.ssl.key.pem={key}", f"--kafka.ssl.certificate.pem={certificate}"]


def sasl(mechanism: str) -> list[str]:
    return ["--kafka.security.protocol=SASL_SSL", f"--kafka.sasl.mechanism={mechanism}"]


@pytest.mark.slow
def test_no_secret_is_shown_when_a_start_fails(pem: tuple[str, str], tmp_path: Path) -> None:
    file = tmp_path / "fomo.toml"
    file.write_text(f'[kafka]\n"sasl.username" = "u"\n"sasl.password" = "{PASSWORD}"\n')
    run = ("--topic", "t", "--bootstrap", "127.0.0.1:1")
    redrive = ("redrive", "--dead-letters", "t", "--bootstrap", "127.0.0.1:1")
    user = "--kafka.sasl.username=u"
    jwt = [*sasl("OAUTHBEARER"), "--kafka.enable.sasl.oauthbearer.unsecure.jwt=true"]
    token = f"--kafka.sasl.oauthbearer.config=principal={SECRET} scope={SECRET} {SECRET}"
    key_password = "--kafka.ssl.key.password="
    started = [  # each with its exit code, and words of its output; they run at once
        (start(*run, *sasl("PLAIN"), "--config", str(file)), 7, "no broker answers"),
        (start(*redrive, *sasl("SCRAM-SHA-512"), user, FOMO_KAFKA_SASL_PASSWORD=PASSWORD), 7, "no broker answers"),
        (start(*run, *jwt, token), 7, "sasl.oauthbearer.config"),
        (start(*redrive, *tls(*pem), key_password + PASSWORD), 7, "no broker answers"),
        (start(*redrive, *tls(*pem), f"{key_password}{SECRET}-wrong"), 2, "ssl.key.pem"),
        (start(*redrive, *tls(pem[0][:-200], pem[1]), key_password + PASSWORD), 2, "ssl.key.pem"),
        (start(*redrive, f"--kafka.sasl.pasword={PASSWORD}"), 2, "sasl.pasword"),
        (start(*redrive, f"--kafka.group.id={PASSWORD}"), 2, "use --group"),
        (start("--help", FOMO_KAFKA_SASL_PASSWORD=PASSWORD), 0, "--kafka.KEY"),
    ]
    for process, code, words in started:
        text = process.communicate(timeout=120)[0]
        assert process.returncode == code, text[-2000:]
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
