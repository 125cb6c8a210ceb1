"""Files of a replay: checked before the work begins, and written as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from fomo_stream.errors import ConfigError
from fomo_stream.replaying.output import check_outputs, join_parts, write_whole


@pytest.mark.parametrize(
    ("outputs", "inputs", "complaint"),
    [
        ({"--json": "a", "--report": "b", "--scores-file": "c"}, {"--file": "d"}, ""),
        ({"--json": "a"}, {"--file": "a"}, "would overwrite --file"),
        ({"--json": "a"}, {"--file": "folder/../a"}, "would overwrite --file"),
        ({"--json": "a"}, {"--file": "link"}, "would overwrite --file"),
        ({"--json": "link"}, {"--file": "a"}, "would overwrite --file"),
        ({"--json": "a", "--report": "a"}, {}, "would overwrite --report"),
        ({"--json": "folder/a"}, {"--file": "a"}, ""),
        ({"--json": "/dev/null", "--report": "/dev/null"}, {"--file": "/dev/null"}, ""),
        ({"--json": "folder"}, {}, "is a folder"),
        ({"--json": "absent/a"}, {}, "there is no folder"),
    ],
)
def test_a_place_that_cannot_be_written_is_named_before_anything_is_read(
    tmp_path: Path, outputs: dict[str, str], inputs: dict[str, str], complaint: str
) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "folder").mkdir()
    written, read = ({flag: tmp_path / name for flag, name in names.items()} for names in (outputs, inputs))
    if not complaint:
        check_outputs(written, read)
        return
    with pytest.raises(ConfigError, match=f"^--json .*{complaint}"):
        check_outputs(written, read)


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


def test_parts_are_joined_in_their_order(tmp_path: Path) -> None:
    path, parts = tmp_path / "scores", [tmp_path / f"{number}.scores" for number in range(12)]
    path.write_text("earlier\n")
    for number in (10, 2, 0):
        parts[number].write_text(f"{number}\n")
    join_parts(path, parts)
    assert path.read_text() == "0\n2\n10\n"
