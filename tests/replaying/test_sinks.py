"""Files of scored records: the bytes that the service would produce, whole after a stop, and joined in order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fomo_stream.errors import ConfigError, RecordError
from fomo_stream.records.json_codec import decode, encode
from fomo_stream.replaying.blocks import Sample
from fomo_stream.replaying.sinks import Sink, join_parts, part_of
from fomo_stream.settings.replay import ReplaySettings

RESULT: dict[str, Any] = {"score": 0.5, "outlier": False}
VALUES = [b'{"a": 1.50 , "b":{"c":null}}', b'{"a": NaN}', b'{"fomo": 1, "a": 2}', b"{}", b'{"a": 1}\n', b"[1]"]


def sample_of(offset: int, value: bytes) -> Sample:
    """As `TopicSource` makes it."""
    try:
        return Sample(offset, None, None, decode(value), raw=value)
    except RecordError as error:
        return Sample(offset, None, None, {}, error)


def settings_of(**options: Any) -> ReplaySettings:
    return ReplaySettings(**{"topic": "t", **options})


@pytest.mark.parametrize("options", [{}, {"scores_only": True}, {"result_field": "r"}])
def test_lines_are_the_outputs_of_the_service(tmp_path: Path, options: dict[str, Any]) -> None:
    found = [one for at, value in enumerate(VALUES) if (one := sample_of(at, value)).error is None]
    sink = Sink(settings_of(**options), tmp_path / "scores", None)
    sink.write(found, [RESULT] * len(found))
    sink.close()
    how = options.get("result_field", "fomo"), options.get("scores_only", False)
    expected = [encode(decode(value), RESULT, *how, raw=value) for value in VALUES[:-1]]
    assert (tmp_path / "scores").read_bytes() == b"".join(line + b"\n" for line in expected)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(st.integers(0, 6), st.integers(0, 6))
def test_a_file_that_goes_on_is_the_file_of_one_run(tmp_path: Path, saved: int, lost: int) -> None:
    records = [Sample(at, None, None, {"a": at}) for at in range(15)]
    path = tmp_path / "scores"
    first = Sink(settings_of(), path, None)
    first.write(records[:saved], [RESULT] * saved)
    size = first.size()
    assert path.stat().st_size == size
    first.write(records[saved : saved + lost], [RESULT] * lost)
    first.close()
    second = Sink(settings_of(), path, None)
    second.resume(size)
    second.write(records[saved:], [RESULT] * (15 - saved))
    second.close()
    assert [json.loads(line)["a"] for line in path.read_bytes().splitlines()] == list(range(15))


def test_a_file_that_is_gone_or_too_short_cannot_go_on(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is gone"):
        Sink(settings_of(), tmp_path / "scores", None).resume(10)
    (tmp_path / "scores").write_bytes(b"short")
    with pytest.raises(ConfigError, match="shorter"):
        Sink(settings_of(), tmp_path / "scores", None).resume(10)


@pytest.mark.parametrize("keep", [False, True])
def test_parts_are_joined_in_the_order_of_the_partitions(tmp_path: Path, keep: bool) -> None:
    path = tmp_path / "scores"
    for number in (10, 2, 0):
        part_of(path, number).write_text(f"{number}\n")
    join_parts(path, range(12), keep)
    assert path.read_text() == "0\n2\n10\n"
    assert len(list(tmp_path.iterdir())) == (4 if keep else 1)
    if keep:
        join_parts(path, range(12))
        assert [one.name for one in tmp_path.iterdir()] == ["scores"]


def test_closing_leaves_alone_what_an_earlier_run_wrote_until_the_replay_begins(tmp_path: Path) -> None:
    path = tmp_path / "scores"
    path.write_text("earlier\n")
    sink = Sink(settings_of(), path, None)
    sink.close()
    assert path.read_text() == "earlier\n"
    sink.begin()
    sink.close()
    assert not path.exists()
    join_parts(path, [0])
    assert path.read_bytes() == b""
