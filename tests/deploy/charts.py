"""The Helm chart as tests use it: rendered by Helm itself, and read back."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml
from documents import with_changes

from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.sources import load

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart"
VALUES = Path(__file__).parent / "values"
NAME = "fomo-fomo-stream"
SETS = sorted(path.stem for path in VALUES.glob("*.yaml"))

every_set = pytest.mark.parametrize("name", SETS)

VERSIONS = ("1.31", "1.35")  # of Kubernetes

Object = dict[str, Any]

# Objects of operators, for which there is no schema here: what their documentation requires and allows in `spec`.
OPERATORS: dict[tuple[str, str], tuple[set[str], set[str]]] = {
    ("keda.sh/v1alpha1", "ScaledObject"): (
        {"scaleTargetRef", "triggers"},
        {"minReplicaCount", "maxReplicaCount", "pollingInterval", "cooldownPeriod", "advanced"},
    ),
    ("keda.sh/v1alpha1", "TriggerAuthentication"): (set(), {"env", "secretTargetRef"}),
    ("kafka.strimzi.io/v1beta2", "KafkaTopic"): ({"topicName", "partitions", "replicas", "config"}, set()),
    ("kafka.strimzi.io/v1beta2", "KafkaUser"): ({"authentication", "authorization"}, set()),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): ({"selector", "endpoints"}, set()),
    ("monitoring.coreos.com/v1", "PrometheusRule"): ({"groups"}, set()),
}


@functools.cache
def kubernetes() -> Any:
    """The package that validates objects: its import takes seconds, which only tests that validate have to spend."""
    import kubernetes_validate

    # Reading the schemas from disk takes far longer than validating.
    kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)
    return kubernetes_validate


class StrictLoader(yaml.CSafeLoader):
    """YAML in which no key occurs twice: Kubernetes would take one of the two without a word.

    As for Kubernetes, `1e3` is a number.
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        assert not twice, f"{node.start_mark}: {twice} twice"
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


StrictLoader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+$"), [*"+-0123456789"])


def value_set(name: str) -> dict[str, Any]:
    """The values of `values/<name>.yaml`."""
    found: dict[str, Any] = yaml.load((VALUES / f"{name}.yaml").read_text(), StrictLoader)
    return found


@functools.cache
def chart() -> Any:
    """The chart, loaded once."""
    return helm_python.Chart.load(CHART)


class Rendered:
    """Everything that the chart makes of some values."""

    def __init__(self, values: dict[str, Any], release: str = "fomo", namespace: str = "scoring") -> None:
        self.values: dict[str, Any] = chart().merge_values(values)
        files: dict[str, str] = chart().render(values, name=release, namespace=namespace)
        self.notes = next(text for name, text in files.items() if name.endswith("NOTES.txt"))
        self.objects: list[Object] = [
            found
            for name, text in files.items()
            if name.endswith(".yaml")
            for found in yaml.load_all(text, StrictLoader)
            if found is not None
        ]

    def all(self, kind: str) -> list[Object]:
        return [found for found in self.objects if found["kind"] == kind]

    def one(self, kind: str, name: str = NAME) -> Object:
        """The only object of a kind with this name."""
        (found,) = [found for found in self.all(kind) if found["metadata"]["name"] == name]
        return found

    @property
    def pod(self) -> Object:
        """The template of the service's pods."""
        template: Object = self.one("StatefulSet")["spec"]["template"]
        return template

    @property
    def container(self) -> Object:
        """The only container of the service's pods."""
        (container,) = self.pod["spec"]["containers"]
        assert isinstance(container, dict)
        return container

    def pod_specs(self) -> Iterator[Object]:
        """The service's pods, those of notify, and those of checks."""
        yield self.pod["spec"]
        yield from (found["spec"]["template"]["spec"] for found in self.all("Deployment"))
        yield from (found["spec"] for found in self.checks())

    def checks(self) -> list[Object]:
        """The pods of `helm test` and of the check before an upgrade."""
        return self.all("Pod") + [job["spec"]["template"] for job in self.all("Job")]

    @property
    def toml(self) -> str:
        """The configuration file of the service."""
        text: str = self.one("ConfigMap")["data"]["fomo.toml"]
        return text


def rendered(name: str = "default", **changes: Any) -> Rendered:
    """The chart with the values of a set and changes."""
    return Rendered(with_changes(value_set(name), changes))


@functools.cache
def plain(name: str) -> Rendered:
    """The chart with the values of a set; shared, so do not change it."""
    return rendered(name)


def validate(found: Object, version: str) -> None:
    """Raise an error unless this is a valid object of that version of Kubernetes, or of an operator."""
    if (found["apiVersion"], found["kind"]) in OPERATORS:
        required, allowed = OPERATORS[found["apiVersion"], found["kind"]]
        assert required <= set(found["spec"]) <= required | allowed, found["kind"]
    else:
        kubernetes().validate(found, version, strict=True)


def environment(found: Rendered, folder: Path) -> dict[str, str]:
    """The variables of the container, with secrets and fields filled in and the configuration file in `folder`."""
    variables = {}
    for variable in found.container["env"]:
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == "metadata.name"
            variables[variable["name"]] = f"{NAME}-0"
        elif "secretKeyRef" in source:
            variables[variable["name"]] = f"secret {source['secretKeyRef']['key']}"
        else:
            value = variable["value"]  # in which $(NAME) is an earlier variable
            variables[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], value)
    assert len(variables) == len(found.container["env"])
    for name, text in found.one("ConfigMap")["data"].items():
        (folder / name).write_text(text)
    mounted = Path(variables["FOMO_CONFIG"])
    volumes = {volume["name"]: volume for volume in found.pod["spec"]["volumes"]}
    (mount,) = [one for one in found.container["volumeMounts"] if one["mountPath"] == str(mounted.parent)]
    assert volumes[mount["name"]]["configMap"]["name"] == NAME
    return {**variables, "FOMO_CONFIG": str(folder / mounted.name)}


def settings_of(found: Rendered, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ServiceSettings:
    """The settings that the program reads in the container."""
    monkeypatch.setenv("FOMO_WAIT", "true")  # as in the image
    for name, value in environment(found, folder).items():
        monkeypatch.setenv(name, value)
    return load(ServiceSettings, {})
