"""Rules and settings of a running service: read again when their file changes; rules are kept over a crash."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker, free_ports, wait_for
from services import Running, changed, flags_of, readings, results, sensors, unique

from fomo_stream.cli.parser import parse
from fomo_stream.kafka import settings_file
from fomo_stream.kafka.settings_file import SettingsFile
from fomo_stream.settings.service_settings import ServiceSettings

RULE = """
rules:
  - name: cold
    features: temperature
    valid: [{low}, null]
"""


def below(low: float, records: list[dict[str, Any]]) -> list[bool]:
    return [record["temperature"] < low for record in records]


def test_a_changed_file_is_read_when_it_has_rested_as_it_may_not_be_complete(tmp_path: Path) -> None:
    config = tmp_path / "fomo.yaml"
    config.write_text(RULE.format(low=20))
    file = SettingsFile(parse(ServiceSettings, ["--config", str(config), "--topic", "sensors"]))
    assert file.changed(2.0) is not None  # it may have changed while the instance started
    config.write_text("")
    assert file.changed(4.0) is None
    config.write_text(RULE.format(low=30))
    assert [file.changed(now) is None for now in (6.0, 8.0, 10.0)] == [True, False, True]
    assert file.present.rules[0].valid == (30, None)


def test_rules_are_read_again_and_outlive_a_restart_and_feedback_tells_of_windows(
    broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_file, "CHECK_S", 0.1)
    caplog.set_level("INFO", "fomo_stream")
    config = tmp_path / "fomo.yaml"
    config.write_text("")
    feedback = unique("feedback")
    broker.create_topic(feedback, 1)
    port = free_ports(1)
    plain = sensors(broker, feedback=feedback, instance_id="one", alert_rate=None, health_port=port)
    settings = changed(plain, config=config)
    flags = flags_of(settings)  # which can be read again
    records = readings(700)
    n = 0

    def scored(more: int) -> list[dict[str, Any]]:
        nonlocal n
        broker.produce(settings.topic, records[n : n + more], partition=0)
        n += more
        return [one["fomo"] for one in results(broker.read(settings.out, at_least=n, seconds=120))[n - more : n]]

    def wait_for_log(words: str) -> None:
        wait_for(lambda: words in caplog.text, f"the log to say {words!r}")

    with Running(parse(ServiceSettings, flags)):
        assert not any("rule" in result for result in scored(100))
        config.write_text(RULE.format(low=20))
        wait_for_log(f"offset={n} rules=1 windows=0")
        assert [result.get("rule") == "cold" for result in scored(50)] == below(20, records[100:150])
        config.write_text(RULE.format(low="cold"))
        wait_for_log(" rules_not_read ")
        assert "fomo.yaml line 5: rules[1].valid" in caplog.text
        assert [result.get("rule") == "cold" for result in scored(50)] == below(20, records[150:200])
        config.write_text("alert-rate: 0.02\nmax-latency-ms: 50\nkeys: 9\n" + RULE.format(low=20))
        wait_for_log(" settings_changed names=alert_rate,keys,max_latency_ms ")
        config.write_text("alert-rate: 0.02\nmax-latency-ms: 50\n" + RULE.format(low=20))
        wait_for_log(" settings_taken names=alert_rate,max_latency_ms ")
        wait_for(lambda: caplog.text.count(" started ") == 2, "the instance to join its group again")
        assert [result.get("rule") == "cold" for result in scored(50)] == below(20, records[200:250])
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert "fomo_alert_rate_requested_ratio 0.02\n" in answer.read().decode()
    config.write_text(RULE.format(low=20).replace("temperature", "temprature, temperature"))
    with Running(parse(ServiceSettings, flags)):
        assert [result.get("rule") == "cold" for result in scored(50)] == below(20, records[250:300])
        assert "there is no such feature; did you mean temperature?" in caplog.text
        told = {"maintenance": "visit", "from": "2020-01-01", "to": "2100-01-01", "skip": "both"}
        broker.produce(feedback, [told], partition=0)
        wait_for(lambda: " windows=1 " in caplog.text, "the window")
        found = [(one["status"], one.get("suppressed"), one["score"]) for one in scored(20)]
        assert found == [("maintenance", "visit", None)] * 20
        broker.produce(feedback, [{"maintenance": "visit", "cancel": True}], partition=0)
        wait_for(lambda: scored(1)[0]["status"] == "ok", "the window to end")
    everything = [one["fomo"] for one in results(broker.read(settings.out, at_least=n))]
    assert [result["offset"] for result in everything] == list(range(n))
