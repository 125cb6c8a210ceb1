"""The report of a million records: its size, and how soon a browser shows its first screen.

    python tests/benchmarks/report_bench.py [--records 1000000]

The records are made; 20 features, 4 partitions, three detectors. It needs Chromium.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "replaying")]

from blocks import made_report
from browser import open_browser

from fomo_stream.replaying.results import html_text

SHOWN = "document.documentElement.dataset.shownMs"
FEATURES = tuple(f"sensor_{number}" for number in range(20))


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--records", type=int, default=1_000_000)
    page = html_text(made_report(made.parse_args().records, partitions=4, features=FEATURES))
    with TemporaryDirectory() as folder, open_browser(Path(folder)) as browser:
        path = Path(folder) / "report.html"
        path.write_text(page, encoding="utf-8")
        times = []
        for _ in range(5):
            opened = browser.open(path.as_uri())
            opened.until(SHOWN)
            times.append(int(opened.run(SHOWN)))
            opened.close()
    print(f"{len(page.encode()) / 1e6:.2f} MB; first screen after {sorted(times)[2]} ms (median of {len(times)})")


if __name__ == "__main__":
    main()
