"""`score --output FILE`: a file of that name is complete, and nothing else is touched."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from scoring import RECORDS, as_csv, as_jsonl, score

from fomo_stream.cli.output import Output
from fomo_stream.cli.score import run_score
from fomo_stream.errors import ConfigError, SchemaError, SkippedError
from fomo_stream.settings.commands import ScoreSettings


def settings(model_path: Path, **flags: Any) -> ScoreSettings:
    given: dict[str, Any] = {name: str(value) for name, value in flags.items()}
    return ScoreSettings(model=str(model_path), device="cpu", min_context=50, **given)


def test_a_file_gets_what_standard_output_gets(model_path: Path, tmp_path: Path) -> None:
    data = as_csv(RECORDS[:80])
    (tmp_path / "in.csv").write_bytes(data)
    assert run_score(settings(model_path, file=tmp_path / "in.csv", output=tmp_path / "out.csv")) == 0
    assert (tmp_path / "out.csv").read_bytes() == score(model_path, data)[0]
    assert sorted(os.listdir(tmp_path)) == ["in.csv", "out.csv"]


def test_too_many_skipped_lines_leave_a_complete_file(model_path: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(as_jsonl(RECORDS[:60]) + b"{\n" * 10)
    with pytest.raises(SkippedError, match="10 of 70 lines could not be scored, which is more than 10%"):
        run_score(settings(model_path, file=tmp_path / "in.jsonl", output=tmp_path / "out.jsonl"))
    assert len((tmp_path / "out.jsonl").read_bytes().splitlines()) == 70


def test_an_input_that_is_refused_leaves_no_file(model_path: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes(b"a,b\nx,y\n")
    with pytest.raises(SchemaError):
        run_score(settings(model_path, file=tmp_path / "in.csv", output=tmp_path / "out.csv"))
    assert os.listdir(tmp_path) == ["in.csv"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SchemaError("damaged"), OSError(28, "No space left on device")])
@pytest.mark.parametrize("existing", [b"old", None])
def test_an_error_halfway_leaves_the_old_file_and_says_where_the_rest_is(
    tmp_path: Path, error: Any, existing: bytes | None
) -> None:
    path = tmp_path / "out.csv"
    notes: list[str] = []
    if existing is not None:
        path.write_bytes(existing)

    def write() -> None:
        with Output(str(path), [], notes.append) as out:
            out.write(b"half")
            raise error

    with pytest.raises(error if isinstance(error, type) else type(error)):
        write()
    assert (path.read_bytes() if path.exists() else None) == existing
    assert (tmp_path / "out.csv.part").read_bytes() == b"half"
    state = "is as it was" if existing is not None else "was not written"
    assert notes == [f"not complete: the results so far are in {path}.part; {path} {state}"]


def test_the_file_keeps_its_mode_and_its_links(tmp_path: Path) -> None:
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)
    with Output(str(link), [], lambda text: None) as out:
        out.write(b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert target.stat().st_mode & 0o777 == 0o640


def test_a_pipe_is_written_directly(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    with Output(str(pipe), [], lambda text: None) as out:
        out.write(b"all")
    reader.join(30)
    assert found == [b"all"]
    assert os.listdir(tmp_path) == ["pipe"]


def test_what_cannot_be_an_output_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    data, part, link = tmp_path / "in.csv", tmp_path / "x.csv.part", tmp_path / "link.csv"
    data.write_bytes(b"in")
    part.write_bytes(b"in")
    os.link(data, link)
    before = sorted(os.listdir(tmp_path))
    with open(data, "rb") as stdin:
        for path, inputs, complaint in (
            (data, [data], "is also read"),
            (link, [data], "is also read"),
            (data, [tmp_path / "other", data], "is also read"),
            (data, [stdin.fileno()], "is also read"),
            (tmp_path / "x.csv", [part], "which is written until"),
            (tmp_path, [data], "is a folder"),
            (tmp_path / "no" / "x.csv", [data], "there is no folder"),
            (tmp_path / ("x" * 252), [data], "cannot be written"),
        ):
            with pytest.raises(ConfigError, match=complaint), Output(str(path), inputs, lambda text: None):
                pytest.fail("was opened")
    assert sorted(os.listdir(tmp_path)) == before
    assert data.read_bytes() == part.read_bytes() == b"in"
