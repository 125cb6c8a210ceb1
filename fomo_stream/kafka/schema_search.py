"""Finds the schema while the instance runs, if no flag names the features: from the group, or from records."""

from __future__ import annotations

import logging

from fomo_stream.errors import BrokerError
from fomo_stream.kafka.group.schema import GroupSchema
from fomo_stream.kafka.pipeline import FEW, Pipeline
from fomo_stream.limits import INFER_RECORDS
from fomo_stream.logs import kv
from fomo_stream.settings.service import ServiceSettings

log = logging.getLogger(__name__)

RETRY_S = 5.0
INFER_S = 5.0  # with fewer records than are wanted: so long after the 20th, or 6 times as long after the first


class Patience:
    """How long to wait for a sample of `wanted` records on a stream of any speed.

    If fewer come, the wait ends `seconds` after the 20th record, or 6 x `seconds` after the first.

    >>> patience = Patience(wanted=200, seconds=5)
    >>> patience.is_over(3, now=0.0), patience.is_over(25, now=8.0), patience.is_over(25, now=13.0)
    (False, False, True)
    """

    def __init__(self, wanted: int, seconds: float) -> None:
        self._wanted = wanted
        self._seconds = seconds
        self._deadline = float("inf")

    def is_over(self, waiting: int, now: float) -> bool:
        """Whether to stop waiting; the time counts only while records wait."""
        if not waiting:
            self._deadline = float("inf")
            return False
        self._deadline = min(self._deadline, now + self._seconds * (1 if waiting >= FEW else 6))
        return waiting >= self._wanted or now >= self._deadline


class SchemaSearch:
    """Waits for a sample of records, infers a schema, and lets the group agree on it."""

    def __init__(self, settings: ServiceSettings, group: GroupSchema, pipeline: Pipeline) -> None:
        self._group = group
        self._pipeline = pipeline
        self._patience = Patience(INFER_RECORDS, INFER_S)
        self._retry_at = 0.0
        self.trouble = ""  # why the group cannot agree at the moment

    def look(self, now: float) -> None:
        """Begin scoring, if enough records wait or the first ones have waited long enough."""
        waiting = sum(len(task.waiting) for task in self._pipeline.tasks.values())
        if not self._patience.is_over(waiting, now) or now < self._retry_at:
            return
        try:
            schema = self._group.stored() or self._pipeline.infer()
            if schema is not None:
                self._pipeline.check(schema)
                self._pipeline.begin(self._group.agree(schema))
            self.trouble = ""
        except BrokerError as error:
            self._retry_at = now + RETRY_S
            self.trouble = str(error)
            log.warning(kv("schema_not_agreed", reason=error, retry_in_s=RETRY_S))
