"""Going on with an earlier replay: only with the same settings and the same inputs, so that its report is of one.

A topic may get more records and partitions, and a topic of labels more labels: these are left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import fomo_stream
from fomo_stream.errors import ConfigError
from fomo_stream.kafka.ranges import Range, present_topic_ids
from fomo_stream.records.schema import Schema
from fomo_stream.replaying.assembly import settings_of
from fomo_stream.replaying.checkpoints import ANOTHER, describe, open_folder
from fomo_stream.replaying.detectors.variants import variants
from fomo_stream.replaying.labels import Labels
from fomo_stream.replaying.plan import Begun, Plan, make_plan
from fomo_stream.replaying.sources.file import FileSource
from fomo_stream.replaying.sources.topic import TopicSource
from fomo_stream.settings.replay import ReplaySettings


def resumed_plan(settings: ReplaySettings, folder: Path) -> Plan:
    """The plan of the replay in this folder, or a new one if there is none.

    Raises ConfigError if the replay in the folder has other settings or inputs, and the errors of `make_plan`.
    """
    outputs = {"scores_file": settings.scores_file and str(settings.scores_file), "scores_topic": settings.scores_topic}
    before, given = open_folder(folder), {**settings_of(settings), **outputs}
    if before is None:
        plan = make_plan(settings)
        describe(folder, {"settings": given, **_description(plan)})
        return plan
    _check_values(folder, before["settings"], given)
    ranges, label_ranges = (_ranges(before[name]) for name in ("ranges", "label_ranges"))
    _check_topics(folder, settings, {settings.topic: ranges, settings.labels_topic or "": label_ranges})
    schema = Schema.of(*(tuple(before["features"][name]) for name in ("features", "categorical")))
    plan = make_plan(settings, begun=Begun(ranges, label_ranges, schema, int(before["now_ms"])))
    now = _description(plan)
    for part in ("agreed", "features"):
        _check_values(folder, before[part], now[part])
    for name in sorted({*before["inputs"], *now["inputs"]}):
        if before["inputs"].get(name) != now["inputs"].get(name):
            raise _changed(folder, name)
    return replace(plan, notes=tuple(before["notes"]))


def _description(plan: Plan) -> dict[str, Any]:
    """What has to be the same, or is kept, when the replay goes on; plain values for JSON."""
    return {
        "agreed": settings_of(plan.settings),
        "features": {"features": list(plan.schema.features), "categorical": sorted(plan.schema.categorical)},
        "inputs": _inputs(plan),
        "ranges": [list(astuple(one)) for one in plan.ranges.values()],
        "label_ranges": [list(astuple(one)) for one in plan.label_ranges.values()],
        "notes": list(plan.notes),
        "now_ms": plan.now_ms,
    }


def _ranges(values: list[list[Any]]) -> dict[int, Range]:
    return {one.partition: one for one in (Range(*value) for value in values)}


# -- what has to be the same -----------------------------------------------------------------------------------------


def _check_values(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise ConfigError, naming the difference, if the replay in the folder has other values."""
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            was, is_ = (_shown(values.get(name)) for values in (before, now))
            raise ConfigError(
                f"--resume {folder} has a replay with {name} {was}, now it is {is_}; set that back, or {ANOTHER}"
            )


def _shown(value: Any) -> str:
    if isinstance(value, list):
        value = ",".join(map(str, value))
    text = "not given" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 200 else text[:200] + "..."


def _changed(folder: Path, name: str) -> ConfigError:
    return ConfigError(f"--resume {folder}: {name} has changed since its replay began; {ANOTHER}")


def _check_topics(folder: Path, settings: ReplaySettings, before: Mapping[str, Mapping[int, Range]]) -> None:
    """Raise ConfigError if a topic, of which these ranges were found before, was deleted or created again."""
    topics = {topic: next(iter(ranges.values())).topic_id for topic, ranges in before.items() if ranges}
    if not topics:
        return
    now = present_topic_ids(settings, list(topics))
    for topic, topic_id in topics.items():
        if topic not in now or now[topic] != topic_id:
            raise ConfigError(
                f"--resume {folder}: topic {topic} was deleted or created again since its replay began; {ANOTHER}"
            )


def _inputs(plan: Plan) -> dict[str, Any]:
    """What the results come from besides topics, by name: something that differs where the content does."""
    settings = plan.settings
    found: dict[str, Any] = {"the version of fomo-stream": fomo_stream.__version__}
    if settings.file is not None:  # it may be large
        status = settings.file.stat()
        found[f"file {settings.file}"] = [status.st_size, status.st_mtime_ns]
    if settings.label is None and plan.label_source:
        found[f"what the labels say ({plan.label_source})"] = _digest_of_labels(plan)
    if settings.seed_context is not None:
        found[f"file {settings.seed_context}"] = _digest_of_file(settings.seed_context)
    models = {settings.model, *(its.model for _, its in variants(settings))}
    for path in (Path(model) for model in models if model.endswith(".safetensors")):  # others come with the version
        found[f"model {path}"] = _digest_of_file(path)
    if plan.effects:
        found[f"when labels took effect in group {settings.group}"] = _digest_of_effects(plan)
    return found


def _digest_of_labels(plan: Plan) -> str:
    digest, source = hashlib.blake2b(digest_size=16), plan.source
    labels: Mapping[int, Labels] = {}
    if isinstance(source, TopicSource):
        labels = source.labels
    elif isinstance(source, FileSource):
        labels = {0: source.labels}
    for number in sorted(labels):
        one = labels[number]
        digest.update(f"{number} {len(one.offsets)} {len(one.keys)} ".encode())
        for column in (one.offsets, one.of_offsets, one.keys, one.of_keys):
            digest.update(column.tobytes())
    return digest.hexdigest()


def _digest_of_effects(plan: Plan) -> str:
    """Of the labels that took effect in the range, also after its last record."""
    digest = hashlib.blake2b(digest_size=16)
    for number, range_ in sorted(plan.ranges.items()):
        for effect in plan.effects.get(number, ()):
            if effect.input_offset <= range_.end:
                digest.update(f"{number} {effect.input_offset} {effect.labels}".encode())
    return digest.hexdigest()


def _digest_of_file(path: Path) -> str:
    try:
        if not path.is_file():
            raise ConfigError(f"--resume: {path} is no file that can be read twice; give a file, or leave --resume out")
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; check the path and its permissions") from None
