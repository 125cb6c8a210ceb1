"""Files of a replay: checked before the work begins, and written as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from fomo_stream.errors import ConfigError
from fomo_stream.replaying.writing import check_outputs, check_writable, write_whole


def test_a_place_that_cannot_be_written_is_named_before_anything_is_read(tmp_path: Path) -> None:
    check_writable("--json", tmp_path / "scores")
    for path, complaint in ((tmp_path, "is a folder"), (tmp_path / "absent" / "scores", "there is no folder")):
        with pytest.raises(ConfigError, match=f"^--json .*{complaint}"):
            check_writable("--json", path)


@pytest.mark.parametrize(
    ("outputs", "inputs", "is_fine"),
    [
        ({"--json": "a", "--report": "b", "--scores-file": "c"}, {"--file": "d"}, True),
        ({"--json": "a"}, {"--file": "a"}, False),
        ({"--json": "a"}, {"--file": "folder/../a"}, False),
        ({"--json": "a"}, {"--file": "link"}, False),
        ({"--json": "link"}, {"--file": "a"}, False),
        ({"--json": "a", "--report": "a"}, {}, False),
        ({"--json": "a.part-12", "--scores-file": "a"}, {}, False),
        ({"--scores-file": "a", "--report": "a.joined"}, {}, False),
        ({"--json": "a"}, {"--labels-file": "a.partial"}, False),
        ({"--json": "a.part-1"}, {"--file": "a"}, True),
        ({"--json": "folder/a"}, {"--file": "a"}, True),
        ({"--json": "/dev/null", "--report": "/dev/null"}, {"--file": "/dev/null"}, True),
    ],
)
def test_an_output_that_would_overwrite_another_file_is_refused(
    tmp_path: Path, outputs: dict[str, str], inputs: dict[str, str], is_fine: bool
) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "folder").mkdir()
    written, read = ({flag: tmp_path / name for flag, name in names.items()} for names in (outputs, inputs))
    if is_fine:
        check_outputs(written, read)
    else:
        with pytest.raises(ConfigError, match=r"^--.* would overwrite --.*; name another file$"):
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
