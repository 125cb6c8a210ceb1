"""What records say, and what is written about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_alerts import SAID, TIME, alert, closed, event, heard, rate, silent

from fomo_stream.errors import ConfigError, RecordError
from fomo_stream.notify.desk import Message
from fomo_stream.notify.events import Event, iso, key_of_field, key_text, read_event
from fomo_stream.notify.messages import TEMPLATES, Template, examples, facts
from fomo_stream.records.result_schema import as_written

# --- events


@pytest.mark.parametrize(
    ("result", "kind", "about", "is_first", "offset", "severity"),
    [
        (alert(7), "alert", "outlier", True, 7, "warning"),
        (alert(9, 7, "critical"), "alert", "outlier", False, 9, "critical"),
        (alert(7, incident_name=None), "alert", "outlier", True, 7, "warning"),
        (closed(7, 9, 3), "closed", "outlier", False, 9, "warning"),
        (silent(7), "silent", "silence", True, 7, "warning"),
        (heard(7, 90), "closed", "silence", False, 90, "warning"),
        (rate(7), "rate", "rate", True, 7, "critical"),
        ({**rate(7), "status": "closed"}, "closed", "rate", False, 7, "critical"),
    ],
)
def test_records_of_every_kind_are_understood(
    result: dict[str, Any], kind: str, about: str, is_first: bool, offset: int, severity: str
) -> None:
    found = event(result)
    assert (found.kind, found.about, found.is_first) == (kind, about, is_first)
    assert (found.offset, found.severity, found.topic) == (offset, severity, "sensors")
    assert found.timestamp == TIME + 1000 * offset
    assert found.key == result.get("key", "pump-7")


def test_a_record_of_a_file_is_named_by_its_line() -> None:
    assert event({"outlier": True, "incident": "12", "offset": 12}).is_first
    assert not event({"outlier": True, "incident": "12", "offset": 13}).is_first


def test_results_with_a_schema_say_the_same() -> None:
    said: dict[str, Any] = {
        "reasons": [*SAID["reasons"], {"feature": "state", "cause": "category", "value": "idle", "range": None}]
    }
    plain = event(alert(7, **said))
    assert event(as_written(alert(7, **said))) == plain
    assert [one["value"] for one in plain.facts()["reasons"]] == [9.0, "idle"]
    assert (plain.facts()["reasons"][0]["low"], plain.facts()["reasons"][1]["high"]) == (2.0, None)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "no_result"),
        ({"fomo": [1]}, "no_result"),
        ({"fomo": {"outlier": False, "status": "ok", "incident": "0-1"}}, "unknown_status"),
        ({"fomo": {"status": "strange", "incident": "0-1"}}, "unknown_status"),
        ({"fomo": {"status": ["closed"], "incident": "0-1"}}, "unknown_status"),
        ({"fomo": {"status": "closed"}}, "incomplete"),
        ({"fomo": {"outlier": True, "incident": 7}}, "incomplete"),
    ],
)
def test_what_says_nothing_of_an_incident_is_skipped_with_a_reason(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(RecordError) as raised:
        read_event(fields, "fomo", None)
    assert raised.value.reason == reason


ODD = (1 << 64, -(1 << 70), 10**400, 253_402_300_800_000, -1, 9e307, float("nan"))  # of years beyond 9999, too
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(ODD) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = [*alert(7), *closed(7, 9), *silent(7), *rate(7)]


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_a_number_that_nobody_expects_is_as_if_it_were_not_there_or_a_float(odd: Any) -> None:
    names = [*alert(7), "quiet_s", "records", "usual_gap_s"]
    reason = dict.fromkeys((*SAID["reasons"][0], "low", "text", "with"), odd)
    for name in names:
        if name not in ("outlier", "incident"):
            found = event({**alert(7), name: odd, "reasons": [reason]})
            assert text("default", Message("opened", found, found, 1))
            orjson.dumps(facts(Message("closed", found, found, 1)))
    assert event(alert(7, timestamp=odd)).timestamp is None
    place = {"timestamp": odd, "offset": 9}
    assert event({**closed(7, 9), "from": place, "to": place}).began is None


@given(
    base=st.sampled_from([alert(7), closed(7, 9), silent(7), rate(7), heard(7, 9)]),
    changes=st.dictionaries(st.sampled_from(NAMES), values),
    reason=st.dictionaries(st.sampled_from([*SAID["reasons"][0], "low", "text", "with"]), values),
)
def test_whatever_a_record_holds_it_is_skipped_or_gives_a_message(
    base: dict[str, Any], changes: dict[str, Any], reason: dict[str, Any]
) -> None:
    try:
        found = event({**base, "reasons": [reason], **changes})
    except RecordError:
        return
    for template in (Template("default"), Template("short")):
        text = template.text(Message("opened", found, found, 1))
        assert text.title.isprintable()
        assert all(line.isprintable() for line in text.body.splitlines())
        (text.title + text.body).encode()
    orjson.dumps(facts(Message("opened", found, found, 1)))
    assert isinstance(found.facts()["reasons"], list)


def test_keys_and_times_are_texts() -> None:
    assert [key_text(one) for one in (b"pump \xff", "a\nb", 7, None)] == ["pump �", "a b", "7", None]
    assert [key_of_field({"a": {"b": 3}, "a.c": "x"}, path) for path in ("a.b", "a.c", "a", "a.b.c")] == [
        "3",
        "x",
        None,
        None,
    ]
    assert [iso(one) for one in (0, 1_760_000_000_123, None, 1 << 62)] == [
        "1970-01-01T00:00:00Z",
        "2025-10-09T08:53:20Z",
        None,
        None,
    ]


# --- messages


def text(source: str, message: Message, link: str | None = None) -> str:
    return "\n".join(Template(source, link).text(message))


def test_the_default_message_of_an_opening_says_all_that_one_needs() -> None:
    opened = event(alert(7, severity="critical"))
    assert text("default", Message("opened", opened, opened, 1), "http://status") == (
        "CRITICAL: outlier in sensors pump-7\n"
        "flow is 9, usually 3 (2 to 4)\n"
        "- flow: 9, expected 3.1, usually 3 (2 to 4)\n"
        "Record: sensors[0]@7 at 2025-10-09T08:53:27Z\n"
        "Incident: 0-7\n"
        "http://status"
    )


def test_the_default_message_of_an_end_says_how_long_it_was() -> None:
    first, last = event(alert(7)), event(closed(7, 607, 30))
    assert text("default", Message("closed", last, first, 30)) == (
        "ENDED: outlier in sensors pump-7 after 10 min\n"
        "flow is 9, usually 3 (2 to 4)\n"
        "Alerts: 30\n"
        "From 2025-10-09T08:53:27Z to 2025-10-09T09:03:27Z\n"
        "Incident: 0-7"
    )


def test_a_message_of_several_lists_them() -> None:
    events = [event(alert(n), f"pump-{n}") for n in range(30)]
    held = (Message("closed", event(closed(40, 41), "pump-40"), None, 1), *(Message("opened", e, e, 1) for e in events))
    message = Message("several", events[-1], events[-1], len(held), held)
    lines = text("default", message).splitlines()
    assert lines[0] == "WARNING: 31 incidents in sensors"
    assert lines[1] == "- warning, ended: pump-40: flow is 9, usually 3 (2 to 4)"
    assert lines[-1] == "- and 11 more"
    assert len(lines) == 22
    assert message.id == "several:sensors:0-40:closed:1:31"


def test_silences_say_since_when_and_for_how_long() -> None:
    opened, ended = event(silent(7)), event(heard(7, 907))
    assert "WARNING: silence in sensors s-17\nno record of key s-17 for 75 s" in text(
        "default", Message("opened", opened, opened, 1)
    )
    assert text("default", Message("closed", ended, opened, 1)).startswith(
        "ENDED: silence in sensors s-17 after 15 min"
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_default_text_has_holes(name: str) -> None:
    for message in examples():
        found = text(name, message, "http://status")
        assert "None" not in found
        assert "  " not in found


def test_texts_of_records_are_no_template_and_no_html() -> None:
    odd = event(alert(7, explanation="{{ 7 * 7 }} <b>&amp;"), "{% for %}")
    found = text("default", Message("opened", odd, odd, 1))
    assert "{{ 7 * 7 }} <b>&amp;" in found
    assert "{% for %}" in found


CALLS = (
    "@everyone",
    "<!channel>",
    "<@U123>",
    "<@&123>",
    "<#C1>",
    "<https://x.example|y>",
    "mailto://",
    "www.x.example",
)


@pytest.mark.parametrize("call", CALLS)
def test_what_others_wrote_calls_nobody_and_is_no_link_and_can_still_be_read(call: str) -> None:
    reasons = [{"feature": call, "cause": "value", "value": f"pump-7 {call}", "with": call}]
    odd = event(alert(7, explanation=f"{call} is 9", topic=call, reasons=reasons), f"pump-7\x1b[2J\u202e {call}")
    one = Message("opened", odd, odd, 1)
    for message in (one, Message("several", odd, odd, 2, (one, one)), Message("closed", odd, odd, 1)):
        for name in TEMPLATES:
            found = text(name, message, "https://status.example/@now")
            assert call not in found
            assert "\x1b" not in found
            assert "\u202e" not in found
            assert name == "short" or "https://status.example/@now" in found, "what the operator has given stays"
    assert "pump-7" in text("default", one)
    assert facts(one)["key"].endswith(call), "programs get the key as it is"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ explanatoin }}", "line 1: 'explanatoin' is undefined; did you mean explanation?"),
        (
            "a\n{% for r in reasons %}\n{{ r.vlaue }}{% endfor %}",
            "line 3: 'dict object' has no attribute 'vlaue'; did you mean value?",
        ),
        ("a\n{{ key }", "line 2: unexpected '}'"),
        ("a {{ xyzzy }}", "'xyzzy' is undefined; names are id, kind, about"),
        ("a {{ ().__class__.__mro__ }}", "line 1: access to attribute '__class__'"),
        ("a {{ reasons.append(1) }}", "line 1"),
        ("a {{ 1 / 0 }}", "line 1: ZeroDivisionError"),
        ("{% if kind == 'several' %}a{% endif %}", "the first line, which is the title, is empty"),
        ("a {{ alerts | nosuch }}", "line 1: No filter named 'nosuch'"),
        ("a {% include 'other' %}", "line 1"),
    ],
)
def test_a_bad_template_is_refused_with_file_line_and_near_match(source: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "own.j2"
    path.write_text(source)
    with pytest.raises(ConfigError) as raised:
        Template(str(path))
    assert str(raised.value).startswith(f"--template {path}")
    assert words in str(raised.value)


def test_an_own_template_is_used_and_where_it_fails_the_default_is(tmp_path: Path) -> None:
    path = tmp_path / "own.j2"
    path.write_text("{{ severity }} {{ key or '' }}\n{{ 7 // (alerts - 99) }} of {{ incident }}\n")
    own, opened = Template(str(path)), event(alert(7))
    assert own.text(Message("opened", opened, opened, 1)) == ("warning pump-7", "-1 of 0-7")
    assert own.text(Message("updated", opened, opened, 99)) == Template("default").text(
        Message("updated", opened, opened, 99)
    )
    for bad, words in ((b"\xff", "not UTF-8"), (b"a" * 200_000, "longer than")):
        path.write_bytes(bad)
        with pytest.raises(ConfigError, match=words):
            Template(str(path))


def test_facts_of_every_kind_have_the_same_names() -> None:
    names = {tuple(facts(message)) for message in examples()}
    assert len(names) == 1
    assert all(isinstance(message.event, Event) for message in examples())


def test_the_end_of_alerts_stays_one_where_a_schema_gives_all_fields() -> None:
    """Read by a schema, every field is there, without a value."""
    empty = dict.fromkeys(("of", "quiet_s", "usual_gap_s", "records_per_minute", "usual_per_minute"))
    assert event(empty | closed(1, 9)).about == "outlier"
    assert event(empty | heard(1, 9)).about == "silence"
