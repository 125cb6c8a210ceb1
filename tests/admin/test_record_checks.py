"""What `fomo-stream doctor` says about the first records of a topic: it recognises what other tools write."""

from __future__ import annotations

import json
import random
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recipes import FEATURES, RECIPES, flags_of, messages

from fomo_stream.admin.deployment_checks import Facts
from fomo_stream.admin.doctor import BROKER_CHECKS, as_text
from fomo_stream.cli.parser import parse
from fomo_stream.kafka.decoding import Decoder
from fomo_stream.kafka.topics.checks import Finding
from fomo_stream.partition.record import Record
from fomo_stream.records.envelopes import envelope_of
from fomo_stream.records.inference import choose_features, key_of, roles_of
from fomo_stream.records.json_codec import JsonCodec
from fomo_stream.records.schema import look_up
from fomo_stream.records.times import to_milliseconds
from fomo_stream.settings.commands import DoctorSettings, ScoreSettings

N, BEGIN_MS = 300, 1_790_000_000_000
NAMES = ["name", "tags", "time", "type", "data", "op", "value", "source", "id", "before", "schema", "gauge", "ts_ms"]
Values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=4), inner),
    max_leaves=8,
)


def found(values: Iterable[Any], keys: Sequence[bytes | None] = (), **given: Any) -> list[Finding]:
    """Return the findings about records of these contents, one a second, in two partitions."""
    settings = DoctorSettings(**{"topic": "t", **given})
    decoder = Decoder(JsonCodec("fomo", False, 1 << 20), settings.key)
    first = []
    for i, value in enumerate(values):
        content = json.dumps(value).encode() if isinstance(value, Mapping) else value
        key = keys[i] if keys else None
        item = decoder.receive(Record("t", i % 2, i, BEGIN_MS + 1000 * i, key, content, []), 0.0)
        first += [item] if item is not None else []
    first.sort(key=lambda item: item.record.partition)
    return list(BROKER_CHECKS["records"](settings, Facts(first=first)))


def advice(findings: Iterable[Finding]) -> list[str]:
    """Return the flags that the findings name."""
    named = [match[1] for one in findings if (match := re.search(r"\badd (--.*?)(;|, so|$)", one.remedy))]
    return shlex.split(" ".join(named))


@pytest.mark.parametrize("tool", FEATURES)
def test_the_flags_of_the_recipe_are_named_and_yield_its_features(tool: str) -> None:
    records = messages(tool, N)
    first, *others = found(records)
    assert first.what.startswith(f"{N} of {N} records are ")
    assert first.remedy.endswith(f"; see docs/recipes.md#{tool.lower().replace(' ', '-')}")
    flags = advice([first])
    assert sorted(flags) == sorted(flags_of(tool))
    assert [one.level for one in others] == ["ok"]
    flags = [word for word in flags if word not in ("--tombstones", "skip")]
    settings = parse(ScoreSettings, ["-", *flags])
    schema, _ = choose_features(settings, "jsonl", records, tool, roles_of(settings), lambda _: None)
    assert schema.features == FEATURES[tool]
    assert all(key_of(record, settings.key) is not None for record in records)
    times = [to_milliseconds(look_up(record, settings.time or "")) for record in records]
    assert all(one is not None and 1.7e12 < one < 2e12 for one in times)
    given = parse(DoctorSettings, ["--topic", "t", *flags_of(tool)]).model_dump(exclude_unset=True)
    assert {one.level for one in found(records, **given)} == {"ok"}  # nothing is left to say


OPTIONAL = {
    "Telegraf": ("tags",),
    "Vector": ("tags", "timestamp", "namespace"),
    "Debezium": ("before", "source"),
    "CloudEvents": ("id", "subject", "time", "datacontenttype", "data"),
}


@given(st.sampled_from(list(FEATURES)), st.dictionaries(st.text(max_size=9), Values, max_size=4), st.randoms())
def test_other_fields_and_another_order_change_no_envelope(tool: str, more: dict[str, Any], rng: random.Random) -> None:
    message, _ = RECIPES[tool]
    fields = list({**more, **message}.items())
    rng.shuffle(fields)
    envelope = envelope_of(message)
    assert envelope is not None
    assert envelope.heading == tool
    assert envelope_of(dict(fields)) == envelope
    fewer = envelope_of({name: value for name, value in fields if name not in OPTIONAL.get(tool, ())})
    assert fewer is not None
    assert fewer.heading == tool


@given(st.lists(st.dictionaries(st.sampled_from(NAMES), st.floats(0, 9) | st.sampled_from(["c", "pump"]), max_size=8)))
def test_plain_records_have_no_envelope(records: list[dict[str, Any]]) -> None:
    assert all(envelope_of(record) is None for record in records)
    assert not any("recipes.md" in one.remedy for one in found(records))


@settings(max_examples=12)
@given(
    st.sampled_from(sorted(FEATURES)),
    st.lists(Values, min_size=1, max_size=4),
    st.lists(st.binary(max_size=30) | st.none() | st.dictionaries(st.sampled_from(NAMES) | st.text(), Values)),
    st.integers(0, 9),
)
def test_hostile_records_stop_nothing_and_change_no_terminal(
    tool: str, values: list[Any], others: list[Any], seed: int
) -> None:
    rng = random.Random(seed)

    def broken(node: dict[str, Any]) -> dict[str, Any]:
        return {
            name: rng.choice(values) if rng.random() < 0.2 else broken(value) if isinstance(value, dict) else value
            for name, value in node.items()
        }

    findings = found([*(broken(record) for record in messages(tool, 60)), *others])
    assert findings
    assert all(line.isprintable() for line in as_text({"records": findings}).split("\n"))


def test_a_topic_of_several_tools_has_shares() -> None:
    rng = random.Random(0)
    one_odd = found([*({"temp": rng.gauss(20, 1)} for _ in range(99)), *messages("Telegraf", 1)])
    assert {one.level for one in one_odd} == {"ok"}
    assert any("1 of 100 records have no value of any feature" in one.what for one in one_odd)
    records = [*messages("Telegraf", 60), *messages("CloudEvents", 30), *({"temp": 20.0 + i} for i in range(10))]
    first, *_ = found(records)
    assert first.what == "60 of 100 records are metrics of Telegraf, 30 CloudEvents, 10 others"
    assert first.remedy.startswith("give each kind a topic of its own")
    assert advice([first]) == flags_of("Telegraf")
    few, *_ = found([*messages("Telegraf", 40), *messages("CloudEvents", 30), *messages("Vector", 30)])
    assert advice([few]) == []


def test_what_cannot_be_read_says_what_to_do() -> None:
    (batches,) = found([{"resourceMetrics": [{"scopeMetrics": []}]}] * 9)
    assert batches.level == "problem"
    assert "docs/recipes.md#what-is-not-read" in batches.remedy
    documents = [{"op": "c", "after": '{"amount": 1}', "ts_ms": 1_790_000_000_000 + i} for i in range(60)]
    assert [(one.level, "60 records are changes of Debezium" in one.what) for one in found(documents)] == [
        ("problem", True)
    ]
    (only,) = found([b"[1]", b"[]"])
    assert only.what.startswith("2 of 2 records cannot be read (not_an_object: 2)")
    unreadable, *_ = found([b"[1]", b"\xff", None, b'{"a": 1}'], tombstones="skip")
    assert unreadable.what.startswith("2 of 4 records cannot be read (not_an_object: 1, not_utf8: 1)")


def test_numbers_in_tags_are_excluded_and_buckets_are_reported() -> None:
    records = messages("Telegraf", 60)
    for i, record in enumerate(records):
        record["tags"]["le"] = ("0.1", "0.5", "+Inf")[i % 3]
        record["name"] = ("cpu", "mem")[i % 2]
    findings = found(records)
    assert any("2 different values in name" in one.what for one in findings)
    assert advice(findings)[-2:] == ["--exclude", "tags"]
    assert any("60 of 60 records are buckets of histograms (limits in tags.le)" in one.what for one in findings)


def sensors(n: int, **changes: Any) -> list[dict[str, Any]]:
    rng = random.Random(1)
    return [
        {"device": f"d-{i % 6}", "temp": rng.gauss(20, 1), "load": rng.random(), "at": BEGIN_MS // 1000 + i, **changes}
        for i in range(n)
    ]


def test_records_show_a_key_a_time_counters_and_numbers_for_missing_values() -> None:
    records = sensors(N)
    assert advice(found(records)) == ["--key", "device"]  # the time is that of the records
    keyed = [record["device"].encode() for record in records]
    assert advice(found(records, keyed)) == []
    assert advice(found(records, [str(i).encode() for i in range(N)])) == ["--key", "device"]
    late = [{**record, "at": record["at"] - 7200} for record in records]
    assert advice(found(late, keyed)) == ["--time", "at"]
    born = [{**record, "at": f"{1950 + 7 * i % 60}-01-01"} for i, record in enumerate(records)]
    assert advice(found(born, keyed)) == []
    marked = [{**record, "temp": -999 if i % 20 == 3 else record["temp"]} for i, record in enumerate(records)]
    assert advice(found(marked, keyed)) == ["--missing-values", "temp=-999"]
    assert advice(found(marked, keyed, missing_values="temp=-999")) == []
    rng = random.Random(2)
    totals = dict.fromkeys(keyed, 0)
    counting = []
    for record, key in zip(records, keyed, strict=True):
        totals[key] += rng.randint(1, 9)
        counting.append({**record, "pieces": totals[key]})
    assert advice(found(counting, keyed)) == []  # recognised by the service
    assert advice(found(counting, keyed, features="temp,pieces")) == ["--counters", "pieces"]
    of_all = [{"temp": record["temp"], "pieces": 3 * i + rng.randint(0, 2)} for i, record in enumerate(records)]
    unique = [str(i).encode() for i in range(N)]
    assert advice(found(of_all, unique, features="temp,pieces")) == ["--counters", "pieces"]


def test_settings_that_name_no_field_are_reported() -> None:
    findings = found(sensors(N), features="temp,lod", key="devise", time="when")
    assert {one.remedy for one in findings} == {"", "did you mean load?", "did you mean device?", "check --time"}


@given(st.text(min_size=20, max_size=30), st.sampled_from(sorted(FEATURES)))
def test_no_value_of_a_record_is_shown(secret: str, tool: str) -> None:
    records = messages(tool, 60)
    for record in (*records, *sensors(60)):
        record["note"] = secret
    assert not any(secret in f"{one.what}{one.remedy}" for one in found(records))
