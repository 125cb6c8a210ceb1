"""Reasons in words: as JSON-ready objects with the names and values of a record, and as one sentence.

Nothing here fails because of what a record contains, and all of it can be written as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fomo_stream.detector.reasons import Cause, Reason
from fomo_stream.detector.series import HALF_LIFE
from fomo_stream.records.schema import Schema, look_up

DIGITS = 6  # of numbers in reasons that are not the record's own
KEPT = 200  # characters of a category in a reason
NAMED = 3  # reasons in a sentence, at most
LEAST_SHARE = 0.1  # of a reason in a sentence, unless it is the first
LONGEST = 300  # characters of a sentence from which no further reason is added
NAME, TEXT = 40, 30  # characters of a name and of a category in a sentence
MOVED = round(HALF_LIFE * math.log2(10))  # last values that have 90 % of the weight in a level and a spread
USUAL = 0.02  # share of the context that a category needs to be usual: the two tails of the central 98 %
# By which the remembered logit of an outlier exceeds its own where the score is mostly that of the records before it.
# Records after a fault have 0.7 to 1.2; those that are odd themselves have less than 0.
EARLIER = 0.5
NO_OUTLIER = "no outlier; most unusual: "
FIRST_DIGITS, MOST_DIGITS = 4, 17  # of a number in a sentence


# --- objects


def reasons_of(reasons: Sequence[Reason], schema: Schema, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The reasons of a record, for JSON; null where a number is not known.

    A category is the record's own text, cut at KEPT characters.
    """
    return [_reason(reason, schema, record) for reason in reasons]


def _reason(reason: Reason, schema: Schema, record: Mapping[str, Any]) -> dict[str, Any]:
    name = schema.features[reason.feature]
    made: dict[str, Any] = {"feature": name, "cause": str(reason.cause), "share": _number(reason.share, 3)}
    made["value"] = _value(reason, schema, record)
    if reason.cause in (Cause.LEVEL, Cause.SPREAD):
        made["value"] = _number(reason.value)
    if reason.cause is Cause.CATEGORY:
        made["frequency"] = _number(reason.frequency)
    else:
        has_range = math.isfinite(reason.low) and math.isfinite(reason.high)
        made["usual"] = _number(reason.median)
        made["range"] = [_number(reason.low), _number(reason.high)] if has_range else None
    if reason.partner >= 0:
        made["with"] = schema.features[reason.partner]
    return made


def _value(reason: Reason, schema: Schema, record: Mapping[str, Any]) -> Any:
    """The value that a reason is about: the record's own where it has one, else a number."""
    name = schema.features[reason.feature]
    own = _own(look_up(record, name)) if reason.cause not in (Cause.LEVEL, Cause.SPREAD) else None
    if name in schema.categorical or reason.cause is Cause.CATEGORY:
        return own if not isinstance(own, str) or len(own) <= KEPT else own[: KEPT - 1] + "…"
    if isinstance(own, str) or own != reason.value:
        return float(reason.value) if math.isfinite(reason.value) else None
    return own


def _own(value: Any) -> str | bool | int | float | None:
    """A scalar of a record as JSON can hold it everywhere; None for all else."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        if value.bit_length() <= 63:
            return value
        return hex(value) if value.bit_length() > 8 * KEPT else str(value)  # thousands of digits are refused
    return None if isinstance(value, (list, tuple, dict)) else str(value)


def _number(value: float, digits: int = DIGITS) -> float | None:
    """With so many significant digits, and with all before the decimal point; None for NaN and infinities."""
    if not math.isfinite(value):
        return None
    return float(round(value) if 10**digits <= abs(value) < 1e15 else f"{value:.{digits}g}")


# --- the sentence


def sentence(
    reasons: Sequence[Reason],
    schema: Schema,
    record: Mapping[str, Any],
    lags: int = 0,
    earlier: float = 0.0,
    is_outlier: bool = True,
) -> str:
    """The most important reasons of a record in one sentence of plain text; empty without any.

    lags: of the detector. earlier: how far the remembered logit of an outlier exceeds its own; from EARLIER on, the
    sentence ends by saying that the records before it were odd. is_outlier: of any other record the sentence says first
    that it is none, because its reasons mean little.
    """
    spoken = [reason for n, reason in enumerate(reasons[:NAMED]) if not n or reason.share >= LEAST_SHARE]
    words = [_Words(reason, schema, record, lags) for reason in spoken if not _is_said(reason, spoken)]
    usual = [one for one in words if one.is_usual]
    said: list[str] = []
    for one in words:
        phrase = one.phrase() if not one.is_usual else _usual(usual) if one is usual[0] else ""
        if phrase and (not said or len("; ".join([*said, phrase])) <= LONGEST):
            said.append(phrase)
    if said and earlier >= EARLIER:
        said.append("the records before it were odd, which raises its score")
    return ("" if is_outlier or not said else NO_OUTLIER) + "; ".join(said)


def _is_said(reason: Reason, spoken: Sequence[Reason]) -> bool:
    """Whether an earlier reason names the same two features."""
    before = spoken[: spoken.index(reason)]
    return any((one.feature, one.partner) == (reason.partner, reason.feature) for one in before)


def _usual(words: Sequence[_Words]) -> str:
    """About values of which none is unusual by itself."""
    if len(words) == 1:
        return f"{words[0].noun()} is usual alone, but not together with the other values"
    nouns = [one.noun() for one in words]
    return f"{', '.join(nouns[:-1])} and {nouns[-1]}: each alone is usual, together they are not"


class _Words:
    """One reason in words."""

    def __init__(self, reason: Reason, schema: Schema, record: Mapping[str, Any], lags: int) -> None:
        self._reason, self._lags = reason, lags
        self._name = name_text(schema.features[reason.feature])
        self._value = _value(reason, schema, record)
        self._digits = self._needed_digits()
        self._other = ""
        if reason.partner >= 0:
            other = schema.features[reason.partner]
            value = _own(look_up(record, other))
            is_missing = value is None or (isinstance(value, str) and other not in schema.categorical)
            name = name_text(other)
            self._other = f"a missing {name}" if is_missing else f"{name} {value_text(value, self._digits)}"

    @property
    def is_usual(self) -> bool:
        """Whether the value is usual by itself, and no other feature is named that it does not go with."""
        return not self._other and self._reason.cause not in (Cause.MISSING, Cause.PAST) and self._is_inside

    @property
    def _is_inside(self) -> bool:
        reason = self._reason
        if reason.cause is Cause.CATEGORY:
            return reason.frequency >= USUAL
        return reason.low <= reason.value <= reason.high  # never of NaN

    def noun(self) -> str:
        """The feature with its value."""
        if self._value is None:
            return f"a missing {self._name}"
        value = value_text(self._value, self._digits)
        if self._reason.cause is Cause.LEVEL:
            return f"{self._name} {value} on average over the last {MOVED} records"
        if self._reason.cause is Cause.SPREAD:
            return f"{self._name} with changes of about {value} over the last {MOVED} records"
        return f"{self._name} {value}"

    def phrase(self) -> str:
        """What is odd."""
        if self._reason.cause is Cause.PAST:
            return self._of_the_past()
        if self._value is None:
            if self._other:
                return f"{self._name} is missing, and {self._other} suggests that its value is unusual"
            return f"{self._name} is missing, and the other values suggest that its value is unusual"
        if not self._other:
            return self._statement()
        if self._is_inside or math.isnan(self._reason.low):
            alone = " (each alone is usual)" if self._is_inside else ""
            return f"{self.noun()} and {self._other} do not go together{alone}"
        return f"{self._statement()}, and does not go with {self._other}"

    def _of_the_past(self) -> str:
        before = {0: "the values before it", 1: "the value before it"}.get(
            self._lags, f"the {self._lags} values before it"
        )
        with_other = f" and {self._other}" if self._other else ""
        if self._is_inside:
            return f"{self.noun()} is usual alone, but does not follow from {before}{with_other}"
        return f"{self._statement()}, and does not follow from {before}{with_other}"

    def _statement(self) -> str:
        """The value, and what is usual."""
        if self._value is None:
            return f"{self._name} is missing"
        value = value_text(self._value, self._digits)
        if self._reason.cause is Cause.CATEGORY:
            return f"{self._name} is {value}{self._often()}"
        if self._reason.cause is Cause.LEVEL:
            return f"{self._name} is {value} on average over the last {MOVED} records{self._usually()}"
        if self._reason.cause is Cause.SPREAD:
            only = "only " if self._reason.value < self._reason.low else ""
            changes = f"{self._name} changes by {only}{value} at a time over the last {MOVED} records"
            return changes + self._usually("by ")
        return f"{self._name} is {value}{self._usually()}"

    def _often(self) -> str:
        frequency = self._reason.frequency
        if math.isnan(frequency):
            return ""
        if frequency <= 0:
            return ", which the context does not have"
        return f", which {number_text(100 * frequency, 2)} % of the context has"

    def _usually(self, word: str = "") -> str:
        reason = self._reason
        if not math.isfinite(reason.median):
            return ""
        is_bool = isinstance(self._value, bool)
        numbers = (reason.median, reason.low, reason.high)
        usual, low, high = (
            value_text(bool(x) if is_bool and x in (0, 1) else x, self._digits) if math.isfinite(x) else ""
            for x in numbers
        )
        around = f" ({low} to {high})" if low != high else ""
        return f", usually {word}{usual}{around}"

    def _needed_digits(self) -> int:
        """Digits that show on which side of the usual range the value is."""
        value, low, high = self._reason.value, self._reason.low, self._reason.high
        bound = low if value < low else high
        if not (math.isfinite(value) and math.isfinite(bound)) or low <= value <= high:
            return FIRST_DIGITS
        wanted = range(FIRST_DIGITS, MOST_DIGITS)
        return next((n for n in wanted if number_text(value, n) != number_text(bound, n)), MOST_DIGITS)


# --- parts of a sentence


def value_text(value: str | bool | int | float | None, digits: int = FIRST_DIGITS) -> str:
    """A value of a record.

    >>> value_text("idle"), value_text(True), value_text(1234.5678)
    ('"idle"', 'true', '1235')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{_clean(value if len(value) <= TEXT else value[: TEXT - 1] + "…")}"'
    return "missing" if value is None else number_text(float(value), digits)


def name_text(name: str) -> str:
    """A name, of which the end says most.

    >>> name_text("plant.north.hall.line.station.motor.bearing.temperature")
    '….line.station.motor.bearing.temperature'
    """
    return _clean(name if len(name) <= NAME else "…" + name[1 - NAME :]) or '""'


def number_text(value: float, digits: int = FIRST_DIGITS) -> str:
    """A finite number with so many significant digits; from 1,000 on with all before the decimal point.

    >>> [number_text(x) for x in (0.0, 3.14159, 0.00012346, 1e6, -12345.67, 3.2e-9, 5e18)]
    ['0', '3.142', '0.0001235', '1000000', '-12346', '3.2e-09', '5e+18']
    """
    size = abs(value)
    if not 999.5 <= size < 1e15:
        return f"{value:.{digits}g}" if value else "0"
    text = f"{value:.{max(0, digits - len(f'{size:.0f}'))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _clean(text: str) -> str:
    """Without control characters, and without lone surrogates."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text)
