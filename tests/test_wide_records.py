"""Records with more features than a model takes: a fixed random subset is scored, and the same one everywhere."""

from __future__ import annotations

import json
import pickle
import random
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pipelines import Recording, make_pipeline, record

from fomo_stream import FoMoDetector, ZeroShotDetector, load_model, replay
from fomo_stream.cli.score import Scoring, open_input
from fomo_stream.model.architecture import ModelConfig
from fomo_stream.model.checkpoint import save_model
from fomo_stream.model.zero_shot import ZeroShotModel
from fomo_stream.records.schema import Schema, random_columns
from fomo_stream.settings.commands import ScoreSettings
from fomo_stream.settings.service_settings import ServiceSettings

TAKEN, WIDE = 5, 100
N = 40


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model") / "narrow.safetensors"
    config = ModelConfig(raw_features=TAKEN, evidence=False, fusion=False, layers=1, width=8, heads=2, routers=3)
    model = ZeroShotModel(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    save_model(model, path)
    return path


def wide_records(seed: int = 0) -> list[dict[str, Any]]:
    """In another order of names each, with missing values and a sentinel."""
    rng = random.Random(seed)
    records = []
    for _ in range(N):
        names = [f"f{i}" for i in range(WIDE - 1)] + ["ü \n"]
        rng.shuffle(names)
        record: dict[str, Any] = {name: rng.gauss(0, 1) for name in names}
        records.append(record | {rng.choice(names): None, rng.choice(names): -9999.0})
    return records


def narrowed(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = sorted({name for record in records for name in record})
    kept = [names[at] for at in random_columns(names, TAKEN)]
    return [{name: record.get(name) for name in kept} for record in records]


def of_score(model: Path, records: list[dict[str, Any]], folder: Path) -> tuple[list[float], str]:
    data, notes = folder / "records.jsonl", list[str]()
    data.write_text("".join(json.dumps(one) + "\n" for one in records))
    settings, out = ScoreSettings(file="-", model=str(model), device="cpu", min_context=20), folder / "scored.jsonl"
    with data.open("rb") as stream, out.open("wb") as written:
        Scoring(settings, open_input(settings, stream, "the input", notes.append), written, notes.append).run()
    return [json.loads(line)["fomo"]["logit"] for line in out.read_text().splitlines()], "\n".join(notes)


def of_service(model: Path, records: list[dict[str, Any]], folder: Path) -> tuple[list[float], str]:
    delivery = Recording()
    kind: Any = partial(ServiceSettings, model=str(model))
    pipeline = make_pipeline(delivery, known=False, model=load_model(str(model), "cpu"), kind=kind)
    for offset, fields in enumerate(records):
        if offset == 20:
            schema = pipeline.infer()
            assert schema is not None
            pipeline.begin(schema)
        pipeline.receive(record(offset, value=json.dumps(fields).encode()), 0.0)
    pipeline.finish([0])
    results = [json.loads(output.value or b"")["fomo"] for output in delivery.to("t-scores")]
    return [result["logit"] for result in results], ""


def of_replay(model: Path, records: list[dict[str, Any]], folder: Path) -> tuple[list[float], str]:
    scores = folder / "scores.jsonl"
    result = replay(records, model=str(model), device="cpu", min_context=20, scores_file=str(scores))
    return [json.loads(line)["fomo"]["logit"] for line in scores.read_text().splitlines()], json.dumps(result.report)


def of_river(model: Path, records: list[dict[str, Any]], folder: Path) -> tuple[list[float], str]:
    detector, found = FoMoDetector(model=str(model), min_context=20), []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for one in records:
            found.append(detector.score_one(one))
            detector.learn_one(one)
        detector = pickle.loads(pickle.dumps(detector))
        found.append(detector.score_one(records[3]))
    return found, " ".join(str(one.message) for one in said)


def of_table(model: Path, records: list[dict[str, Any]], folder: Path) -> tuple[list[float], str]:
    frame = pd.DataFrame(records).sort_index(axis=1)
    detector = ZeroShotDetector(model=str(model), random_state=0).fit(frame[:30])
    return detector.score_samples(frame).tolist(), f"a fixed random subset: {WIDE - TAKEN}"


@pytest.mark.parametrize("way", [of_score, of_service, of_replay, of_river, of_table])
def test_a_wide_record_scores_as_its_subset(
    way: Any, narrow: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = wide_records()
    with caplog.at_level("WARNING"):
        found, notes = way(narrow, records, tmp_path)
    expected, quiet = way(narrow, narrowed(records), tmp_path)
    np.testing.assert_array_equal(np.array(found, float), np.array(expected, float))
    assert len(set(found)) > N // 4
    assert "a fixed random subset" in notes + caplog.text
    assert way is of_table or "a fixed random subset" not in quiet


@given(st.lists(st.text(st.characters(), max_size=5), min_size=1, max_size=30, unique=True), st.data())
def test_which_features_are_taken_depends_on_the_names_alone(names: list[str], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(names))
    most = data.draw(st.integers(0, len(names) + 1))
    kept = [{some[at] for at in random_columns(some, most)} for some in (names, shuffled)]
    assert kept[0] == kept[1]
    assert len(kept[0]) == (min(most, len(names)) or len(names))
    fewer = {names[at] for at in random_columns(names, max(1, most - 1))}
    assert most < 2 or fewer <= kept[0]


def test_the_subset_is_the_same_in_every_version() -> None:
    """A service that starts again has to find the features of its state."""
    assert random_columns([f"f{i}" for i in range(9)], 3) == [2, 4, 7]
    schema = Schema(("a", "b", "c", "d"), frozenset({"a", "b"}), frozenset({"c", "d"}), {"a": (-1.0,)}).at_most(2)
    assert schema.categorical | schema.counters == set(schema.features)
    assert {*schema.features, *schema.untaken} == {"a", "b", "c", "d"}
