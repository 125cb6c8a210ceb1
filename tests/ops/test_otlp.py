"""Metrics for an OpenTelemetry collector: what arrives is what `/metrics` has, and no collector disturbs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "integration"))
sys.path.append(str(Path(__file__).parents[1] / "notify"))

import pytest
from brokers import Broker, wait_for
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families
from receivers import Receiver, Reply, Request, receiving
from services import Running, readings, sensors
from test_metrics import BUSY, RESULTS, SILENT, WAITING, batch, snapshot

from fomo_stream.cli.main import main
from fomo_stream.errors import ConfigError
from fomo_stream.ops import otlp
from fomo_stream.ops.metrics import Metrics, exposition, merged
from fomo_stream.ops.otlp import OtlpSender
from fomo_stream.settings.telemetry import push_interval_s

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]  # by name and labels


@pytest.fixture(autouse=True)
def _restored_library() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("opentelemetry", "opentelemetry.exporter")]
    before = [(one.handlers[:], one.propagate) for one in loggers]
    yield
    for one, (handlers, propagate) in zip(loggers, before, strict=True):
        one.handlers[:], one.propagate = handlers, propagate


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiving() as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.url)
        yield receiver


def decoded(request: Request) -> tuple[dict[str, str], Samples]:
    """The attributes of the sender, and its metrics as samples of Prometheus."""
    (sent,) = ExportMetricsServiceRequest.FromString(request.body).resource_metrics
    samples: Samples = {}
    for metric in sent.scope_metrics[0].metrics:
        kind = metric.WhichOneof("data")
        assert not metric.unit
        assert metric.description
        assert kind == "gauge" or getattr(metric, kind).aggregation_temporality == 2  # cumulative
        assert (kind == "sum") == metric.name.endswith("_total")
        for point in getattr(metric, kind).data_points:
            labels = {one.key: one.value.string_value for one in point.attributes}
            values = {"": point.as_double} if kind != "histogram" else {"_sum": point.sum, "_count": point.count}
            if kind == "histogram":
                bounds = [*point.explicit_bounds, float("inf")]
                for bound, count in zip(bounds, accumulate(point.bucket_counts), strict=True):
                    samples[metric.name + "_bucket", (("le", str(bound)), *sorted(labels.items()))] = count
            samples |= {(metric.name + end, tuple(sorted(labels.items()))): value for end, value in values.items()}
    return {one.key: one.value.string_value for one in sent.resource.attributes}, samples


def scraped(text: str) -> Samples:
    """The samples of an answer of `/metrics`."""
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            labels = {**one.labels, **({"le": str(float(one.labels["le"]))} if "le" in one.labels else {})}
            first = [("le", labels.pop("le"))] if "le" in labels else []
            samples[one.name, (*first, *sorted(labels.items()))] = one.value
    return samples


def own(samples: Samples) -> Samples:
    """Without those of the process, which differ from one moment to the next."""
    return {key: value for key, value in samples.items() if key[0].startswith("fomo_")}


# --- what arrives


@settings(max_examples=8)
@given(st.lists(st.lists(RESULTS, max_size=5), max_size=4), st.lists(st.floats(0, 1e5), max_size=5), st.booleans())
def test_what_arrives_is_what_a_scrape_has(
    batches: list[list[dict[str, Any]]], ages: list[float], has_one_topic: bool
) -> None:
    topics = {"a": Metrics()} if has_one_topic else {"a": Metrics(), 'b"\n\\é': Metrics(), "empty": Metrics()}
    for metrics in list(topics.values())[:2]:
        for results in batches:
            metrics.scored(batch(*results, opened=1))
        metrics.committed([], ages, 0.25)
        metrics.silence(*SILENT)

    def read() -> list[Family]:
        now = snapshot(BUSY, WAITING)
        return merged({name: metrics.families(now) for name, metrics in topics.items()}, has_one_topic)

    with pytest.MonkeyPatch.context() as patch, receiving() as collector:
        patch.setenv(ENDPOINT, collector.url + "/")
        with OtlpSender(read, 3600):
            pass
    (request,) = collector.requests
    assert request.path == "/v1/metrics"
    found = decoded(request)[1]
    assert own(found) == own(scraped(exposition(read()).decode()))
    assert found["process_cpu_seconds_total", ()] > 0


def test_an_instance_has_a_name_and_variables_win(collector: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    with OtlpSender(list, 3600):
        pass
    monkeypatch.setenv("OTEL_SERVICE_NAME", "scorer")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=fomo-0,deployment.environment=test,nonsense")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=1")
    with OtlpSender(list, 3600):
        pass
    (first, _), (second, _) = map(decoded, collector.requests)
    assert first["service.name"] == "fomo-stream"
    assert first["service.instance.id"]
    assert (second["service.name"], second["service.instance.id"]) == ("scorer", "fomo-0")
    assert second["deployment.environment"] == "test"
    assert collector.requests[1].headers["api-key"] == "1"


# --- collectors that do not take it


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.message.startswith("otlp_")]


@pytest.mark.parametrize("status", [503, 401])
def test_a_collector_that_refuses_is_logged_once_and_asked_again(
    collector: Receiver, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    body = b"hunter2 " * 1000
    collector.replies = [Reply(status, body=body)] * 4
    with OtlpSender(list, 0.02):
        requests = collector.wait_for(lambda requests: len(requests) >= 6)
    assert all(decoded(request)[1] == {} for request in requests)
    (line,) = lines(caplog)
    assert line.startswith("otlp_trouble reason=")
    assert len(line) < 500


def test_a_defect_is_logged_and_the_next_push_succeeds(collector: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    answers = iter([ValueError("marker"), ValueError("marker")])

    def read() -> list[Family]:
        for error in answers:
            raise error
        return []

    with OtlpSender(read, 0.01):
        collector.wait_for(len)
    (line,) = (line for line in lines(caplog) if line.startswith("otlp_failed"))
    assert line.startswith("otlp_failed error=ValueError at=test_otlp.py")
    assert "marker" not in caplog.text


def test_a_collector_that_never_answers_holds_neither_the_scoring_nor_the_end(
    broker: Broker, collector: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1")
    monkeypatch.setattr(otlp, "LAST_S", 0.2)
    collector.answer = lambda _request: Reply(-1)
    its = sensors(broker, otlp=True)
    broker.produce(its.topic, readings(60))
    with Running(its) as running:
        collector.wait_for(len)
        wait_for(lambda: broker.committed(its.group, its.topic) == 60, "all to be committed")
        broker.produce(its.topic, readings(20))
        wait_for(lambda: broker.committed(its.group, its.topic) == 80, "all to be committed")
        running.service.stop()
        wait_for(lambda: running.has_ended, "the end", 8)
    assert not collector.released.is_set()


# --- variables


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({ENDPOINT: "user:hunter2@collector:4318"}, f"{ENDPOINT} is not an address of HTTP; write it as http://"),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "grpc://hunter2"}, "OTLP_METRICS_ENDPOINT is not an address"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc', and --otlp sends by http"),
        ({"OTEL_METRIC_EXPORT_INTERVAL": "0"}, "write 60000 for a minute"),
    ],
)
@pytest.mark.usefixtures("restored_logging")
def test_a_variable_that_is_wrong_ends_the_start_with_what_to_write(
    variables: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["--topic", "t", "--bootstrap", "127.0.0.1:1", "--otlp"]) == 2
    shown = capsys.readouterr().err
    assert words in shown
    assert shown.count("\n") == 1
    assert "hunter2" not in shown


def test_the_interval_is_that_of_the_variable_and_the_protocol_of_metrics_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert push_interval_s() == 60
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1500")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(ConfigError):
        push_interval_s()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/protobuf")
    assert push_interval_s() == 1.5


def test_a_header_that_is_wrong_is_not_shown(
    collector: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "hunter2")
    logging.getLogger("opentelemetry").propagate = True
    with OtlpSender(list, 3600):
        pass
    assert len(collector.requests) == 1
    assert "hunter2" not in caplog.text


# --- the service
