"""Schema evolution: the effects on the features of a stream when a writer has a new schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from fomo_stream.records.schema import shown_names
from fomo_stream.records.writer_schema import Leaf, Writer

MAX_KNOWN_FIELDS = 100_000  # fields; those of later schemas are reported again and again
NUMBER_ROLES = ("number", "text", "mixed")  # roles of fields that can hold numbers: text may be a number


class SchemaChange(NamedTuple):
    """A new schema, or a field in it that does not fit a feature. about: facts for a line of the log."""

    is_incompatible: bool
    about: dict[str, object]
    new_fields: int = 0


class SchemaEvolution:
    """Compare each new schema of writers with those before it."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Leaf, str]] = {}  # by path: the first leaf, and the version of its subject

    def changes_of(
        self, writer: Writer, place: Mapping[str, object], features: Sequence[str], categorical: Sequence[str]
    ) -> Iterator[SchemaChange]:
        """Yield the news of a schema. place: its id, subject and version. features: empty while they are not known."""
        version = str(place.get("version", "?"))
        leaves, is_first = writer.leaves, not self._known
        renamed = {name: leaves.aliases[name] for name in features if name in leaves.aliases and name not in leaves}
        scored = {*features, *renamed.values()}
        new = [path for path in leaves if path not in self._known and path not in scored]
        missing = [name for name in features if leaves and name not in leaves and name not in renamed]
        about = dict(place)
        about |= {} if is_first or not new else {"new_fields": shown_names(new), "effect": "they are not scored"}
        about |= {"renamed": shown_names([f"{old}={now}" for old, now in renamed.items()])} if renamed else {}
        about |= {"missing_features": shown_names(missing)} if missing else {}
        yield SchemaChange(False, about, 0 if is_first else len(new))
        for name in features:
            leaf = leaves.get(renamed.get(name, name))
            before, version_before = self._known.get(name, (leaf, version))
            if leaf is None or before is None or name in categorical or leaf.role in (*NUMBER_ROLES, before.role):
                continue
            versions = {"versions": f"{version_before},{version}", "field": name, "was": before.type, "now": leaf.type}
            yield SchemaChange(True, {**place, **versions, "effect": "the feature is missing in its records"})
        for path, leaf in leaves.items() if len(self._known) < MAX_KNOWN_FIELDS else ():
            self._known.setdefault(path, (leaf, version))
