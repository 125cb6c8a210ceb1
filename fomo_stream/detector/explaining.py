"""Why a record is odd: its features with the largest effect on the logit. Interim: distances from the median."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.generation import Blueprint, Generation
from fomo_stream.detector.reasons import Cause, Reason
from fomo_stream.detector.views import View
from fomo_stream.model.zero_shot import ZeroShotModel

Float = NDArray[np.float64]


def explain(
    model: ZeroShotModel,
    lenses: Sequence[tuple[View, Blueprint, Generation]],
    planes: Float,
    lags: int,
    categorical: tuple[int, ...],
    most: int,
) -> tuple[Reason, ...]:
    """The reasons of one record, at most `most`, the one that counts most first; () without a context.

    lenses: of each view, the generation that scores the record, and its blueprint; planes: (planes, d) of the record,
    see `Series`; lags, categorical: of the detector.
    """
    if not lenses:
        return ()
    _, blueprint, _ = lenses[0]
    row, rows = planes[0], blueprint.rows
    found = []
    for column in range(len(row)):
        values = rows[:, column][~np.isnan(rows[:, column])]
        if not len(values):
            continue
        low, median, high = np.quantile(values, [0.01, 0.5, 0.99])
        is_code, is_missing = column in categorical, bool(np.isnan(row[column]))
        far = 0.0 if is_missing else abs(row[column] - median) / (high - low + 1e-9)
        cause = Cause.CATEGORY if is_code else Cause.MISSING if is_missing else Cause.VALUE
        frequency = float((rows[:, column] == row[column]).mean()) if is_code else np.nan
        found.append(Reason(column, cause, far, float(row[column]), median, low, high, frequency))
    found.sort(key=lambda reason: -reason.share)
    total = sum(reason.share for reason in found) or 1.0
    return tuple(reason._replace(share=float(reason.share / total)) for reason in found[:most])
