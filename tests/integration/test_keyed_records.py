"""Muted keys of series through Kafka."""

from __future__ import annotations

from collections.abc import Sequence

from brokers import Broker, wait_for
from services import Running, changed, readings, results, sensors, unique


def test_a_muted_key_gives_no_alerts_until_a_label_ends_that_also_over_a_restart(
    broker: Broker, real_kafka: None
) -> None:
    settings = sensors(broker, feedback=(feedback := unique("labels")), alerts=unique("alerts"), mute_key=("p0",))
    broker.produce(settings.topic, readings(200), keys=[f"p{i % 4}" for i in range(200)])
    n, size = 200, 100.0

    def found(keys: Sequence[str]) -> list[tuple[bool, bool]]:
        """Whether an extreme record of each key is an outlier and muted; each is farther off than those before."""
        nonlocal n, size
        pairs = []
        for key in keys:
            n, size = n + 1, size * 100.0
            broker.produce(settings.topic, [{**readings(1)[0], "temperature": size}], keys=[key])
            result = results(broker.read(settings.out, at_least=n))[-1]["fomo"]
            pairs.append((result["outlier"], result.get("muted", False)))
        return pairs

    def mute(keys: dict[str, bool]) -> None:
        wanted = broker.committed(settings.group, feedback) + len(keys)
        broker.produce(feedback, [{"key": key, "mute": muted} for key, muted in keys.items()], keys=keys)
        wait_for(lambda: broker.committed(settings.group, feedback) == wanted, "the labels to be committed")

    heard, silent = (True, False), (False, True)
    with Running(settings):
        broker.read(settings.out, at_least=200)
        assert found(["p0", "p1"]) == [silent, heard]
        mute({"p1": True, "p0": False})
        assert found(["p0", "p1"]) == [heard, silent]
    with Running(changed(settings, mute_key=("p2",))):
        assert found(["p1", "p0", "p2"]) == [silent, heard, silent]
        mute({"p1": False})
        assert found(["p1"]) == [heard]
    alerts = [content["fomo"] for content in results(broker.read(settings.alerts or ""))]
    assert all(alert["outlier"] for alert in alerts if "score" in alert)
