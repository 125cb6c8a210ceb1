"""What PromQL queries name: metrics, and labels. And what instances expose."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fomo_stream.notify.notify_metrics import METRICS as NOTIFY
from fomo_stream.ops.metric import PREFIX
from fomo_stream.ops.metrics import METRICS

TARGET = frozenset({"namespace", "job", "pod", "instance"})  # labels that Prometheus adds to every series
SEVERAL = frozenset({"topic"})  # the label that a process with several topics adds to its series
# Of prometheus_client's ProcessCollector, as it names them.
PROCESS = (
    "process_virtual_memory_bytes",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_cpu_seconds_total",
    "process_open_fds",
    "process_max_fds",
)
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
SELECTOR = re.compile(r"\b((?:fomo|process)_\w+|up)\b(?:\s*{([^}]*)})?")
LABEL_LIST = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")


@dataclass
class Names:
    """What a query names."""

    selectors: list[tuple[str, set[str]]]  # metrics, each with the labels it is asked for
    grouped: set[str]  # labels in lists, as after `by`


def names(query: str) -> Names:
    """The metrics and labels in a query.

    >>> found = names('sum by (pod) (rate(fomo_a_total{job=~"b", x!="}"}[5m:1m])) / on (pod) up > bool 1e3')
    >>> [(name, sorted(labels)) for name, labels in found.selectors], found.grouped
    ([('fomo_a_total', ['job', 'x']), ('up', [])], {'pod'})
    """
    plain = STRING.sub("", query)
    lists = LABEL_LIST.findall(plain)
    selectors = SELECTOR.findall(LABEL_LIST.sub("", plain))
    return Names(
        [(metric, set(re.findall(r"\w+", labels))) for metric, labels in selectors],
        {label for one in lists for label in re.findall(r"\w+", one)},
    )


def exposed(with_notify: bool = True) -> dict[str, frozenset[str]]:
    """All series of an instance, and of notify, as Prometheus stores them: by name, their own labels."""
    found: dict[str, frozenset[str]] = {name: frozenset() for name in PROCESS}
    for metric in (*METRICS, *(NOTIFY if with_notify else ())):
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
            wrong += [f"{metric}{{{label}}}" for label in sorted(asked - known[metric] - TARGET - SEVERAL)]
        allowed = (TARGET | SEVERAL).union(*(known[metric] for metric, _ in selectors))
        wrong += [f"by ({label}): {query}" for label in sorted(found.grouped - allowed)]
    return wrong
