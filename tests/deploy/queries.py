"""What PromQL queries name: metrics, and labels. And what instances expose."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fomo_stream.ops.metrics import METRICS, PREFIX

TARGET = frozenset({"namespace", "job", "pod", "instance"})  # labels that Prometheus adds to every series
# Of prometheus_client's ProcessCollector, as it names them.
PROCESS = (
    "process_virtual_memory_bytes",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_cpu_seconds_total",
    "process_open_fds",
    "process_max_fds",
)
TOKEN = re.compile(
    r"""\s+|\#[^\n]*
    |(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)
    |(?P<range>\[[^\]]*\])
    |(?P<number>\d[\w.]*)
    |(?P<name>[a-zA-Z_:][\w:]*)
    |(?P<sign>=~|!~|!=|==|<=|>=|[-+*/%^=<>(){},@])""",
    re.VERBOSE,
)
LABEL_LISTS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
WORDS = {"and", "or", "unless", "bool", "offset", "atan2", "inf", "nan"}


@dataclass
class Names:
    """What a query names."""

    selectors: list[tuple[str, set[str]]] = field(default_factory=list)  # metrics, each with the labels it is asked for
    grouped: set[str] = field(default_factory=set)  # labels in lists, as after `by`


def names(query: str) -> Names:
    """The metrics and labels in a query. Raises ValueError for what this cannot read.

    >>> found = names('sum by (pod) (rate(a_total{job=~"b", x!="}"}[5m:1m])) / on (pod) c > bool 1e3')
    >>> [(name, sorted(labels)) for name, labels in found.selectors], found.grouped
    ([('a_total', ['job', 'x']), ('c', [])], {'pod'})
    """
    found = Names()
    tokens = [*_tokens(query), ("end", ""), ("end", "")]
    at = 0
    while at < len(tokens) - 2:
        kind, text = tokens[at]
        following = tokens[at + 1][1]
        at += 1
        if text == "{":
            raise ValueError(f"a selector without a metric: {query}")
        if kind != "name" or text.lower() in WORDS:
            continue
        if text in LABEL_LISTS:
            end = tokens.index(("sign", ")"), at)
            found.grouped |= {name for kind, name in tokens[at:end] if kind == "name"}
            at = end + 1
        elif following == "{":
            end = tokens.index(("sign", "}"), at)
            found.selectors.append((text, {name for kind, name in tokens[at:end] if kind == "name"}))
            at = end + 1
        elif following != "(" and following not in ("by", "without"):  # else a function or an aggregation
            found.selectors.append((text, set()))
    return found


def _tokens(query: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(query):
        match = TOKEN.match(query, at)
        if match is None:
            raise ValueError(f"cannot read {query[at:]!r} in {query!r}")
        at = match.end()
        if match.lastgroup is not None:
            yield match.lastgroup, match[0]


def exposed() -> dict[str, frozenset[str]]:
    """All series of an instance, as Prometheus stores them: by name, their own labels."""
    found: dict[str, frozenset[str]] = {name: frozenset() for name in PROCESS}
    for metric in METRICS:
        labels, name = frozenset(metric.labels), PREFIX + metric.name
        if metric.kind == "histogram":
            found |= {f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels, f"{name}_count": labels}
        else:
            found[f"{name}_total" if metric.kind == "counter" else name] = labels
    return found


def unknown(queries: Iterable[str]) -> list[str]:
    """Names in queries that do not exist: metrics, labels of a metric, and labels of no metric of the query."""
    known = exposed()
    wrong = []
    for query in queries:
        found = names(query)
        wrong += [metric for metric, _ in found.selectors if metric not in known]
        selectors = [(metric, asked) for metric, asked in found.selectors if metric in known]
        for metric, asked in selectors:
            wrong += [f"{metric}{{{label}}}" for label in sorted(asked - known[metric] - TARGET)]
        allowed = TARGET.union(*(known[metric] for metric, _ in selectors))
        wrong += [f"by ({label}): {query}" for label in sorted(found.grouped - allowed)]
    return wrong
