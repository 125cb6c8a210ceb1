"""A run as one document: measurements, the machine, what could not be measured; as text and as pictures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FORMAT = "fomo-stream-benchmarks/1"
Sizes = dict[str, str | int]


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


def table(report: Report) -> str:
    """All measurements, by name, then what is absent."""
    lines = [f"{name}: {value}" for name, value in report.environment.items() if name != "versions"]
    for name, group in by_name(report.measurements).items():
        lines += ["", name, *_aligned([_cells(item) for item in group])]
    lines += ["", *(f"not measured: {item.name}: {item.why}" for item in report.absent)]
    return "\n".join(lines).rstrip()


def _cells(item: Measurement) -> list[str]:
    spread = "" if item.spread is None else f"+- {_number(item.spread)}"
    rate = f"{1e6 / item.value:,.0f} records/s" if item.unit == "us/record" and item.value else ""
    return [*_sizes_and_names(item), _number(item.value), item.unit, spread, rate]


def _sizes_and_names(item: Measurement) -> list[str]:
    variant = str(item.parameters.get("variant", ""))
    others = " ".join(f"{name}={value}" for name, value in item.parameters.items() if name != "variant")
    return [variant, others]


def comparison(old: Report, new: Report) -> str:
    """Each measurement that both runs have: old, new, their ratio, and a mark where they differ by more than their
    spreads: `better`, `worse`, or `differs` for figures that are neither. Without spreads there is no mark."""
    before = {item.key: item for item in old.measurements}
    lines: list[str] = []
    for name, group in by_name(item for item in new.measurements if item.key in before).items():
        rows = []
        for two in group:
            one = before[two.key]
            figures = [_number(one.value), _number(two.value), two.unit, _ratio(one, two), mark(one, two)]
            rows.append([*_sizes_and_names(two), *figures])
        lines += [name, *_aligned(rows), ""]
    for title, run, other in (("only in the old run", old, new), ("only in the new run", new, old)):
        known = {item.key for item in other.measurements}
        lines += [f"{title}: {item.name} {item.label}" for item in run.measurements if item.key not in known]
    return "\n".join(lines).rstrip()


def _ratio(old: Measurement, new: Measurement) -> str:
    return f"x {new.value / old.value:.2f}" if old.value else ""


def mark(old: Measurement, new: Measurement) -> str:
    """Whether a figure changed by more than the spreads of both runs."""
    if old.spread is None or new.spread is None or abs(new.value - old.value) <= old.spread + new.spread:
        return ""
    is_rate = new.unit.endswith(("/s", "/CPU-s"))
    is_cost = new.unit in ("us/record", "ms", "MiB")
    if not (is_rate or is_cost):
        return "differs"
    return "better" if (new.value > old.value) == is_rate else "worse"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows as lines; text columns start, and the numbers in the third column end, at the same place."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if i == 2 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield ("  " + "  ".join(cells)).rstrip()


BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"  # around what is written into a page


def written_into(page: str, report: Report) -> str:
    """A page in Markdown with this run between BEGIN and END, in place of the one before. Raises ValueError."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{markdown(report)}\n\n{END}{after}"


def markdown(report: Report) -> str:
    """Where and when it was measured, and a table for each quantity and unit: a row by variant, a column by sizes."""
    found = report.environment
    others = {name: value for name, value in found["versions"].items() if name != "fomo-stream"}
    versions = ", ".join(f"{name} {value}" for name, value in others.items())
    where = f"{found['cores']} cores of {found['cpu']}, load {found['load']}, {found['system'].split()[0]}"
    parts = [
        f"Measured on {found['date']}, commit {found['commit'][:8]}: {where}, Python {found['python']}, {versions}."
    ]
    for name, group in by_name(report.measurements).items():
        for unit in dict.fromkeys(item.unit for item in group):
            parts.append("\n".join(_markdown_table(name, unit, [item for item in group if item.unit == unit])))
    parts += [f"Not measured: {item.name}: {item.why}." for item in report.absent]
    return "\n\n".join(parts)


def _markdown_table(name: str, unit: str, items: Sequence[Measurement]) -> Iterator[str]:
    """Its columns are what tells the measurements of a variant apart."""
    cells: dict[tuple[str, str], str] = {}
    for item in items:
        variant, size = _sizes_and_names(item)
        spread = "" if item.spread is None else f" ± {_number(item.spread)}"
        cells[variant, size] = f"{_number(item.value)}{spread}"
    variants, sizes = (list(dict.fromkeys(key[i] for key in cells)) for i in range(2))
    if len(sizes) > MOST_COLUMNS:  # many sizes of few variants
        yield f"| {name}, {unit} | " + " | ".join(one or "all" for one in variants) + " |"
        yield "|---" * (len(variants) + 1) + "|"
        for size in sizes:
            yield f"| {size} | " + " | ".join(cells.get((variant, size), "") for variant in variants) + " |"
        return
    yield f"| {name}, {unit} | " + " | ".join(one or "all" for one in sizes) + " |"
    yield "|---" * (len(sizes) + 1) + "|"
    for variant in variants:
        yield f"| {variant or 'all'} | " + " | ".join(cells.get((variant, size), "") for size in sizes) + " |"


MOST_COLUMNS = 6
