"""The description of a metric: its name, type, text and labels."""

from __future__ import annotations

from typing import Literal, NamedTuple

PREFIX = "fomo_"
Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """A metric. A counter is exposed as `<name>_total`, a histogram as `<name>_bucket`, `_sum` and `_count`.

    The unit is the end of the name; numbers of things have none. Names are exposed with PREFIX.
    """

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
