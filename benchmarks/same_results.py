"""Whether two versions of the program give the same results, bit for bit.

    PYTHONPATH=OLD python benchmarks/same_results.py FILES... --out before.json
    PYTHONPATH=NEW python benchmarks/same_results.py FILES... --out after.json --compare before.json

Each file takes two ways. A stream in an .npz file (X: rows) is scored and learned by the River detector, 64 rows at a
time. Rows as CSV or JSON lines go through `fomo-stream score` and `fomo-stream replay`, with the incidents that
replay finds. For each way the SHA-256 digest of all that it wrote is kept: scores, alerts, incidents, explanations.
Ends with 1 where a digest differs from that of the same file in --compare.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

BATCH = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILES", help=".npz, .csv or .jsonl")
    parser.add_argument("--flags", default="", metavar="FLAGS", help='of score and replay: --flags="--key user"')
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="files at a time")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="what another version wrote by --out")
    parser.add_argument("--stream", action="store_true", help=argparse.SUPPRESS)  # one stream, in a process of its own
    options = parser.parse_args()
    if options.stream:
        print(of_stream(options.files[0]))
        return
    with ThreadPoolExecutor(options.jobs) as pool:
        found = dict(
            pair
            for pairs in pool.map(lambda path: digests(path, options.flags.split()), options.files)
            for pair in pairs.items()
        )
    options.out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    before = json.loads(options.compare.read_text()) if options.compare else {}
    differ = [name for name in found if name in before and before[name] != found[name]]
    compared = len(found.keys() & before.keys())
    print(f"{len(found)} results; {compared} compared; {len(differ)} differ", *differ, sep="\n  ")
    sys.exit(1 if differ else 0)


def digests(path: Path, flags: list[str]) -> dict[str, str]:
    """SHA-256 of the results of a file, by the way that it took."""
    if path.suffix == ".npz":
        return {
            f"{path.name} River": run(sys.executable, __file__, "--stream", path, "--out", os.devnull).decode().strip()
        }
    program = [sys.executable, "-c", "from fomo_stream.cli.main import program; program()"]
    with TemporaryDirectory() as folder:
        scores, report = Path(folder) / "scores.jsonl", Path(folder) / "report.json"
        made = run(*program, "score", path, *flags)
        outputs = ["--report", "none", "--json", report, "--scores-file", scores]
        run(*program, "replay", "--file", path, *outputs, *flags)
        replayed = hashlib.sha256(scores.read_bytes()).hexdigest()
        said = json.loads(report.read_text())
    incidents = json.dumps(said.get("incidents"), sort_keys=True).encode()
    return {
        f"{path.name} score": hashlib.sha256(made).hexdigest(),
        f"{path.name} replay": replayed,
        f"{path.name} incidents": hashlib.sha256(incidents).hexdigest(),
    }


def of_stream(path: Path) -> str:
    """SHA-256 of the scores and alerts of a stream by the River detector."""
    from fomo_stream import FoMoDetector

    rows, found = np.load(path)["X"].astype(float), hashlib.sha256()
    detector = FoMoDetector(device="cpu")
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH]
        found.update(np.asarray(detector.score_many(part), np.float64).tobytes())
        detector.learn_many(part)
    return found.hexdigest()


def run(*command: object) -> bytes:
    """Standard output of a command; its log goes to the standard error of this program if it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, check=False)
    if done.returncode:
        sys.stderr.buffer.write(done.stderr)
        sys.exit(f"same_results: {command[:4]} ended with {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    main()
