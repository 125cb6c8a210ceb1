"""A run, or two of them, as plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .report import Measurement, Report, by_name


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
