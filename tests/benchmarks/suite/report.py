"""The document of a run: measurements, the machine that they were made on, and what could not be measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FORMAT = "fomo-stream-benchmarks/1"


@dataclass(frozen=True)
class Measurement:
    """One figure.

    name: of the quantity; parameters: what it was measured for; spread: half the distance between the quartiles of the
    repeats, in the same unit; None: it was measured once, or computed.
    """

    name: str
    parameters: Mapping[str, str | int]
    value: float
    unit: str
    spread: float | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for the same quantity in two runs."""
        return (self.name, self.unit, *sorted(self.parameters.items()))

    @property
    def label(self) -> str:
        """The parameters as text."""
        return " ".join(f"{name}={value}" for name, value in self.parameters.items())


@dataclass(frozen=True)
class Absent:
    """Something that was not measured, and why."""

    name: str
    why: str


def by_name(measurements: Iterable[Measurement]) -> dict[str, list[Measurement]]:
    """Measurements of each quantity, in the order in which the quantities were measured first."""
    found: dict[str, list[Measurement]] = {}
    for item in measurements:
        found.setdefault(item.name, []).append(item)
    return found


@dataclass
class Report:
    """The document of a run."""

    environment: dict[str, Any] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)

    def add(self, found: Iterable[Measurement | Absent]) -> None:
        """Add measurements, and what is absent (once each)."""
        for item in found:
            if isinstance(item, Measurement):
                self.measurements.append(item)
            elif item not in self.absent:
                self.absent.append(item)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Report:
        """The document in a file of `write`. Raises ValueError for another format."""
        found = json.loads(path.read_text())
        if found.get("format") != FORMAT:
            raise ValueError(f"{path} has format {found.get('format')!r}, expected {FORMAT!r}")
        return cls(
            found["environment"],
            [Measurement(**item) for item in found["measurements"]],
            [Absent(**item) for item in found["absent"]],
        )
