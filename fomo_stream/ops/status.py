"""The data of the status page: how an instance is doing now, and over the last minutes.

The service reports every micro-batch and commit to the `StatusBoard`, which only adds to the sums of the present
second. The sums of minutes are made when somebody looks.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from fomo_stream import __version__
from fomo_stream.kafka.observer import Observation, Observer, Outlier
from fomo_stream.kafka.snapshot import PartitionSnapshot, Snapshot

RATE_S = 10  # seconds over which the present rate is a mean
STEP_S, STEPS = 5, 120  # the series of rates: 10 minutes
LATENCY_S = 60
LEAST_CALIBRATED = 1000  # fewer records say too little about the realised rate
ALERTS = 100  # recent alerts that are kept
NAME_CHARACTERS = 100  # of a feature, at most

# Latencies are counted in classes, each 5 % wider than the one before, from 0.1 ms to about 100 days.
LEAST_S, GROWTH = 1e-4, math.log(1.05)
CLASSES = 520


class Latencies:
    """Seconds of the last minute, as counts in classes: a quantile is exact within 2.5 %."""

    def __init__(self) -> None:
        self._counts: deque[tuple[int, NDArray[np.int64]]] = deque(maxlen=LATENCY_S + 1)  # by second

    def add(self, now: int, seconds: Sequence[float]) -> None:
        """Count `seconds` at the time `now`."""
        if not self._counts or self._counts[-1][0] != now:
            self._counts.append((now, np.zeros(CLASSES, np.int64)))
        logs = np.log(np.maximum(seconds, LEAST_S) * (1 / LEAST_S)) * (1 / GROWTH)
        self._counts[-1][1][:] += np.bincount(np.minimum(logs, CLASSES - 1).astype(np.int64), minlength=CLASSES)

    def quantiles(self, now: int, shares: Sequence[float]) -> list[float | None]:
        """The quantiles of the last minute, in seconds; None without any. shares: above 0, at most 1."""
        counts = sum((found for at, found in list(self._counts) if at > now - LATENCY_S), np.zeros(CLASSES, np.int64))
        until = np.cumsum(counts)
        if not until[-1]:
            return [None] * len(shares)
        classes = [int(np.searchsorted(until, math.ceil(share * until[-1]))) for share in shares]
        return [LEAST_S * math.exp((number + 0.5) * GROWTH) for number in classes]


class StatusBoard(Observer):
    """Collects the reports of a service, and makes the data of the status page from them and a `Snapshot`.

    Of records it has the names of features only. clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = math.floor(clock())
        self._lock = threading.Lock()
        # By second: records, calibrated records, outliers. One step more than is shown: the present is incomplete.
        self._counts: deque[tuple[int, int, int, int]] = deque(maxlen=STEP_S * (STEPS + 1))
        self._waits = Latencies()  # from poll to commit
        self._ages = Latencies()  # from the record's timestamp to the commit
        # By partition and offset, because records are scored again after a commit that failed.
        self._alerts: dict[tuple[int, int], dict[str, Any]] = {}

    # --- from the service's thread --------------------------------------------------------------------------

    def scored(self, seen: Observation) -> None:
        now = int(self._clock())
        alerts = [self._alert(seen.partition, outlier) for outlier in seen.outliers[-ALERTS:]]
        with self._lock:
            counts = self._counts.pop() if self._counts and self._counts[-1][0] == now else (now, 0, 0, 0)
            _, records, ok, outliers = counts
            self._counts.append((now, records + seen.n_records, ok + seen.calibrated, outliers + len(seen.outliers)))
            for alert in alerts:
                place = alert["partition"], alert["offset"]
                self._alerts.pop(place, None)
                self._alerts[place] = alert
                if len(self._alerts) > ALERTS:
                    del self._alerts[next(iter(self._alerts))]

    def committed(self, seconds: Sequence[float], ages: Sequence[float], took: float) -> None:
        now = int(self._clock())
        with self._lock:
            for latencies, found in ((self._waits, seconds), (self._ages, ages)):
                if found:
                    latencies.add(now, found)

    def _alert(self, partition: int, outlier: Outlier) -> dict[str, Any]:
        result = outlier.result
        timestamp = result["timestamp"]
        return {
            "time": time.time() if timestamp is None else timestamp / 1000,
            "partition": partition,
            **{name: result[name] for name in ("offset", "score", "p_value", "severity")},
            "incident": result.get("incident"),
            "features": _named(result.get("reasons", ())),
        }

    # --- for the page ---------------------------------------------------------------------------------------

    def status(self, snapshot: Snapshot) -> bytes:
        """The data of the page, as JSON. Times are seconds; of dates, since 1970."""
        now = int(self._clock())
        with self._lock:
            counts = list(self._counts)
            alerts = list(self._alerts.values())
        waits, ages = (found.quantiles(now, (0.5, 0.99)) for found in (self._waits, self._ages))
        complete = [(at, records) for at, records, *_ in counts if at < now]
        seconds = min(RATE_S, max(1, now - self._began))
        window = [found for at, *found in counts if at > now - STEP_S * STEPS]
        _, calibrated, outliers = map(sum, zip(*window, strict=True)) if window else (0, 0, 0)
        status = {
            "version": __version__,
            "time": time.time(),
            "instance": _instance(snapshot),
            "partitions": [_partition(one) for one in snapshot.partitions],
            "rate": {
                "per_second": sum(records for at, records in complete if at >= now - seconds) / seconds,
                "over_s": seconds,
                "step_s": STEP_S,
                "series": self._series(now, complete),
            },
            "latency": {
                "over_s": LATENCY_S,
                "end_to_end": dict(zip(("p50_s", "p99_s"), ages, strict=True)),
                "poll_to_commit": dict(zip(("p50_s", "p99_s"), waits, strict=True)),
            },
            "alerts": {
                "over_s": STEP_S * STEPS,
                "outliers": outliers,
                "requested_rate": snapshot.alert_rate,
                "realised_rate": outliers / calibrated if calibrated >= LEAST_CALIBRATED else None,
                "recent": alerts[::-1],
            },
        }
        return orjson.dumps(status)

    def _series(self, now: int, complete: Sequence[tuple[int, int]]) -> list[float | None]:
        """Records per second in each step, oldest first; None before the board began."""
        last = now // STEP_S  # not complete yet
        sums = dict.fromkeys(range(last - STEPS, last), 0)
        for at, records in complete:
            if at // STEP_S in sums:
                sums[at // STEP_S] += records
        return [total / STEP_S if step * STEP_S >= self._began else None for step, total in sums.items()]


def _instance(snapshot: Snapshot) -> dict[str, Any]:
    names = ("state", "topic", "out", "alerts", "group", "instance_id", "model", "kernel")
    lists = {name: [_printable(text) for text in getattr(snapshot, name)] for name in ("not_ready", "features")}
    return {**{name: getattr(snapshot, name) for name in names}, **lists}


def _partition(one: PartitionSnapshot) -> dict[str, Any]:
    names = ("number", "waits", "position", "committed", "lag", "oldest_unscored_s", "open_transactions")
    known = {name: getattr(one, name) for name in (*names, "generation_age_s", "context_late_s")}
    return {**known, **one.detector._asdict()}


def _named(reasons: Sequence[Mapping[str, Any]]) -> list[str]:
    """The features that are named in reasons, without their values."""
    names = [one[role] for one in reasons for role in ("feature", "with") if role in one]
    return [_short(name) for name in dict.fromkeys(names)]


def _short(text: str, most: int = NAME_CHARACTERS) -> str:
    return _printable(text if len(text) <= most else text[: most - 1] + "…")


def _printable(text: str) -> str:
    """Text that can be written as UTF-8: lone surrogates, which JSON may have, are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()
