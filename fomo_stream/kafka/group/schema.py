"""One schema for the whole group, agreed on in the group log.

Every instance that has inferred a schema proposes it, reads the log, and uses the earliest proposal in it.
"""

from __future__ import annotations

from typing import Any

from fomo_stream.errors import AgreementError
from fomo_stream.kafka.group.log import GroupLog
from fomo_stream.records.schema import Schema
from fomo_stream.settings.service import ServiceSettings

KIND = b"schema/"


class GroupSchema:
    """Reads and proposes the schema of a group; calls raise BrokerError if the broker does not answer in time."""

    def __init__(self, settings: ServiceSettings, log: GroupLog | None = None) -> None:
        self._settings = settings
        self._log = log or GroupLog(settings)

    def stored(self) -> Schema | None:
        """The group's schema: the earliest proposal in the state topic, or None when there is none."""
        proposals = self._log.entries(KIND)
        return self._parse(proposals[0].content) if proposals else None

    def agree(self, proposal: Schema) -> Schema:
        """The group's schema: `proposal`, unless another instance was earlier."""
        schema = self.stored()
        if schema is None:
            content = {"features": list(proposal.features), "categorical": sorted(proposal.categorical)}
            self._log.append(KIND, content)
            schema = self.stored()
        if schema is None:
            raise self._log.not_kept()
        return schema

    def agree_on_flags(self, names: tuple[str, ...]) -> Schema:
        """The group's schema when --features names it; an AgreementError when the group uses another one."""
        schema = self.agree(Schema.of(names, self._settings.categorical))
        self._check(names, schema)
        return schema

    def check_flags(self) -> None:
        """Raise AgreementError if --features is given and the group uses another schema. Writes nothing."""
        schema, names = self.stored(), self._settings.features
        if schema is not None and names is not None:
            self._check(names, schema)

    def _check(self, names: tuple[str, ...], schema: Schema) -> None:
        proposal = Schema.of(names, self._settings.categorical or sorted(schema.categorical))
        if set(schema.features) != set(proposal.features):
            raise AgreementError(
                f"--features {','.join(proposal.features)} differs from the features of group {self._settings.group}, "
                f"{','.join(schema.features)}; leave the flag out to use those, choose another --group, or forget what "
                "was learned with --reset-state"
            )

    def _parse(self, content: dict[str, Any]) -> Schema:
        with self._log.understanding():
            names = tuple(content["features"]), tuple(content.get("categorical", []))
            if not all(isinstance(name, str) for name in (*names[0], *names[1])):
                raise TypeError("features must be a list of names")
            return Schema(names[0], frozenset(names[1]))
