"""The values of the Helm chart: their schema and documentation, and the settings that the program reads from them."""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml
from charts import (
    CHART,
    NAME,
    ROOT,
    VALUES,
    VERSIONS,
    Object,
    Rendered,
    StrictLoader,
    chart,
    environment,
    every_set,
    plain,
    rendered,
    settings_of,
    validate,
)
from documents import Document, table_rows
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fomo_stream.kafka.registry.client import RegistryClient
from fomo_stream.settings.flags import RESERVED_KAFKA_KEYS
from fomo_stream.settings.notify import NotifySettings
from fomo_stream.settings.removed import RENAMED
from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.sources import SECTIONS, load
from fomo_stream.settings.topic_selection import TopicCatalog

BY_CHART = {
    "config",
    "device",
    "instance_id",
    "health_port",
    "http_host",
    "kafka",
    "processes",
    "registry",
    "reset_state",
}
# The chart explains mistakes in these, or leaves that to the program.
IN_TEMPLATES = {"topic", "bootstrap", "group", "out", "alerts", "dead_letters", "feedback", "rules", "maintenance"}
# Numbers that are also written as texts: 5x; a table that is also written as a text: a=1,b=2.
TEXTS: Object = {
    "silence": {"type": ["number", "string", "null"], "pattern": "^ *[0-9]+(\\.[0-9]*)? *x? *$"},
    "missing_values": {"type": ["array", "object", "string", "null"], "items": {"type": "string"}},
}

LABEL = st.from_regex(r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)  # a name of Kubernetes
TOPIC = st.from_regex(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,30}", fullmatch=True)


def expected(field: Object) -> Object:
    """The schema of a setting, as pydantic has it; null is the default."""
    field = next((one for one in field.get("anyOf", []) if one["type"] != "null"), field)
    if field["type"] == "array":
        return {"type": ["array", "string", "null"], "items": {"type": "string"}}
    words = ("type", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength")
    found = {word: field[word] for word in words if word in field}
    return found | {"type": [field["type"], "null"]} | ({"enum": [*field["enum"], None]} if "enum" in field else {})


def listed(name: str) -> set[str]:
    """A list of names in the template that validates the values."""
    text = (CHART / "templates" / "_validate.tpl").read_text()
    return set(re.findall(r'"([\w.-]+)"', text.partition(f"${name} := list")[2].partition("-}}")[0]))


def test_the_schema_has_the_settings_of_the_program_with_their_limits() -> None:
    fields = ServiceSettings.model_json_schema()["properties"]
    settings = chart().schema["properties"]["settings"]["properties"]
    assert set(settings) - RENAMED.keys() - {SECTIONS} == {name.replace("_", "-") for name in fields.keys() - BY_CHART}
    assert listed("known") == set(settings)
    assert listed("reserved") == RESERVED_KAFKA_KEYS.keys()
    for name in fields.keys() - BY_CHART - IN_TEMPLATES:
        assert settings[name.replace("_", "-")] == expected(fields[name]) | TEXTS.get(name, {}), name
    for old, new in RENAMED.items():
        assert {**settings[old], "$comment": ""} == {**settings[new.replace("_", "-")], "$comment": ""}


OWN_LABELS = sorted(plain("default").pod["metadata"]["labels"])  # selectors need some of them

REGISTRY_SECRETS = ("basic.auth.user.info", "bearer.auth.token", "bearer.auth.client.secret", "ssl.key.password")


def registry(**changes: Any) -> Object:
    return {"registry": {"url": "http://registry:8081", **changes}}


BAD: list[tuple[Object, str]] = [
    *((one["values"], one["message"]) for one in yaml.load((VALUES.parent / "refused.yaml").read_text(), StrictLoader)),
    ({"kafka": {"settings": {"group.id": "x"}}}, "group.id cannot be set"),
    *((registry(settings={key: "x"}), f"FOMO_REGISTRY_{key.upper().replace('.', '_')}") for key in REGISTRY_SECRETS),
    *(({"podLabels": {label: "x"}}, f"invalid propertyName '{label}'") for label in OWN_LABELS),
]


@pytest.mark.parametrize("memory", ["1Gi", 1073741824, "1.5e9", "1.0e12m", None])
def test_every_way_to_write_a_sufficient_limit_is_accepted(memory: Any) -> None:
    found = rendered("default", resources={"requests": {"memory": "1000M"}, "limits": {"memory": memory}})
    assert ("memory" in found.container["resources"]["limits"]) == (memory is not None)


@pytest.mark.parametrize(("changes", "message"), BAD, ids=lambda part: json.dumps(part)[:60])
def test_bad_values_are_refused_with_a_message(changes: Object, message: str) -> None:
    with pytest.raises(helm_python.HelmError) as caught:
        rendered("default", **changes)
    assert message in str(caught.value)


# --- null


Keys = tuple[str, ...]


def leaves(schema: Object, path: Keys = ()) -> Iterator[tuple[Keys, Object, bool]]:
    """Every value of the chart: its path, its schema, and whether it is required."""
    for name, inner in schema["properties"].items():
        if name == "global":  # of Helm, not of this chart
            continue
        if "$ref" in inner:
            inner = chart().schema["definitions"][inner["$ref"].rpartition("/")[2]]
        yield (*path, name), inner, name in schema.get("required", [])
        if inner.get("additionalProperties") is False:
            yield from leaves(inner, (*path, name))


def nested(path: Keys, value: Any) -> Object:
    for name in reversed(path):
        value = {name: value}
    found: Object = value
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["default", "everything", "tls"])
def test_null_gives_valid_objects_or_a_message(name: str) -> None:
    """Objects are valid, a required value is named, or two values do not go together."""
    usual = plain(name).objects  # which `test_chart.py` validates
    for path, _, is_required in leaves(chart().schema):
        try:
            objects = rendered(name, **nested(path, None)).objects
        except helm_python.HelmError as error:
            message = f"missing property '{path[-1]}'" if is_required else r"^execution error at .*(is required|needs)"
            assert re.search(message, str(error)), (path, error)  # noqa: PT017 (it may also give objects)
            continue
        assert not is_required, path
        for found in objects:
            if found not in usual:
                validate(found, VERSIONS[0])


def test_a_setting_of_null_has_the_default_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = chart().schema["properties"]["settings"]["properties"].keys() - {"topic", "bootstrap"}
    nulls = settings_of(rendered("default", settings=dict.fromkeys(names)), tmp_path, monkeypatch)
    assert nulls == settings_of(plain("default"), tmp_path, monkeypatch)


# --- the program


@given(namespace=LABEL, release=LABEL, topic=TOPIC, other=st.tuples(LABEL, LABEL, TOPIC))
@example(namespace="a-b", release="c", topic="t", other=("a", "b-c", "t"))
@example(namespace="n" * 63, release="r" * 50, topic="t" * 200, other=("n" * 63, "r" * 50, "t" * 199 + "u"))
@settings(max_examples=4)
def test_no_two_releases_of_a_cluster_share_a_group_unless_they_say_so(
    namespace: str, release: str, topic: str, other: tuple[str, str, str]
) -> None:
    def group(namespace: str, release: str, topic: str) -> str:
        values = {"fullnameOverride": release, "settings": {"topic": topic, "bootstrap": "kafka:9092"}}
        config = Rendered(values, "fomo", namespace).one("ConfigMap", release)
        return str(tomllib.loads(config["data"]["fomo.toml"])["group"])

    own = group(namespace, release, topic)
    assert re.fullmatch(r"[a-zA-Z0-9._-]+", own)
    assert len(f"{own}-{topic}-state") <= 249
    assert (own == group(*other)) == ((namespace, release, topic) == other)


@every_set
def test_the_program_reads_the_settings_that_were_given(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = plain(name)
    settings = settings_of(found, tmp_path, monkeypatch)
    given = found.values["settings"]
    for key, value in given.items():
        if (key, value) == ("group", ""):  # its default is tested below
            continue
        read = getattr(settings, key.replace("-", "_"))
        assert read == ((value,) if key == "views" else tuple(value) if isinstance(value, list) else value), key
    assert settings.group == (given["group"] or f"scoring.{NAME}.{given['topic']}")
    assert f"as group {settings.group}\n" in found.notes
    assert settings.instance_id == f"{NAME}-0"
    assert settings.http_host == "0.0.0.0"
    assert settings.health_port == found.container["ports"][0]["containerPort"] == found.values["service"]["port"]
    assert settings.device == ("cuda" if found.values["gpu"]["enabled"] else "auto")


NOTHING: Object = {}
SEVERAL: list[tuple[Object, list[str], str]] = [  # settings, the topics that they select, the group of the first
    ({"topic": "a, b.c"}, ["a", "b.c"], f"scoring.{NAME}.a"),
    ({"topic": "^p{1,3}-,a", "group": "{topic}-g"}, ["a", "pp-1"], "a-g"),
    ({"topic": "", "topics": {"b": None, "a": {"key": "k", "alert-rate": 0.001}}}, ["a", "b"], f"scoring.{NAME}.a"),
    ({"topic": "a", "topics": {"a": {"group": "old", "out": "{topic}-o"}, "b": NOTHING}}, ["a"], "old"),
    ({"topic": "a,b", "topics": {"^[a-b]\\w*$": {"rules": [{"name": 'r "1"', "ignore": 2.5}]}}}, ["a", "b"], ""),
]


@pytest.mark.parametrize(("given", "topics", "group"), SEVERAL, ids=lambda part: json.dumps(part)[:60])
def test_the_program_reads_several_topics_and_their_sections(
    given: Object, topics: list[str], group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = {"settings": {"linger.ms": 5}}
    found = rendered("default", settings={"alerts": "pages", **given}, kafka=kafka)
    for name, value in environment(found, tmp_path).items():
        monkeypatch.setenv(name, value)
    catalog = TopicCatalog(ServiceSettings, {})
    catalog.check()
    selected, errors = catalog.topics(["pp-1", "pp-1-scores", "other"])
    assert (sorted(selected), errors) == (topics, {})
    assert selected["a"].group == group or not group
    for topic, read in selected.items():
        sections = given.get("topics", {})
        own = sections.get(topic) or next((sections[name] for name in sections if name[0] == "^"), NOTHING)
        for key, value in own.items():
            wanted = value.replace("{topic}", topic) if isinstance(value, str) else value
            assert key == "rules" or getattr(read, key.replace("-", "_")) == wanted
        assert [rule.name for rule in read.all_rules] == [rule["name"] for rule in own.get("rules", [])]
        assert (read.alerts, read.kafka["linger.ms"]) == ("pages", "5")
    assert f"reads {given['topic'] or 'a,b'} from" in found.notes


def test_a_topic_keeps_its_group_when_the_release_gets_more_topics() -> None:
    alone, among = (tomllib.loads(rendered("default", settings={"topic": t}).toml)["group"] for t in ("a", "a,b"))
    assert among.replace("{topic}", "a") == alone
    named = {"out": "{topic}-o", "alerts": "al-{topic}", "feedback": "f-{topic}", "group": "g-{topic}"}
    objects = [rendered("everything", settings={**named, "topic": "s"}, notify={"enabled": False}).objects]
    plain_names = {name: text.replace("{topic}", "s") for name, text in named.items()}
    objects += [rendered("everything", settings={**plain_names, "topic": "s"}, notify={"enabled": False}).objects]
    one, other = ([one for one in each if one["apiVersion"].startswith("kafka.strimzi")] for each in objects)
    assert one == other


def test_keda_looks_at_the_lag_of_each_topic() -> None:
    topics = {"b": {"group": "old", "start": "latest"}, "c": None}
    found = rendered("tls", settings={"topic": "a,b", "topics": topics, "group": None})
    triggers = found.one("ScaledObject")["spec"]["triggers"]
    read = [[one["metadata"][key] for key in ("topic", "consumerGroup", "offsetResetPolicy")] for one in triggers]
    assert read == [["a", f"scoring.{NAME}.a", "earliest"], ["b", "old", "latest"]]
    assert all(one["authenticationRef"] == {"name": NAME} for one in triggers)


def test_notify_reads_its_settings_by_a_file_and_its_targets_by_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = plain("everything")
    deployment, name = found.all("Deployment")[0], f"{NAME}-notify"
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["notify"]
    config = found.one("ConfigMap", name)["data"]
    for file, text in config.items():
        (tmp_path / file).write_text(text)
    monkeypatch.setenv("FOMO_KAFKA_SASL_PASSWORD", "x")
    settings = load(NotifySettings, {"config": str(tmp_path / "fomo.toml")})
    assert (settings.alerts, settings.group, settings.per_hour) == ("pages", "Sensors_1-notify", 20)
    assert settings.alertmanager == ("http://alertmanager:9093",)
    assert settings.bootstrap == "kafka.kafka.svc:9093"
    assert settings.kafka["security.protocol"] == "SASL_SSL"
    assert settings.registry["bearer.auth.credentials.source"] == "STATIC_TOKEN"
    by_secret = {one["name"]: one["valueFrom"]["secretKeyRef"] for one in container["env"] if "valueFrom" in one}
    for setting in ("to", "webhook", "alertmanager"):
        assert by_secret[f"FOMO_{setting.upper()}"] == {"name": "targets", "key": setting, "optional": True}
    egress = found.one("NetworkPolicy", name)["spec"]["egress"]
    assert [{port["port"] for port in rule["ports"]} for rule in egress] == [{443, 9093}]
    known = NotifySettings.model_fields.keys() - {"webhook", "to"}
    assert {one.replace("-", "_") for one in listed("ofNotify")} <= known


def test_the_program_reads_the_settings_of_both_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(plain("tls"), tmp_path, monkeypatch)
    assert settings.kafka == {
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
    assert settings.registry == {
        "url": "https://registry.kafka.svc:8081/apis/ccompat/v7",
        "timeout": "10",
        "basic.auth.user.info": "fomo:secret password",
        "ssl.ca.location": "/etc/fomo/registry/ca/ca.crt",
        "ssl.certificate.location": "/etc/fomo/registry/client/tls.crt",
        "ssl.key.location": "/etc/fomo/registry/client/tls.key",
        "ssl.key.password": "secret tls.password",
    }


def test_the_program_reads_a_user_and_a_token_for_the_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = settings_of(plain("everything"), tmp_path, monkeypatch).registry
    assert token == {
        "url": "https://a.example.com,https://b.example.com:8443/",
        "bearer.auth.credentials.source": "STATIC_TOKEN",
        "bearer.auth.token": "secret token",
        "bearer.auth.logical.cluster": "lsrc-1",
        "bearer.auth.identity.pool.id": "pool-1",
    }
    RegistryClient(token)  # which takes them
    monkeypatch.delenv("FOMO_REGISTRY_BEARER_AUTH_TOKEN")
    user = rendered("default", **registry(auth={"existingSecret": "s", "usernameKey": "user"}))
    found = settings_of(user, tmp_path, monkeypatch).registry
    assert found == {"url": "http://registry:8081", "basic.auth.user.info": "secret user:secret password"}
    assert "registry crosses the network without encryption" in user.notes


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


def test_other_settings_restart_the_pods_and_other_values_do_not() -> None:
    def checksum(**changes: Any) -> str:
        return str(rendered("default", **changes).pod["metadata"]["annotations"]["checksum/config"])

    assert checksum() != checksum(settings={"alert-rate": 0.5})
    assert checksum() != checksum(kafka={"settings": {"linger.ms": 1}})
    assert checksum() == checksum(replicas=3, keda={"lagThreshold": 5})


# --- documentation

KUBERNETES = Document.read(ROOT / "deploy" / "README.md").section("Kubernetes")


def test_the_chart_takes_what_the_pages_write_in_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [Document.read(page) for page in sorted((ROOT / "docs").glob("*.md"))]
    texts = [block.code for page in pages for block in page.blocks if block.language == "yaml"]
    assert "silence: 5x" in "".join(texts)
    for text in texts:
        given = yaml.safe_load(text)
        by_chart = settings_of(rendered("default", settings=given), tmp_path, monkeypatch)
        monkeypatch.undo()
        (tmp_path / "own.yaml").write_text(text)
        own = load(ServiceSettings, {"bootstrap": "kafka:9092", "topic": "sensors", "config": tmp_path / "own.yaml"})
        for name in given.keys() - {SECTIONS}:
            field = name.replace("-", "_")
            assert getattr(by_chart, field) == getattr(own, field), name


def test_the_documented_values_exist_with_their_defaults() -> None:
    defaults = chart().values
    for cells in table_rows(KUBERNETES.prose):
        for path in re.findall(r"`([\w.]+)`", cells[0]):
            value = functools.reduce(lambda found, name: found[name], path.split("."), defaults)
            if shown := re.fullmatch(r"`(.*)`", cells[1]):
                assert str(value).lower() == shown[1], path
