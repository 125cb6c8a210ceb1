"""Convert a state of format 12 to the present format. With format 14 this module can be removed."""

from __future__ import annotations

import json
import struct

from fomo_stream.detector.changelog import Document, Entries, StoredEntries
from fomo_stream.errors import DamagedStateError, StateError

FINGERPRINT, OWN_COUNTERS = "fingerprint", "own/counters"
# The counters had three of regimes, after records, changes, at_trigger, pending, stepped, alerts, load and weight.
REGIMES = slice(8, 11)


def changes_since(entries: StoredEntries) -> Entries:
    """Return the entries that differ in the present format from those of a detector in format 12; {} for other formats.

    Raises StateError where missing values counted, and where entries are damaged.
    """
    names = [name.removesuffix("/0") for name in entries if name.endswith(f"{FINGERPRINT}/0")]
    changed: Entries = {}
    for name in names:
        log = Document()
        fingerprint = json.loads(log.recover(entries, name))
        if fingerprint.get("format") != 12:
            continue
        if fingerprint.pop("missing_is", "unknown") != "unknown":
            raise StateError("missing_is is odd in the state; missing values do not count any more")
        changed |= log.changes(name, json.dumps(fingerprint | {"format": 13}).encode())
        log, name = Document(), name.removesuffix(FINGERPRINT) + "counters"
        counters = json.loads(log.recover(entries, name))
        del counters[REGIMES]
        changed |= log.changes(name, json.dumps(counters, separators=(",", ":")).encode())
    if changed and OWN_COUNTERS in entries:
        try:
            changed[OWN_COUNTERS] = struct.pack("<qqq", *struct.unpack("<qqqq", entries[OWN_COUNTERS])[:3])
        except struct.error as error:
            raise DamagedStateError(f"the state is damaged: {OWN_COUNTERS} is not readable ({error})") from None
    return changed
