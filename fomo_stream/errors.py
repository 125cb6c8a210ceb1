"""All errors that fomo-stream raises on purpose, in one exception tree.

Each message names the mistake, its place (for a record: ``topic[partition]@offset``) and the remedy. The command line
prints the message of a `FomoError` without a traceback and exits with its `exit_code`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class FomoError(Exception):
    """Base of every error that fomo-stream raises on purpose.

    what: the mistake and its place; remedy: what to do. The message is both.
    """

    exit_code = 1

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what}; {remedy}" if remedy else what)
        self.what, self.remedy = what, remedy


class ConfigError(FomoError, ValueError):
    """A flag, an environment variable, the configuration file or a parameter has an invalid value."""

    exit_code = 2


class AgreementError(ConfigError):
    """A setting differs from the settings that the members of the consumer group have agreed on."""

    exit_code = 10


class BrokerError(FomoError):
    """The broker does not answer, or refuses a request."""

    exit_code = 7


class FencedError(BrokerError):
    """The broker has removed this instance from the group or ended its transactions: restart the instance."""

    exit_code = 3


class TopicError(BrokerError):
    """A topic is missing, or has unsuitable settings."""

    exit_code = 8


class NotPermittedError(BrokerError):
    """The broker denies the user a permission."""

    exit_code = 9


class RegistryError(BrokerError):
    """The schema registry does not answer, or refuses a request. status: the HTTP status; 0 without an answer."""

    exit_code = 14

    def __init__(self, what: str, remedy: str = "", status: int = 0) -> None:
        super().__init__(what, remedy)
        self.status = status


class LostOffsetError(BrokerError):
    """The broker no longer has the next record to read."""

    exit_code = 11


class ShutdownError(FomoError):
    """The service could not stop in time, because a broker did not answer."""

    exit_code = 12


class CheckpointError(FomoError, ValueError):
    """A checkpoint is missing, truncated, altered, or of another format version."""

    exit_code = 4


class SchemaError(FomoError, ValueError):
    """Rows do not have the features that the model or the group's schema needs."""

    exit_code = 5


class NotCompleteError(SchemaError):
    """The first records, which are good ones, are not all there yet. complete_ms: when they can be, since 1970."""

    def __init__(self, what: str, complete_ms: int) -> None:
        super().__init__(what, "give a shorter time, or leave --reference out")
        self.complete_ms = complete_ms


class SkippedError(FomoError):
    """More records than allowed could not be scored; the others were scored."""

    exit_code = 13


UNKNOWN = "unknown"  # the reason of a dead letter that names none
# All reasons for which a record becomes a dead letter.
REASONS = (
    "tombstone",
    "too_large",
    "not_utf8",
    "not_json",
    "not_an_object",
    "not_avro",
    "not_protobuf",
    "needs_registry",
    "no_schema_id",
    "unknown_schema",
    "unsupported_schema",
    "registry_unavailable",
    "output_schema_refused",
    "no_features",
    "too_many_features",
    "not_encodable",
    "output_refused",
    "bad_feedback",
    "unexpected",
    UNKNOWN,
)


class RecordError(FomoError, ValueError):
    """One record cannot be scored. `reason` is a short code for the header of its dead letter."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class SchemaPendingError(FomoError):
    """The schema of a record is not fetched yet: try again later."""


class StateError(FomoError):
    """The stored state of a detector does not fit the detector that restores it, or is damaged."""

    exit_code = 6


class DamagedStateError(StateError):
    """Part of the stored state is missing or unreadable."""


class FomoWarning(UserWarning):
    """Data that the Python API accepts, but uses in a way that the user may not expect."""


def renamed_keyword(old: str, new: str) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Return a decorator of a function that also takes the earlier name of a keyword, and then warns."""

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @wraps(function)
        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            if old in kwargs:
                message = (
                    f"the parameter {old} is called {new} now, and the old name will go: write {new}={kwargs[old]!r}"
                )
                warnings.warn(message, FomoWarning, stacklevel=2)
                kwargs.setdefault(new, kwargs.pop(old))
            return function(*args, **kwargs)

        return call

    return decorate


@contextmanager
def needs_extra(what: str, extra: str = "registry") -> Iterator[None]:
    """Raise ConfigError where a library of this extra is missing. what: the feature or flag that needs it."""
    try:
        yield
    except ImportError as error:
        lacking = f"{what} needs {error.name}, which is not installed"
        raise ConfigError(lacking, f"pip install 'fomo-stream[{extra}]'") from None
