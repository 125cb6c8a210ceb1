"""Reasons in words: one sentence.

Nothing here fails because of what a record contains, and all of it can be written as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fomo_stream.detector.results import Cause, Reason
from fomo_stream.detector.series import HALF_LIFE
from fomo_stream.records.reasons import known, value_of
from fomo_stream.records.schema import Schema

NAMED = 3  # reasons in a sentence, at most
LONGEST = 300  # characters of a sentence from which no further reason is added
NAME, TEXT = 60, 30  # characters of a name and of a category in a sentence
MOVED = round(HALF_LIFE * math.log2(10))  # last values that have 90 % of the weight in a level and a spread
RECENTLY = f"over its last values (up to {MOVED})"
USUAL = 0.02  # share of the context that a category needs to be usual: the two tails of the central 98 %
# By which the remembered logit of an outlier exceeds its own where the score is mostly that of the records before it.
# Records after a fault have 0.7 to 1.2; those that are odd themselves have less than 0.
EARLIER = 0.5
ROUNDING = 1e-4  # more than the error of 32 bits in a remembered logit
NO_OUTLIER = "no outlier"
FOLLOWS = "the records before it were odd, which raises its score"
NO_REASON = "no feature stands out"
FIRST_DIGITS, MOST_DIGITS = 4, 17  # of a number in a sentence
SPREAD_DIGITS = 2  # of the size of changes, at first


def sentence(
    reasons: Sequence[Reason],
    schema: Schema,
    record: Mapping[str, Any],
    earlier: float = 0.0,
    is_outlier: bool = True,
) -> str:
    """The most important reasons of a record, or that there are none, in one sentence of plain text.

    is_outlier: of any other record the sentence says first that it is none. earlier: how far the remembered logit of
    the record exceeds its own. From EARLIER on, and without reasons from ROUNDING on, the sentence of an outlier says
    first that the records before it were odd. In both cases the reasons mean little, and only facts follow.
    """
    spoken = reasons[:NAMED]
    follows = is_outlier and (earlier >= EARLIER or (earlier > ROUNDING and not reasons))
    is_odd = is_outlier and not follows
    words = [_Words(reason, schema, record, is_odd) for reason in spoken if not _is_said(reason, spoken)]
    usual = [one for one in words if one.is_usual]
    said: list[str] = []
    for one in words:
        phrase = one.phrase() if not one.is_usual else _usual(usual, is_odd) if one is usual[0] else ""
        if phrase and (not said or len("; ".join([*said, phrase])) <= LONGEST):
            said.append(phrase)
    first = [FOLLOWS] if follows else [NO_OUTLIER] if not is_outlier else []
    if first and said:
        said[0] = f"most unusual: {said[0]}"
    return "; ".join([*first, *(said or [NO_REASON])])


def _is_said(reason: Reason, spoken: Sequence[Reason]) -> bool:
    """Whether an earlier reason names the same two features."""
    before = spoken[: spoken.index(reason)]
    return any((one.feature, one.partner) == (reason.partner, reason.feature) for one in before)


def _usual(words: Sequence[_Words], is_odd: bool) -> str:
    """About values of which none is unusual by itself."""
    nouns = list(dict.fromkeys(noun for one in words for noun in (one.noun(), one.other) if noun))
    text = f"{', '.join(nouns[:-1])} and {nouns[-1]}" if nouns[1:] else nouns[0]
    if not is_odd:
        return f"{text} ({'each ' if nouns[1:] else ''}usual alone)"
    fits = words[0].fitting(nouns[1:])
    alone = f"{text} {'are' if nouns[1:] else 'is'} usual alone, but not together with the other values"
    return f"{alone} ({fits})" if fits else alone


class _Words:
    """One reason in words. is_odd: whether to say what is odd; else only facts."""

    def __init__(self, reason: Reason, schema: Schema, record: Mapping[str, Any], is_odd: bool) -> None:
        self._reason, self._is_odd, self._is_single = reason, is_odd, len(schema.features) == 1
        self._name = name_text(schema.features[reason.feature])
        self._value = value_of(reason, schema, record)
        self._digits = self._needed_digits()
        self.other = ""  # another feature that the value does not go with
        is_movement = reason.cause in (Cause.LEVEL, Cause.SPREAD)
        if reason.partner >= 0 and (is_odd or not is_movement):
            self.other = self._partner(schema.features[reason.partner], schema, record, is_movement)

    def _partner(self, name: str, schema: Schema, record: Mapping[str, Any], is_movement: bool) -> str:
        if is_movement:  # then the value of the record may not be what it does not go with
            return name_text(name)
        value = known(record, name, name in schema.categorical)
        return (
            f"a missing {name_text(name)}" if value is None else f"{name_text(name)} {value_text(value, self._digits)}"
        )

    @property
    def is_usual(self) -> bool:
        """Whether the value is usual by itself, and nothing else is said of it."""
        if not self._is_inside:
            return False
        past = self._reason.cause is Cause.PAST
        return not self._is_odd or not (self.other or past or self._is_single)

    @property
    def _is_inside(self) -> bool:
        reason = self._reason
        if self._value is None:
            return False
        if reason.cause is Cause.CATEGORY:
            return reason.frequency >= USUAL
        return reason.low <= reason.value <= reason.high  # never of NaN

    def noun(self) -> str:
        """The feature with its value."""
        value = value_text(self._value, self._digits)
        if self._reason.cause is Cause.SPREAD:
            return f"{self._name} with {f'recent changes of {value}' if self._value else 'hardly any recent changes'}"
        return f"{self._name} {value}{' on average recently' if self._reason.cause is Cause.LEVEL else ''}"

    def fitting(self, named: object = False) -> str:
        """Which other value the other features make likely; empty if none is known, or none that is really another."""
        expected, value, near = self._reason.expected, self._reason.value, self._near
        if not (math.isfinite(expected) and math.isfinite(near)) or abs(expected - value) <= 2 * near:
            return ""
        text = value_text(self._like_value(expected), _digits_within(expected, near or abs(expected) / 1e4, 2))
        about = text if isinstance(self._value, bool) else f"about {text}"
        return f"{self._name} {about} would fit" if named else f"{about} would fit"

    @property
    def _near(self) -> float:
        """A difference that does not count: less than the error of an expected value."""
        return (self._reason.high - self._reason.low) / 40

    def phrase(self) -> str:
        """What is odd."""
        if not self._is_odd:
            return self._statement()
        if self._reason.cause is Cause.PAST:
            return self._of_the_past()
        if self._value is None:
            with_other = self.other or "the other values"
            suggest = "suggests" if self.other else "suggest"
            fits = f" ({self.fitting()})" if self.fitting() else ""
            return f"{self._name} is missing, and {with_other} {suggest} that its value is unusual{fits}"
        if not self.other:
            return self._in_a_gap() if self._is_inside else self._statement()
        if self._is_inside or math.isnan(self._reason.low):
            notes = ["each alone is usual"] * self._is_inside + [self.fitting(True)] * bool(self.fitting())
            return f"{self.noun()} and {self.other} do not go together" + (f" ({'; '.join(notes)})" if notes else "")
        return f"{self._statement()}, and does not go with {self.other}"

    def _in_a_gap(self) -> str:
        """Of the only feature, which goes with no other."""
        low, high = (self._number(number) for number in (self._reason.low, self._reason.high))
        if self._reason.cause is Cause.CATEGORY or low == high:
            return self._statement()
        return f"{self.noun()} is unusual, though in the usual range ({low} to {high})"

    def _of_the_past(self) -> str:
        count = self._reason.before
        before = "the value before it" if count == 1 else f"the {count} values before it"
        with_other = f" and {self.other}" if self.other else ""
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
            return f"{self._name} is {value} on average {RECENTLY}{self._usually()}"
        if self._reason.cause is Cause.SPREAD:
            return f"{self._name} {self._changes()} {RECENTLY}{self._usual_changes()}"
        return f"{self._name} is {value}{self._usually()}"

    def _often(self) -> str:
        frequency = self._reason.frequency
        if math.isnan(frequency):
            return ""
        if frequency <= 0:
            return ", which no known record has"
        return f", which {number_text(100 * frequency, 2)} % of the known records have"

    def _changes(self) -> str:
        if not self._value:
            return "hardly changes"
        only = "only " if self._reason.value < self._reason.low else ""
        return f"changes by {only}{self._number(self._value)} at a time"

    def _usual_changes(self) -> str:
        reason = self._reason
        if reason.median == 0:
            return ", usually hardly at all" + (f" (up to {self._number(reason.high)})" if reason.high > 0 else "")
        return self._usually("by ")

    def _usually(self, word: str = "") -> str:
        reason = self._reason
        if not math.isfinite(reason.median):
            return ""
        usual, low, high = (self._number(number) for number in (reason.median, reason.low, reason.high))
        around = f" ({low} to {high})" if low != high else ""
        return f", usually {word}{usual}{around}"

    def _number(self, value: float) -> str:
        """A number of the context as the value of the record is written."""
        if not math.isfinite(value):
            return ""
        return value_text(self._like_value(value), self._digits)

    def _like_value(self, number: float) -> bool | float:
        return bool(number) if isinstance(self._value, bool) and number in (0, 1) else number

    def _needed_digits(self) -> int:
        """Digits that show on which side of the usual range the value is, or about where in it."""
        value, low, high = self._reason.value, self._reason.low, self._reason.high
        bound = low if value < low else high
        first = SPREAD_DIGITS if self._reason.cause is Cause.SPREAD else FIRST_DIGITS
        if not (math.isfinite(value) and math.isfinite(bound)):
            return first
        if low <= value <= high:
            return _digits_within(value, self._near, first)
        wanted = range(first, MOST_DIGITS)
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
    """A name without its middle if it is long, between quotes if it could be taken for a part of the sentence.

    >>> name_text("plant.north.hall.line.station.motor.bearing.temperature.inner.ring")
    'plant.north.hall.li…ion.motor.bearing.temperature.inner.ring'
    >>> name_text("flow; return"), name_text("")
    ('"flow; return"', '""')
    """
    tail = 2 * NAME // 3
    short = _clean(name if len(name) <= NAME else name[: NAME - 1 - tail] + "…" + name[-tail:])
    return f'"{short}"' if short != short.strip() or not short or set(short) & set(";,") else short


def number_text(value: float, digits: int = FIRST_DIGITS) -> str:
    """A finite number with so many significant digits, and below 1e15 with all before the decimal point.

    >>> [number_text(x) for x in (-0.0, 3.14159, 0.00012346, 1e6, -12345.67, 3.2e-9, 5e18)]
    ['0', '3.142', '0.0001235', '1000000', '-12346', '3.2e-09', '5e+18']
    """
    text = f"{value:.{digits}g}" if value else "0"
    return f"{value:.0f}" if "e+" in text and abs(value) < 1e15 else text


def _digits_within(value: float, error: float, least: int) -> int:
    """Significant digits, `least` or more, with which a finite value is written to within this error."""
    return next((n for n in range(least, MOST_DIGITS) if abs(float(f"{value:.{n}g}") - value) <= error), MOST_DIGITS)


def _clean(text: str) -> str:
    """Without control characters, and without lone surrogates."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text)
