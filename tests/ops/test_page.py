"""The status page in a browser, as a user sees it."""

from __future__ import annotations

import html
import re
import struct
import subprocess
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_status import EMPTY, batch, board_and_clock, outlier
from tools import needed

from fomo_stream.detector.detector import DetectorSummary
from fomo_stream.kafka.observer import Outlier
from fomo_stream.kafka.snapshot import PartitionSnapshot, Snapshot
from fomo_stream.ops.http import HttpServer, Sources

SCRIPT = "<script>document.title = 'taken over'</script><img src=x onerror=\"document.title='taken over'\">"
SOUND = DetectorSummary(9000, 5000, trimmed_rows=40, generation=118, generation_age=261, regime=2, drift=0.31)
RUNNING = replace(
    EMPTY,
    features=("flow", SCRIPT),
    instance_id="fomo-stream-0",
    partitions=(
        PartitionSnapshot(0, "", 1_204_332, lag=40, oldest_unscored_s=0.3, detector=SOUND),
        PartitionSnapshot(1, f"a reason {SCRIPT}"),
        PartitionSnapshot(2, lag=2, oldest_unscored_s=134.0, open_transactions=(("sensors", 134.0),), detector=SOUND),
        PartitionSnapshot(3, context_late_s=4.2, detector=SOUND),
        *(PartitionSnapshot(number, lag=0, oldest_unscored_s=0.0) for number in range(4, 200)),
    ),
)


class Shown:
    """What the browser shows."""

    def __init__(self, document: str, picture: bytes) -> None:
        self.document = document
        self._picture = picture

    def text(self, id_: str) -> str:
        """The text of the element with an id that has no element of its own kind inside."""
        found = re.search(rf'<(\w+)[^>]* id="{id_}"[^>]*>(.*?)</\1>', self.document, re.DOTALL)
        assert found is not None, id_
        return words(found[2])

    def is_hidden(self, id_: str) -> bool:
        found = re.search(rf'<\w+[^>]* id="{id_}"[^>]*>', self.document)
        assert found is not None, id_
        return " hidden" in found[0]

    def rows(self, id_: str) -> list[list[str]]:
        """The cells of a table."""
        table = re.search(rf'<table id="{id_}">(.*?)</table>', self.document, re.DOTALL)
        assert table is not None
        rows = re.findall(r"<tr\b.*?</tr>", table[1], re.DOTALL)
        return [[words(cell) for cell in re.findall(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", row, re.DOTALL)] for row in rows]

    @property
    def brightness(self) -> int:
        """Of the page's upper left corner, from 0 to 255."""
        compressed, at = b"", 8
        while at < len(self._picture):
            size, kind = struct.unpack(">I4s", self._picture[at : at + 8])
            compressed += self._picture[at + 8 : at + 8 + size] if kind == b"IDAT" else b""
            at += size + 12
        return max(zlib.decompress(compressed)[1:4])  # the first byte is the line's filter


def words(text: str) -> str:
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", text).split()))


def browse(folder: Path, answer: Callable[[], bytes], *flags: str, seconds: int = 1) -> Shown:
    """Open the page, and look at it `seconds` later by the browser's clock."""
    chromium = needed("chromium", "chromium")
    picture = folder / "page.png"
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    with HttpServer("127.0.0.1", 0, Sources(lambda: [], lambda: [], lambda: b"", answer)) as server:
        files = [f"--user-data-dir={folder / 'profile'}", f"--screenshot={picture}", "--dump-dom"]
        command = [chromium, *quiet, *files, f"--virtual-time-budget={1000 * seconds}", *flags]
        address = f"http://127.0.0.1:{server.port}/"
        done = subprocess.run([*command, address], capture_output=True, text=True, timeout=60, cwd=folder)
    assert done.returncode == 0, done.stderr
    return Shown(done.stdout, picture.read_bytes())


@pytest.mark.slow
def test_the_page_shows_an_instance_at_work_and_runs_nothing_that_comes_from_a_record(tmp_path: Path) -> None:
    board, clock = board_and_clock()
    for _ in range(100):
        clock.now += 1
        board.scored(batch(1234))
    board.committed([0.04], [0.0612], 0.01)
    fields = {SCRIPT: SCRIPT, "flow": 170.5}
    reasons = [{"feature": SCRIPT, "with": "flow"}]
    because: dict[str, Any] = {"reasons": reasons, "explanation": f"{SCRIPT} is odd", "incident": "2-790"}
    board.scored(batch(0, outlier(811), outlier(812, fields, SCRIPT.encode(), **because), partition=2))
    clock.now += 1
    shown = browse(tmp_path, lambda: board.status(RUNNING), "--blink-settings=preferredColorScheme=0")

    assert shown.brightness < 60  # dark
    assert "<title>sensors · 1,23" in shown.document  # not taken over
    assert shown.document.count("<script") == 1
    assert "<img" not in shown.document
    assert (shown.text("topic"), shown.text("out"), shown.text("group")) == ("sensors", "sensors-scores", "g")
    assert (shown.text("instance"), shown.text("model")) == ("fomo-stream-0", "fusion@1 (numba)")
    assert (shown.text("state"), shown.text("rate")) == ("Scoring", "1,234")
    assert shown.text("features") == f"flow, {SCRIPT}"
    assert re.fullmatch(r"6\d ms", shown.text("p99"))
    assert (shown.text("lag"), shown.text("oldest")) == ("42", "2.2 min")
    assert "<polyline" in shown.document
    assert shown.is_hidden("lost")
    assert shown.is_hidden("why")
    assert shown.is_hidden("no-partitions")

    heads, *rows = shown.rows("partitions")
    assert heads[:4] == ["Partition", "State", "Lag", "Oldest unscored"]
    assert len(rows) == 200
    assert rows[0] == ["0", "● scoring", "40", "300 ms", "1,204,332", "5,000", "118", "261", "2 (drift 31 %)"]
    assert rows[1][:3] == ["1", f"◌ waiting a reason {SCRIPT}", "–"]
    assert rows[2][1] == "△ blocked a transaction in sensors is open for 2.2 min"
    assert rows[3][1] == "△ late its next context is not built yet, for 4.2 s"
    assert rows[4][:4] == ["4", "◌ warming up too few rows for a context", "0", "none"]

    heads, alert, unexplained = shown.rows("alerts")
    assert heads[:6] == ["Time", "Severity", "Partition", "Offset", "Score", "p\u2011value"]
    assert heads[6:] == ["Incident", "Reasons"]
    assert alert[1:6] == ["▲ critical", "2", "812", "0.9000", "0.001"]
    assert alert[6:] == ["2-790", f"{SCRIPT}, flow"]
    assert unexplained[6:8] == ["–", "–"]


def failing_once(snapshot: Snapshot, at: int, *outliers: Outlier) -> Callable[[], bytes]:
    """Data of an instance that cannot be asked for the `at`th time."""
    board, _ = board_and_clock()
    board.scored(batch(1, *outliers))
    asked = iter(range(1000))

    def answer() -> bytes:
        if next(asked) == at:
            raise ConnectionError
        return board.status(snapshot)

    return answer


@pytest.mark.slow
def test_a_lost_connection_is_shown_beside_the_last_numbers(tmp_path: Path) -> None:
    odd = outlier(3, reasons=[{"feature": "flow", "with": SCRIPT}], explanation="flow is 170.5")
    shown = browse(tmp_path, failing_once(RUNNING, 1, odd), "--blink-settings=preferredColorScheme=1", seconds=3)
    assert shown.brightness > 200  # light
    assert shown.text("state") == "Connection lost"
    assert not shown.is_hidden("lost")
    assert "The last answer came at" in shown.text("lost-text")
    assert len(shown.rows("partitions")) == 201
    heads, alert = shown.rows("alerts")
    assert (heads[-1], alert[-1]) == ("Reasons", f"flow, {SCRIPT}")


@pytest.mark.slow
def test_the_page_finds_an_instance_again_that_is_not_ready(tmp_path: Path) -> None:
    reasons = (f"topic {SCRIPT} is missing", "not yet a member of the group")
    snapshot = replace(EMPTY, state="waiting", not_ready=reasons, features=(), model="")
    shown = browse(tmp_path, failing_once(snapshot, 0), seconds=3)
    assert shown.is_hidden("lost")
    assert not shown.is_hidden("why")
    assert shown.text("state") == "Waiting"
    assert shown.text("reasons") == " ".join(reasons)
    assert shown.text("model") == "not loaded yet"
    assert shown.text("no-partitions").startswith("No partitions yet.")
    assert shown.text("no-alerts").startswith("No alerts yet.")
    assert not shown.is_hidden("no-partitions")
    assert not shown.is_hidden("no-alerts")
