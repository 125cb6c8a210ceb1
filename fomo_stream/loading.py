"""Load a model and compile its kernels; make the detector that every partition begins with.

`python -m fomo_stream.loading` compiles the kernels in advance, for example when an image is built.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from fomo_stream.logs import configure_logging, kv

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Executor

    import numpy as np

    from fomo_stream.detector.detector import Detector
    from fomo_stream.detector.keys import Key
    from fomo_stream.detector.reference import Reference
    from fomo_stream.model.architecture import Model
    from fomo_stream.partition.record import Item
    from fomo_stream.records.schema import Schema
    from fomo_stream.settings.flags import RuleFlags
    from fomo_stream.settings.topic_flags import InputFlags

# Gives a detector the reference that its settings name; None: there is none yet.
Refer = Callable[[Any, "Detector", "Schema"], "Reference | None"]

log = logging.getLogger("fomo_stream.loading")  # not __name__: the module also runs as a program


def load_ready(name_or_path: str = "default", device: str = "auto", backend: str = "auto") -> Model:
    """Load a model, and score once, so that all kernels are compiled before the first record.

    Where the cache lacks the kernels, another process compiles them, which takes one to two minutes of a processor.
    """
    # Garbage collection over all modules would take 100 ms while they load, and later stop every thread for 80 ms.
    # The modules live as long as the process, so they are frozen.
    gc.disable()
    try:
        from fomo_stream.detector.step.warm_up import warm_up
        from fomo_stream.model.checkpoint import load_model

        model = load_model(name_or_path, device, backend)
        if model.kernel == "numba":
            _prepare_kernels(model)
        warm_up(model)
    finally:
        gc.freeze()
        gc.enable()
    return model


def _prepare_kernels(model: Model) -> None:
    from fomo_stream.model.kernels import compiling

    name = compiling.ATTENTION if model.config.attention == "kernel" else compiling.DEFAULT
    if compiling.are_missing(name):
        log.warning(kv("compiling_kernels", effect="it takes one to two minutes, and is done once"))
    if reason := compiling.prepare(name):
        effect = "it takes one to two minutes at each start, and last digits of scores may differ between processes"
        log.warning(kv("compiling_kernels", effect=effect, reason=reason))


def first_detector(
    settings: InputFlags, model: Model, schema: Schema, executor: Executor | None = None, refer: Refer | None = None
) -> Detector:
    """Return the detector before the first record, with the seed context encoded once for all partitions.

    executor: encodes contexts. refer: instead of `set_reference`. Raises SchemaError when the model cannot take so many
    features, or the seed context has none of the features.
    """
    detector = _new_detector(settings, model, schema, executor)
    rows = _seed_rows(settings, schema)
    if rows is not None:
        detector.seed_context(rows)
    if settings.reference is not None:
        _refer(settings, detector, schema, refer or set_reference)
    return detector


def read_reference(settings: InputFlags, model: Model, schema: Schema, refer: Refer) -> Reference | None:
    """Return the reference; None: there is none yet. Raises the errors of `refer`."""
    return _refer(settings, _new_detector(settings, model, schema, None), schema, refer)


def _refer(settings: InputFlags, detector: Detector, schema: Schema, refer: Refer) -> Reference | None:
    if (good := refer(settings, detector, schema)) is not None:
        name = {"file" if settings.reference_span is None else "range": str(settings.reference)}
        log.info(kv("reference", **name, records=good.records, keys=good.keys, digest=good.name))
    return good


def set_reference(
    settings: RuleFlags, detector: Detector, schema: Schema, good: Iterable[Item] | None = None
) -> Reference:
    """Give the detector good records: these, of each key in the order of time, or those of the file of --reference.

    Raises ConfigError if the file cannot be read, SchemaError if a line is not a record or the number does not suit.
    """
    import numpy as np

    from fomo_stream.errors import SchemaError
    from fomo_stream.limits import MAX_REFERENCE
    from fomo_stream.partition.partition import Waiting
    from fomo_stream.partition.running import Running
    from fomo_stream.records.files import BLOCK_RECORDS
    from fomo_stream.records.schema import shown_names

    row_maker, path = Running(Waiting(0, settings), detector, schema), settings.reference
    parts: list[np.ndarray] = []
    keys: list[Key] = []
    n_read, items = 0, iter(_items_of_file(settings) if good is None else good)
    while block := list(islice(items, BLOCK_RECORDS)):
        n_read += len(block)
        rows, block_keys = row_maker.rows_of(block)
        parts.append(rows)
        keys += block_keys
        if len(keys) > MAX_REFERENCE:
            remedy = "leave some out" if good is None else "give a shorter range"
            raise SchemaError(f"--reference {path} has more than {MAX_REFERENCE:,} records", remedy)
    if not n_read and settings.reference_span is not None:
        raise SchemaError(f"--reference {path}: no record of the input has such a time", "give another range")
    if n_read and not any(map(len, parts)):
        features = f"of any feature ({shown_names(schema.features, 10)})"
        raise SchemaError(f"--reference {path} has no value {features}", "give records with the same fields")
    rows = np.concatenate(parts or [np.zeros((0, len(schema.features)))])
    parts.clear()
    absent = [name for name, column in zip(schema.features, rows.T, strict=False) if np.isnan(column).all()]
    absent += [settings.key] if settings.key is not None and not any(key is not None for key in keys) else []
    if len(rows) and absent:
        raise SchemaError(f"--reference {path} has no value of {', '.join(absent)[:200]}", "add it, or leave it out")
    with _naming_the_reference(settings):
        return detector.set_reference(rows, keys)


def unpack_reference(settings: RuleFlags, detector: Detector, data: bytes) -> Reference:
    """Give the detector the rows that a group has stored. Raises SchemaError if they are too few."""
    with _naming_the_reference(settings):
        return detector.unpack_reference(data)


@contextmanager
def _naming_the_reference(settings: RuleFlags) -> Iterator[None]:
    from fomo_stream.errors import SchemaError

    try:
        yield
    except SchemaError as error:
        raise SchemaError(f"--reference {settings.reference}: {error.what}", error.remedy) from None


def _items_of_file(settings: RuleFlags) -> Iterator[Item]:
    from fomo_stream.partition.record import FileItem
    from fomo_stream.records.files import RecordFile, open_records, trusted_records
    from fomo_stream.records.inference import key_of, text_columns
    from fomo_stream.settings.flags import FileFlags

    path = str(settings.reference)
    with open_records(path) as stream:
        csv_settings = settings.csv_settings() if isinstance(settings, FileFlags) else {}
        file = RecordFile(stream, name=path, text=text_columns(settings, settings.key), **csv_settings)
        for number, record in enumerate(trusted_records(file), 1):
            yield FileItem(number, record, key_of(record, settings.key))


def check_schema(settings: InputFlags, model: Model, schema: Schema, refer: Refer | None = None) -> None:
    """Raise the errors of `first_detector`, without its work."""
    detector = _new_detector(settings, model, schema, None)
    _seed_rows(settings, schema)
    if settings.reference is not None:
        (refer or set_reference)(settings, detector, schema)


def _new_detector(settings: InputFlags, model: Model, schema: Schema, executor: Executor | None) -> Detector:
    from fomo_stream.detector.detector import Detector

    config, columns = settings.detector_config(), (schema.categorical_columns, schema.counter_columns)
    return Detector(model, len(schema.features), config, executor, *columns)


def _seed_rows(settings: InputFlags, schema: Schema) -> np.ndarray | None:
    path = settings.seed_context
    if path is None:
        return None
    from fomo_stream.detector.config import MIN_CONTEXT_ROWS
    from fomo_stream.errors import SchemaError
    from fomo_stream.records.files import read_rows

    rows = read_rows(path, schema)
    if len(rows) < MIN_CONTEXT_ROWS:
        raise SchemaError(
            f"the seed context {path} has {len(rows)} usable rows; at least {MIN_CONTEXT_ROWS} are needed"
        )
    return rows


if __name__ == "__main__":
    configure_logging("info")
    for shipped in ("default", "fomo"):
        load_ready(shipped)
