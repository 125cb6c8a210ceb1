"""The good records of a range of the input, stored once for the whole group in the group log.

The instance that needs them first stores what a reference keeps of them. So all instances have the same, also after a
restart, and after the input has deleted these records.
"""

from __future__ import annotations

import json
import logging
from base64 import b64decode, b64encode
from contextlib import suppress
from hashlib import blake2b
from uuid import uuid4

from fomo_stream.detector.changelog import Document
from fomo_stream.errors import StateError
from fomo_stream.kafka.group.group_log import GroupLog
from fomo_stream.logs import kv
from fomo_stream.records.schema import Schema
from fomo_stream.settings.topic_flags import TopicFlags

log = logging.getLogger(__name__)

KIND = b"reference/"
FORMAT = 1
ROW_SETTINGS = ("key", "keys", "time", "timezone", "time_features", "derive", "missing_values")  # that rows depend on


class GroupReference:
    """The stored reference of a range and a schema. Calls raise BrokerError if the broker does not answer in time.

    Each proposal is a `Document`, whose parts are entries of the log. Of several the one that was complete first is
    valid, so all instances use the same.
    """

    def __init__(self, settings: TopicFlags, schema: Schema) -> None:
        # The log of the other agreements does not have these entries, as they are large.
        self._log = GroupLog(settings, (KIND,))
        span, columns = settings.reference_span or range(0), (sorted(schema.categorical), sorted(schema.counters))
        about = [sorted(v) if isinstance(v := getattr(settings, name), tuple) else v for name in ROW_SETTINGS]
        made_of = json.dumps([FORMAT, span.start, span.stop, schema.features, *columns, *about])
        self._rows = blake2b(made_of.encode(), digest_size=8).hexdigest()

    def stored(self) -> bytes | None:
        """Return the packed reference of the group; None if there is none of this range and these features."""
        return self._valid()[1]

    def agree(self, packed: bytes, range_: str) -> bytes:
        """Return the packed reference of the group: this one, of this range, unless another instance was earlier.

        Those of other ranges or features are deleted.
        """
        name = uuid4().hex
        about = {"range": range_, "rows": self._rows, "name": name}
        parts = Document().changes(name, packed).items()
        contents = [{**about, "part": part, "data": b64encode(data or b"").decode()} for part, data in parts]
        self._log.append(KIND, *contents)
        valid, packed_valid = self._valid()
        if packed_valid is None:
            raise self._log.not_kept()
        # also what is left of an instance that died, or comes later: it will use the valid one
        kept = self._rows, valid
        others = [e for e in self._log.entries(KIND) if (e.content["rows"], e.content["name"]) != kept]
        self._log.delete([entry.key for entry in others])
        replaced = sorted({str(entry.content["range"]) for entry in others if entry.content["rows"] != self._rows})
        if valid == name:
            size = sum(len(content["data"]) for content in contents)
            log.info(kv("reference_stored", range=range_, bytes=size, replaces=",".join(replaced) or "none"))
        return packed_valid

    def _valid(self) -> tuple[str, bytes | None]:
        """Return the name and the bytes of the valid proposal."""
        proposals: dict[str, dict[str, bytes]] = {}
        with self._log.understanding():
            for entry in self._log.entries(KIND):
                if entry.content["rows"] == self._rows:
                    name = str(entry.content["name"])
                    parts = proposals.pop(name, {})  # to the end: in the order of the last parts
                    proposals[name] = {**parts, entry.content["part"]: b64decode(entry.content["data"])}
        for name, parts in proposals.items():
            with suppress(StateError):  # not complete
                return name, Document().recover(parts, name)
        return "", None
