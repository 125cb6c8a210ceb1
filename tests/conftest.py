"""Fixtures that several test modules share."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker, Kafka, kafka_home, open_broker
from hypothesis import HealthCheck, settings
from registries import Registry, registry_home

from fomo_stream.kafka.topics import watch

# A busy machine is slow: no time limit of an example.
for name, examples in (("quick", 25), ("thorough", 200)):
    settings.register_profile(name, deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=examples)
settings.load_profile("quick")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell script starts what it leaves in the background like this, and programs under test would inherit it: then
    # Ctrl-C, which tests send, would not end them.
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED_KAFKA = pytest.StashKey[Kafka]()


def pytest_configure(config: pytest.Config) -> None:
    """More examples of each property where there is time for them."""
    if config.option.markexpr == "slow":
        settings.load_profile("thorough")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that wait for a broker come first: every process takes the next file, so that all share them."""
    items.sort(key=lambda item: "integration" not in item.path.parts)


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
    from fomo_stream.model.checkpoint import save_model
    from fomo_stream.model.config import PRESETS
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
    """The processes share one Apache Kafka: each of its own takes a minute of processor time before it is quick."""
    config, home = node.config, kafka_home()
    if home is None:
        return
    if SHARED_KAFKA not in config.stash:
        kafka = config.stash[SHARED_KAFKA] = Kafka(home)
        config.add_cleanup(kafka.remove)
    node.workerinput["bootstrap"] = config.stash[SHARED_KAFKA].bootstrap


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """One broker for the whole session; tests use topics and groups of their own."""
    # So that no test waits for seconds until an instance in this process sees a change of its topics.
    watch.WATCH_INTERVAL_S = 0.5
    with open_broker(getattr(request.config, "workerinput", {}).get("bootstrap")) as broker:
        yield broker


@pytest.fixture(scope="session")
def registry_url() -> Iterator[str]:
    """Address of a schema registry for the whole session; tests use subjects of their own."""
    home = registry_home()
    if home is None:
        pytest.skip("REGISTRY_HOME does not say where a schema registry is")
    with Registry(home) as registry:
        yield registry.url


@pytest.fixture(scope="session")
def real_kafka(broker: Broker) -> None:
    """Skips tests of what only Apache Kafka has."""
    if not broker.is_kafka:
        pytest.skip("the embedded broker has no transactions, topic ids, times or ends of topics")
