"""Secrets stay secret, and no input is executed."""

from __future__ import annotations

import ast
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from brokers import free_ports, wait_for
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

import fomo_stream
import pretrain
from fomo_stream.kafka.broker.clients import make_admin
from fomo_stream.kafka.embedded_broker import EmbeddedBroker
from fomo_stream.logs import ClientLog
from fomo_stream.settings.commands import RedriveSettings
from fomo_stream.settings.service import ServiceSettings

ROOTS = [Path(str(module.__file__)).parent for module in (fomo_stream, pretrain)]

# --- nothing is executed

# Modules that execute the contents of a file, and calls that do so unless an option forbids it.
FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "yaml"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "torch.load", "np.load", "numpy.load", "pd.read_pickle"}
FORBIDDEN_CALLS |= {"os.system", "subprocess.getoutput", "torch.hub.load", "torch.jit.load"}
SAFE_WITH = {"np.load": ("allow_pickle", False), "numpy.load": ("allow_pickle", False)}


def executed(source: str) -> Iterator[str]:
    """Names in a module's source that could execute input."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in FORBIDDEN_MODULES:
            yield str(node.module)
        elif isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in FORBIDDEN_CALLS:
            given = {word.arg: word.value.value for word in node.keywords if isinstance(word.value, ast.Constant)}
            option, value = SAFE_WITH.get(name, ("", None))
            if value is None or given.get(option) is not value:
                yield name
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            yield "allow_pickle"
        elif isinstance(node, ast.keyword) and node.arg == "shell" and ast.unparse(node.value) != "False":
            yield "shell"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pickle", ["pickle"]),
        ("from joblib import load", ["joblib"]),
        ("import yaml.loader", ["yaml.loader"]),
        ("x = torch.load(path)", ["torch.load"]),
        ("x = np.load(path)", ["np.load"]),
        ("x = np.load(path, allow_pickle=True)", ["np.load", "allow_pickle"]),
        ("x = np.load(path, allow_pickle=False)", []),
        ("eval(text)", ["eval"]),
        ("model.eval()", []),
        ("subprocess.run(text, shell=True)", ["shell"]),
        ("import json", []),
    ],
)
def test_calls_that_execute_input_are_found(source: str, found: list[str]) -> None:
    assert list(executed(source)) == found


@pytest.mark.parametrize("root", ROOTS, ids=lambda root: root.name)
def test_no_input_is_executed(root: Path) -> None:
    modules = sorted(root.rglob("*.py"))
    assert len(modules) > 10
    assert {str(path): found for path in modules if (found := list(executed(path.read_text())))} == {}


# --- secrets are not shown

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


@pytest.fixture(scope="module")
def outputs(pem: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit code and all output of commands that are given secrets and cannot start; they run at once."""
    file = tmp_path_factory.mktemp("secrets") / "fomo.toml"
    file.write_text(f'[kafka]\n"sasl.username" = "u"\n"sasl.password" = "{PASSWORD}"\n')
    user, password = "--kafka.sasl.username=u", f"--kafka.sasl.password={PASSWORD}"
    run = ("--topic", "t", "--bootstrap", "127.0.0.1:1")
    redrive = ("redrive", "--dead-letters", "t", "--bootstrap", "127.0.0.1:1")
    jwt = [*sasl("OAUTHBEARER"), "--kafka.enable.sasl.oauthbearer.unsecure.jwt=true"]
    token = f"--kafka.sasl.oauthbearer.config=principal={SECRET} scope={SECRET}"
    key_password = "--kafka.ssl.key.password="
    processes = {
        "run, password": start(*run, *sasl("PLAIN"), "--config", str(file)),
        "redrive, password": start(*redrive, *sasl("PLAIN"), user, password),
        "redrive, password 2": start(*redrive, *sasl("SCRAM-SHA-512"), user, FOMO_KAFKA_SASL_PASSWORD=PASSWORD),
        "run, damaged token": start(*run, *jwt, f"{token} {SECRET}"),
        "redrive, damaged token": start(*redrive, *jwt, f"{token} {SECRET}"),
        "redrive, key": start(*redrive, *tls(*pem), key_password + PASSWORD),
        "redrive, wrong key password": start(*redrive, *tls(*pem), f"{key_password}{SECRET}-wrong"),
        "redrive, damaged key": start(*redrive, *tls(pem[0][:-200], pem[1]), key_password + PASSWORD),
        "redrive, unknown setting": start(*redrive, f"--kafka.sasl.pasword={PASSWORD}"),
        "redrive, reserved setting": start(*redrive, f"--kafka.group.id={PASSWORD}"),
        "redrive, password alone": start(*redrive, *sasl("PLAIN"), password),
        "help": start("--help", FOMO_KAFKA_SASL_PASSWORD=PASSWORD),
    }
    texts = {name: process.communicate(timeout=120)[0] for name, process in processes.items()}
    return {name: (process.returncode, texts[name]) for name, process in processes.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("run, password", 7, "no broker answers"),
        ("redrive, password", 7, "no broker answers"),
        ("redrive, password 2", 7, "no broker answers"),
        ("run, damaged token", 7, "sasl.oauthbearer.config"),
        ("redrive, damaged token", 7, "sasl.oauthbearer.config"),
        ("redrive, key", 7, "no broker answers"),
        ("redrive, wrong key password", 2, "ssl.key.pem"),
        ("redrive, damaged key", 2, "ssl.key.pem"),
        ("redrive, unknown setting", 2, "sasl.pasword"),
        ("redrive, reserved setting", 2, "use --group"),
        ("redrive, password alone", 2, "sasl.username and sasl.password must be set"),
        ("help", 0, "--kafka.KEY"),
    ],
)
def test_no_secret_is_shown_when_a_start_fails(
    pem: tuple[str, str], outputs: dict[str, tuple[int, str]], name: str, code: int, words: str
) -> None:
    found, text = outputs[name]
    assert found == code, text[-2000:]
    assert words in text
    assert "Traceback" not in text
    assert ("kafka_client" in text) == (code == 7)  # there were lines that could show a secret
    assert not [secret for secret in (SECRET, *pem[0].splitlines()[1:-1]) if secret in text], text[-2000:]


def test_no_secret_is_in_any_line_of_the_client(pem: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Above, one line of each kind was logged; here all of them count."""
    lines: list[str] = []
    monkeypatch.setattr(ClientLog, "log", lambda _self, *arguments: lines.append(str(arguments)))
    kafka = {
        "debug": "all",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": PASSWORD,
        "ssl.key.pem": pem[0],
        "ssl.key.password": PASSWORD,
        "ssl.certificate.pem": pem[1],
        "sasl.oauthbearer.client.secret": PASSWORD,
        "sasl.oauthbearer.config": PASSWORD,
        "ssl.keystore.password": PASSWORD,
    }
    settings = ServiceSettings(topic="t", bootstrap="127.0.0.1:1", kafka=kafka)
    admin = make_admin(settings)
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=1)
    admin.poll(0.1)
    assert len(lines) > 100
    assert not [secret for secret in (SECRET, *pem[0].splitlines()[1:-1]) if secret in "".join(lines)]


@pytest.mark.slow
def test_no_secret_is_shown_by_a_service_that_runs() -> None:
    port = free_ports()
    secrets = (f"--kafka.sasl.password={PASSWORD}", f"--kafka.ssl.key.password={PASSWORD}")

    def ask(path: str) -> str:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as answer,
        ):
            return str(answer.read())
        return ""

    with EmbeddedBroker() as broker, ThreadPoolExecutor(1) as reading:
        AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics("t", timeout=10)  # creates it
        process = start(
            *("--topic", "t", "--bootstrap", broker.bootstrap, "--features", "a", "--delivery", "at-least-once"),
            *("--health-port", str(port), *secrets),
        )
        output = reading.submit(process.communicate, timeout=120)  # at once: a full pipe blocks the process
        try:
            ready = wait_for(lambda: process.poll() is not None or ask("readyz"), "the service to be ready", 60)
            answers = f"{ready} {ask('livez')}"
        finally:
            process.send_signal(signal.SIGTERM)
            text = output.result()[0]
    assert process.returncode == 0, text[-2000:]
    assert '"ok": true' in answers
    assert "kafka_client" in text
    assert SECRET not in answers + text


@pytest.mark.parametrize("settings", [ServiceSettings(topic="t"), RedriveSettings(dead_letters="t")])
def test_no_secret_is_in_settings_as_text(settings: ServiceSettings | RedriveSettings) -> None:
    settings = settings.model_copy(update={"kafka": {"sasl.password": PASSWORD}})
    assert SECRET not in f"{settings!r} {settings}"
