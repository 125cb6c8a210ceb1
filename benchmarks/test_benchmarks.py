"""The benchmark suite at sizes that take seconds: its document, tables, comparison and pictures."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / name) for name in ("benchmarks", "tests", "tests/integration")]

from suite.command import main, run
from suite.load import Sample, stretch
from suite.memory import peak_of
from suite.replay import in_memory, rates, replay, write_files
from suite.report import BEGIN, END, Measurement, Report, comparison, mark, table, written_into
from suite.scale import Scale

TINY = Scale(
    contexts=(64, 256),
    features=(2, 6),
    batches=(1, 16),
    builds=((64, 2), (256, 2)),
    codec_features=(2, 6),
    repeats=2,
    seconds=0.0,
    river_context=64,
    river_learned=2,
    river_records=64,
    metrics_records=1000,
    load=None,
)
RATES = ["records/s", "records/CPU-s", "GB/s"]


def variants(report: Report, name: str, **parameters: int) -> set[str]:
    found = (
        item for item in report.measurements if item.name == name and parameters.items() <= item.parameters.items()
    )
    return {str(item.parameters["variant"]) for item in found}


@pytest.mark.slow
def test_every_variant_is_measured_at_every_size() -> None:
    report = run(["scoring", "build", "river", "metrics"], TINY)
    for context in TINY.contexts:
        for features in TINY.features:
            at = {"context": context, "features": features}
            batched, single = variants(report, "scoring", batch=16, **at), variants(report, "scoring", batch=1, **at)
            assert {"fomo-stream torch", "kNN brute", "kNN kd-tree"} <= batched < single
            assert {"paper-100, full pass", "River HalfSpaceTrees", "River OneClassSVM"} <= single - batched
    for context, features in TINY.builds:
        assert {"fomo-stream torch", "kNN kd-tree"} <= variants(report, "build", context=context, features=features)
    assert len(variants(report, "river", batch=64)) < len(variants(report, "river", batch=1))
    keys = [item.key for item in report.measurements]
    assert len(set(keys)) == len(keys)
    for item in report.measurements:
        assert -100 < item.value < math.inf
        assert item.spread is None or 0 <= item.spread < math.inf


def test_document_tables_comparison_and_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = run(["codec", "service"], TINY)
    assert variants(report, "encode", features=6) == {"fomo-stream", "orjson", "json"}
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    report.write(old)
    assert Report.read(old) == report
    Report(report.environment, report.measurements[1:]).write(new)
    assert main(["--compare", str(old), str(new)]) == 0
    compared = capsys.readouterr().out
    assert compared.count("x 1.00") == len(report.measurements) - 1
    assert compared.count("only in the old run") == 1
    assert "only in the new run" not in compared
    text = table(report)
    assert all(name in text for name in ("fomo-stream", "not measured: service", str(report.environment["cpu"])))
    page = written_into(f"before\n{BEGIN}\nold\n{END}\nafter\n", report)
    assert page.startswith(f"before\n{BEGIN}\n\nMeasured on ")
    assert page.endswith(f"{END}\nafter\n")
    assert "old" not in page
    assert "\n| encode, us/record | features=2 " in page
    assert written_into(page, report) == page


def test_the_program_starts_and_refuses_unknown_names() -> None:
    command = [sys.executable, "-m", "benchmarks", "--only", "scoring,speed"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no benchmark named speed" in done.stderr


@pytest.mark.slow
def test_a_process_of_its_own_tells_its_memory() -> None:
    assert 50 < peak_of("fomo-stream torch", 64, 1, 100) < 5000


@pytest.mark.slow
def test_a_replay_is_measured_beside_the_detector_on_the_same_rows(tmp_path: Path) -> None:
    files = write_files(tmp_path, 500)
    runs = {kind: replay(tmp_path, ["--file", str(path), "--time", "at"]) for kind, path in files.items()}
    for made in runs.values():
        assert made.records == 500
        assert 50 < made.peak < 5000
        assert b"<html" in made.html.read_bytes()
    found = list(rates(runs, [in_memory(500)]))
    assert len({item.key for item in found}) == len(found)
    assert all(0 < item.value < math.inf for item in found)
    assert {item.parameters["of"] for item in found} == {"jsonl", "npz"}


@pytest.mark.parametrize(
    "arguments", [["--compare", "other.json", "other.json"], ["--compare", "no", "no"], ["--out", "no/run.json"]]
)
def test_a_mistake_is_a_message_before_anything_is_measured(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("suite.command.run", lambda *_: pytest.fail("measured"))
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


@given(
    st.sampled_from([*RATES, "us/record", "ms", "MiB", "builds"]),
    st.floats(1, 1e6),
    st.floats(1, 1e6),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
)
def test_changes_beyond_the_spreads_are_marked(unit: str, old: float, new: float, spread: float, other: float) -> None:
    before = Measurement("speed", {"variant": "ours"}, old, unit, spread)
    after = replace(before, value=new, spread=other)
    said, back = mark(before, after), mark(after, before)
    assert bool(said) == (abs(old - new) > spread + other)
    if unit == "builds":
        assert said in ("", "differs")
    elif said:
        assert {said, back} == {"better", "worse"}
        assert (said == "better") == ((new > old) == (unit in RATES))
    assert mark(replace(before, spread=None), after) == ""
    assert f"x {new / old:.2f}" in comparison(Report({}, [before]), Report({}, [after]))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.data())
def test_a_stretch_is_as_short_as_the_samples_allow(steps: list[int], data: st.DataObject) -> None:
    counts = [0, *(sum(steps[: i + 1]) for i in range(len(steps)))]
    samples = [Sample(float(i), count, float(i), None) for i, count in enumerate(counts)]
    first = data.draw(st.integers(0, counts[-1]))
    last = data.draw(st.integers(first, counts[-1]))
    begin, end = stretch(samples, first, last)
    assert begin.records <= first
    assert end.records >= last
    assert all(sample.records > first for sample in samples if sample.at > begin.at)
    assert all(sample.records < last for sample in samples if sample.at < end.at)


@pytest.mark.slow
def test_full_attention_costs_more_than_few_routers() -> None:
    flags = ["--routers", "0,4", "--contexts", "20,2000", "--repeats", "2"]
    command = [sys.executable, str(ROOT / "benchmarks" / "inference_time.py"), *flags]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert [row[:2] for row in cells] == [[n, r] for n in ("20", "2,000") for r in ("0: full attention", "4")]
    encode = [float(row[2]) for row in cells]
    assert encode[2] > 1.2 * encode[3] > encode[1]
