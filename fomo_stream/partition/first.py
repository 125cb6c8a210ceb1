"""The detector that every partition begins with a copy of."""

from __future__ import annotations

from concurrent.futures import Executor

import numpy as np

from fomo_stream.detector.config import LEAST_CONTEXT
from fomo_stream.detector.detector import Detector
from fomo_stream.errors import SchemaError
from fomo_stream.model.zero_shot import ZeroShotModel
from fomo_stream.records.files import read_rows
from fomo_stream.records.schema import Schema
from fomo_stream.settings.service import ServiceSettings


def first_detector(
    settings: ServiceSettings, model: ZeroShotModel, schema: Schema, executor: Executor | None = None
) -> Detector:
    """The detector before the first record; it knows the seed context, which is encoded once for all partitions.

    executor: encodes contexts. Raises SchemaError when the model cannot take as many features, or the seed context has
    none of them.
    """
    detector = _detector(settings, model, schema, executor)
    rows = _seed(settings, schema)
    if rows is not None:
        detector.seed_context(rows)
    return detector


def check_schema(settings: ServiceSettings, model: ZeroShotModel, schema: Schema) -> None:
    """Raise the errors of `first_detector`, without its work."""
    _detector(settings, model, schema, None)
    _seed(settings, schema)


def _detector(settings: ServiceSettings, model: ZeroShotModel, schema: Schema, executor: Executor | None) -> Detector:
    width, codes = len(schema.features), schema.categorical_columns
    return Detector(model, width, settings.detector_config(), executor=executor, categorical=codes)


def _seed(settings: ServiceSettings, schema: Schema) -> np.ndarray | None:
    path = settings.seed_context
    if path is None:
        return None
    rows = read_rows(path, schema)
    if len(rows) < LEAST_CONTEXT:
        raise SchemaError(f"--seed-context {path} has {len(rows)} usable rows; at least {LEAST_CONTEXT} are needed")
    return rows
