"""The status page in a browser, as a user sees it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from browser import Browser, Page
from test_status import EMPTY, batch, board_and_clock, outlier

from fomo_stream.detector.results import DetectorSummary
from fomo_stream.kafka.observer import Outlier
from fomo_stream.kafka.snapshot import PartitionSnapshot, Snapshot
from fomo_stream.ops.http import Endpoints, HttpServer

pytestmark = pytest.mark.slow

SCRIPT = "<script>document.title = 'taken over'</script><img src=x onerror=\"document.title='taken over'\">"
SOUND = DetectorSummary(9000, 5000, trimmed_rows=40, generation=118, generation_age=261, drift=0.31)
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


# The texts below an element, with a blank between those of two elements.
WORDS = """(node) => {
  const texts = [], walker = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) texts.push(walker.currentNode.data);
  return texts.join(" ").split(/\\s+/).filter(Boolean).join(" ");
}"""


@contextmanager
def browse(browser: Browser, answer: Callable[[], bytes], until: str, **how: Any) -> Iterator[Page]:
    """The page, when it shows what `until` asks for."""
    sources = Endpoints(lambda: [], lambda: [], lambda: b"", lambda topic: answer())
    with HttpServer("127.0.0.1", 0, sources) as server:
        page = browser.open(f"http://127.0.0.1:{server.port}/", **how)
        page.until(until)
        yield page
        page.close()


def text(page: Page, id_: str) -> str:
    return str(page.run(f"({WORDS})(document.getElementById('{id_}'))"))


def is_hidden(page: Page, id_: str) -> bool:
    return bool(page.run(f"document.getElementById('{id_}').hidden"))


def rows(page: Page, id_: str) -> list[list[str]]:
    """The cells of a table."""
    cells = f"[...row.children].map({WORDS})"
    found: list[list[str]] = page.run(f"[...document.querySelectorAll('#{id_} tr')].map((row) => {cells})")
    return found


def brightness(page: Page) -> int:
    """Of the page's background, from 0 to 255."""
    return max(map(int, re.findall(r"\d+", page.run("getComputedStyle(document.body).backgroundColor"))[:3]))


STATE = "document.getElementById('state').textContent"


def test_the_page_shows_an_instance_at_work_and_runs_nothing_that_comes_from_a_record(browser: Browser) -> None:
    board, clock = board_and_clock()
    for _ in range(100):
        clock.now += 1
        board.scored(batch(1234))
    board.committed([0.04], [0.0612], 0.01)
    fields = {SCRIPT: SCRIPT, "flow": 170.5}
    reasons = [{"feature": SCRIPT, "with": "flow"}]
    said = {"explanation": f"{SCRIPT} is odd", "incident": "2-790", "surprise": 7.44}
    because: dict[str, Any] = {"reasons": reasons, **said}
    scored = batch(1, outlier(811), outlier(812, fields, SCRIPT.encode(), **because), partition=2)
    board.scored(replace(scored, results=[{"score": 0.9}], closed=["2-811"]))
    clock.now += 1
    with browse(browser, lambda: board.status(RUNNING), f"{STATE} == 'Scoring'", theme="dark") as page:
        assert brightness(page) < 60
        assert page.run("document.title").startswith("sensors · 1,23")  # not taken over
        assert page.run("document.querySelectorAll('script').length") == 1
        assert page.run("document.querySelectorAll('img').length") == 0
        names = ("topic", "out", "group", "instance", "model", "rate", "features", "lag", "oldest")
        assert [text(page, name) for name in names] == [
            *("sensors", "sensors-scores", "g", "fomo-stream-0", "fusion@1 (numba)", "1,234", f"flow, {SCRIPT}"),
            *("42", "2.2 min"),
        ]
        assert re.fullmatch(r"6\d ms", text(page, "p99"))
        assert page.run("document.querySelectorAll('#spark polyline').length") > 0
        assert all(is_hidden(page, name) for name in ("lost", "why", "no-partitions"))

        heads, *partitions = rows(page, "partitions")
        assert heads[:5] == ["Partition", "State", "Scores, 10 minutes", "Lag", "Oldest unscored"]
        assert len(partitions) == 200
        numbers = ["40", "300 ms", "1,204,332", "5,000", "118", "261", "31 %"]
        assert partitions[0] == ["0", "● scoring", "", *numbers]
        assert partitions[1][:4] == ["1", f"◌ waiting a reason {SCRIPT}", "", "–"]
        assert partitions[2][1] == "△ blocked a transaction in sensors is open for 2.2 min"
        assert partitions[3][1] == "△ late its next context is not built yet, for 4.2 s"
        assert partitions[4][:5] == ["4", "◌ warming up too few rows for a context", "", "0", "none"]

        chart = "document.querySelector('#partitions tbody tr:nth-child(3) svg')"
        assert page.run(f"{chart}.ariaLabel") == "Highest score 0.9000 and 2 alerts in 10 minutes"
        assert page.run(f"{chart}.querySelectorAll('circle').length") == 1

        heads, incident, ended = rows(page, "incidents")
        assert heads == [
            *("Since", "State", "Severity", "Key", "What", "Alerts", "Last alert", "Highest score", "Surprise"),
            "Incident",
        ]
        assert incident[1:6] == ["▲ live", "▲ critical", "–", f"{SCRIPT}, flow", "1"]
        assert incident[7:] == ["0.9000", "7.4", "2-790"]
        assert (ended[1], ended[4], ended[8:]) == ("ended", "–", ["–", "2-811"])
        assert text(page, "incidents-count") == "1 live, 1 ended lately"


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


def test_a_lost_connection_is_shown_beside_the_last_numbers(browser: Browser) -> None:
    odd = outlier(3, reasons=[{"feature": "flow", "with": SCRIPT}], explanation="flow is 170.5")
    with browse(browser, failing_once(RUNNING, 1, odd), f"{STATE} == 'Connection lost'") as page:
        assert brightness(page) > 200
        assert not is_hidden(page, "lost")
        assert "The last answer came at" in text(page, "lost-text")
        assert len(rows(page, "partitions")) == 201
        assert rows(page, "incidents")[1][4] == f"flow, {SCRIPT}"


def test_the_page_finds_an_instance_again_that_is_not_ready(browser: Browser) -> None:
    reasons = (f"topic {SCRIPT} is missing", "not yet a member of the group")
    snapshot = replace(EMPTY, state="waiting", not_ready=reasons, features=(), model="")
    with browse(browser, failing_once(snapshot, 0), f"{STATE} == 'Waiting'") as page:
        assert is_hidden(page, "lost")
        assert not any(is_hidden(page, name) for name in ("why", "no-partitions", "no-incidents"))
        assert text(page, "reasons") == " ".join(reasons)
        assert text(page, "model") == "not loaded yet"
        assert text(page, "no-partitions").startswith("No partitions yet.")
        assert text(page, "no-incidents").startswith("No incidents yet.")
