"""Why a record is odd, with the names and values that the user gave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NotRequired, TypedDict, cast

from fomo_stream.detector.keys import Key
from fomo_stream.detector.results import Reason
from fomo_stream.records.explanation import explanation_of, reasons_of
from fomo_stream.records.schema import Schema

NamedReason = TypedDict(  # a call, as `with` is a word of Python
    "NamedReason",
    {
        "feature": Hashable,
        "cause": str,
        "share": float,
        "value": str | float | bool | None,
        "usual": NotRequired[float | None],
        "range": NotRequired[list[float] | None],
        "expected": NotRequired[float | None],
        "frequency": NotRequired[float | None],
        "scope": str,
        "with": NotRequired[Hashable],
    },
)


class Explanation(list[NamedReason]):
    """The reasons of a record, a dict each, the one that counts most first; `str` gives one sentence.

    A reason has `feature`, `cause`, `share`, `value`, and `usual` (the median of the context) and `range` (its central
    98 %), or, of a category, `frequency`; `expected` is what the other features make likely, of a value;
    `with` names another feature where only both together are odd.
    """

    def __init__(self, reasons: Sequence[NamedReason] = (), sentence: str = "") -> None:
        super().__init__(reasons)
        self.sentence = sentence

    def __str__(self) -> str:
        return self.sentence

    @classmethod
    def of(
        cls,
        reasons: Sequence[Reason],
        names: Sequence[Hashable],
        codes: Sequence[int],
        record: Mapping[Any, Any],
        earlier: float = 0.0,
        is_outlier: bool = True,
        key: Key = None,
        counters: Sequence[int] = (),
    ) -> Explanation:
        """From the reasons of a record.

        names: of all columns; codes: the columns that hold category codes; counters: those of counters; record: its
        values by name; earlier, is_outlier and key: see `explanation_of`.
        """
        texts = _distinct_texts(names)
        categorical, totals = (frozenset(texts[column] for column in columns) for columns in (codes, counters))
        schema = Schema(tuple(texts), categorical, totals)
        values = {text: record.get(name) for text, name in zip(texts, names, strict=True)}
        name_of = dict(zip(texts, names, strict=True))
        found = reasons_of(reasons, schema, values)
        named = [one | {key: name_of[one[key]] for key in ("feature", "with") if key in one} for one in found]
        return cls(cast(list[NamedReason], named), explanation_of(reasons, schema, values, earlier, is_outlier, key))


def _distinct_texts(names: Sequence[Hashable]) -> list[str]:
    """A text for each name, all of them different."""
    plain = [f"column {name}" if isinstance(name, int) else str(name) for name in names]
    often = Counter(plain)
    return [text if often[text] == 1 else repr(name) for text, name in zip(plain, names, strict=True)]
