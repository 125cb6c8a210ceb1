"""`fomo-stream score`: context files, missing values, and categories."""

from __future__ import annotations

import io
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scoring import RECORDS, as_csv, as_jsonl, results, score, table

from fomo_stream.cli.score import Scoring, open_input
from fomo_stream.errors import SchemaError
from fomo_stream.settings.commands import ScoreSettings


def test_a_fixed_context_is_not_learned_from(model_path: Path, tmp_path: Path) -> None:
    context = tmp_path / "normal.csv"
    context.write_bytes(as_csv(RECORDS[:200]))
    twice = as_jsonl([RECORDS[400], *RECORDS[300:350], RECORDS[400]])
    first, *_, last = results(score(model_path, twice, context=context)[0])
    assert first == last
    assert first["generation"] == 1


def test_a_context_file_counts_with_all_its_rows_unless_a_size_is_given(model_path: Path, tmp_path: Path) -> None:
    context = tmp_path / "normal.jsonl"
    odd, usual = {"a": 50.0, "b": 50.0}, [{"a": i % 7, "b": i * i % 11} for i in range(1500)]
    context.write_bytes(as_jsonl([*usual[:20], odd, *usual]))
    data = as_jsonl([odd, usual[0]])
    everything = score(model_path, data, context=context)[0]
    assert score(model_path, data, context=context, context_size=1521)[0] == everything
    assert score(model_path, data, context=context, context_size=1000)[0] != everything


def test_a_context_may_come_through_a_pipe(model_path: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "context"
    os.mkfifo(pipe)
    with subprocess.Popen(["sh", "-c", f"cat > {pipe}"], stdin=subprocess.PIPE) as writer:
        threading.Thread(target=writer.communicate, args=(as_jsonl(RECORDS[:100] * 20),)).start()
        out, _ = score(model_path, as_jsonl(RECORDS[100:110]), context=pipe)
    assert all(result["score"] is not None for result in results(out))


def test_what_of_a_context_and_an_input_does_not_count_is_noted(model_path: Path, tmp_path: Path) -> None:
    context = tmp_path / "context.csv"
    context.write_bytes(as_csv([{"load": i % 7, "Temp": i % 11 if i else "x"} for i in range(60)]))
    records = as_csv([{"load": i % 7, "temp": i % 11} for i in range(20)])
    _, notes = score(model_path, records, context=context, features=("load", "Temp"))
    assert f"1 cell of the column Temp of {context} counted as missing: text such as 'x'" in notes
    assert "no row of the input has a value of Temp: missing everywhere" in notes
    _, notes = score(model_path, b'{"other": "x"}\n', context=context, may_skip=True)
    assert "1 record of the input without a value of any feature" in notes
    assert "nothing was scored; check --features, --format and --context" in notes
    context.write_bytes(b"a,b\n" + b"1,2\n" * 3 + b",\n" * 5)
    with pytest.raises(SchemaError, match=r"context.csv has 3 rows with a value of any feature; at least 4 are needed"):
        score(model_path, b"a,b\n1,2\n", context=context)


def test_a_context_without_a_feature_of_the_records_is_refused_before_anything_is_written(
    model_path: Path, tmp_path: Path
) -> None:
    context, out = tmp_path / "context.csv", io.BytesIO()
    context.write_bytes(as_csv([{"load": i % 7, "Temp": i % 11, "n": i} for i in range(60)]))
    records = [{"load": i % 7, "temp": i % 11, "n": i, "id": i, "site": "north", "fomo_score": 0.5} for i in range(200)]
    settings = ScoreSettings(file="new.csv", model=str(model_path), device="cpu", context=context)
    scoring = Scoring(settings, open_input(settings, io.BytesIO(as_csv(records)), "new.csv", print), out, print)
    with pytest.raises(SchemaError) as caught:
        scoring.run()
    assert out.getvalue() == b""
    assert str(caught.value) == (
        f"the first 60 records of --context {context} have no field temp, which new.csv has; did you mean Temp?; add "
        "it to that file, or name the features to compare: --features Temp,load"
    )
    few = score(model_path, as_jsonl([{"load": 3, "Temp": 4, "site": "north"}, {"load": 3}]), context=context)
    assert all(result["score"] is not None for result in results(few[0]))


def postal(n: int) -> list[dict[str, Any]]:
    """Parcels with a postal code, which looks like a number, and a carrier."""
    rng = np.random.default_rng(0)
    codes, carriers = rng.choice(["01067", "10115", "80331"], n), rng.choice(["sea", "air"], n)
    return [
        {"weight": weight, "code": code, "carrier": carrier}
        for weight, code, carrier in zip(rng.normal(size=n).tolist(), codes.tolist(), carriers.tolist(), strict=True)
    ]


def test_categories_count_alike_in_csv_and_json_lines_and_are_not_taken_for_numbers(
    model_path: Path, tmp_path: Path
) -> None:
    batch = postal(400)
    batch[380]["code"] = "1067"  # as a number it would be the same as 01067
    batch[390]["carrier"] = "rail"
    lines = results(score(model_path, as_jsonl(batch), categorical=("code", "carrier"))[0])
    rows = table(score(model_path, as_csv(batch), categorical=("code", "carrier"))[0])
    assert [float(row["fomo_logit"]) for row in rows] == pytest.approx([line["logit"] for line in lines], rel=1e-8)
    assert lines[380]["outlier"]
    assert lines[390]["outlier"]
    assert sum(line["outlier"] for line in lines) < 12
    context = tmp_path / "normal.csv"  # says which categories are known
    context.write_bytes(as_csv(batch[:200]))
    some = [{"weight": 0.1, "code": code, "carrier": "sea"} for code in ("01067", "80331", "1067")]
    found = results(score(model_path, as_jsonl(some), context=context, categorical=("code", "carrier"))[0])
    assert [result["outlier"] for result in found] == [False, False, True]
