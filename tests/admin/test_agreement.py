"""What a group agrees on, with its log in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from fomo_stream.errors import AgreementError
from fomo_stream.kafka.group.agreement import CHANGEABLE_SETTINGS, STATE_SETTINGS, Agreement, setting_text
from fomo_stream.kafka.group.group_log import GroupLog, LogEntry
from fomo_stream.settings.commands import GroupSettings
from fomo_stream.settings.service_settings import ServiceSettings

SETTINGS = GroupSettings(topic="t", group="g")


class Log(GroupLog):
    """In memory. late: done between the read and the write of the next one who writes."""

    def __init__(self) -> None:
        super().__init__(SETTINGS)
        self._there: list[LogEntry] = []
        self.late: Any = None

    def entries(self, kind: bytes) -> list[LogEntry]:
        return [entry for entry in self._there if entry.key.startswith(kind)]

    def append(self, kind: bytes, *contents: Mapping[str, Any]) -> None:
        late, self.late = self.late, None
        if late is not None:
            late()
        for content in contents:
            self._there.append(LogEntry(kind + b"%d" % len(self._there), json.loads(json.dumps(content))))


@pytest.fixture(autouse=True)
def members(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The members of the group: none until a test adds some."""
    names: list[str] = []
    monkeypatch.setattr("fomo_stream.kafka.group.agreement.count_members", lambda _: len(names))
    monkeypatch.setattr("fomo_stream.kafka.group.agreement.usable_processors", lambda: 8)
    return names


def agreement(log: Log, model: str = "m", backend: str = "numba", **changes: Any) -> Agreement[ServiceSettings]:
    first = {"topic": "t", "feedback": "f", "categorical": ("site",), "lags": 1, "context_size": 100}
    return Agreement(ServiceSettings(**{**first, **changes}), model, backend, log)


# What a group with these settings agrees on, as every version has written it.
WRITTEN: dict[str, Any] = {
    **{"model": "m", "backend": "numba", "context-size": 100, "seed": 0, "lags": 1},
    **{"views": ["trimmed", "all", "recent", "movement", "past", "key"], "keys": 100000, "own-contexts": 64},
    **{"categorical": ["site"], "exclude": [], "counters": ["auto"], "time-features": [], "mute-key": []},
    **{"remembered-rows": 5000, "remembered-scores": 7032, "delivery": "exactly-once", "threads": 1},
    **{"derive": [], "missing-values": [], "time": None, "timezone": "UTC", "key": None},
    **{"incident-quiet": 10, "feedback": "f", "feedback-memory": 5000},
    **{"silence": None, "silence-min": "60s", "silence-of": ["key", "partition", "topic"], "result-field": "fomo"},
    **{"scores-only": False, "output-format": "json", "subject-strategy": "topic"},
    **{"out": "t-scores", "alerts": None, "dead-letters": "t-dead-letters"},
}
# Another value of each, if it is that of the flag.
OTHERS: dict[str, Any] = {
    **{"model": "other", "backend": "torch", "context-size": 200, "seed": 7, "lags": 2},
    **{"keys": 500, "own-contexts": 8, "categorical": ["kind"], "exclude": ["noise"], "counters": ["energy"]},
    **{"time-features": ["weekday", "month"], "mute-key": ["p7"], "delivery": "at-least-once", "time": "at"},
    **{"derive": ["new(kind)"], "missing-values": ["temp=-9999"], "timezone": "Europe/Berlin", "key": "device"},
    **{"incident-quiet": 5, "feedback": None, "feedback-memory": 100},
    **{"silence-min": "90s", "silence-of": ["topic"], "result-field": "verdict", "scores-only": True},
    **{"subject-strategy": "record", "out": "elsewhere", "alerts": "elsewhere", "dead-letters": "elsewhere"},
}
# For every agreed setting: settings in which it is another one, and the message about it.
CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "views": ({"views": ("fast",)}, "--views is .* in the group, trimmed,all,past,key here"),
    "remembered-rows": ({"feedback_memory": 50_000}, r"remembered rows \(.*\) is 5000 in the group, 50000 here"),
    "remembered-scores": ({"alert_rate": 1e-4}, r"remembered scores \(.*\) is 7032 in the group, 70032 here"),
    "output-format": ({"output_format": "registry", "registry": "mock://m"}, "is json in the group, registry here"),
    "silence": ({"silence": 5.0, "alerts": "a"}, "--silence is none in the group, 5.0 here"),
    "threads": ({"threads": 2}, r"--threads \(.*\) is 1 in the group, 2 here"),
    **{
        name: (
            {name.replace("-", "_"): new},
            re.escape(f"--{name} is {setting_text(WRITTEN[name])} in the group, {setting_text(new)} here"),
        )
        for name, new in OTHERS.items()
    },
}


def test_every_agreed_setting_has_a_test() -> None:
    assert CHANGES.keys() == {*STATE_SETTINGS, *CHANGEABLE_SETTINGS}


@pytest.mark.parametrize("name", CHANGES)
def test_another_setting_is_refused_while_the_group_has_members(name: str, members: list[str]) -> None:
    log = Log()
    agreement(log).join()
    members.append("first")
    changes, words = CHANGES[name]
    with pytest.raises(AgreementError, match=words) as error:
        agreement(log, **changes).join()
    assert error.value.exit_code == 10
    assert "--group" in str(error.value)
    assert ("--reset-state" in str(error.value)) == (name in STATE_SETTINGS)
    free: dict[str, Any] = {"alert_rate": 0.02, "adapt_after": 50, "min_context": 20, "admit": "feedback"}
    assert agreement(log, **free, categorical=()).join().categorical == ("site",)


def stored(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as an entry has them: a renamed setting keeps the name that members of earlier versions read."""
    return {"kernel" if name == "backend" else name: value for name, value in values.items()}


def test_an_agreement_is_written_and_read_as_ever() -> None:
    log = Log()
    agreement(log).join()
    assert log.entries(b"settings/")[0].content == {"replaces": None, "settings": stored(WRITTEN)}
    for gone in ("incident-quiet", "missing-values", "timezone"):
        older, settings = Log(), stored({name: value for name, value in WRITTEN.items() if name != gone})
        older.append(b"settings/", {"replaces": None, "settings": settings})
        assert agreement(older).compare() == []


def test_of_two_instances_that_change_the_same_settings_one_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Neither is a member yet, so each may change them: the second change is valid, and the first instance ends."""
    log = Log()
    agreement(log).join()
    first, second = agreement(log, out="first"), agreement(log, out="second")
    first.join()
    assert 'out="t-scores -> first"' in caplog.text
    first.check()
    second.join()
    second.check()
    with pytest.raises(AgreementError, match=r"--out is second in the group, first here; they were changed while"):
        first.check()


def test_of_two_changes_at_once_the_earlier_is_valid() -> None:
    log = Log()
    agreement(log).join()
    first, second = agreement(log, out="first"), agreement(log, out="second")
    log.late = first.join
    with pytest.raises(AgreementError, match="--out is first in the group, second here; another instance was faster"):
        second.join()
    first.check()
