"""Fixtures that several test modules share."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker, Kafka, kafka_home, open_broker, wait_for
from browser import Browser, open_browser
from hypothesis import HealthCheck, settings
from registries import Proxy, Registry, answers, registry_home

from fomo_stream.kafka.topics import watch

# What is imported lives until the end. To look for garbage in it is a third of the time until the first test begins.
gc.disable()

# A busy machine is slow: no time limit of an example.
for name, examples in (("quick", 25), ("thorough", 100)):
    settings.register_profile(name, deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=examples)
settings.load_profile("quick")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell script starts what it leaves in the background like this, and programs under test would inherit it: then
    # Ctrl-C, which tests send, would not end them.
    signal.signal(signal.SIGINT, signal.default_int_handler)

collect_ignore = ["adapters/user_program.py"]  # which mypy reads, and nobody runs
SHARED = pytest.StashKey[dict[str, str]]()  # addresses of the servers that all processes of a session use

# Files of the slow part that take a minute or more, the longest first: so none of them is left alone at the end.
LONG = (
    "test_chart_faults.py",
    "test_loading.py",
    "test_state.py",
    "test_wheel.py",
    "test_faults.py",
    "test_outages.py",
    "test_chart_values.py",
    "test_types.py",
    "test_fuzz.py",
    "test_tutorial.py",
    "test_workers.py",
    "test_silence_in_service.py",
    "test_examples.py",
    "test_exactly_once.py",
    "test_secure_broker.py",
    "test_membership.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """More examples of each property where there is time for them."""
    if config.option.markexpr == "slow":
        settings.load_profile("thorough")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The order of files, of which each process takes the next: those that wait and those that compute in turn.

    Tests with a broker mostly wait: if all processes had such a file at the same time, the processors would be idle.
    """
    waiting = {item.path for item in items if "broker" in getattr(item, "fixturenames", ())}
    places: dict[Path, float] = {}
    for group in (waiting, {item.path for item in items} - waiting):
        files = list(dict.fromkeys(item.path for item in items if item.path in group))
        places |= {path: number / len(files) for number, path in enumerate(files)}
    if config.option.markexpr == "slow":
        places |= {path: LONG.index(path.name) - len(LONG) for path in places if path.name in LONG}
    items.sort(key=lambda item: places[item.path])


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings in the environment must not change the outcome of tests."""
    for name in list(os.environ):
        if name.upper().startswith("FOMO_"):
            monkeypatch.delenv(name)


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """For tests that run a command in this process: it decides where log lines go."""
    loggers = [logging.getLogger(name) for name in ("fomo_stream", "fomo_stream.kafka")]
    before = [(one.handlers[:], one.filters[:], one.level, one.propagate) for one in loggers]
    yield
    for one, (handlers, filters, level, propagate) in zip(loggers, before, strict=True):
        one.handlers[:], one.filters[:], one.propagate = handlers, filters, propagate
        one.setLevel(level)


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of the smallest model."""
    from fomo_stream.model.architecture import PRESETS
    from fomo_stream.model.checkpoint import save_model
    from fomo_stream.model.zero_shot import ZeroShotModel

    path = tmp_path_factory.mktemp("model") / "fusion.safetensors"
    save_model(ZeroShotModel(PRESETS["fusion"]), path)
    return path


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where matplotlib is not installed: for tests of short runs, of which drawing would take the longest."""
    for name in ("matplotlib", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """The processes share one registry and one Kafka, which takes a minute of processor time before it is quick."""
    config = node.config
    if SHARED not in config.stash:
        shared = config.stash[SHARED] = {}
        if home := kafka_home():
            kafka = Kafka(home)
            config.add_cleanup(kafka.remove)
            shared["bootstrap"] = kafka.bootstrap
        if home := registry_home():
            registry = Registry(home)
            config.add_cleanup(registry.remove)
            shared["registry"] = registry.url
    node.workerinput.update(config.stash[SHARED])


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """One broker for the whole session; tests use topics and groups of their own."""
    # So that no test waits for seconds until an instance in this process sees a change of its topics.
    watch.WATCH_INTERVAL_S = 0.5
    with open_broker(getattr(request.config, "workerinput", {}).get("bootstrap")) as broker:
        yield broker


@pytest.fixture(scope="session")
def registry_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Address of a schema registry for the whole session; tests use subjects of their own."""
    home, shared = registry_home(), getattr(request.config, "workerinput", {}).get("registry")
    if shared:
        wait_for(lambda: answers(shared), "the registry to start", 120)
        yield shared
    elif home is None:
        pytest.skip("REGISTRY_HOME does not say where a schema registry is")
    else:
        with Registry(home) as registry:
            yield registry.url


@pytest.fixture
def client(registry_url: str) -> Any:
    from confluent_kafka.schema_registry import SchemaRegistryClient  # not for every process of a session

    return SchemaRegistryClient({"url": registry_url})


@pytest.fixture
def proxy(registry_url: str) -> Iterator[Proxy]:
    """Fails on demand, before the registry."""
    with Proxy(registry_url) as running:
        yield running


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for the whole session; each test opens pages of its own."""
    with open_browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(scope="session")
def real_kafka(broker: Broker) -> None:
    """Skips tests of what only Apache Kafka has."""
    if not broker.is_kafka:
        pytest.skip("the embedded broker has no transactions, topic ids, times or ends of topics")
