"""Permissions of this user at the broker, checked before the start: the error names all that are missing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation

from fomo_stream.errors import BrokerError, NotPermittedError
from fomo_stream.kafka.clients import make_admin
from fomo_stream.settings.broker import BrokerFlags

ANSWER_S = 3.0
READ, WRITE = AclOperation.READ, AclOperation.WRITE


def ask_about_group(settings: BrokerFlags, **options: Any) -> Any:
    """The broker's description of the group: members and, if asked for, permissions. Raises KafkaException.

    The client is made for this one question. A client whose coordinator did not answer crashes the process when it is
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
        raise BrokerError(
            f"the broker does not list the members of group {settings.group} ({error.args[0].str()}); check that the "
            "broker which coordinates the group answers, and that the group may be described; then restart it"
        ) from None


def check_permissions(settings: BrokerFlags, admin: Any, topics: Mapping[str, Collection[AclOperation]]) -> None:
    """Raise NotPermittedError when an operation on a topic that exists, or reading the group, is not permitted.

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
    missing += [(operation, "group", group) for operation in _missing(about_group, [READ])]
    if missing:
        named = ", ".join(f"{operation.name.capitalize()} on {kind} {name}" for operation, kind, name in missing)
        operation, kind, name = missing[0]
        raise NotPermittedError(
            f"not permitted: {named}; permit it with kafka-acls.sh --bootstrap-server {settings.bootstrap} --add "
            f"--allow-principal User:NAME --operation {operation.name.capitalize()} --{kind} {name}"
            + (", and so on" if missing[1:] else "")
        )


def _missing(answer: Callable[[], Any], needed: Collection[AclOperation]) -> list[AclOperation]:
    """The needed operations that the broker's answer does not list."""
    try:
        permitted = answer().authorized_operations
    except KafkaException as error:
        refusals = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED)
        return list(needed) if error.args[0].code() in refusals else []
    return [operation for operation in needed if operation not in permitted] if permitted else []
