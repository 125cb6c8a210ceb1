"""The report of a replay as one HTML file, which loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from pathlib import Path
from typing import Any

from fomo_stream.replaying.writing import json_text
from fomo_stream.settings.replay import ReplaySettings
from fomo_stream.settings.sources import option

PAGE = Path(__file__).with_name("page")
STYLES = ("uPlot.min.css", "report.css")
SCRIPTS = (
    "text.js", "tables.js", "plots.js", "curves.js", "detectors.js", "timeline.js", "quality.js", "drift.js",
    "records.js", "report.js",
)  # fmt: skip
ENDS = {"from_": "from", "to": "to"}  # settings, and their names in a range
OF_TIMELINE = ("format", "source", "timeline", "generations", "context", "detectors")  # what this section shows


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


def command_line(report: dict[str, Any]) -> str | None:
    """The command that replays the same range, quoted for a shell.

    None if there is none: for data in memory, and for a part of a file. The range of a topic is named by its offsets,
    because a topic grows and time passes. Settings with their default value are left out.
    """
    source, settings = report.get("source") or {}, dict(report.get("settings") or {})
    kind = source.get("kind")
    if kind not in ("topic", "file") or (kind == "file" and not source.get("is_complete", True)):
        return None
    if kind == "topic":
        settings.pop("last", None)
        ranges = source.get("ranges") or []
        settings |= {f: ",".join(f"{one['partition']}:{one[end]}" for one in ranges) for f, end in ENDS.items()}
    words = ["fomo-stream", "replay"]
    for name, value in settings.items():
        field = ReplaySettings.model_fields.get(name)
        if field is None or value is None or value == _plain(field.get_default(call_default_factory=True)):
            continue
        flag = option(name)
        takes_words = isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("words")
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        elif takes_words:
            words += [flag, *map(str, value)]
        else:
            text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            words += [f"{flag}={text}"] if text.startswith("-") else [flag, text]
    return shlex.join(words)


def _plain(value: Any) -> Any:
    """As JSON gives it back."""
    return list(value) if isinstance(value, tuple) else value


def _script() -> str:
    own = "\n".join((PAGE / name).read_text() for name in SCRIPTS)
    return f'{(PAGE / "uPlot.iife.min.js").read_text()}\n(() => {{\n"use strict";\n{own}\n}})();\n'


def _shown(report: dict[str, Any], only: str | None) -> dict[str, Any]:
    """What the page shows of the report: not its times, which are apart, and not what only `compare` needs."""
    names = OF_TIMELINE if only else tuple(name for name in report if name != "timing")
    shown = {name: report[name] for name in names if name in report}
    shown["detectors"] = [
        {name: value for name, value in one.items() if name != "replicates"}
        for one in ([] if only else report.get("detectors", []))
    ]
    return shown | {"only": only, "command": None if only else command_line(report)}
