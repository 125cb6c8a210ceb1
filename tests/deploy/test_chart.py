"""The objects of the Helm chart, rendered by Helm itself and validated against the schemas of Kubernetes."""

from __future__ import annotations

import re

import helm_python
import pytest
from charts import CHART, NAME, ROOT, VERSIONS, Object, chart, every_set, plain, rendered, validate, value_set

# --- valid


def test_the_sets_of_values_make_every_kind_of_object() -> None:
    kinds = {found["kind"] for found in plain("everything").objects}
    made = re.findall(r"^kind: (\w+)", "\n".join(t["data"] for t in chart().templates), re.MULTILINE)
    assert kinds | {"HorizontalPodAutoscaler"} == set(made)  # KEDA takes the place of it


@every_set
def test_helm_finds_no_fault_and_every_object_is_valid_made_once_and_of_the_release(name: str) -> None:
    report = helm_python.lint(CHART, value_set(name), strict=True)
    assert report["errors"] == []
    assert [found["error"] for found in report["messages"]] == ["icon is recommended"]
    objects = plain(name).objects
    for version in VERSIONS:
        for found in objects:
            validate(found, version)
    names = [(found["kind"], found["metadata"]["name"]) for found in objects]
    assert len(set(names)) == len(names)
    assert {found["metadata"]["labels"]["app.kubernetes.io/instance"] for found in objects} == {"fomo"}


def test_the_versions_are_that_of_the_newest_release() -> None:
    newest = re.findall(r"^## \[([\d.]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert chart().metadata["version"] == chart().metadata["appVersion"] == newest
    assert chart().metadata["kubeVersion"].startswith(f">={VERSIONS[0]}.")


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
        secret = r"^\W*(sasl|ssl|basic|bearer)[\w.]*(password|secret|pem|user.info|token)"
        assert not re.search(secret, "".join(config["data"].values()), re.M)


@every_set
def test_pods_run_without_privileges_and_cannot_ask_the_api_server(name: str) -> None:
    found = plain(name)
    for spec in found.pod_specs():
        assert spec["automountServiceAccountToken"] is False
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
    assert not {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"} & {one["kind"] for one in found.objects}
    for account in found.all("ServiceAccount"):
        assert account["metadata"]["name"] == found.pod["spec"]["serviceAccountName"]
        assert account["automountServiceAccountToken"] is False


def test_the_address_of_the_port_can_be_that_of_ipv6() -> None:
    found = rendered("everything", service={"host": "::"})
    containers = [container for spec in found.pod_specs() for container in spec["containers"]]
    hosts = [one["value"] for container in containers for one in container["env"] if one["name"] == "FOMO_HTTP_HOST"]
    assert hosts == ["::"] * 4


def test_placement_annotations_and_labels_reach_every_pod() -> None:
    found = plain("everything")
    given = found.values
    pods = [one for one in found.objects if one["kind"] == "Pod"]
    pods += [one["spec"]["template"] for one in found.objects if one["kind"] in ("StatefulSet", "Deployment", "Job")]
    assert len(pods) == 4  # instances, notify, the check before an upgrade, the test
    for pod in pods:
        assert pod["spec"]["affinity"] == given["affinity"]
        assert pod["spec"]["priorityClassName"] == given["priorityClassName"]
        assert given["podAnnotations"].items() <= pod["metadata"]["annotations"].items()
        assert given["podLabels"].items() <= pod["metadata"]["labels"].items()


# --- network


@every_set
def test_every_selector_finds_the_pods_of_the_service(name: str) -> None:
    found = plain(name)
    labels = found.pod["metadata"]["labels"].items()
    of_notify = [one["spec"]["template"]["metadata"]["labels"].items() for one in found.all("Deployment")]
    others = [*of_notify, *(pod["metadata"]["labels"].items() for pod in found.checks())]
    selectors = [found.one("StatefulSet")["spec"]["selector"]["matchLabels"], found.one("Service")["spec"]["selector"]]
    selectors += [budget["spec"]["selector"]["matchLabels"] for budget in found.all("PodDisruptionBudget")]
    spread = found.pod["spec"].get("topologySpreadConstraints", [])
    assert name == "minimal" or len(spread) == 2
    selectors += [one["labelSelector"]["matchLabels"] for one in spread]
    for selector in selectors:
        assert selector.items() <= labels
        assert not any(selector.items() <= other for other in others)
    for policy in found.all("NetworkPolicy"):
        pods = [labels, *others] if policy["metadata"]["name"] == NAME else of_notify
        assert all(policy["spec"]["podSelector"]["matchLabels"].items() <= pod for pod in pods)
    for monitor in found.all("ServiceMonitor"):
        service = found.one("Service", monitor["metadata"]["name"])
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert {e["port"] for e in monitor["spec"]["endpoints"]} <= {p["name"] for p in service["spec"]["ports"]}
    for deployment in found.all("Deployment"):
        service = found.one("Service", deployment["metadata"]["name"])
        for selector in (deployment["spec"]["selector"]["matchLabels"], service["spec"]["selector"]):
            assert selector.items() <= of_notify[0]
            assert not selector.items() <= labels
    assert found.one("StatefulSet")["spec"]["serviceName"] == found.one("Service")["metadata"]["name"]


def ports(rules: list[Object]) -> list[set[int]]:
    return [{port["port"] for port in rule["ports"]} for rule in rules]


@pytest.mark.parametrize(
    ("what", "address", "expected"),
    [
        ("bootstrap", "a:9093,b:9094, c:9093", {9093, 9094}),
        ("bootstrap", "kafka", {9092}),
        ("bootstrap", "SASL_SSL://kafka:9095", {9095}),
        ("url", "http://registry/apis:9/v7", {80}),
        ("url", "https://a:8081, https://b", {8081, 443}),
        ("url", "http://[2001:db8::1]:8082/", {8082}),
        ("alertmanager", "http://am/am,http://b:1", {443, 80, 1}),
    ],
)
def test_the_network_policy_lets_pods_reach_what_they_ask(what: str, address: str, expected: set[int]) -> None:
    given = {what: address}
    every: dict[str, tuple[Object, str, list[set[int]]]] = {
        "bootstrap": ({"settings": given}, NAME, [{53}]),
        "url": ({"registry": given}, NAME, [{53}, {9092}]),
        "alertmanager": (
            {"settings": {"alerts": "a"}, "notify": {"enabled": True, "settings": given}},
            f"{NAME}-notify",
            [],
        ),
    }
    changes, name, before = every[what]
    policy = rendered("default", **changes).one("NetworkPolicy", name)["spec"]
    assert ports(policy["egress"]) == [*before, expected]
    assert name != NAME or policy["policyTypes"] == ["Ingress", "Egress"]


def test_the_network_policy_opens_nothing_but_what_is_needed() -> None:
    policy = plain("default").one("NetworkPolicy")["spec"]
    assert ports(policy["ingress"]) == [{8080}]
    assert all("from" in rule for rule in policy["ingress"])
    without = rendered("default", networkPolicy={"ingressFrom": []})
    assert without.one("NetworkPolicy")["spec"]["ingress"] == []
    assert ports(without.one("NetworkPolicy")["spec"]["egress"]) == [{53}, {9092}]
    own = plain("everything").one("NetworkPolicy")["spec"]
    assert ports(own["ingress"]) == [{9000}]
    assert ports(own["egress"]) == [{53}, {9093, 9094}, {443, 8443}, {8443}]
    assert [rule["to"][0] for rule in own["egress"][1:3]] == [
        {"ipBlock": {"cidr": "10.0.0.0/8"}},
        {"ipBlock": {"cidr": "10.1.0.0/16"}},
    ]
    blind = rendered("everything", networkPolicy={"ingressFrom": []})
    assert "Prometheus cannot reach the pods" in blind.notes
