"""Permissions of this user at the broker, checked before the start: the error names all that are missing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation

from fomo_stream.errors import NotPermittedError
from fomo_stream.kafka.broker.members import ask_about_group
from fomo_stream.settings.broker import BrokerFlags
from fomo_stream.settings.service import ServiceSettings

ANSWER_S = 3.0
DESCRIBE, READ, WRITE = AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE


def service_needs(settings: ServiceSettings) -> dict[str, list[AclOperation]]:
    """The operations on topics that the service needs, by topic."""
    needs = {settings.topic: [READ], **{topic: [WRITE] for topic in settings.outputs}}
    needs[settings.state_topic] = [READ, WRITE]
    if settings.feedback is not None:
        needs[settings.feedback] = [READ]
    return needs


def check_permissions(
    settings: BrokerFlags,
    admin: Any,
    topics: Mapping[str, Collection[AclOperation]],
    of_group: AclOperation = READ,
) -> None:
    """Raise NotPermittedError when an operation on a topic that exists, or on the group, is not permitted.

    Nothing is raised for a broker that does not report permissions, or for a topic or group that does not exist.
    """
    group = settings.group
    missing = [
        (operation, "topic", topic)
        for topic, answer in admin.describe_topics(
            TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=ANSWER_S
        ).items()
        for operation in _missing(answer.result, topics[topic])
    ]
    about_group = partial(ask_about_group, settings, include_authorized_operations=True)
    missing += [(operation, "group", group) for operation in _missing(about_group, [of_group])]
    if missing:
        named = ", ".join(f"{operation.name.capitalize()} on {kind} {name}" for operation, kind, name in missing)
        operation, kind, name = missing[0]
        remedy = permit(settings, operation, kind, name) + (", and so on" if missing[1:] else "")
        raise NotPermittedError(f"not permitted: {named}; permit it with {remedy}")


def permit(settings: BrokerFlags, operation: AclOperation, kind: str, name: str) -> str:
    """The command that permits an operation on a resource. kind: `topic` or `group`."""
    words = "".join(part.capitalize() for part in operation.name.split("_"))
    return (
        f"kafka-acls.sh --bootstrap-server {settings.bootstrap} --add --allow-principal User:NAME "
        f"--operation {words} --{kind} {name}"
    )


def _missing(answer: Callable[[], Any], needed: Collection[AclOperation]) -> list[AclOperation]:
    """The needed operations that the broker's answer does not list."""
    try:
        permitted = answer().authorized_operations
    except KafkaException as error:
        refusals = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED)
        return list(needed) if error.args[0].code() in refusals else []
    return [operation for operation in needed if operation not in permitted] if permitted else []
