"""Records of many devices in one partition: what keys are worth, on generated streams.

    python benchmarks/keyed.py --seeds 3

Every device has its own level, spread and slow movement. Its outliers are odd for this device, but inside the range
of all devices: a shifted level, values that do not change, a larger spread (each for a run of the device's records),
and single records. `unique`: one device, whose records each have another key. Prints a Markdown table with
AUROC/average precision without keys and with them, then the AUROC of each kind of outlier without keys and with them.
All figures are means over the seeds; the first 10 % of the records are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from event_streams import BATCH, Float, Rng, Stream, ranking, signs
from numpy.typing import NDArray

from fomo_stream import Detector, load_model

FEATURES = 6
KINDS = ("shifted", "stuck", "spread", "single")
SHARE = 0.01  # of the records are outliers of each kind
RUN = (10, 40)  # records of a device that an outlying run lasts, or a third of them where it has fewer
MEMORY = 0.97  # autocorrelation of the slow movement from one record of a device to the next
ORDERS = ("round robin", "random")
CASES = [(1, "round robin"), (1, "unique"), *((n, order) for n in (20, 200, 2000) for order in ORDERS)]
Kinds = NDArray[np.int64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000, metavar="N")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="streams of each case")
    options = parser.parse_args()
    if options.records < 3 * CASES[-1][0]:
        parser.error(f"--records must be at least {3 * CASES[-1][0]}: three records for each device")
    print("| devices | keys | without | with |", *(f" {kind} |" for kind in KINDS), sep="")
    print("|---" * (4 + len(KINDS)) + "|", flush=True)
    totals = []
    for n_devices, order in CASES:
        found = np.mean([compared(n_devices, order, options.records, seed) for seed in range(options.seeds)], axis=0)
        totals.append(found)
        print(line(f"{n_devices:,}", order, found), flush=True)
    print(line("mean", "", np.mean(totals, axis=0)))


def line(devices: str, order: str, found: Float) -> str:
    """A row of the table from figures (2, 2 + kinds): without keys and with them."""
    overall = (f"{auroc:.3f}/{ap:.3f}" for auroc, ap in found[:, :2])
    by_kind = (f"{without:.3f}, {given:.3f}" for without, given in found[:, 2:].T)
    return f"| {' | '.join([devices, order, *overall, *by_kind])} |"


def compared(n_devices: int, order: str, n: int, seed: int) -> Float:
    """Figures (2, 2 + kinds) without keys and with them: AUROC, average precision, and AUROC of each kind alone."""
    rng = np.random.default_rng([seed, n_devices, CASES.index((n_devices, order))])
    device = rng.integers(n_devices, size=n) if order == "random" else np.arange(n) % n_devices
    rows, kind = readings(device, rng)
    keys = [f"record-{i}" if order == "unique" else f"device-{k}" for i, k in enumerate(device)]
    return np.array([figures(rows, kind, scores(rows, given)) for given in (None, keys)])


def figures(rows: Float, kind: Kinds, score: Float) -> list[float]:
    """AUROC and average precision of all outliers, then the AUROC of each kind alone."""
    found = [*ranking(Stream("all", rows, kind > 0), score)]
    for number in range(1, 1 + len(KINDS)):
        kept = (kind == 0) | (kind == number)
        found.append(ranking(Stream(KINDS[number - 1], rows[kept], kind[kept] > 0), score[kept])[0])
    return found


def scores(rows: Float, keys: Sequence[str] | None) -> Float:
    """What a fresh detector with its default settings gives each of rows (n, d), 0 while warming up."""
    detector = Detector(load_model("default", "cpu"), rows.shape[1])
    made = []
    for start in range(0, len(rows), BATCH):
        part = slice(start, start + BATCH)
        made.append(detector.process(rows[part], None if keys is None else keys[part]).score)
    return np.nan_to_num(np.concatenate(made), nan=0.0)


def readings(device: NDArray[np.int64], rng: Rng) -> tuple[Float, Kinds]:
    """Rows (n, d) of the devices (n,), and the kind of each: 0 inlier, or 1 + its place in KINDS."""
    n, n_devices = len(device), int(device.max()) + 1
    level = 4 * rng.normal(size=(n_devices, FEATURES))
    scale = np.exp(0.5 * rng.normal(size=(n_devices, 1)))
    mixing = rng.normal(size=(FEATURES, FEATURES)) / np.sqrt(FEATURES)
    slow, shocks = rng.normal(size=(n_devices, FEATURES)), rng.normal(size=(2, n, FEATURES))
    movement = np.zeros((n, FEATURES))
    for i, k in enumerate(device):
        movement[i] = slow[k] = MEMORY * slow[k] + np.sqrt(1 - MEMORY**2) * shocks[0, i]
    own = movement @ mixing + 0.4 * shocks[1]  # in units of the device's scale, around its level
    kind = np.zeros(n, dtype=np.int64)
    inwards = -np.sign(level) if n_devices > 1 else signs(FEATURES, rng)[None]  # towards the middle of all devices
    for number, name in enumerate(KINDS, 1):
        while (kind == number).sum() < SHARE * n:
            records = np.flatnonzero(device == (k := rng.integers(n_devices)))
            run = _a_run(records, name, rng)
            if len(run) and not kind[run].any():
                kind[run] = number
                own[run] = _outlying(own[run], name, inwards[k], rng)
    return level[device] + scale[device] * own, kind


def _a_run(records: NDArray[np.int64], kind: str, rng: Rng) -> NDArray[np.int64]:
    """Some successive records of a device, after the first third of them; none where it has fewer than three."""
    first = len(records) // 3
    length = 1 if kind == "single" else min(int(rng.integers(*RUN)), first)
    start = int(rng.integers(first, len(records) - length + 1)) if first else len(records)
    return records[start : start + length]


def _outlying(own: Float, kind: str, inwards: Float, rng: Rng) -> Float:
    """Inliers (m, d) of a device, in units of its scale, made outliers of a kind."""
    some = rng.permutation(FEATURES) < FEATURES // 2
    if kind == "stuck":
        return np.where(some, own[0], own)
    if kind == "spread":
        return own + 2.0 * rng.normal(size=own.shape) * some
    return own + rng.uniform(2, 5) * inwards * some


if __name__ == "__main__":
    main()
