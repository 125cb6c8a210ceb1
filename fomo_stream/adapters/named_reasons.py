"""Explains why a record is unusual, with the names and values that the user gave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NotRequired, TypedDict, cast

from fomo_stream.detector.keys import Key
from fomo_stream.detector.results import Reason
from fomo_stream.records.explanation import explanation_of, reasons_of
from fomo_stream.records.schema import Schema

NamedReason = TypedDict(  # not a class, because `with` is a keyword
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
    """The reasons of a record, a dict each, the strongest first; `str` gives one sentence.

    A reason has `feature`, `cause`, `share`, `value`, and `usual` (the median of the context) and `range` (its central
    98 %), or, for a category, `frequency`; `expected` is the value that the other features make likely; `with` names
    another feature if only both together are unusual.
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
        """Make an explanation from the reasons of a record.

        names: of all columns; codes: the columns with category codes; counters: the columns of counters; record: the
        values by name; earlier, is_outlier and key: see `explanation_of`.
        """
        texts = _distinct_texts(names)
        categorical, totals = (frozenset(texts[column] for column in columns) for columns in (codes, counters))
        schema = Schema(tuple(texts), categorical, totals)
        values = {text: record.get(name) for text, name in zip(texts, names, strict=True)}
        name_of = dict(zip(texts, names, strict=True))
        roles = ("feature", "with")
        named = [
            reason | {role: name_of[reason[role]] for role in roles if role in reason}
            for reason in reasons_of(reasons, schema, values)
        ]
        return cls(cast(list[NamedReason], named), explanation_of(reasons, schema, values, earlier, is_outlier, key))


def _distinct_texts(names: Sequence[Hashable]) -> list[str]:
    """Return a text for each name, all of them different."""
    texts = [f"column {name}" if isinstance(name, int) else str(name) for name in names]
    counts = Counter(texts)
    return [text if counts[text] == 1 else repr(name) for text, name in zip(texts, names, strict=True)]
