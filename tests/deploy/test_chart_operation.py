"""The Helm chart in operation: scaling, stopping, GPUs, and objects for the operators of Kafka and Prometheus."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from charts import CHART, NAME, ROOT, Rendered, every_set, plain, rendered, settings_of
from documents import Document, listed_acls

from fomo_stream.kafka.topics.checks import STATE_TOPIC_CONFIG

OWN_GROUP = f"scoring.{NAME}.sensors"
DRAIN_S = 25  # the service ends within so many seconds of SIGTERM


# --- scaling and stopping


@every_set
def test_the_grace_period_is_longer_than_the_drain_and_probes_ask_the_addresses_of_the_service(name: str) -> None:
    found = plain(name)
    assert found.pod["spec"]["terminationGracePeriodSeconds"] > DRAIN_S
    assert found.one("StatefulSet")["spec"]["minReadySeconds"] > 3  # from ready to the first partition
    (port,) = found.container["ports"]
    paths = {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    for probe, path in paths.items():
        assert found.container[probe]["httpGet"] == {"path": path, "port": port["name"]}


@pytest.mark.parametrize(("scaler", "partitions"), [("keda", 1), ("autoscaling", 7)])
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


def test_keda_looks_at_the_lag_of_the_group_with_the_secrets_of_the_service() -> None:
    found = plain("tls")
    (trigger,) = found.one("ScaledObject")["spec"]["triggers"]
    metadata = trigger["metadata"]
    assert all(isinstance(value, str) for value in metadata.values())  # KEDA takes nothing else
    assert metadata["bootstrapServers"] == "kafka.kafka.svc:9093"
    assert (metadata["consumerGroup"], metadata["topic"]) == (OWN_GROUP, "sensors")
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


# --- checks before upgrades


def test_an_upgrade_is_checked_with_the_new_settings_before_it_changes_anything() -> None:
    found = rendered("tls", resources={"limits": {"cpu": "2"}})
    config, job = (found.one(kind, f"{NAME}-check") for kind in ("ConfigMap", "Job"))
    assert config["data"]["fomo.toml"] == found.toml
    for made in (config, job):
        assert made["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
        assert "hook-succeeded" in made["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
    assert int(config["metadata"]["annotations"]["helm.sh/hook-weight"]) < 0  # it is there before the Job
    spec = job["spec"]["template"]["spec"]
    assert {"name": "config", "configMap": {"name": f"{NAME}-check"}} in spec["volumes"]
    assert spec["containers"][0]["resources"]["limits"] == {"cpu": "2"}
    assert rendered("default", upgradeCheck={"enabled": False}).all("Job") == []


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (7, 0), (8, 0), (9, 0), (2, 2), (10, 10)])
def test_an_upgrade_is_refused_unless_the_group_cannot_be_asked(code: int, expected: int, tmp_path: Path) -> None:
    (container,) = plain("default").one("Job", f"{NAME}-check")["spec"]["template"]["spec"]["containers"]
    program = tmp_path / "fomo-stream"
    program.write_text(f'#!/bin/sh\necho "$@"\nexit {code}\n')
    program.chmod(0o755)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run([*container["command"], *container["args"]], env=path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (expected, "group --check\n")
    assert ("refused before it changed anything" in done.stderr) == (expected != 0)


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
    assert all("limits" not in check["spec"]["containers"][0]["resources"] for check in found.checks())


# --- objects of operators


def readme_acls() -> set[tuple[str, ...]]:
    """Resource, name, pattern and operation of the commands in deploy/README.md."""
    text = Document.read(ROOT / "deploy" / "README.md").section("Security: TLS, SASL, least-privilege ACLs").blocks
    block = next(block for block in text if block.language == "sh")
    names = {"transactional-id": "transactionalId", "prefixed": "prefix"}  # in objects of Strimzi
    return {tuple(names.get(word, word) for word in acl) for acl in listed_acls(block.code)}


def user_acls(found: Rendered) -> set[tuple[str, ...]]:
    """As `readme_acls`, for the group that the documentation has."""
    acls = json.loads(
        json.dumps(found.one("KafkaUser")["spec"]["authorization"]["acls"]).replace(OWN_GROUP, "fomo-stream")
    )
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
    instead = user_acls(rendered("default", strimzi=user, settings={"out": "none", "alerts": "pages"}))
    assert instead - readme_acls() == {("topic", "pages", "literal", "Write")}
    assert readme_acls() - instead == {("topic", "sensors-scores", "literal", "Write")}
    alerts = {"out": "none", "alerts": "pages"}
    told = {"enabled": True, "targets": {"existingSecret": "targets"}}
    notified = user_acls(rendered("default", strimzi=user, settings=alerts, notify=told))
    assert notified - instead == {
        ("topic", "pages", "literal", "Read"),
        ("group", "fomo-stream-notify", "prefix", "Read"),
    }
    simple = user_acls(rendered("default", strimzi=user, settings={"delivery": "at-least-once"}))
    assert readme_acls() - simple == {("transactionalId", "fomo-stream-sensors-", "prefix", "Write")}
    optional = user_acls(plain("everything"))
    assert {operation for *_, operation in optional} == {"Read", "Write", "Create", "DescribeConfigs", "Alter"}


def test_the_topics_are_those_that_the_program_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = plain("everything")
    settings = settings_of(found, tmp_path, monkeypatch)
    topics = {topic["spec"]["topicName"]: topic for topic in found.all("KafkaTopic")}
    of_all = (*settings.outputs, settings.topic, settings.feedback, settings.state_topic)
    assert set(topics) == set(of_all)
    assert {topic["spec"]["partitions"] for topic in topics.values()} == {48}
    assert {topic["metadata"]["namespace"] for topic in topics.values()} == {"kafka"}
    assert {topic["metadata"]["labels"]["strimzi.io/cluster"] for topic in topics.values()} == {"events"}
    for name, topic in topics.items():
        assert topic["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        config = {key: str(value) for key, value in topic["spec"]["config"].items()}
        own = STATE_TOPIC_CONFIG if name == settings.state_topic else {"retention.ms": "604800000"}
        assert config == {"min.insync.replicas": "2", **own}


def test_rules_and_dashboard_are_the_files_of_the_chart() -> None:
    found = plain("everything")
    rules = yaml.safe_load((CHART / "monitoring" / "rules.yaml").read_text())
    assert found.one("PrometheusRule")["spec"] == rules
    dashboard = found.one("ConfigMap", f"{NAME}-dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    (text,) = dashboard["data"].values()
    assert json.loads(text) == json.loads((CHART / "monitoring" / "dashboard.json").read_text())
