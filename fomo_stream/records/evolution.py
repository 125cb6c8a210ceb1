"""What changes for the features of a stream when a writer has a new schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from fomo_stream.records.schema import shown
from fomo_stream.records.writer import Leaf, Writer

MOST_KNOWN = 100_000  # fields; those of later schemas are told again and again
NUMBERS = ("number", "text", "mixed")  # roles of fields that can hold numbers: text may be a number


class Change(NamedTuple):
    """A new schema, or a field in it that does not fit a feature. about: what is known, for a line of the log."""

    is_incompatible: bool
    about: dict[str, object]
    new_fields: int = 0


class Evolution:
    """Compares each new schema of writers with those before it."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Leaf, str]] = {}  # by path: as it was first, and in which version of the subject

    def look(
        self, writer: Writer, place: Mapping[str, object], features: Sequence[str], categorical: Sequence[str]
    ) -> Iterator[Change]:
        """What is new in a schema. place: its id, subject and version. features: none while they are not known."""
        version = str(place.get("version", "?"))
        leaves, is_first = writer.leaves, not self._known
        renamed = {name: leaves.aliases[name] for name in features if name in leaves.aliases and name not in leaves}
        scored = {*features, *renamed.values()}
        new = [path for path in leaves if path not in self._known and path not in scored]
        missing = [name for name in features if leaves and name not in leaves and name not in renamed]
        about = dict(place)
        about |= {} if is_first or not new else {"new_fields": shown(new), "effect": "they are not scored"}
        about |= {"renamed": shown([f"{old}={now}" for old, now in renamed.items()])} if renamed else {}
        about |= {"missing_features": shown(missing)} if missing else {}
        yield Change(False, about, 0 if is_first else len(new))
        for name in features:
            leaf = leaves.get(renamed.get(name, name))
            before, version_before = self._known.get(name, (leaf, version))
            if leaf is None or before is None or name in categorical or leaf.role in (*NUMBERS, before.role):
                continue
            versions = {"versions": f"{version_before},{version}", "field": name, "was": before.type, "now": leaf.type}
            yield Change(True, {**place, **versions, "effect": "the feature is missing in its records"})
        for path, leaf in leaves.items() if len(self._known) < MOST_KNOWN else ():
            self._known.setdefault(path, (leaf, version))
