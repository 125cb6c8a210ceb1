"""Labelled streams of one source mixed in one topic, the stream as the key: is each found as well as alone?

    python benchmarks/interleaved.py --data ../shared/data/streams ../shared/data/streams_more

Of each source, streams of equal width are read in turns, at most 7 of them and 6,000 records of each: the first ones,
or those around the first outliers. Prints a Markdown table of AUROC/average precision, per key, as a mean over the
keys: each stream alone, all in one topic without keys, with keys that share their contexts, and with contexts of their
own. The logit with that of the records before ranks the records; the first 600 of 6,000 are left out.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from event_streams import Float, Stream, family_of, load_stream, ranking, settled

from fomo_stream import Detector, DetectorConfig, load_model

MOST_KEYS, LENGTH, LEAST_OUTLIERS, BATCH = 7, 6000, 10, 256
WAYS = ("alone", "without keys", "shared contexts", "own contexts")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", required=True, metavar="DIR", help="folders of .npz: X, y")
    options = parser.parse_args()
    paths = [path for folder in options.data for path in sorted(folder.glob("*.npz"))]
    print("| source | features | keys |", *(f" {way} |" for way in WAYS), sep="")
    print("|---" * (3 + len(WAYS)) + "|", flush=True)
    totals = []
    for name, streams in groups(paths):
        totals.append([measured(streams, way) for way in WAYS])
        print(line(name, str(streams[0].rows.shape[1]), str(len(streams)), totals[-1]), flush=True)
    if totals:
        print(line("mean", "", "", np.mean(totals, axis=0).tolist()))


def line(*cells: object) -> str:
    """A row of the table; the last cell has the figures of every way."""
    *names, figures = cells
    assert isinstance(figures, list)
    return f"| {' | '.join([*map(str, names), *(f'{auroc:.3f}/{ap:.3f}' for auroc, ap in figures)])} |"


def groups(paths: Sequence[Path]) -> Iterator[tuple[str, list[Stream]]]:
    """The streams of every source that has two or more of equal width, cut to the same length."""
    found: dict[tuple[str, int], list[Stream]] = defaultdict(list)
    for path in paths:
        stream = load_stream(path)
        found[family_of(path.stem), stream.rows.shape[1]].append(stream)
    for (name, _), streams in found.items():
        if len(streams) > 1:
            parts = [part_of(stream) for stream in streams[:MOST_KEYS]]
            n = min(len(part.rows) for part in parts)
            yield name, [Stream(part.name, part.rows[:n], part.outlier[:n]) for part in parts]


def part_of(stream: Stream) -> Stream:
    """LENGTH records of a stream."""
    rows, outlier, first = stream.rows, stream.outlier, 0
    if outlier[:LENGTH].sum() < LEAST_OUTLIERS and outlier.any():
        first = max(0, min(len(rows) - LENGTH, int(np.flatnonzero(outlier)[0]) - LENGTH // 2))
    return Stream(stream.name, rows[first : first + LENGTH], outlier[first : first + LENGTH])


def measured(streams: Sequence[Stream], way: str) -> list[float]:
    """Mean AUROC and average precision over the keys with records of both kinds."""
    k, n = len(streams), len(streams[0].rows)
    if way == "alone":
        logits = np.stack([ranks(stream.rows, None, 0) for stream in streams], axis=1)
    else:
        rows = np.stack([stream.rows for stream in streams], axis=1).reshape(n * k, -1)
        keys = None if way == "without keys" else [f"stream-{i % k}" for i in range(n * k)]
        logits = ranks(rows, keys, 64 if way == "own contexts" else 0).reshape(n, k)
    found = []
    for i, stream in enumerate(streams):
        settled_ones = stream.outlier[settled(n) :]
        if settled_ones.any() and not settled_ones.all():
            found.append(ranking(stream, logits[:, i]))
    return [float(figure) for figure in np.mean(found, axis=0)]


def ranks(rows: Float, keys: list[str] | None, own_contexts: int) -> Float:
    """What a fresh detector gives each of rows (n, d), 0 while warming up."""
    detector = Detector(load_model("default", "cpu"), rows.shape[1], DetectorConfig(own_contexts=own_contexts))
    made = []
    for start in range(0, len(rows), BATCH):
        part = slice(start, start + BATCH)
        made.append(detector.process(rows[part], None if keys is None else keys[part]).remembered_logit)
    return np.nan_to_num(np.concatenate(made), nan=0.0)


if __name__ == "__main__":
    main()
