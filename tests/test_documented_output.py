"""What the service writes is documented: fields of the result and of reasons, dead letters, events of the log."""

from __future__ import annotations

import json
import re

import numpy as np
from documents import FLAGS, README, ROOT, table_rows

import fomo_stream.kafka.outputs as letters
from fomo_stream.detector.results import Cause, Reason, Results, Scores, Status
from fomo_stream.errors import REASONS
from fomo_stream.records.explanation import reasons_of
from fomo_stream.records.result import results_of
from fomo_stream.records.schema import Schema

NOT_IN_TABLES = {"topic", "partition", "offset", "timestamp"}  # fields that a sentence of the README explains


def test_every_field_of_the_result_is_documented() -> None:
    scores = Scores.of(np.zeros((1, 1)), np.ones(1, np.int64), np.ones(1))
    scored = Results.of(scores, np.zeros(1), np.zeros(1), np.ones(1), 1, np.zeros(1, np.int8), Status.OK)
    explained = scored.explained([(Reason(0, Cause.VALUE, 1.0, 9.0, 3.0, 2.0, 4.0, np.nan),)])
    always, fields = (
        set(results_of(one, "model", Schema(("flow",)), [{}], [0], [("sensors", 0, 0, None)])[0])
        for one in (scored, explained)
    )
    for page, title in ((README, "The result"), (FLAGS, "The result")):
        section = page.section(title)
        (example,) = (json.loads(block.code)["fomo"] for block in section.blocks if block.language == "json")
        assert set(example) == fields
        named = {name for cells in table_rows(section.prose) for name in re.findall(r"`(\w+)`", cells[0])}
        named.remove("incident")  # which only outliers have
        assert named == (fields if page is FLAGS else fields - NOT_IN_TABLES)
    assert fields - always == {"reasons", "explanation"}


def test_every_field_and_cause_of_a_reason_is_documented() -> None:
    record, schema = {"flow": 9, "state": "idle"}, Schema(("flow", "state"), frozenset({"state"}))
    flow = Reason(0, Cause.VALUE, 1.0, 9.0, 3.0, 2.0, 4.0, np.nan, 1)
    idle = flow._replace(feature=1, cause=Cause.CATEGORY, frequency=0.1)
    fields = {name for one in reasons_of([flow, idle], schema, record) for name in one}
    named = [name for cells in table_rows(FLAGS.section("Reasons").prose) for name in re.findall(r"`(\w+)`", cells[0])]
    assert sorted(named) == sorted([*fields, *Cause])


def test_every_reason_and_header_of_dead_letters_is_documented() -> None:
    rows = [name for cells in table_rows(FLAGS.section("Dead letters").prose) for name in cells[0].split(", ")]
    headers = {name for name in rows if name.startswith("`fomo-")}
    assert [name for name in rows if name not in headers] == [f"`{reason}`" for reason in REASONS]
    assert headers == {f"`{name}`" for name in (*letters.ADDED, letters.TRUNCATED_FROM, letters.ATTEMPTS)}


def test_events_of_the_log_are_documented() -> None:
    """All events of level warning and above, and no event that does not exist."""
    source = "\n".join(path.read_text() for path in sorted((ROOT / "fomo_stream").rglob("*.py")))
    exist = set(re.findall(r'\b(?:kv\(|notes\.append\(\()\s*"(\w+)"', source))
    severe = set(re.findall(r'\blog\.(?:warning|error|exception)\(\s*kv\(\s*"(\w+)"', source))
    section = FLAGS.section("Health and logs")
    documented = {name for cells in table_rows(section.prose) for name in re.findall(r"`(\w+)`", cells[1])}
    assert severe <= documented <= exist
    assert len(severe) > 20
