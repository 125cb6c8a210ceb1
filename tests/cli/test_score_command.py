"""`fomo-stream score` as a command: pipes, and files that cannot be read or written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from scoring import RECORDS, as_jsonl

from fomo_stream.cli.score import run_score
from fomo_stream.errors import ConfigError
from fomo_stream.settings.commands import ScoreSettings


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line(model_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command(model_path), input=as_jsonl(RECORDS[:50]), stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert b"cannot write the results to standard output: No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


def test_an_output_that_is_not_as_its_name_says_is_noted(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.jsonl").write_bytes(as_jsonl(RECORDS[:50]))
    for name, note in (("out.csv.gz", "will not be compressed"), ("out.csv", "will be jsonl"), ("out.jsonl", "")):
        place = {"file": str(tmp_path / "in.jsonl"), "output": str(tmp_path / name)}
        run_score(ScoreSettings(**place, model=str(model_path), min_context=50))  # type: ignore[arg-type]
        assert (f"{name} will" in capsys.readouterr().err) == bool(note)


def test_a_file_that_is_not_there_is_named(model_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read nowhere\.csv"):
        run_score(ScoreSettings(file="nowhere.csv", model=str(model_path)))


def command(model_path: Path, *flags: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "fomo_stream.cli",
        "score",
        f"--model={model_path}",
        "--min-context=50",
        *flags,
        "-",
    ]


def test_in_a_pipe_each_record_is_scored_before_the_next_one_comes(model_path: Path) -> None:
    with subprocess.Popen(
        command(model_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(as_jsonl(RECORDS[:50]))
        process.stdin.flush()
        assert len([process.stdout.readline() for _ in range(50)]) == 50
        for record in RECORDS[50:53]:  # would hang here if the output waited for more input
            process.stdin.write(as_jsonl([record]))
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["reading"] == record["reading"]
        process.stdin.close()
        assert process.wait(60) == 0


def test_ctrl_c_leaves_an_output_file_that_does_not_look_complete(model_path: Path, tmp_path: Path) -> None:
    path, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    with subprocess.Popen(
        command(model_path, "-o", str(path), "--log-level=error"), stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(as_jsonl(RECORDS[:50]))
        process.stdin.flush()
        assert process.stderr.readline().startswith(b"fomo-stream: features: ")
        process.stdin.write(b"{\n")
        process.stdin.flush()
        assert b"line 51" in process.stderr.readline()  # the first 50 are written before line 51 is read
        process.send_signal(signal.SIGINT)
        assert b"not complete: the results so far are in" in process.stderr.read()
        assert process.wait(60) == 130
    assert len(part.read_bytes().splitlines()) >= 50
    assert not path.exists()


def test_a_reader_that_goes_away_ends_it_quietly(model_path: Path) -> None:
    with subprocess.Popen(
        command(model_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(as_jsonl(RECORDS[:50]))
        process.stdin.flush()
        process.stdout.readline()
        process.stdout.close()
        with open(os.dup(process.stdin.fileno()), "wb") as rest:
            rest.write(as_jsonl(RECORDS[50:60]))
        process.stdin.close()
        assert process.wait(60) == 0
        assert b"Error" not in process.stderr.read()
