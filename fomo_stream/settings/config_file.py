"""Reads the configuration file: its content as plain values, and the line of each value for messages."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fomo_stream.errors import ConfigError

TOML = ".toml"  # ending of a name; any other file is YAML


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # yaml has no types
    """Loads YAML whose values are texts, null, true or false. A name may occur once in a table."""

    def compose_mapping_node(self, anchor: dict[Any, Any]) -> Any:
        node, names = super().compose_mapping_node(anchor), set[Any]()
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else id(key)
            if name in names:
                raise yaml.MarkedYAMLError(problem=f"{name} is there twice", problem_mark=key.start_mark)
            names.add(name)
        return node


# Its other types would change what is written: 0123, 1:30 and 2026-10-01 stay text, as in flags, and so do yes and no.
_TYPES = ("null", "merge")
_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if (kind := tag.rpartition(":")[2]) in _TYPES or (kind == "bool" and first in "tTfF")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_config(path: Path) -> dict[str, Any]:
    """Return the content of a YAML or TOML file. Raises ConfigError."""
    kind = "TOML" if path.suffix == TOML else "YAML"
    try:
        text = path.read_text(encoding="utf-8-sig")
        content = tomllib.loads(text) if kind == "TOML" else yaml.load(text, Loader=_Loader)  # noqa: S506
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, yaml.YAMLError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        if isinstance(error, UnicodeDecodeError):
            reason = f"byte {error.start + 1} is not UTF-8; save the file in UTF-8"
        if isinstance(error, yaml.MarkedYAMLError):  # its own text repeats the line, which may hold a secret
            mark = error.problem_mark or error.context_mark
            reason = f"{error.problem}" + (f" in line {mark.line + 1}, column {mark.column + 1}" if mark else "")
        raise ConfigError(f"--config {path}: cannot be read as {kind}: {reason}") from None
    if not isinstance(content, dict | None) or not all(isinstance(name, str) for name in content or ()):
        raise ConfigError(f"--config {path}: cannot be read as YAML: it needs lines such as `topic: sensors`")
    return content or {}


def config_lines(content: Mapping[str, Any]) -> list[str]:
    """Return this content as lines of YAML."""
    return str(yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True, width=1000)).rstrip("\n").split("\n")


def at_line(path: Path, place: Sequence[str | int]) -> str:
    """Return the line of a value, such as " line 8", or that of the table that holds it; "" if it is not known.

    place: the names and indices that lead to the value, such as ("rules", 0, "only").
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        line = _line_of_toml(text, place) if path.suffix == TOML else _line_of_yaml(text, place)
    except (OSError, ValueError, yaml.YAMLError):  # it was replaced after it was read
        return ""
    return "" if line is None else f" line {line + 1}"


def _line_of_yaml(text: str, place: Sequence[str | int]) -> int | None:
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    line = None
    for name in place:
        if isinstance(node, yaml.MappingNode):
            pair = next((item for item in node.value if _is_same_name(item[0].value, name)), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(name, int) and name < len(node.value):
            node = node.value[name]
            line = node.start_mark.line
        else:
            break
    return line


def _line_of_toml(text: str, place: Sequence[str | int]) -> int | None:
    """Find the n-th header of a table, and the name below it, because tomllib does not tell line numbers."""
    lines, line, names = text.splitlines(), None, [part for part in place if isinstance(part, str)]
    at = next((i for i, part in enumerate(place) if isinstance(part, int)), None)
    number, begin = None, 0
    if at is not None:
        number, table = int(place[at]), r"\s*\.\s*".join(rf"[\"']?{re.escape(str(part))}[\"']?" for part in place[:at])
        headers = [i for i, text in enumerate(lines) if re.match(rf"\s*\[\[\s*{table}\s*\]\]", text)]
        if number >= len(headers):
            return None
        begin, names = headers[number] + 1, names[at:]
        line = headers[number]
    for i in range(begin, len(lines) if names else begin):
        if i > begin and number is not None and re.match(r"\s*\[", lines[i]):
            break
        if _is_same_name(lines[i].partition("=")[0].strip(), names[0]):
            line = i
            break
    return line


def _is_same_name(written: Any, name: str | int) -> bool:
    return str(written).replace("-", "_").strip("_") == str(name).strip("_")
