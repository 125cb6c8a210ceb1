"""A Dockerfile as tests read it: its stages, and what the container would be started with."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Instructions = list[tuple[str, str]]  # (name in capitals, the rest on one line)


@dataclass
class Stage:
    """One FROM: its base (an image, or the name of another stage) and its own instructions, in order."""

    base: str
    name: str
    instructions: Instructions = field(default_factory=list)


@dataclass(frozen=True)
class Image:
    """What a target runs with."""

    entrypoint: list[str]
    environment: dict[str, str]
    user: str
    healthcheck: list[str]
    labels: dict[str, str]
    ports: set[str]


class Dockerfile:
    """A Dockerfile; `arguments`: defaults of the ARG instructions before the first stage."""

    def __init__(self, path: Path) -> None:
        self.arguments: dict[str, str] = {}
        self.stages: list[Stage] = []
        for name, rest in _instructions(path.read_text()):
            if name == "FROM":
                base, _, alias = rest.partition(" AS ")
                self.stages.append(Stage(self._expanded(base), alias))
            elif self.stages:
                self.stages[-1].instructions.append((name, rest))
            else:
                self.arguments |= _pairs(rest)

    def _expanded(self, text: str) -> str:
        return re.sub(r"\$\{(\w+)\}", lambda found: self.arguments[found[1]], text)

    def lineage(self, target: str) -> list[Stage]:
        """The stages that a target is built from, the first one first; its base image is `lineage(t)[0].base`."""
        by_name = {stage.name: stage for stage in self.stages}
        found = [by_name[target]]
        while found[0].base in by_name:
            found.insert(0, by_name[found[0].base])
        return found

    def image(self, target: str) -> Image:
        """What a container of this target is started with."""
        last: dict[str, str] = {}
        pairs: dict[str, dict[str, str]] = {"ENV": {}, "LABEL": {}}
        ports: set[str] = set()
        for name, rest in (each for stage in self.lineage(target) for each in stage.instructions):
            last[name] = rest
            if name in pairs:
                pairs[name] |= _pairs(rest)
            elif name == "EXPOSE":
                ports |= set(rest.split())
        probe = last["HEALTHCHECK"].partition("CMD ")[2]
        return Image(
            _exec_form(last["ENTRYPOINT"]), pairs["ENV"], last["USER"], _exec_form(probe), pairs["LABEL"], ports
        )


def _instructions(text: str) -> Instructions:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name.upper(), rest.strip()) for name, _, rest in (line.partition(" ") for line in joined.splitlines())]


def _pairs(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in shlex.split(text))


def _exec_form(text: str) -> list[str]:
    """The words of a command in exec form; another form is an error, as a shell would not pass on signals."""
    words: Any = json.loads(text)
    assert isinstance(words, list), f"not in exec form: {text}"
    return words
