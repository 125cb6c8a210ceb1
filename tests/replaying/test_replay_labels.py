"""Labels of a field, a file or a topic: each record gets the verdict that was given last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.errors import SchemaError
from fomo_stream.replaying.blocks import INLIER, OUTLIER, UNKNOWN, Sample
from fomo_stream.replaying.ground_truth import Labels, LabelTable, read_label_file
from fomo_stream.replaying.topic_source import last_before

ONE = {0: (0, 100)}


def samples(n: int, keys: list[str | None] | None = None) -> list[Sample]:
    return [Sample(i, None, keys[i % len(keys)] if keys else None, {}) for i in range(n)]


def labels_of(labels: Labels, unlabelled: list[Sample]) -> list[int]:
    return [one.label for one in labels.applied(unlabelled)]


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


verdicts = st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=1, max_size=40)


@given(verdicts, verdicts)
def test_the_last_label_counts_and_one_by_offset_counts_most(
    by_offset: list[tuple[int, bool]], by_key: list[tuple[int, bool]]
) -> None:
    table = LabelTable("x", {0: (3, 9)})
    for offset, outlier in by_offset:
        table.add((0, offset), int(outlier))
    for key, outlier in by_key:
        table.add(f"k{key}".encode(), int(outlier))
    labels, notes = table.finish()
    of_offset = {offset: int(outlier) for offset, outlier in by_offset if 3 <= offset < 9}
    of_key = {f"k{key}": int(outlier) for key, outlier in by_key}
    records = samples(12, ["k0", None, "k1", "k2"])
    expected = [of_offset.get(one.offset, of_key.get(str(one.key), UNKNOWN)) for one in records]
    assert labels_of(labels[0], records) == expected
    outside = len({offset for offset, _ in by_offset if not 3 <= offset < 9})
    assert any(f"{outside} label" in note and "no record of the range" in note for note in notes) == bool(outside)
    conflicts = sum(
        len({v for a, v in group if a == at}) > 1 for group in (by_offset, by_key) for at in {a for a, _ in group}
    )
    assert any(f"contradict each other about {conflicts} record" in note for note in notes) == bool(conflicts)


keyed_records = st.lists(
    st.tuples(st.none() | st.integers(0, 50), st.none() | st.sampled_from([b"a", b"b"])), max_size=30
)
keyed_labels = st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.integers(0, 50)), max_size=10)


@given(keyed_records, keyed_labels)
def test_a_label_by_key_in_a_topic_is_about_the_last_record_before_it(
    records: list[tuple[int | None, bytes | None]], labels: list[tuple[bytes, int]]
) -> None:
    by_key: dict[bytes, list[tuple[int, int]]] = {}
    expected = {}
    for number, (key, time) in enumerate(labels):
        by_key.setdefault(key, []).append((time, number))
        if mine := [at for at, (stamp, own) in enumerate(records) if own == key and (stamp or 0) <= time]:
            expected[number] = mine[-1]
    stream = ((at, time, key) for at, (time, key) in enumerate(records))
    assert dict(last_before(by_key, stream)) == expected


def test_csv_and_json_lines_give_the_same_labels(tmp_path: Path) -> None:
    rows = [(0, 0, True), (2, 8, False), (1, 3, True), (1, 3, False), (0, 4, True)]
    jsonl = write(tmp_path / "labels.jsonl", [{"partition": p, "offset": o, "outlier": v} for p, o, v in rows])
    csv = tmp_path / "labels.csv"
    csv.write_text("outlier,offset,partition\n" + "".join(f"{int(v)},{o},{p}\n" for p, o, v in rows))
    expected = {(p, o): int(v) for p, o, v in rows}
    for path in (jsonl, csv):
        labels, _ = read_label_file(path, dict.fromkeys(range(3), (0, 9)))
        found = {(p, o): v for p, one in labels.items() for o, v in enumerate(labels_of(one, samples(9)))}
        assert {place: verdict for place, verdict in found.items() if verdict != UNKNOWN} == expected


def test_a_label_by_key_in_a_file_is_about_all_records_with_the_key(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("key,outlier\n007,true\n8,false\n")
    labels, notes = read_label_file(path, {0: (0, 4), 1: (0, 4)})
    assert notes == []
    assert labels_of(labels[0], samples(4, ["007", "7"])) == [OUTLIER, UNKNOWN, OUTLIER, UNKNOWN]
    assert labels_of(labels[1], [Sample(0, None, b"8", {})]) == [INLIER]
    path.write_text("key,outlier\n007,-1\n8,1\n")  # as scikit-learn has them
    labels, notes = read_label_file(path, ONE)
    assert labels_of(labels[0], samples(2, ["007", "8"])) == [OUTLIER, INLIER]
    assert notes == ["-1 in labels.csv is an outlier, and 1 is normal, as scikit-learn has them"]
    numbers = tmp_path / "labels.jsonl"
    numbers.write_text('{"key": 7.0, "outlier": true}\n{"key": 8, "outlier": false}\n')  # 7 and 7.0 are one key
    assert labels_of(read_label_file(numbers, ONE)[0][0], samples(2, ["7", "8"])) == [OUTLIER, INLIER]
    path.write_text("key,outlier\n007,true\n")
    (note,) = read_label_file(path, ONE)[1]
    assert note.startswith("All 1 labels of labels.csv call a record outlier")


def test_lines_that_are_no_labels_are_counted_and_the_first_is_shown(tmp_path: Path) -> None:
    bad = (
        {"offset": 2, "outlier": "maybe"},
        {"offset": -1, "outlier": 0},
        {"offset": 1.5, "outlier": 0},
        {"outlier": 0},
    )
    lines: list[dict[str, Any]] = [{"offset": 1, "outlier": True}, *bad, {"offset": 3, "outlier": False}]
    labels, notes = read_label_file(write(tmp_path / "labels.jsonl", lines), ONE)
    assert labels_of(labels[0], samples(5)) == [UNKNOWN, OUTLIER, UNKNOWN, INLIER, UNKNOWN]
    assert notes == [
        "Not readable as labels, so left out: 4 records of labels.jsonl, the first at line 2: "
        "outlier must be true or false, or 1 or 0."
    ]


@pytest.mark.parametrize(
    ("content", "spans", "complaint"),
    [
        ("", ONE, "empty"),
        ("offset,is_bad\n1,1\n", ONE, "needs the columns outlier"),
        ('{"offset": 1, "outlier": 2}\n', ONE, "no labels; the first line"),
        ("offset,outlier\n1,1\n", {0: (0, 9), 1: (0, 9)}, "needs the partition"),
    ],
)
def test_a_file_without_labels_is_refused(tmp_path: Path, content: str, spans: Any, complaint: str) -> None:
    (tmp_path / "labels").write_text(content)
    with pytest.raises(SchemaError, match=complaint):
        read_label_file(tmp_path / "labels", spans)
