"""Everything that can go wrong by a user's hand, as one exception tree.

Each message says what is wrong, where (for a record: ``topic[partition]@offset``), and what to do. The command line
prints the message of a `FomoError` without a traceback and exits with its `exit_code`.
"""

from __future__ import annotations


class FomoError(Exception):
    """Base of every error that fomo-stream raises on purpose."""

    exit_code = 1


class ConfigError(FomoError):
    """A flag, environment variable or configuration file holds something unusable."""

    exit_code = 2


class AgreementError(ConfigError):
    """A setting differs from what the members of the consumer group have agreed on."""

    exit_code = 10


class BrokerError(FomoError):
    """The broker does not answer, or does not do what it is asked."""

    exit_code = 7


class FencedError(BrokerError):
    """The broker has put this instance out of the group, or ended its transactions: start it again."""

    exit_code = 3


class TopicError(BrokerError):
    """A topic is missing, or is not as the service needs it."""

    exit_code = 8


class NotPermittedError(BrokerError):
    """The user lacks a permission at the broker."""

    exit_code = 9


class LostOffsetError(BrokerError):
    """The broker no longer keeps the next record to read."""

    exit_code = 11


class ShutdownError(FomoError):
    """The service could not end in time, because a broker did not answer."""

    exit_code = 12


class CheckpointError(FomoError):
    """A checkpoint is missing, truncated, tampered with, or of another format version."""

    exit_code = 4


class SchemaError(FomoError, ValueError):
    """Rows do not have the features that the model or the group's schema asks for."""

    exit_code = 5


UNKNOWN = "unknown"  # the reason of a dead letter that names none
# Every reason for which a record becomes a dead letter.
REASONS = (
    "tombstone",
    "too_large",
    "not_utf8",
    "not_json",
    "not_an_object",
    "no_features",
    "too_many_features",
    "not_encodable",
    "output_refused",
    "bad_feedback",
    UNKNOWN,
)


class RecordError(FomoError, ValueError):
    """One record cannot be scored. `reason` is a short code, fit for a header or a metric label."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class StateError(FomoError):
    """What was written of a detector's state does not fit the one that is asked to restore it, or is damaged."""

    exit_code = 6


class DamagedStateError(StateError):
    """Part of what was written is missing or unreadable."""
