"""What records say, and what is written about it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_alerts import SAID, alert, closed, event, heard, silent

from fomo_stream.errors import RecordError
from fomo_stream.notify.events import Event, iso_text, key_of_field, printable_key, read_event
from fomo_stream.notify.messages import MessageKind, held_message, message_of

# --- events


def test_a_record_of_a_file_is_named_by_its_line() -> None:
    assert event({"outlier": True, "incident": "12", "offset": 12}).is_first
    assert not event({"outlier": True, "incident": "12", "offset": 13}).is_first


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "no_result"),
        ({"fomo": [1]}, "no_result"),
        ({"fomo": {"outlier": False, "status": "ok", "incident": "0-1"}}, "unknown_status"),
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
NAMES = [*alert(7), *closed(7, 9), *silent(7)]


def test_a_time_that_nobody_expects_is_as_if_it_were_not_there() -> None:
    for odd in ODD:
        assert event(alert(7, timestamp=odd)).timestamp is None, odd
        place = {"timestamp": odd, "offset": 9}
        assert event({**closed(7, 9), "from": place, "to": place}).began is None, odd


@given(
    base=st.sampled_from([alert(7), closed(7, 9), silent(7), heard(7, 9)]),
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
    for kind in ("opened", "closed"):
        assert all(line.isprintable() for line in text(kind, found).split("\n"))
        text(kind, found).encode()
        orjson.dumps(message_of(kind, found).facts)
    assert isinstance(found.facts["reasons"], list)


def test_keys_and_times_are_texts() -> None:
    assert [printable_key(one) for one in (b"pump \xff", "a\nb", 7, None)] == ["pump �", "a b", "7", None]
    found = [key_of_field({"a": {"b": 3}, "a.c": "x"}, path) for path in ("a.b", "a.c", "a", "a.b.c")]
    assert found == ["3", "x", None, None]
    assert [iso_text(one) for one in (0, 1_760_000_000_123)] == ["1970-01-01T00:00:00Z", "2025-10-09T08:53:20Z"]


# --- messages


def text(kind: MessageKind, found: Event, link: str | None = None) -> str:
    made = message_of(kind, found, link)
    return f"{made.title}\n{made.text}"


SAYS, BEGAN, ENDED = "flow is 9, usually 3 (2 to 4)", "2025-10-09T08:53:27Z", "2025-10-09T09:03:27Z"
ALERT, BARE = event(alert(7, severity="critical")), {"incident": "9"}


@pytest.mark.parametrize(
    ("kind", "found", "lines"),
    [
        ("opened", ALERT, ["CRITICAL: outlier in sensors pump-7", SAYS, f"Record: sensors[0]@7 at {BEGAN}"]),
        (
            "closed",
            event(closed(7, 607, 30)),
            ["ENDED: outlier in sensors pump-7 after 10 min", SAYS, "Alerts: 30", f"From {BEGAN} to {ENDED}"],
        ),
        (
            "opened",
            event(silent(7)),
            ["WARNING: silence in sensors s-17", "no record of key s-17 for 75 s", f"Last: sensors[0]@7 at {BEGAN}"],
        ),
        ("opened", event({"outlier": True, "offset": 8, **BARE}, None), ["WARNING: outlier in the stream"]),
        ("closed", event({"status": "closed", **BARE}, None), ["ENDED: outlier in the stream"]),
    ],
)
def test_a_message_says_all_that_one_needs_without_holes(kind: MessageKind, found: Event, lines: list[str]) -> None:
    ends = [f"Incident: {found.facts['incident']}", "http://status"]
    assert text(kind, found, "http://status").split("\n") == [*lines, *ends]
    assert text("closed", event(heard(7, 907))).startswith("ENDED: silence in sensors s-17 after 15 min")


CALLS = ["@everyone", "<!channel>", "<@&123>", "<#C1>", "<https://x.example|y>", "mailto://", "www.x.example"]


@pytest.mark.parametrize("call", CALLS)
def test_what_others_wrote_calls_nobody_and_is_no_link_and_can_still_be_read(call: str) -> None:
    odd = event(alert(7, explanation=f"{call} is 9", topic=call), f"pump-7\x1b[2J\u202e {call}")
    one = message_of("opened", odd, "https://status.example/@now")
    several = held_message(Counter(opened=1), [one], "https://status.example/@now")
    for found in (one, several, message_of("closed", odd, "https://status.example/@now")):
        said = f"{found.title}\n{found.text}"
        assert call not in said.replace("https://status.example/@now", "")
        assert "\x1b" not in said
        assert "\u202e" not in said
        assert "https://status.example/@now" in said, "what the operator has given stays"
        assert "pump-7" in said
    assert odd.facts["key"].endswith(call), "programs get the key as it is"
