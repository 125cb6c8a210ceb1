"""What an error of the Kafka client means to the user: the error that says what failed, why, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

from fomo_stream.errors import BrokerError, NotPermittedError

NOT_PERMITTED = (
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
)
AGAIN = "check that all brokers run, and try again"


def explained(error: KafkaException | KafkaError, what: str, remedy: str = AGAIN, permit: str = "") -> BrokerError:
    """The error for a request that failed.

    what: that failed. remedy: what to do if permissions are not the cause; permit: what to do if they are.
    """
    reason = error.args[0] if isinstance(error, KafkaException) else error
    if reason.code() in NOT_PERMITTED:
        return NotPermittedError(f"not permitted: {what} ({reason.str()})", permit or remedy)
    return BrokerError(f"{what} ({reason.str()})", remedy)


@contextmanager
def explaining(what: str, remedy: str = AGAIN, permit: str = "") -> Iterator[None]:
    """Raise an `explained` error in place of a KafkaException."""
    try:
        yield
    except KafkaException as error:
        raise explained(error, what, remedy, permit) from None
