"""The Helm chart, rendered by Helm itself and validated against the schemas of Kubernetes."""

from __future__ import annotations

import functools
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml
from charts import (
    CHART,
    NAME,
    ROOT,
    VALUES,
    Object,
    Rendered,
    StrictLoader,
    chart,
    plain,
    rendered,
    value_set,
    with_changes,
)
from documents import Document, table_rows

from fomo_stream.kafka.topics.setup import STATE_TOPIC_CONFIG
from fomo_stream.settings.broker import RESERVED_KAFKA_KEYS
from fomo_stream.settings.service import ServiceSettings
from fomo_stream.settings.sources import load

SETS = sorted(path.stem for path in VALUES.glob("*.yaml"))
VERSIONS = ("1.31", "1.35")
DRAIN_S = 25  # the service ends within so many seconds of SIGTERM

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

every_set = pytest.mark.parametrize("name", SETS)


@pytest.fixture(autouse=True, scope="module")
def _schemas_are_read_once() -> Iterator[None]:
    """Reading the schemas from disk takes far longer than validating."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kubernetes_validate.utils, "schema_contents", functools.cache(_schema_contents))
        yield


_schema_contents = kubernetes_validate.utils.schema_contents


# --- valid


def test_there_are_five_sets_of_values() -> None:
    assert SETS == ["default", "everything", "gpu", "minimal", "tls"]
    kinds = {found["kind"] for found in plain("everything").objects}
    made = re.findall(r"^kind: (\w+)", "\n".join(t["data"] for t in chart().templates), re.MULTILINE)
    assert kinds | {"HorizontalPodAutoscaler"} == set(made)  # KEDA takes the place of it


@every_set
def test_helm_finds_no_fault(name: str) -> None:
    report = helm_python.lint(CHART, value_set(name), strict=True)
    assert report["errors"] == []
    assert [found["error"] for found in report["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("version", VERSIONS)
@every_set
def test_every_object_is_valid(name: str, version: str) -> None:
    for found in plain(name).objects:
        if (found["apiVersion"], found["kind"]) in OPERATORS:
            required, allowed = OPERATORS[found["apiVersion"], found["kind"]]
            assert required <= set(found["spec"]) <= required | allowed, found["kind"]
        else:
            kubernetes_validate.validate(found, version, strict=True)


def test_a_wrong_object_is_not_valid() -> None:
    found = rendered("default").one("StatefulSet")
    found["spec"]["podManagmentPolicy"] = "Parallel"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(found, VERSIONS[0], strict=True)


@every_set
def test_no_object_is_made_twice_and_all_belong_to_the_release(name: str) -> None:
    objects = plain(name).objects
    names = [(found["kind"], found["metadata"]["name"]) for found in objects]
    assert len(set(names)) == len(names)
    assert {found["metadata"]["labels"]["app.kubernetes.io/instance"] for found in objects} == {"fomo"}


def test_names_stay_short_enough_for_the_labels_that_kubernetes_makes_of_them() -> None:
    long = Rendered({**value_set("everything"), "fullnameOverride": "a" * 70})
    name = long.all("StatefulSet")[0]["metadata"]["name"]
    assert len(f"{name}-0123456789") <= 63
    kubernetes_validate.validate(long.all("StatefulSet")[0], VERSIONS[0], strict=True)


def test_the_version_is_that_of_the_program() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart().metadata["appVersion"] == project["version"]


# --- values


def closed_keys(schema: Object, path: str = "") -> set[str]:
    """The paths of all properties below objects that allow no others."""
    found = set()
    for name, inner in schema["properties"].items():
        found.add(f"{path}{name}")
        if inner.get("additionalProperties") is False:
            found |= closed_keys(inner, f"{path}{name}.")
    return found


def keys_of(values: Object, schema: Object, path: str = "") -> set[str]:
    found = set()
    for name, inner in values.items():
        found.add(f"{path}{name}")
        known = schema["properties"].get(name, {})
        if known.get("additionalProperties") is False and isinstance(inner, dict):
            found |= keys_of(inner, known, f"{path}{name}.")
    return found


def test_every_value_is_in_the_schema_with_a_default() -> None:
    schema = chart().schema
    keys = keys_of(chart().values, schema)
    optional = {key for key in closed_keys(schema) if re.match(r"settings\.|probes\.\w+\.|resources\.|global$", key)}
    assert keys <= closed_keys(schema)
    assert closed_keys(schema) - keys <= optional


def test_every_value_has_a_comment() -> None:
    """A comment stands above the value, above one before it in the same block, or above a key that it is below."""
    lines = (CHART / "values.yaml").read_text().splitlines()
    explained: set[int] = set()  # the indents of the comments that hold here
    for number, line in enumerate(lines):
        if not line.strip():
            explained.clear()
        indent = len(line) - len(line.lstrip())
        if line.lstrip().startswith("#"):
            explained = {at for at in explained if at < indent} | {indent}
        elif re.match(r" *[\w.]+: .", line):
            assert any(at <= indent for at in explained), f"line {number + 1}: {line}"


BY_CHART = {"config", "device", "instance_id", "health_port", "http_host", "kafka", "reset_state"}
IN_TEMPLATES = {"topic", "bootstrap", "group", "out", "dead_letters", "feedback"}  # the chart explains these mistakes


def expected(field: Object) -> Object:
    """The schema of a setting, as pydantic has it."""
    field = next((one for one in field.get("anyOf", []) if one["type"] != "null"), field)
    if field["type"] == "array":
        return {"type": ["array", "string"], "items": {"type": "string"}}
    words = ("type", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength")
    return {word: field[word] for word in words if word in field}


def test_the_schema_has_the_settings_of_the_program_with_their_limits() -> None:
    fields = ServiceSettings.model_json_schema()["properties"]
    settings = chart().schema["properties"]["settings"]["properties"]
    assert set(settings) == {name.replace("_", "-") for name in fields.keys() - BY_CHART}
    for name in fields.keys() - BY_CHART - IN_TEMPLATES:
        assert settings[name.replace("_", "-")] == expected(fields[name]), name


BAD: list[tuple[Object, str]] = [
    ({"settings": {"topic": ""}}, "settings.topic is required"),
    ({"settings": {"topic": None}}, "topic"),
    ({"settings": {"bootstrap": ""}}, "settings.bootstrap is required"),
    ({"settings": {"group": ""}}, "settings.group is required"),
    ({"settings": {"topic": "no blanks"}}, "/settings/topic"),
    ({"settings": {"alert-rat": 0.1}}, "'alert-rat' not allowed"),
    ({"settings": {"alert-rate": 2}}, "/settings/alert-rate"),
    ({"settings": {"context-size": "many"}}, "/settings/context-size"),
    ({"settings": {"device": "cuda"}}, "'device' not allowed"),
    ({"settings": {"reset-state": True}}, "'reset-state' not allowed"),
    ({"settings": {"delivery": "at-most-once"}}, "/settings/delivery"),
    ({"replicaCount": 3}, "'replicaCount' not allowed"),
    ({"replicas": -1}, "/replicas"),
    ({"replicas": 5, "partitions": 4}, "replicas is 5, but settings.topic has 4 partitions"),
    ({"keda": {"enabled": True}}, "keda needs `partitions`"),
    ({"autoscaling": {"enabled": True}}, "autoscaling needs `partitions`"),
    ({"partitions": 4, "keda": {"enabled": True}, "autoscaling": {"enabled": True}}, "exclude each other"),
    ({"partitions": 4, "keda": {"enabled": True, "maxReplicas": 5}}, "keda.maxReplicas is 5, but"),
    ({"partitions": 4, "autoscaling": {"enabled": True, "maxReplicas": 5}}, "autoscaling.maxReplicas is 5, but"),
    ({"partitions": 4, "keda": {"enabled": True, "minReplicas": 5}}, "keda.minReplicas is 5, but"),
    (
        {"partitions": 4, "autoscaling": {"enabled": True}, "resources": {"requests": None}},
        "autoscaling needs resources.requests.cpu",
    ),
    ({"terminationGracePeriodSeconds": 34}, "terminationGracePeriodSeconds must be at least 35"),
    ({"preStop": {"timeoutSeconds": 40}}, "terminationGracePeriodSeconds must be at least 70"),
    ({"kafka": {"settings": {"sasl.password": "x"}}}, "sasl.password is a secret"),
    ({"kafka": {"settings": {"ssl.key.pem": "x"}}}, "use extraEnv with FOMO_KAFKA_SSL_KEY_PEM"),
    ({"kafka": {"settings": {"linger": {"ms": 5}}}}, "/kafka/settings/linger"),
    *(({"kafka": {"settings": {key: "x"}}}, f"{key} cannot be set") for key in RESERVED_KAFKA_KEYS),
    ({"kafka": {"tls": {"ca": {"existingSecret": "ca"}}}}, "kafka.tls.enabled is false"),
    ({"kafka": {"sasl": {"username": "fomo"}}}, "kafka.sasl.enabled is false"),
    ({"kafka": {"sasl": {"enabled": True, "username": "fomo"}}}, "kafka.sasl.existingSecret is required"),
    ({"kafka": {"sasl": {"enabled": True, "existingSecret": "s"}}}, "kafka.sasl needs username, or usernameKey"),
    ({"kafka": {"sasl": {"password": "x"}}}, "'password' not allowed"),
    ({"kafka": {"sasl": {"mechanism": "GSSAPI"}}}, "/kafka/sasl/mechanism"),
    ({"image": {"digest": "latest"}}, "/image/digest"),
    ({"service": {"port": 80}}, "/service/port"),
    ({"extraEnv": [{"name": "FOMO_INSTANCE_ID", "value": "one"}]}, "/extraEnv/0/name"),
    ({"strimzi": {"user": {"enabled": True}}}, "strimzi.cluster is required"),
    ({"strimzi": {"cluster": "c", "topics": {"enabled": True}}}, "strimzi.topics needs `partitions`"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=lambda part: json.dumps(part)[:60])
def test_bad_values_are_refused_with_a_message(changes: Object, message: str) -> None:
    with pytest.raises(helm_python.HelmError) as caught:
        rendered("default", **changes)
    assert message in str(caught.value)


# --- the program


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
            variables[variable["name"]] = variable["value"]
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


@every_set
def test_the_program_reads_the_settings_that_were_given(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = plain(name)
    settings = settings_of(found, tmp_path, monkeypatch)
    given = found.values["settings"]
    for key, value in given.items():
        read = getattr(settings, key.replace("-", "_"))
        assert read == ((value,) if key == "views" else tuple(value) if isinstance(value, list) else value), key
    assert settings.instance_id == f"{NAME}-0"
    assert settings.http_host == "0.0.0.0"
    assert settings.health_port == found.container["ports"][0]["containerPort"] == found.values["service"]["port"]
    assert settings.device == ("cuda" if found.values["gpu"]["enabled"] else "auto")


def test_the_program_reads_the_settings_of_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_of(plain("tls"), tmp_path, monkeypatch).kafka == {
        "session.timeout.ms": "60000",
        "socket.keepalive.enable": "true",
        "client.rack": 'rack "1"',
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "fomo",
        "sasl.password": "secret password",
        "ssl.ca.location": "/etc/fomo/tls/ca/ca.crt",
        "ssl.certificate.location": "/etc/fomo/tls/client/tls.crt",
        "ssl.key.location": "/etc/fomo/tls/client/tls.key",
        "ssl.key.password": "secret tls.password",
    }


@pytest.mark.parametrize(
    ("tls", "sasl", "protocol"),
    [(False, False, None), (True, False, "SSL"), (False, True, "SASL_PLAINTEXT"), (True, True, "SASL_SSL")],
)
def test_the_protocol_follows_from_tls_and_sasl(tls: bool, sasl: bool, protocol: str | None) -> None:
    login = {"enabled": sasl, "username": "fomo", "existingSecret": "s"} if sasl else {}
    found = rendered("default", kafka={"tls": {"enabled": tls}, "sasl": login})
    assert tomllib.loads(found.toml).get("kafka", {}).get("security.protocol") == protocol
    own = rendered("default", kafka={"settings": {"security.protocol": "SASL_SSL"}, "tls": {"enabled": tls}})
    assert tomllib.loads(own.toml)["kafka"]["security.protocol"] == "SASL_SSL"
    warned = "without encryption" in found.notes
    assert warned == (not tls)
    assert "without encryption" not in own.notes


@every_set
def test_certificates_are_where_the_client_looks_for_them(name: str) -> None:
    found = plain(name)
    volumes = {volume["name"]: volume for volume in found.pod["spec"]["volumes"]}
    there = {
        f"{mount['mountPath']}/{item['path']}"
        for mount in found.container["volumeMounts"]
        for item in volumes[mount["name"]].get("secret", {}).get("items", [])
    }
    client = tomllib.loads(found.toml).get("kafka", {})
    assert {path for key, path in client.items() if key.endswith(".location")} == there


def test_other_settings_restart_the_pods_and_other_values_do_not() -> None:
    def checksum(**changes: Any) -> str:
        return str(rendered("default", **changes).pod["metadata"]["annotations"]["checksum/config"])

    assert checksum() != checksum(settings={"alert-rate": 0.5})
    assert checksum() != checksum(kafka={"settings": {"linger.ms": 1}})
    assert checksum() == checksum(replicas=3, keda={"lagThreshold": 5})


# --- secrets and privileges


@every_set
def test_secrets_are_only_named(name: str) -> None:
    found = plain(name)
    assert found.all("Secret") == []
    for spec in found.pod_specs():
        for variable in spec["containers"][0]["env"]:
            if re.search("PASSWORD|SECRET|TOKEN|PEM", variable["name"]):
                assert set(variable["valueFrom"]) == {"secretKeyRef"}, variable["name"]
    for config in found.all("ConfigMap"):
        assert not re.search(r"^\W*(sasl|ssl)[\w.]*(password|secret|pem)", "".join(config["data"].values()), re.M)


def test_the_secrets_that_are_needed_are_those_in_the_values() -> None:
    text = json.dumps([*plain("tls").pod_specs(), plain("tls").all("TriggerAuthentication")])
    used = set(re.findall(r'"secretName": "([\w-]+)"|"secretKeyRef": {"[^}]*?"?name": "([\w-]+)"', text))
    assert {a or b for a, b in used} == {"brokers-ca", "client-certificate", "client-password"}


@every_set
def test_pods_run_without_privileges(name: str) -> None:
    for spec in plain(name).pod_specs():
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == spec["securityContext"]["runAsGroup"] == 10001
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["enableServiceLinks"] is False
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            volumes = {volume["name"]: volume for volume in spec["volumes"]}
            writable = [m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")]
            assert writable == ["/tmp"]
            assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)


@every_set
def test_only_the_pre_stop_script_may_ask_the_api_server_and_only_for_its_stateful_set(name: str) -> None:
    found = plain(name)
    has_script = "lifecycle" in found.container
    assert has_script == found.values["preStop"]["enabled"]
    assert found.pod["spec"]["automountServiceAccountToken"] is has_script
    assert all(spec["automountServiceAccountToken"] is False for spec in [pod["spec"] for pod in found.all("Pod")])
    rules = [rule for role in found.all("Role") for rule in role["rules"]]
    only = {"apiGroups": ["apps"], "resources": ["statefulsets"], "resourceNames": [NAME], "verbs": ["get"]}
    assert rules == ([only] if has_script else [])
    assert found.all("ClusterRole") == []
    for binding in found.all("RoleBinding"):
        (subject,) = binding["subjects"]
        assert subject["name"] == found.pod["spec"]["serviceAccountName"]
        assert subject["namespace"] == "scoring"
    for account in found.all("ServiceAccount"):
        assert account["metadata"]["name"] == found.pod["spec"]["serviceAccountName"]
        assert account["automountServiceAccountToken"] is False


def test_the_pre_stop_script_is_the_one_of_the_chart() -> None:
    found = plain("default")
    words = found.container["lifecycle"]["preStop"]["exec"]["command"]
    script = next(Path(word) for word in words if word.endswith(".py"))
    (mount,) = [one for one in found.container["volumeMounts"] if one["mountPath"] == str(script.parent)]
    (volume,) = [one for one in found.pod["spec"]["volumes"] if one["name"] == mount["name"]]
    data = found.one("ConfigMap", volume["configMap"]["name"])["data"]
    assert data[script.name].strip() == (CHART / "files" / script.name).read_text().strip()


# --- network


@every_set
def test_every_selector_finds_the_pods_of_the_service(name: str) -> None:
    found = plain(name)
    labels = found.pod["metadata"]["labels"].items()
    others = [pod["metadata"]["labels"].items() for pod in found.all("Pod")]
    selectors = [found.one("StatefulSet")["spec"]["selector"]["matchLabels"], found.one("Service")["spec"]["selector"]]
    selectors += [budget["spec"]["selector"]["matchLabels"] for budget in found.all("PodDisruptionBudget")]
    spread = found.pod["spec"].get("topologySpreadConstraints", [])
    selectors += [one["labelSelector"]["matchLabels"] for one in spread]
    for selector in selectors:
        assert selector.items() <= labels
        assert not any(selector.items() <= other for other in others)
    for policy in found.all("NetworkPolicy"):
        assert all(policy["spec"]["podSelector"]["matchLabels"].items() <= pod for pod in [labels, *others])
    for monitor in found.all("ServiceMonitor"):
        service = found.one("Service")
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert {e["port"] for e in monitor["spec"]["endpoints"]} <= {p["name"] for p in service["spec"]["ports"]}
    assert found.one("StatefulSet")["spec"]["serviceName"] == found.one("Service")["metadata"]["name"]


def ports(rules: list[Object]) -> list[set[int]]:
    return [{port["port"] for port in rule["ports"]} for rule in rules]


@pytest.mark.parametrize(
    ("bootstrap", "expected"),
    [
        ("kafka:9092", {9092}),
        ("a:9093,b:9094, c:9093", {9093, 9094}),
        ("kafka", {9092}),
        ("SASL_SSL://kafka:9095", {9095}),
        ("[2001:db8::1]:9096", {9096}),
    ],
)
def test_the_network_policy_lets_the_service_reach_its_brokers(bootstrap: str, expected: set[int]) -> None:
    policy = rendered("default", settings={"bootstrap": bootstrap}).one("NetworkPolicy")["spec"]
    assert ports(policy["egress"]) == [{53}, expected, {443, 6443}]
    assert policy["policyTypes"] == ["Ingress", "Egress"]


def test_the_network_policy_opens_nothing_but_what_is_needed() -> None:
    policy = plain("default").one("NetworkPolicy")["spec"]
    assert ports(policy["ingress"]) == [{8080}]
    assert all("from" in rule for rule in policy["ingress"])
    without = rendered("default", networkPolicy={"ingressFrom": []}, preStop={"enabled": False})
    assert without.one("NetworkPolicy")["spec"]["ingress"] == []
    assert ports(without.one("NetworkPolicy")["spec"]["egress"]) == [{53}, {9092}]
    own = plain("everything").one("NetworkPolicy")["spec"]
    assert ports(own["ingress"]) == [{9000}]
    assert ports(own["egress"]) == [{53}, {9093, 9094}, {443, 6443}, {8443}]
    blind = rendered("everything", networkPolicy={"ingressFrom": []})
    assert "Prometheus cannot reach the pods" in blind.notes


# --- scaling and stopping


@every_set
def test_the_grace_period_is_longer_than_the_script_and_the_drain(name: str) -> None:
    found = plain(name)
    words = found.container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
    script = sum(float(word.partition("=")[2]) for word in words if word.startswith("--timeout="))
    assert bool(words) == (script > 0)
    assert found.pod["spec"]["terminationGracePeriodSeconds"] > script + DRAIN_S


@pytest.mark.parametrize("partitions", [1, 7, 1000])
@pytest.mark.parametrize("scaler", ["keda", "autoscaling"])
def test_there_are_never_more_instances_than_partitions(scaler: str, partitions: int) -> None:
    found = rendered("default", partitions=partitions, **{scaler: {"enabled": True}})
    kind, least, most = {
        "keda": ("ScaledObject", "minReplicaCount", "maxReplicaCount"),
        "autoscaling": ("HorizontalPodAutoscaler", "minReplicas", "maxReplicas"),
    }[scaler]
    spec = found.one(kind)["spec"]
    assert (spec[least], spec[most]) == (1, partitions)
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": NAME}
    assert "replicas" not in found.one("StatefulSet")["spec"]
    assert len(found.all("ScaledObject") + found.all("HorizontalPodAutoscaler")) == 1


def test_without_a_scaler_the_number_of_instances_is_the_given_one() -> None:
    found = rendered("default", replicas=4, partitions=4)
    assert found.one("StatefulSet")["spec"]["replicas"] == 4
    assert found.one("StatefulSet")["spec"]["podManagementPolicy"] == "Parallel"


def test_keda_looks_at_the_lag_of_the_group_with_the_secrets_of_the_service() -> None:
    found = plain("tls")
    (trigger,) = found.one("ScaledObject")["spec"]["triggers"]
    metadata = trigger["metadata"]
    assert all(isinstance(value, str) for value in metadata.values())  # KEDA takes nothing else
    assert metadata["bootstrapServers"] == "kafka.kafka.svc:9093"
    assert (metadata["consumerGroup"], metadata["topic"]) == ("fomo-stream", "sensors")
    assert (metadata["lagThreshold"], metadata["tls"], metadata["sasl"]) == ("10000", "enable", "scram_sha256")
    access = found.one("TriggerAuthentication", trigger["authenticationRef"]["name"])["spec"]
    assert {one["parameter"]: (one["name"], one["key"]) for one in access["secretTargetRef"]} == {
        "password": ("client-password", "password"),
        "ca": ("brokers-ca", "ca.crt"),
        "cert": ("client-certificate", "tls.crt"),
        "key": ("client-certificate", "tls.key"),
        "keyPassword": ("client-certificate", "tls.password"),
    }
    (username,) = access["env"]
    assert username["parameter"] == "username"
    assert username["containerName"] == found.container["name"]
    assert {"name": username["name"], "value": "fomo"} in found.container["env"]


def test_keda_needs_no_secrets_where_the_service_needs_none() -> None:
    found = rendered("default", partitions=4, keda={"enabled": True})
    assert found.all("TriggerAuthentication") == []
    assert "authenticationRef" not in found.one("ScaledObject")["spec"]["triggers"][0]


@every_set
def test_the_probes_ask_the_addresses_of_the_service(name: str) -> None:
    found = plain(name)
    (port,) = found.container["ports"]
    paths = {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    for probe, path in paths.items():
        assert found.container[probe]["httpGet"] == {"path": path, "port": port["name"]}


# --- GPU


def test_a_gpu_is_asked_for_and_used() -> None:
    found = plain("gpu")
    assert found.container["resources"]["limits"] == {"memory": "4Gi", "nvidia.com/gpu": 1}
    assert found.container["image"] == "registry.example.com/team/fomo-stream:0.1.0-cuda"
    assert {"name": "FOMO_DEVICE", "value": "cuda"} in found.container["env"]
    spec = found.pod["spec"]
    assert spec["nodeSelector"] == {"disk": "ssd", "accelerator": "h100"}
    assert [one["key"] for one in spec["tolerations"]] == ["team", "nvidia.com/gpu"]
    assert spec["runtimeClassName"] == "nvidia"
    (doctor,) = found.all("Pod")
    assert "limits" not in doctor["spec"]["containers"][0]["resources"]


@pytest.mark.parametrize("name", ["default", "tls"])
def test_without_a_gpu_nothing_speaks_of_one(name: str) -> None:
    assert not re.search("nvidia|cuda|gpu", json.dumps(list(plain(name).pod_specs())))


# --- objects of operators


def readme_acls() -> set[tuple[str, str, str, str]]:
    """Resource, name, pattern and operation of the commands in deploy/README.md."""
    text = Document.read(ROOT / "deploy" / "README.md").section("Security: TLS, SASL, least-privilege ACLs").blocks
    block = next(block for block in text if block.language == "sh")
    found = set()
    for line in block.code.splitlines():
        words = shlex.split(line.replace("$acls", "")) if line.startswith("$acls") else []
        pairs = list(zip(words[::2], words[1::2], strict=True))
        options = dict(pairs)
        resource = next((word for word in ("--topic", "--group", "--transactional-id") if word in options), "")
        pattern = options.get("--resource-pattern-type", "literal").replace("prefixed", "prefix")
        kind = resource[2:].replace("transactional-id", "transactionalId")
        found |= {(kind, options[resource], pattern, value) for word, value in pairs if word == "--operation"}
    return found


def user_acls(found: Rendered) -> set[tuple[str, str, str, str]]:
    acls = found.one("KafkaUser")["spec"]["authorization"]["acls"]
    return {
        (acl["resource"]["type"], acl["resource"]["name"], acl["resource"]["patternType"], operation)
        for acl in acls
        for operation in acl["operations"]
    }


def test_the_user_has_the_permissions_that_the_documentation_lists_and_no_others() -> None:
    user = {"cluster": "events", "user": {"enabled": True}}
    assert user_acls(rendered("default", strimzi=user)) == readme_acls()
    labels = user_acls(rendered("default", strimzi=user, settings={"feedback": "labels"}))
    assert labels - readme_acls() == {("topic", "labels", "literal", "Read")}
    simple = user_acls(rendered("default", strimzi=user, settings={"delivery": "at-least-once"}))
    assert readme_acls() - simple == {
        ("transactionalId", "fomo-stream-sensors-", "prefix", "Write"),
    }
    optional = user_acls(plain("everything"))
    assert {operation for *_, operation in optional} == {"Read", "Write", "Create", "DescribeConfigs", "Alter"}


def test_the_topics_are_those_that_the_program_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = plain("everything")
    settings = settings_of(found, tmp_path, monkeypatch)
    topics = {topic["spec"]["topicName"]: topic for topic in found.all("KafkaTopic")}
    assert set(topics) == {
        settings.topic,
        settings.out,
        settings.dead_letters,
        settings.feedback,
        settings.state_topic,
    }
    assert {topic["spec"]["partitions"] for topic in topics.values()} == {48}
    assert {topic["metadata"]["namespace"] for topic in topics.values()} == {"kafka"}
    assert {topic["metadata"]["labels"]["strimzi.io/cluster"] for topic in topics.values()} == {"events"}
    for name, topic in topics.items():
        assert topic["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        config = {key: str(value) for key, value in topic["spec"]["config"].items()}
        own = STATE_TOPIC_CONFIG if name == settings.state_topic else {"retention.ms": "604800000"}
        assert config == {"min.insync.replicas": "2", **own}


def test_names_of_topics_that_are_not_given_are_those_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = rendered("default", partitions=3, strimzi={"cluster": "events", "topics": {"enabled": True}})
    settings = settings_of(found, tmp_path, monkeypatch)
    names = {topic["spec"]["topicName"] for topic in found.all("KafkaTopic")}
    assert names == {settings.out, settings.dead_letters, settings.state_topic}


def test_rules_and_dashboard_are_the_files_of_the_chart() -> None:
    found = plain("everything")
    rules = yaml.safe_load((CHART / "monitoring" / "rules.yaml").read_text())
    assert found.one("PrometheusRule")["spec"] == rules
    dashboard = found.one("ConfigMap", f"{NAME}-dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    (text,) = dashboard["data"].values()
    assert json.loads(text) == json.loads((CHART / "monitoring" / "dashboard.json").read_text())


# --- documentation

KUBERNETES = Document.read(ROOT / "deploy" / "README.md").section("Kubernetes")


def documented_values() -> Iterator[Object]:
    """The values of every command in the documentation that installs the chart, on top of those before it."""
    values: Object = {}
    for block in KUBERNETES.blocks:
        given = re.search(r"^cat > values.yaml <<'END'\n(.*?)^END$", block.code, re.MULTILINE | re.DOTALL)
        for line in block.code.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] != ["helm"] or "deploy/chart" not in words:
                continue
            if "--reuse-values" not in words:
                values = yaml.load(given[1], StrictLoader) if given is not None else {}
            for word, value in pairwise(words):
                if word in ("--set", "--set-string"):
                    values = with_changes(values, helm_python.parse_set_string(value))
            yield values


def test_the_commands_of_the_documentation_install_the_chart() -> None:
    renderings = [Rendered(values) for values in documented_values()]
    assert len(renderings) == 4
    assert [len(found.all("ScaledObject")) for found in renderings] == [0, 1, 1, 0]
    images = {found.container["image"] for found in renderings[:3]}
    pushed = set(re.findall(r"docker push (\S+)", "".join(block.code for block in KUBERNETES.blocks)))
    assert images == pushed
    assert NAME + "-0" in KUBERNETES.text


def test_the_documented_values_exist_with_their_defaults() -> None:
    defaults = chart().values
    for cells in table_rows(KUBERNETES.prose):
        for path in re.findall(r"`([\w.]+)`", cells[0]):
            value = functools.reduce(lambda found, name: found[name], path.split("."), defaults)
            if shown := re.fullmatch(r"`(.*)`", cells[1]):
                assert str(value).lower() == shown[1], path
