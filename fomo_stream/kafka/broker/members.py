"""Questions to the broker about the group and its members."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from fomo_stream.kafka.broker.clients import make_admin
from fomo_stream.kafka.broker.failures import explained
from fomo_stream.settings.broker import BrokerFlags

ANSWER_S = 3.0
AGAIN_S = 0.2
NOT_READY = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)


def ask_about_group(settings: BrokerFlags, **options: Any) -> Any:
    """The broker's description of the group: members and, if asked for, permissions. Raises KafkaException.

    A coordinator that answers that it is not ready, as for the first group of a new cluster, is asked again.
    """
    deadline = time.monotonic() + ANSWER_S
    while True:
        try:
            return _ask(settings, **options)
        except KafkaException as error:
            if error.args[0].code() not in NOT_READY or time.monotonic() >= deadline:
                raise
        time.sleep(AGAIN_S)


def _ask(settings: BrokerFlags, **options: Any) -> Any:
    """Ask once. The client is made for this one question.

    A client whose coordinator did not answer crashes the process when it is
    used again: https://github.com/confluentinc/librdkafka/issues/4605.
    """
    admin = make_admin(settings)
    asked = admin.describe_consumer_groups([settings.group], request_timeout=ANSWER_S, **options)
    try:
        return asked[settings.group].result()
    finally:
        del admin, asked  # or the traceback of an error would keep the client alive


def count_members(settings: BrokerFlags) -> int:
    """Number of members of the group. Raises BrokerError when the broker does not answer."""
    try:
        return len(ask_about_group(settings).members)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return 0
        what = f"the broker does not list the members of group {settings.group}"
        remedy = "check that the group coordinator answers and that this user may describe the group"
        raise explained(error, what, remedy) from None
