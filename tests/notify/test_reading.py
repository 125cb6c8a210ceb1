"""Messages of Kafka that nobody expected are skipped, and say so; the others are told."""

from __future__ import annotations

import json
import logging
from typing import Any
from unittest.mock import Mock

import pytest
from made_alerts import alert

from fomo_stream.cli.parser import parse
from fomo_stream.errors import RegistryError
from fomo_stream.kafka.broker.topic_reader import to_record
from fomo_stream.notify import follower
from fomo_stream.notify.follower import AlertReader
from fomo_stream.settings.notify import NotifySettings


def received(value: bytes | None, key: bytes | None = b"pump-7", headers: Exception | None = None) -> Any:
    """A message as the client gives it. headers: what the client raises where a name is not UTF-8."""
    answers = {"value": value, "key": key, "topic": "alerts", "partition": 3, "offset": 7, "timestamp": (0, -1)}
    made = Mock(**{f"{name}.return_value": answer for name, answer in answers.items()})
    made.headers = Mock(side_effect=headers, return_value=None)
    return made


@pytest.fixture
def reader() -> AlertReader:
    return AlertReader(parse(NotifySettings, ["--alerts", "alerts", "--dry-run"], command="notify"))


def encoded(**changes: Any) -> bytes:
    return json.dumps({"flow": 9.0, "fomo": {**alert(7), **changes}}).encode()


@pytest.mark.parametrize("trouble", [SystemError("returned a result"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "")])
def test_headers_that_the_client_cannot_read_count_as_none(reader: AlertReader, trouble: Exception) -> None:
    found = reader.read(received(encoded(), headers=trouble))
    assert found is not None
    assert found.id == "sensors:0-7:opened"
    assert to_record(received(encoded(), headers=trouble)).headers == []


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"[" * 100_000, b"9" * 10_000, b'{"fomo": 1e999}'])
def test_what_cannot_be_read_is_skipped(
    reader: AlertReader, value: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert reader.read(received(value)) is None
    assert "alert_skipped record=alerts[3]@7 reason=" in caplog.text


def test_whatever_a_message_raises_is_noted_without_its_contents_and_the_next_one_is_read(
    reader: AlertReader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails_at_first(*given: Any) -> Any:
        monkeypatch.undo()
        raise RuntimeError("contents of the record")

    monkeypatch.setattr(follower, "read_event", fails_at_first)
    with caplog.at_level(logging.INFO):
        assert reader.read(received(encoded())) is None
    assert reader.read(received(encoded())) is not None
    assert "alert_skipped record=alerts[3]@7 reason=unexpected error=RuntimeError at=test_reading.py:" in caplog.text
    assert "contents" not in caplog.text


def test_new_certificates_of_a_registry_that_is_away_are_used_when_it_comes_back(
    reader: AlertReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec, away = Mock(), Mock(**{"check.side_effect": RegistryError("away")})
    monkeypatch.setattr(follower, "codec_for", Mock(return_value=(codec, away)))
    with pytest.raises(RegistryError):
        reader.connect()
    reader.read(received(encoded()))
    codec.decode.assert_called_once()
