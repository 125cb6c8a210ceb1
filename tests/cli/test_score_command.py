"""`fomo-stream score` as a command: pipes, exit codes, and its output file, which is complete or not there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scoring import RECORDS, as_csv, as_jsonl, table

from fomo_stream.cli.main import main
from fomo_stream.cli.output import open_output
from fomo_stream.errors import ConfigError, SchemaError
from fomo_stream.model.checkpoint import shared_model


@pytest.fixture(autouse=True)
def _one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """All commands in this process share the model: to load it takes longer than to score."""
    monkeypatch.setattr("fomo_stream.cli.score.load_ready", shared_model)


def arguments(model_path: Path, *flags: object) -> list[str]:
    return ["score", f"--model={model_path}", "--min-context=50", "--device=cpu", *map(str, flags)]


def test_a_file_gets_what_standard_output_gets_and_its_incidents_are_counted(
    model_path: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], restored_logging: None
) -> None:
    (tmp_path / "in.csv").write_bytes(as_csv(RECORDS))
    assert main(arguments(model_path, tmp_path / "in.csv", "-o", tmp_path / "out.csv")) == 0
    told = capsysbinary.readouterr().err.decode()
    assert main(arguments(model_path, tmp_path / "in.csv")) == 0
    assert (tmp_path / "out.csv").read_bytes() == capsysbinary.readouterr().out
    assert sorted(os.listdir(tmp_path)) == ["in.csv", "out.csv"]
    alerts = Counter(row["fomo_incident"] for row in table((tmp_path / "out.csv").read_bytes()))
    del alerts[""]
    assert f" {len(alerts)} incidents, the most surprising first:" in told
    shown = re.findall(r"incident at line (\d+) \((\d+) outliers?\): ", told)
    assert len(shown) == min(3, len(alerts))
    assert {line: int(n) for line, n in shown}.items() <= alerts.items()


@pytest.mark.parametrize(
    ("data", "out", "code", "words", "left"),
    [
        (as_jsonl(RECORDS[:63]) + b"{\n" * 7, "out", 0, "skipped=7 ", [70]),
        (as_jsonl(RECORDS[:62]) + b"{\n" * 8, "out", 13, "8 of 70 lines could not be scored", [70]),
        (b"a,b\nx,y\n", "out", 5, "no numeric field", []),
        (None, "out", 2, "cannot read in", []),
        (as_jsonl(RECORDS[:60]), "/dev/full", 1, "cannot write the results to /dev/full: No space left", []),
    ],
)
@pytest.mark.usefixtures("restored_logging")
def test_the_exit_code_and_one_line_say_how_it_went(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any,
    data: bytes | None, out: str, code: int, words: str, left: list[int],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    if data is not None:
        (tmp_path / "in").write_bytes(data)
    assert main(arguments(model_path, "in", "-o", out)) == code
    assert words in capsys.readouterr().err
    files = sorted(path for path in tmp_path.iterdir() if path.name != "in")
    assert [len(path.read_bytes().splitlines()) for path in files] == left


def test_names_and_values_of_others_change_no_terminal_and_forge_no_line(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], restored_logging: None
) -> None:
    odd = "\x1b]0;owned\x07\x9b2J\u202e\u2066"
    path, names = tmp_path / "in.csv", [f"{name}{odd}" for name in ("number", "text", "empty", "cells")]
    rows = [f"{i % 7},{odd}t,,{odd if i == 58 else i % 4}" for i in range(60)]
    path.write_bytes("\n".join([",".join(f'"{name}"' for name in names), *rows, '"a\n', ""]).encode())
    flags = ["-o", tmp_path / "out.csv", "--key", names[1]]
    for more in (flags, [*flags, "--features", f"{names[0]},{names[2]}"], ["--features", odd]):
        main(arguments(model_path, path, *more))
        said = capsys.readouterr().err
        assert said.startswith("fomo-stream: ")
        assert [line for line in said.split("\n") if not line.isprintable()] == []


def test_in_a_pipe_each_record_is_scored_before_the_next_and_a_reader_that_goes_away_ends_it_quietly(
    model_path: Path,
) -> None:
    command = [sys.executable, "-m", "fomo_stream.cli", *arguments(model_path, "-")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(as_jsonl(RECORDS[:50]))
        process.stdin.flush()
        assert len([process.stdout.readline() for _ in range(50)]) == 50
        for record in RECORDS[50:53]:  # would hang here if the output waited for more input
            process.stdin.write(as_jsonl([record]))
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["reading"] == record["reading"]
        process.stdout.close()
        with open(os.dup(process.stdin.fileno()), "wb") as rest:
            rest.write(as_jsonl(RECORDS[53:60]))
        process.stdin.close()
        assert process.wait(60) == 0
        assert b"Error" not in process.stderr.read()


# --- the output file


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SchemaError("damaged")])
@pytest.mark.parametrize("existing", [b"old", None])
def test_an_error_halfway_leaves_the_old_file_and_says_where_the_rest_is(
    tmp_path: Path, error: BaseException, existing: bytes | None
) -> None:
    path, notes = tmp_path / "out.csv", list[str]()
    if existing is not None:
        path.write_bytes(existing)

    def write() -> None:
        with open_output(str(path), [], notes.append) as out:
            out.write(b"half")
            raise error

    with pytest.raises(type(error)):
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
    with open_output(str(link), [], lambda text: None) as out:
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
    with open_output(str(pipe), [], lambda text: None) as out:
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
            (link, [data], "is also read"),
            (data, [tmp_path / "other", data], "is also read"),
            (data, [stdin.fileno()], "is also read"),
            (tmp_path / "x.csv", [part], "which is written until"),
            (tmp_path, [data], "is a folder"),
            (tmp_path / "no" / "x.csv", [data], "there is no folder"),
            (tmp_path / ("x" * 252), [data], "cannot be written"),
        ):
            with pytest.raises(ConfigError, match=complaint), open_output(str(path), inputs, lambda text: None):
                pytest.fail("was opened")
    assert sorted(os.listdir(tmp_path)) == before
    assert data.read_bytes() == part.read_bytes() == b"in"
