"""Files of a replay: checked before the work begins, and written as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from fomo_stream.errors import ConfigError
from fomo_stream.replaying.writing import check_writable, write_whole


def test_a_place_that_cannot_be_written_is_named_before_anything_is_read(tmp_path: Path) -> None:
    check_writable("--json", tmp_path / "scores")
    for path, complaint in ((tmp_path, "is a folder"), (tmp_path / "absent" / "scores", "there is no folder")):
        with pytest.raises(ConfigError, match=f"^--json .*{complaint}"):
            check_writable("--json", path)


def test_a_file_is_replaced_as_a_whole_or_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report"
    write_whole(path, b"old")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"

    def fails(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fails)
    with pytest.raises(ConfigError, match="No space left on device"):
        write_whole(path, b"newer")
    assert path.read_bytes() == b"new"
