"""Values of the Helm chart that YAML could take for something else: names made of digits, and null."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import pytest
from charts import (
    VERSIONS,
    Object,
    Rendered,
    chart,
    every_set,
    plain,
    rendered,
    settings_of,
    validate,
    value_set,
    with_changes,
)

WORD = "qzx"  # occurs nowhere in the chart
# Numbers, a boolean, null, a date; and 30:30 (an image) is a number to the base of 60.
NAMES = ["123", "0", "30", "1e3", "0x1f", "true", "no", "null", "2024-01-01"]
TOPICS = ["topic", "out", "alerts", "dead-letters", "feedback"]
CHANGES: Object = {
    "all": {},
    "defaults": {
        "fullnameOverride": "",
        "nameOverride": "",
        "gpu": {"enabled": False},
        "image": {"digest": ""},
        "kafka": {"sasl": {"username": ""}},
    },
}

Keys = tuple[str, ...]


def leaves(schema: Object, path: Keys = ()) -> Iterator[tuple[Keys, Object, bool]]:
    """Every value of the chart: its path, its schema, and whether it is required."""
    for name, inner in schema["properties"].items():
        if name == "global":  # of Helm, not of this chart
            continue
        yield (*path, name), inner, name in schema.get("required", [])
        if inner.get("additionalProperties") is False:
            yield from leaves(inner, (*path, name))


def nested(path: Keys, value: Any) -> Object:
    for name in reversed(path):
        value = {name: value}
    found: Object = value
    return found


def is_text(schema: Object, value: str) -> bool:
    kinds = schema.get("type", [])
    return "string" in kinds and "enum" not in schema and re.search(schema.get("pattern", ""), value) is not None


@functools.cache
def named(name: str, topic: str, which: str) -> Rendered:
    """Everything that may have a free name has this one; of the topics only this one, because they must differ."""
    values = with_changes(value_set("everything"), {"kafka": {"tls": {"enabled": True}}})
    for path, schema, _ in leaves(chart().schema):
        if is_text(schema, name) and (path[-1] not in TOPICS or path[-1] == topic):
            values = with_changes(values, nested(path, name))
    maps = {name: name}
    values = with_changes(
        values,
        {
            "imagePullSecrets": [{"name": name}],
            "podLabels": maps,
            "podAnnotations": maps,
            "nodeSelector": maps,
            "kafka": {"settings": {"client.rack": name}},
            "strimzi": {"topics": {"config": maps}},
        },
    )
    return Rendered(with_changes(values, CHANGES[which]), release=name, namespace=name)


def renamed(part: Any, name: str) -> Any:
    """`part` with `name` in place of WORD, and without checksums."""
    if isinstance(part, dict):
        return {renamed(key, name): renamed(value, name) for key, value in part.items()}
    if isinstance(part, list):
        return [renamed(one, name) for one in part]
    return re.sub("^[0-9a-f]{64}$", "checksum", part.replace(WORD, name)) if isinstance(part, str) else part


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("which", CHANGES)
def test_a_name_stays_a_text_whatever_it_looks_like(name: str, topic: str, which: str) -> None:
    """The objects are those of an ordinary name, with the name in its place."""
    assert renamed(named(name, topic, which).objects, "") == renamed(
        renamed(named(WORD, topic, which).objects, name), ""
    )


# --- null


def is_nullable(schema: Object) -> bool:
    if "$ref" in schema:
        schema = chart().schema["definitions"][schema["$ref"].rpartition("/")[2]]
    return "null" in schema.get("type", []) or None in schema.get("enum", [])


def test_null_is_allowed_for_everything_that_is_not_required() -> None:
    for path, schema, is_required in leaves(chart().schema):
        assert is_nullable(schema) != is_required, path


@every_set
def test_null_gives_valid_objects_or_a_message(name: str) -> None:
    """Objects are valid, a required value is named, or two values do not go together."""
    for path, _, is_required in leaves(chart().schema):
        try:
            objects = rendered(name, **nested(path, None)).objects
        except helm_python.HelmError as error:
            message = f"missing property '{path[-1]}'" if is_required else r"^execution error at .*(is required|needs)"
            assert re.search(message, str(error)), (path, error)  # noqa: PT017
            continue
        assert not is_required, path
        for found in objects:
            validate(found, VERSIONS[0])


@pytest.mark.parametrize("probe", ["startup", "liveness", "readiness"])
def test_a_probe_is_left_out_by_null(probe: str) -> None:
    names = {f"{one}Probe" for one in ("startup", "liveness", "readiness")}
    assert names & rendered("default", probes={probe: None}).container.keys() == names - {f"{probe}Probe"}
    assert not names & rendered("default", probes=None).container.keys()


def test_resources_are_left_out_by_null() -> None:
    off = {"enabled": False}  # it needs a request
    assert not rendered("default", resources=None).container["resources"]
    assert rendered("gpu", resources=None, autoscaling=off).container["resources"] == {"limits": {"nvidia.com/gpu": 1}}


def test_tolerations_and_nodes_of_a_gpu_stay_when_the_others_are_null() -> None:
    spec = rendered("gpu", tolerations=None, nodeSelector=None).pod["spec"]
    assert [one["key"] for one in spec["tolerations"]] == ["nvidia.com/gpu"]
    assert spec["nodeSelector"] == {"accelerator": "h100"}


@pytest.mark.parametrize("given", [None, True, False])
def test_the_service_waits_unless_it_must_not(
    given: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = settings_of(rendered("default", settings={"wait": given}), tmp_path, monkeypatch).wait
    assert read is (given is not False)


def test_a_setting_of_null_has_the_default_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = chart().schema["properties"]["settings"]["properties"].keys() - {"topic", "bootstrap", "group"}
    nulls = settings_of(rendered("default", settings=dict.fromkeys(names)), tmp_path, monkeypatch)
    assert nulls == settings_of(plain("default"), tmp_path, monkeypatch)
