"""Notes about what of a file does not count, although it may have been meant to."""

from __future__ import annotations

from collections.abc import Sequence

from fomo_stream.records.csv_rows import number_in
from fomo_stream.records.files import RecordFile
from fomo_stream.records.inference import NAMES_SHOWN
from fomo_stream.records.lines import Note
from fomo_stream.records.schema import Schema, shown
from fomo_stream.wording import counted, did_you_mean


def note_texts(table: RecordFile, schema: Schema, note: Note) -> None:
    """Name the features with cells that are text, and count as missing."""
    for name, texts in table.texts.items():
        if texts.count and name in schema.features and name not in schema.categorical:
            other = next((mark for mark in ("comma", "point") if number_in(texts.first, mark) is not None), "")
            remedy = f"; --decimal {other} reads such numbers" if other else ""
            are, count = ("is", "counts") if texts.count == 1 else ("are", "count")
            found = f"{counted(texts.count, 'cell')} of the column {name} of {table.name} {are} text"
            note(f"{found}, such as {texts.first[:40]!r}, and {count} as missing{remedy}")


def note_absent(table: RecordFile, absent: Sequence[str], note: Note) -> None:
    """Name the features without any value, which all count as missing."""
    if absent:
        hint = did_you_mean(absent[0], [name for name in table.header if name not in absent])
        note(f"no row of {table.name} has a value of {shown(absent, NAMES_SHOWN)}: missing everywhere{hint}")


def note_unscored(table: RecordFile, schema: Schema, without: int, first: int, note: Note) -> None:
    """Say how many records have no value of any feature, and the line of the first; without: 0 if there are none."""
    if without:
        have = "has" if without == 1 else "have"
        what = f"no value of any feature ({shown(schema.features, NAMES_SHOWN)})"
        note(f"{counted(without, 'record')} of {table.name} {have} {what}, the first in line {first}")
