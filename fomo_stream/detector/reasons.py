"""Reasons: the features that make a record odd, and how much each of them counts."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple


class Explain(StrEnum):
    """Which records get reasons."""

    NONE = "none"
    ALERTS = "alerts"  # those that are called outliers
    ALL = "all"


class Cause(StrEnum):
    """In which respect a feature is odd."""

    VALUE = "value"  # its value
    MISSING = "missing"  # that it has no value, while the other features suggest an unusual one
    CATEGORY = "category"  # its category
    PAST = "past"  # its value together with its values in the records before
    LEVEL = "level"  # the weighted mean of its last values, see `Series`
    SPREAD = "spread"  # the size of its last changes, see `Series`


class Reason(NamedTuple):
    """One feature of a record, and how much it counts. Numbers are in raw units; NaN = there is none."""

    feature: int  # column of the record
    cause: Cause
    share: float  # of the record's excess: how much of what makes it odd goes away with this feature, 0 to 1
    value: float  # of the feature: category code, level or spread (not its logarithm), by the cause
    median: float  # of the same in the context; NaN for a category
    low: float  # the central 98 % of the context are between `low` ...
    high: float  # ... and `high`
    frequency: float  # share of the context's rows that have this category; NaN if the cause is another
    partner: int = -1  # column of the feature that it is odd together with, while each alone is usual; -1: none
    before: int = 0  # of PAST: how many values of the feature in the records before are known
    expected: float = math.nan  # if VALUE or MISSING: its middle value in the rows nearest in the other features
