"""The report of a replay in a browser, as its reader sees it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from blocks import HOSTILE, made_report, with_nulls
from browser import Browser, Page

from fomo_stream.replaying.replay_result import html_text

pytestmark = pytest.mark.slow
IS_SHOWN = "document.documentElement.dataset.shownMs"
FIRST_SCREEN = ["answer", "timeline", "words"]
PARTS = {
    "incidents": ["alerts", "reasons"],
    "quality": ["detectors", "segments"],
    "data": ["drift"],
    "settings": ["notes", "origin", "throughput"],
}
IS_OPEN = "[...document.querySelectorAll('.part[open]')].map((one) => one.id)"
IDS = "[...document.querySelectorAll('{}')].map((one) => one.id)"


def opened(browser: Browser, report: dict[str, Any], folder: Path, **how: Any) -> Page:
    """The page of a report, with all of its parts open."""
    path = folder / "report.html"
    path.write_text(html_text(report), encoding="utf-8")
    page = browser.open(path.as_uri(), **how)
    page.until(IS_SHOWN)
    page.run("document.querySelectorAll('.part > summary').forEach((one) => one.click())")
    page.until("[...document.querySelectorAll('.part')].every((one) => one.open && one.textContent.length > 40)")
    return page


def is_sound(page: Page) -> None:
    """Nothing was asked for but the page, nothing was logged, and nothing of a record was run."""
    assert page.problems == []
    assert [url.rpartition("/")[2] for url in page.requests] == ["report.html"]
    assert page.run("window.hacked") is None
    assert page.run("document.querySelectorAll('script').length") == 3
    assert page.run("document.querySelectorAll('img, iframe, object, embed').length") == 0
    assert "This part cannot be shown" not in page.run("document.getElementById('main').textContent")


def column(page: Page, table: str, number: int) -> list[str]:
    found: list[str] = page.run(
        f"[...document.querySelectorAll('#{table} tbody tr')].map((row) => row.children[{number}].textContent)"
    )
    return found


@cache
def usual_report() -> dict[str, Any]:
    """Long enough for drift."""
    return made_report(22_000)


@pytest.fixture(scope="module")
def usual(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return opened(browser, usual_report(), tmp_path_factory.mktemp("usual"))


def test_every_section_is_shown_in_order(usual: Page) -> None:
    is_sound(usual)
    assert usual.run(IDS.format("main > section")) == FIRST_SCREEN
    assert usual.run(IDS.format("main > details")) == list(PARTS)
    for part, sections in PARTS.items():
        assert usual.run(IDS.format(f"#{part} section")) == sections
    assert usual.run("document.querySelectorAll('.empty').length") == 0
    hashes = usual.run("[...document.querySelectorAll('nav a')].map((one) => one.hash.slice(1))")
    assert hashes == [*FIRST_SCREEN, *PARTS]
    assert usual.run("document.title") == "Replay of sensors · fomo-stream"
    assert usual.run("document.querySelector('#notes li').textContent").startswith("Warms up")
    assert usual.run("document.querySelectorAll('.uplot').length") == 1
    assert usual.run("document.documentElement.scrollWidth <= window.innerWidth")
    named = "one.ariaLabel || one.textContent.trim() || one.labels?.length"
    parts = "[...document.querySelectorAll('.plot, .small, .scroll, select, button')]"
    unnamed = f"{parts}.filter((one) => !({named})).length"
    assert usual.run(unnamed) == 0
    assert "is 9, usually 3 (2 to 4)" in usual.run("document.querySelector('#alerts-table tbody tr').textContent")
    assert column(usual, "detectors-table", 0) == ["fomo-stream this detector", "river.HalfSpaceTrees", "knn"]
    first = usual_report()["detectors"][0]["metrics"]["auroc"]
    assert column(usual, "detectors-table", 1)[0] == f"{first['value']:.3f}{first['low']:.3f} – {first['high']:.3f}"
    assert column(usual, "reasons-table", 1)[0] == f"{usual_report()['reasons'][0]['alerts']}"


def test_the_first_screen_has_the_worst_incidents(usual: Page) -> None:
    worst = usual_report()["incidents"]["worst"]
    cards = "[...document.querySelectorAll('.incident')]"
    top = f"{cards}[0].getBoundingClientRect().top + window.scrollY"
    assert usual.run(top) < 300
    assert usual.run(f"{cards}.filter((one) => one.checkVisibility()).length") == 5
    usual.run("document.querySelector('#answer .more').click()")
    assert usual.run(f"{cards}.filter((one) => one.checkVisibility()).length") == len(worst) == 20
    texts = usual.run(f"{cards}.map((one) => one.textContent)")
    for one, text in zip(worst, texts, strict=True):
        assert one["explanation"] in text
        assert f"{one['records']} alerts" in text
        assert ("no labelled fault" in text) == (one["outliers"] == 0)
    assert usual.run("document.querySelectorAll('.incident .small .worst').length") > 0
    before = ticks(usual)
    usual.run(f"{cards}[0].querySelector('button').click()")
    usual.frame()
    assert ticks(usual) != before
    usual.press("0")


def test_a_link_to_a_section_opens_its_part(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(html_text(usual_report()), encoding="utf-8")
    page = browser.open(f"{(tmp_path / 'report.html').as_uri()}#drift")
    page.until(IS_SHOWN)
    assert page.run(IS_OPEN) == ["data"]
    assert page.run("document.getElementById('drift').checkVisibility()")
    page.run("location.hash = '#segments'")
    page.until(f"{IS_OPEN}.length === 2")
    assert page.paper().startswith(b"%PDF")
    assert page.run(IS_OPEN) == ["quality", "data"]
    page.close()


def test_a_table_is_sorted_by_click_and_by_key(usual: Page) -> None:
    heads = "document.querySelectorAll('#segments-table thead th')"
    records = [one["records"] for one in usual_report()["segments"]]

    def shown() -> list[int]:
        return [int(text) for text in column(usual, "segments-table", 4)]

    assert shown() == records
    usual.run(f"{heads}[4].querySelector('button').click()")
    assert (shown(), usual.run(f"{heads}[4].ariaSort")) == (sorted(records, reverse=True), "descending")
    usual.run(f"{heads}[4].querySelector('button').focus()")
    usual.press("Enter")
    assert (shown(), usual.run(f"{heads}[4].ariaSort")) == (sorted(records), "ascending")
    usual.run(f"{heads}[6].querySelector('button').click()")  # delays, of which some are unknown: they come last
    delays = column(usual, "segments-table", 6)
    known = [int(text) for text in delays if text != "–"]
    assert known == sorted(known, reverse=True)
    assert delays == [*map(str, known), *["–"] * (len(delays) - len(known))]
    assert usual.run(f"[...{heads}].filter((one) => one.ariaSort !== 'none').length") == 1


def ticks(page: Page) -> str:
    """Changes with what the timeline shows: a hash of its picture."""
    found: str = page.run("document.querySelector('#timeline canvas').toDataURL()")
    return found


def test_the_timeline_zooms_by_drag_and_key_and_reads_values(usual: Page) -> None:
    plot = "document.querySelector('#timeline .plot')"
    readout = "document.querySelector('#timeline .readout').textContent"
    whole = ticks(usual)
    usual.run(f"{plot}.scrollIntoView({{block: 'center'}})")
    box = f"{plot}.querySelector('.u-over').getBoundingClientRect()"
    x, y, width, height = (usual.run(f"{box}.{side}") for side in ("x", "y", "width", "height"))
    usual.drag((x + width * 0.25, y + height / 2), (x + width * 0.5, y + height / 2))
    usual.frame()
    dragged = ticks(usual)
    assert dragged != whole
    usual.run(f"{plot}.focus()")
    usual.press("0")
    usual.frame()
    assert ticks(usual) == whole
    usual.press("+")
    usual.frame()
    assert ticks(usual) not in (whole, dragged)
    usual.press("0")
    usual.press("Home")
    first = usual.run(readout)
    assert re.match(r"2025-10-09 08:[\d:.]+ to .* UTC: \d+ records?, highest score [–\d.]+", first)
    usual.press("ArrowRight")
    assert usual.run(readout).split()[:2] != first.split()[:2]
    usual.press("End")
    assert re.match(r"2025-10-1\d ", usual.run(readout))
    buttons, before = "[...document.querySelectorAll('#timeline .legend button')]", ticks(usual)
    for name in ("alerts", "labelled outliers"):  # layers can be chosen
        usual.run(f"{buttons}.find((one) => one.textContent === '{name}').click()")
        usual.frame()
        assert ticks(usual) != before, name
        before = ticks(usual)


EMPTY = {"format": 2, "source": {"name": "x", "axis": "time"}, "notes": [], "summary": [], "detectors": []}
MANY = tuple(f"f{i}" for i in range(100))
# Reports that are hard to show.
HARD: dict[str, Callable[[], dict[str, Any]]] = {
    "hostile": lambda: made_report(
        22_000, name=HOSTILE, rivals=(f"mine:{HOSTILE}",), features=(HOSTILE, "b"), record=HOSTILE
    ),
    "largest": lambda: made_report(30_000, features=MANY, partitions=20, record="x" * 3000),
    "smallest": lambda: made_report(40, labels=False, rivals=(), features=("a",), partitions=1, axis="record"),
    "nulls": lambda: with_nulls(made_report()),
    "empty": lambda: EMPTY,
}


@pytest.mark.parametrize("name", HARD)
def test_hard_reports_are_shown_without_errors_on_a_phone(name: str, browser: Browser, tmp_path: Path) -> None:
    page = opened(browser, HARD[name](), tmp_path, width=390, height=844, touch=True)
    is_sound(page)
    assert page.run("document.documentElement.scrollWidth") == 390
    assert page.run(IDS.format("main > section")) == FIRST_SCREEN
    parts = [part for part in PARTS if part != "quality" or name not in ("smallest", "empty")]
    assert page.run(IDS.format("main > details")) == parts
    assert page.run("[...document.querySelectorAll('.body')].every((one) => one.textContent.length > 20)")
    page.close()


def test_text_of_records_is_only_ever_text(browser: Browser, tmp_path: Path) -> None:
    report = HARD["hostile"]()
    report["notes"] = report["summary"] = [HOSTILE]
    report["settings"][HOSTILE] = report["versions"][HOSTILE] = HOSTILE
    for one in report["alerts"]:
        one |= {"record": HOSTILE, "explanation": HOSTILE, "severity": HOSTILE}
    for one in report["incidents"]["worst"]:
        one |= {"explanation": HOSTILE, "key": HOSTILE, "severity": HOSTILE}
    report["reasons"] = [{"feature": HOSTILE, "alerts": 1}]
    page = opened(browser, report, tmp_path)
    is_sound(page)
    text = "document.querySelector('{}').textContent"
    of_text = "#alerts-table td.long,#alerts-table pre,#title,#notes"
    of_first = "#words .words,.incident .said,.incident .key,figcaption"
    of_tables = "#detectors-table,#drift-table,#reasons-table,#settings-table,#versions-table"
    for place in f"{of_text},{of_first},{of_tables}".split(","):
        assert "<script>window.hacked=1</script>" in page.run(text.format(place)), place
    assert page.run("document.title") == f"Replay of {HOSTILE} · fomo-stream"
    page.close()


def test_a_script_that_is_put_into_the_page_is_not_run(browser: Browser, tmp_path: Path) -> None:
    page = opened(browser, HARD["smallest"](), tmp_path)
    for name, more in (("script", "textContent: 'window.hacked = 1'"), ("img", "src: 'https://example.invalid/x.png'")):
        page.run(f"document.body.append(Object.assign(document.createElement('{name}'), {{{more}}}))")
    page.run("new Promise((next) => setTimeout(next))")
    assert page.run("window.hacked") is None
    assert len([text for text in page.problems if "Content Security Policy" in text]) == 2
    page.close()
