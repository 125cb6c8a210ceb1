"""What a group agrees on, with its log in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from fomo_stream.errors import AgreementError
from fomo_stream.kafka.group.agreement import CHANGEABLE_SETTINGS, STATE_SETTINGS, Agreement
from fomo_stream.kafka.group.log import Entry, GroupLog
from fomo_stream.settings.commands import GroupSettings
from fomo_stream.settings.service import ServiceSettings

SETTINGS = GroupSettings(topic="t", group="g")


class Log(GroupLog):
    """In memory. late: done between the read and the write of the next one who writes."""

    def __init__(self) -> None:
        super().__init__(SETTINGS)
        self._there: list[Entry] = []
        self.late: Any = None

    def entries(self, kind: bytes) -> list[Entry]:
        return [entry for entry in self._there if entry.key.startswith(kind)]

    def append(self, kind: bytes, content: Mapping[str, Any]) -> None:
        late, self.late = self.late, None
        if late is not None:
            late()
        self._there.append(Entry(kind + b"%d" % len(self._there), json.loads(json.dumps(content))))


@pytest.fixture(autouse=True)
def members(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The members of the group: none until a test adds some."""
    names: list[str] = []
    monkeypatch.setattr("fomo_stream.kafka.group.agreement.count_members", lambda _: len(names))
    monkeypatch.setattr("fomo_stream.kafka.group.agreement.usable_processors", lambda: 8)
    return names


def agreement(log: Log, model: str = "m", kernel: str = "numba", **changes: Any) -> Agreement[ServiceSettings]:
    first = {"topic": "t", "feedback": "f", "categorical": ("site",), "lags": 1, "context_size": 100}
    return Agreement(ServiceSettings(**{**first, **changes}), model, kernel, log)


# For every agreed setting: another value, and the message about it.
OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "model": ({"model": "other"}, "--model is m in the group, other here"),
    "kernel": ({"kernel": "torch"}, "--kernel is numba in the group, torch here"),
    "categorical": ({"categorical": ("kind",)}, "--categorical is site in the group, kind here"),
    "lags": ({"lags": 2}, "--lags is 1 in the group, 2 here"),
    "views": (
        {"views": ("fast",)},
        "--views is trimmed,all,recent,movement,past,key in the group, trimmed,all,past,key here",
    ),
    "keys": ({"keys": 500}, "--keys is 100000 in the group, 500 here"),
    "key": ({"key": "device"}, "--key is none in the group, device here"),
    "mute-key": ({"mute_key": ("p7",)}, "--mute-key is none in the group, p7 here"),
    "exclude": ({"exclude": ("noise",)}, "--exclude is none in the group, noise here"),
    "counters": ({"counters": ("energy",)}, "--counters is auto in the group, energy here"),
    "time-features": ({"time_features": ("hour",)}, "--time-features is none in the group, hour here"),
    "time": ({"time": "at"}, "--time is none in the group, at here"),
    "timezone": ({"timezone": "Europe/Berlin"}, "--timezone is UTC in the group, Europe/Berlin here"),
    "own-contexts": ({"own_contexts": 8}, "--own-contexts is 64 in the group, 8 here"),
    "context-size": ({"context_size": 200}, "--context-size is 100 in the group, 200 here"),
    "missing-is": ({"missing_is": "odd"}, "--missing-is is unknown in the group, odd here"),
    "seed": ({"seed": 7}, "--seed is 0 in the group, 7 here"),
    "remembered-rows": ({"feedback_memory": 50_000}, r"remembered rows \(.*\) is 5000 in the group, 50000 here"),
    "remembered-scores": ({"alert_rate": 1e-4}, r"remembered scores \(.*\) is \d+ in the group, 70032 here"),
    "feedback-memory": ({"feedback_memory": 100}, "--feedback-memory is 5000 in the group, 100 here"),
    "output-format": (
        {"output_format": "registry", "registry": "mock://m"},
        "--output-format is json in the group, registry here",
    ),
    "subject-strategy": ({"subject_strategy": "record"}, "--subject-strategy is topic in the group, record here"),
    "out": ({"out": "elsewhere"}, "--out is t-scores in the group, elsewhere here"),
    "alerts": ({"alerts": "elsewhere"}, "--alerts is none in the group, elsewhere here"),
    "dead-letters": ({"dead_letters": "elsewhere"}, "--dead-letters is t-dead-letters in the group, elsewhere here"),
    "feedback": ({"feedback": None}, "--feedback is f in the group, none here"),
    "result-field": ({"result_field": "verdict"}, "--result-field is fomo in the group, verdict here"),
    "scores-only": ({"scores_only": True}, "--scores-only is false in the group, true here"),
    "silence": ({"silence": 5.0, "alerts": "a"}, "--silence is none in the group, 5.0 here"),
    "silence-min": ({"silence_min": "90s"}, "--silence-min is 60s in the group, 90s here"),
    "silence-of": ({"silence_of": ("topic",)}, "--silence-of is key,partition,topic in the group, topic here"),
    "incident-quiet": ({"incident_quiet": 5}, "--incident-quiet is 10 in the group, 5 here"),
    "threads": ({"threads": 2}, r"--threads \(.*\) is 1 in the group, 2 here"),
    "delivery": ({"delivery": "at-least-once"}, "--delivery is exactly-once in the group, at-least-once here"),
}


def test_every_agreed_setting_has_a_test() -> None:
    assert OTHERS.keys() == {*STATE_SETTINGS, *CHANGEABLE_SETTINGS}


@pytest.mark.parametrize("name", OTHERS)
def test_another_setting_is_refused_while_the_group_has_members(name: str, members: list[str]) -> None:
    log = Log()
    agreement(log).join()
    members.append("first")
    changes, words = OTHERS[name]
    with pytest.raises(AgreementError, match=words) as error:
        agreement(log, **changes).join()
    assert error.value.exit_code == 10
    assert "--group" in str(error.value)
    assert ("--reset-state" in str(error.value)) == (name in STATE_SETTINGS)
    free: dict[str, Any] = {
        "alert_rate": 0.02,
        "adapt_after": 50,
        "min_context": 20,
        "admit": "feedback",
        "batch_size": 7,
    }
    assert agreement(log, **free, categorical=()).join().categorical == ("site",)


def test_outputs_can_be_changed_while_a_group_has_no_members(caplog: pytest.LogCaptureFixture) -> None:
    log = Log()
    agreement(log).join()
    agreement(log, out="elsewhere", result_field="verdict").join()
    assert 'result_field="fomo -> verdict" out="t-scores -> elsewhere"' in caplog.text
    with pytest.raises(AgreementError, match="--out is elsewhere in the group, t-scores here"):
        agreement(log).check()


def test_of_two_instances_that_change_the_same_settings_one_is_refused() -> None:
    """Neither is a member yet, so each may change them: the second change is valid, and the first instance ends."""
    log = Log()
    agreement(log).join()
    first, second = agreement(log, out="first"), agreement(log, out="second")
    first.join()
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
