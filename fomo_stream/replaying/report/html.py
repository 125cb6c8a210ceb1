"""The report of a replay as one HTML file, which loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

from fomo_stream.replaying.output import json_text

PAGE = Path(__file__).with_name("page")
STYLES = ("uPlot.min.css", "report.css")
SCRIPTS = (
    "text.js", "tables.js", "plots.js", "curves.js", "detectors.js", "timeline.js", "quality.js", "drift.js",
    "records.js", "report.js",
)  # fmt: skip


def html_text(report: dict[str, Any]) -> str:
    """The report of a replay as an HTML page."""
    script = _script()
    parts = {
        "licence": (PAGE / "uPlot-LICENSE").read_text().strip(),
        "style": "\n".join((PAGE / name).read_text() for name in STYLES),
        "hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "data": json_text(_shown(report)),
        "timing": json_text(report.get("timing")),
        "script": script,
    }
    template = (PAGE / "report.html").read_text()
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)  # one pass: data may have braces, too


def _script() -> str:
    own = "\n".join((PAGE / name).read_text() for name in SCRIPTS)
    return f'{(PAGE / "uPlot.iife.min.js").read_text()}\n(() => {{\n"use strict";\n{own}\n}})();\n'


def _shown(report: dict[str, Any]) -> dict[str, Any]:
    """What the page shows of the report: not its times, which are apart, and not what only `compare` needs."""
    detectors = [{k: part for k, part in one.items() if k != "replicates"} for one in report.get("detectors", [])]
    return {name: part for name, part in report.items() if name != "timing"} | {"detectors": detectors}
