"""What this user may do at the broker, asked before anything is begun: whatever is missing is said at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation

from fomo_stream.errors import BrokerError

ANSWER_S = 5.0
READ, WRITE = AclOperation.READ, AclOperation.WRITE


def check_permissions(admin: Any, bootstrap: str, topics: Mapping[str, Collection[AclOperation]], group: str) -> None:
    """Raise BrokerError when an operation on a topic that exists, or reading `group`, is not permitted.

    A broker that does not tell what is permitted, or a topic or group that does not exist, raises nothing.
    """
    missing = [
        (operation, "topic", topic)
        for topic, answer in admin.describe_topics(
            TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=ANSWER_S
        ).items()
        for operation in _missing(answer, topics[topic])
    ]
    groups = admin.describe_consumer_groups([group], include_authorized_operations=True, request_timeout=ANSWER_S)
    missing += [(operation, "group", group) for operation in _missing(groups[group], [READ])]
    if missing:
        named = ", ".join(f"{operation.name.capitalize()} on {kind} {name}" for operation, kind, name in missing)
        operation, kind, name = missing[0]
        raise BrokerError(
            f"not permitted: {named}; permit it with kafka-acls.sh --bootstrap-server {bootstrap} --add "
            f"--allow-principal User:NAME --operation {operation.name.capitalize()} --{kind} {name}"
            + (", and so on" if missing[1:] else "")
        )


def _missing(answer: Any, needed: Collection[AclOperation]) -> list[AclOperation]:
    """Which of the needed operations an answer of the broker does not list."""
    try:
        permitted = answer.result().authorized_operations
    except KafkaException as error:
        refusals = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED)
        return list(needed) if error.args[0].code() in refusals else []
    return [operation for operation in needed if operation not in permitted] if permitted else []
