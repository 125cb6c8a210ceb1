"""The tables of flags in docs/flags-and-output.md, from the settings: `python tests/flag_tables.py` writes them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fomo_stream.cli.parser import GROUP_ORDER, choices_of
from fomo_stream.settings.commands import DemoSettings, DoctorSettings, GroupSettings, RedriveSettings, ScoreSettings
from fomo_stream.settings.notify import NotifySettings
from fomo_stream.settings.replay import CompareSettings, ReplaySettings
from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.sources import BaseFlags, extra_of, flags_of, option

PAGE = Path(__file__).parents[1] / "docs" / "flags-and-output.md"
SETTINGS: dict[str, type[BaseFlags]] = {
    "run": ServiceSettings,
    "score": ScoreSettings,
    "replay": ReplaySettings,
    "compare": CompareSettings,
    "notify": NotifySettings,
    "redrive": RedriveSettings,
    "group": GroupSettings,
    "doctor": DoctorSettings,
    "demo": DemoSettings,
}
BLOCK = re.compile(r"(<!-- flags of (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def with_tables(page: str) -> str:
    """The page, with the tables of all commands between their markers."""
    return BLOCK.sub(lambda match: match[1] + tables(match[2]) + match[3], page)


def tables(command: str) -> str:
    """One table for each group of flags; those that are the same for `run` are only named."""
    cls = SETTINGS[command]
    rows: dict[str, list[str]] = {}
    as_for_run = []
    for name, field in cls.model_fields.items():
        if name not in flags_of(cls):
            continue
        cells = row(name, field, command == "run")
        if command != "run" and cells == row(name, ServiceSettings.model_fields.get(name), False):
            as_for_run.append(f"`{cells[0].strip('`').split()[0]}`")
        else:
            rows.setdefault(extra_of(field)["group"], []).append("| " + " | ".join(cells) + " |")
    heads = ["flag", "default", *(["affects"] if command == "run" else []), "meaning"]
    head = "| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|\n"
    text = "".join(f"\n**{group}**\n\n{head}" + "\n".join(rows[group]) + "\n" for group in GROUP_ORDER if group in rows)
    if issubclass(cls, ServiceSettings) and command != "run":
        return text + "\nAnd all other flags of [run](#fomo-stream-run).\n"
    return text + (f"\nAs for [run](#fomo-stream-run): {', '.join(as_for_run)}.\n" if as_for_run else "")


def row(name: str, field: Any, has_effect: bool) -> list[str]:
    """The cells of a flag; none if there is no such setting."""
    if field is None:
        return []
    extra = extra_of(field)
    value = escaped(choices_of(field.annotation) or extra["metavar"] or "")
    flag = f"--kafka.KEY {value}" if name == "kafka" else option(name)
    if name != "kafka" and field.annotation is not bool:
        flag += f" {value}" if value else ""
    names = ", ".join(f"`{each}`" for each in (flag, extra["short"]) if each)
    text = re.sub(r" \(default: [^()]*\)$", "", field.description)
    written = re.search(r" \(default: ([^()]*)\)$", field.description)
    default = ",".join(field.default) if isinstance(field.default, tuple) else field.default
    if field.is_required():
        shown = "required"
    elif written:
        shown = written[1]
    elif default is False:
        shown = "off"
    else:
        shown = "none" if default in (None, "", {}) else f"`{default}`"
    return [names, escaped(shown), *([extra["affects"]] if has_effect else []), escaped(text)]


def escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"<[a-z-]+>[\w-]*", r"`\g<0>`", text).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
