"""Rules of a running service: read again when their file changes, kept over a crash, and told by feedback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from brokers import Broker, wait_for
from services import changed, command, readings, results, sensors, unique

RULE = """
rules:
  - name: cold
    features: temperature
    valid: [{low}, null]
"""


def below(low: float, records: list[dict[str, Any]]) -> list[bool]:
    return [record["temperature"] < low for record in records]


def test_rules_are_read_again_and_outlive_a_crash_and_feedback_tells_of_windows(broker: Broker, tmp_path: Path) -> None:
    config = tmp_path / "fomo.yaml"
    config.write_text("")
    feedback = unique("feedback")
    broker.create_topic(feedback, 1)
    settings = changed(sensors(broker, feedback=feedback, instance_id="one"), config=config)
    records = readings(700)
    n = 0

    def scored(more: int) -> list[dict[str, Any]]:
        nonlocal n
        broker.produce(settings.topic, records[n : n + more], partition=0)
        n += more
        return [one["fomo"] for one in results(broker.read(settings.out, at_least=n, seconds=120))[n - more : n]]

    with command(tmp_path / "one", settings) as one:
        assert not any("rule" in result for result in scored(100))
        config.write_text(RULE.format(low=20))
        one.wait_for_log(" rules ")
        assert f"offset={n} rules=1 windows=0" in one.text()
        assert [result.get("rule") == "cold" for result in scored(50)] == below(20, records[100:150])
        config.write_text(RULE.format(low="cold"))
        one.wait_for_log(" rules_not_read ")
        assert "fomo.yaml line 5: rules[1].valid" in one.text()
        assert [result.get("rule") == "cold" for result in scored(50)] == below(20, records[150:200])
        config.write_text("max-latency-ms: 300\n" + RULE.format(low=20))
        one.wait_for_log(" settings_changed names=max_latency_ms ")
        one.kill()
    config.write_text(RULE.format(low=20).replace("temperature", "temprature, temperature"))
    with command(tmp_path / "two", settings) as two:
        assert [result.get("rule") == "cold" for result in scored(50)] == below(20, records[200:250])
        assert "there is no such feature; did you mean temperature?" in two.text()
        told = {"maintenance": "visit", "from": "2020-01-01", "to": "2100-01-01", "skip": "both"}
        broker.produce(feedback, [told], partition=0)
        two.wait_for_log(" windows=1 ")
        found = [(one["status"], one.get("suppressed"), one["score"]) for one in scored(20)]
        assert found == [("maintenance", "visit", None)] * 20
        broker.produce(feedback, [{"maintenance": "visit", "cancel": True}], partition=0)
        wait_for(lambda: scored(1)[0]["status"] == "ok", "the window to end")
        assert two.terminate() == 0, two.text()
    everything = [one["fomo"] for one in results(broker.read(settings.out, at_least=n))]
    assert [result["offset"] for result in everything] == list(range(n))
