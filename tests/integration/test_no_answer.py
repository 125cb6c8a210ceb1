"""A broker that does not answer while a program starts: the message says so, and does not blame the settings."""

from __future__ import annotations

import signal
from functools import partial

import pytest
from brokers import Broker, Kafka
from services import make_settings, unique

from fomo_stream.errors import BrokerError
from fomo_stream.kafka.clients import make_producer
from fomo_stream.kafka.delivery.exactly_once import ExactlyOnce


def test_a_start_without_an_answer_says_so_and_can_be_repeated(broker: Broker) -> None:
    if not isinstance(broker, Kafka):
        pytest.skip("needs an Apache Kafka to stop for a moment (KAFKA_HOME)")
    settings = make_settings(broker, unique("sensors"))
    make = partial(make_producer, settings, settings.transactional_id)
    broker._process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(BrokerError, match=r"does not answer .*; nothing is lost; .* restart the instance") as error:
            ExactlyOnce(make, {}).start(3.0)
    finally:
        broker._process.send_signal(signal.SIGCONT)
    assert "at-least-once" not in str(error.value)
    again = ExactlyOnce(make, {})
    again.start(30.0)
    again.close()
