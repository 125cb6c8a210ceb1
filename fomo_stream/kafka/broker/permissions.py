"""Permissions of this user at the broker, checked before the start. The error names all missing ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation

from fomo_stream.errors import NotPermittedError
from fomo_stream.kafka.broker.clients import NOT_PERMITTED, broker_errors
from fomo_stream.kafka.broker.cluster import describe_group, describe_topics
from fomo_stream.settings.flags import BrokerFlags
from fomo_stream.settings.service_settings import ServiceSettings

DESCRIBE, READ, WRITE = AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE

Operations = Collection[AclOperation] | None  # permitted ones; None: the broker does not report them


def service_needs(settings: ServiceSettings) -> dict[str, list[AclOperation]]:
    """Return the operations on topics that the service needs, by topic."""
    needs = {settings.topic: [READ], **{topic: [WRITE] for topic in settings.outputs}}
    feedback = {} if settings.feedback is None else {settings.feedback: [READ]}
    return {**needs, settings.state_topic: [READ, WRITE], **feedback}


def check_permissions(
    settings: BrokerFlags, admin: Any, topics: Mapping[str, Collection[AclOperation]], of_group: AclOperation = READ
) -> None:
    """Raise NotPermittedError when an operation on a topic that exists, or on the group, is not permitted.

    Raises BrokerError if the broker does not answer. A broker that does not report permissions, and a topic or group
    that does not exist, raise nothing.
    """
    with broker_errors(f"the broker at {settings.bootstrap} does not say what is permitted"):
        existing, hidden = describe_topics(admin, topics)
    permitted = {name: operations_of(about) for name, about in existing.items()} | dict.fromkeys(hidden, ())
    try:
        of_this_user = operations_of_group(settings)
    except KafkaException:
        of_this_user = None
    missing = missing_permissions(settings, topics, permitted, of_group, of_this_user)
    if missing:
        named = ", ".join(error.what for error in missing)
        others = ", and so on" if missing[1:] else ""
        raise NotPermittedError(f"not permitted: {named}", f"permit it with {missing[0].remedy}{others}")


def missing_permissions(
    settings: BrokerFlags,
    needs: Mapping[str, Collection[AclOperation]],
    permitted: Mapping[str, Operations],
    of_group: AclOperation,
    on_group: Operations,
) -> list[NotPermittedError]:
    """Return an error for each needed operation that is not permitted, on topics and on the group.

    permitted: by topic that exists. of_group: needed on the group; on_group: permitted there.
    """
    on_topics = [("topic", name, needed, permitted.get(name)) for name, those in needs.items() for needed in those]
    return [
        NotPermittedError(f"{operation_name(operation)} on {kind} {name}", permit(settings, operation, kind, name))
        for kind, name, operation, operations in (*on_topics, ("group", settings.group, of_group, on_group))
        if operations is not None and operation not in operations
    ]


def operations_of_group(settings: BrokerFlags) -> Operations:
    """Return the permitted operations on the group. Raises KafkaException."""
    try:
        return operations_of(describe_group(settings, include_authorized_operations=True))
    except KafkaException as error:
        if error.args[0].code() in NOT_PERMITTED:
            return ()
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return None
        raise


def operations_of(description: Any) -> Operations:
    """Return the permitted operations on a topic, a group or a cluster, from the broker's description."""
    return frozenset(description.authorized_operations) if description.authorized_operations else None


def permit(settings: BrokerFlags, operation: AclOperation, kind: str, name: str) -> str:
    """Return the command that permits an operation on a resource. kind: `topic` or `group`."""
    return (
        f"kafka-acls.sh --bootstrap-server {settings.bootstrap} --add --allow-principal User:NAME "
        f"--operation {operation_name(operation)} --{kind} {name}"
    )


def operation_name(operation: AclOperation) -> str:
    """
    >>> operation_name(AclOperation.DESCRIBE_CONFIGS)
    'DescribeConfigs'
    """
    return "".join(part.capitalize() for part in operation.name.split("_"))
