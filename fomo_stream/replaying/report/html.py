"""The report of a replay as one HTML file, which loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

from fomo_stream.replaying.writing import json_text

PAGE = Path(__file__).with_name("page")
STYLES = ("uPlot.min.css", "report.css")
SCRIPTS = (
    "text.js", "tables.js", "plots.js", "curves.js", "detectors.js", "timeline.js", "quality.js", "drift.js",
    "records.js", "report.js",
)  # fmt: skip
OF_TIMELINE = ("format", "source", "timeline", "generations", "context")  # what this section shows


def html_text(report: dict[str, Any], only: str | None = None) -> str:
    """The report of a replay as an HTML page.

    only: "timeline" for a page with this section alone, for notebooks.
    """
    script = _script()
    parts = {
        "licence": (PAGE / "uPlot-LICENSE").read_text().strip(),
        "style": "\n".join((PAGE / name).read_text() for name in STYLES),
        "hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "data": json_text(_shown(report, only)),
        "timing": json_text(None if only else report.get("timing")),
        "script": script,
    }
    template = (PAGE / "report.html").read_text()
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)  # one pass: data may have braces, too


def _script() -> str:
    own = "\n".join((PAGE / name).read_text() for name in SCRIPTS)
    return f'{(PAGE / "uPlot.iife.min.js").read_text()}\n(() => {{\n"use strict";\n{own}\n}})();\n'


def _shown(report: dict[str, Any], only: str | None) -> dict[str, Any]:
    """What the page shows of the report: not its times, which are apart, and not what only `compare` needs."""
    shown = {name: report[name] for name in (OF_TIMELINE if only else report) if name in report and name != "timing"}
    detectors = [] if only else report.get("detectors", [])
    shown["detectors"] = [{name: part for name, part in one.items() if name != "replicates"} for one in detectors]
    return shown | {"only": only}
