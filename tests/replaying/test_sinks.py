"""Files of scored records: the bytes that the service would produce, joined in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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
    with Sink(settings_of(**options), tmp_path / "scores") as sink:
        sink.write(found, [RESULT] * len(found))
    how = options.get("result_field", "fomo"), options.get("scores_only", False)
    expected = [encode(decode(value), RESULT, *how, raw=value) for value in VALUES[:-1]]
    assert (tmp_path / "scores").read_bytes() == b"".join(line + b"\n" for line in expected)


def test_parts_are_joined_in_the_order_of_the_partitions(tmp_path: Path) -> None:
    path = tmp_path / "scores"
    path.write_text("earlier\n")
    for number in (10, 2, 0):
        part_of(path, number).write_text(f"{number}\n")
    join_parts(path, range(12))
    assert path.read_text() == "0\n2\n10\n"
    assert [one.name for one in tmp_path.iterdir()] == ["scores"]
    join_parts(path, range(12))
    assert path.read_bytes() == b""


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "scores"
    with pytest.raises(ConfigError, match=f"cannot write {path}: "), Sink(settings_of(), path):
        pass
