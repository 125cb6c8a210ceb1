"""The data of the status page: the state of an instance now, and over the last minutes.

The service reports every micro-batch and commit to the `StatusBoard`, which only adds to the sums of the present
second. The sums over minutes are made when the page is requested.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from fomo_stream import __version__
from fomo_stream.detector.keys import Key
from fomo_stream.kafka.observer import Observation, Observer, Outlier
from fomo_stream.kafka.snapshot import PartitionSnapshot, Snapshot
from fomo_stream.partition.incidents import CLOSED, Notice
from fomo_stream.records.explanation import key_in_sentence

RATE_S = 10  # the present rate is the mean over this time
STEP_S, STEPS = 5, 120  # the series of rates: 10 minutes
LATENCY_S = 60
MAX_COMMIT_LATENCIES = 1000  # of one commit that are kept
MAX_INCIDENTS = 100  # newest incidents that are kept
CHART_S, CHART_STEPS = 10, 60  # the chart of the highest scores of a partition: 10 minutes
MAX_NAME = 100  # of a feature


class Latencies:
    """Seconds that records have taken in the last minute."""

    def __init__(self) -> None:
        self._commits: deque[tuple[float, NDArray[np.float32]]] = deque()  # with the time of each

    def add(self, now: float, seconds: Sequence[float]) -> None:
        """Add the latencies of a commit at the time `now`: if there are many, an evenly spread part of them."""
        while self._commits and self._commits[0][0] <= now - LATENCY_S:
            self._commits.popleft()
        step = -(-len(seconds) // MAX_COMMIT_LATENCIES)
        self._commits.append((now, np.maximum(np.array(seconds[::step], np.float32), 0)))

    def quantiles(self, now: float) -> dict[str, float | None]:
        """Return median and 99th percentile of the last minute, in seconds; None without any."""
        last = [seconds for time_s, seconds in list(self._commits) if time_s > now - LATENCY_S]
        p50, p99 = np.quantile(np.concatenate(last), (0.5, 0.99)).tolist() if last else (None, None)
        return {"p50_s": p50, "p99_s": p99}


class StatusBoard(Observer):
    """Collects the reports of a service, and makes the data of the status page from them and a `Snapshot`.

    It shows names of features, never their values, and keys only with show_keys. clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, show_keys: bool = False) -> None:
        self._clock, self._show_keys = clock, show_keys
        self._began = int(clock())
        self._lock = threading.Lock()
        # By second: records, outliers. One step more than the page shows, because the present one is incomplete.
        self._counts: deque[tuple[int, int, int]] = deque(maxlen=STEP_S * (STEPS + 1))
        self._waits = Latencies()  # from poll to commit
        self._ages = Latencies()  # from the record's timestamp to the commit
        self._incidents: dict[str, dict[str, Any]] = {}  # by name; the one with the newest alert is the last
        self._charts: dict[int, deque[list[float]]] = {}  # by partition: step, highest score, alerts

    # --- from the service's thread --------------------------------------------------------------------------

    def scored(self, observation: Observation) -> None:
        now = int(self._clock())
        scores = [result["score"] for result in observation.results if result.get("score") is not None]
        with self._lock:
            counts = self._counts.pop() if self._counts and self._counts[-1][0] == now else (now, 0, 0)
            _, records, so_far = counts
            self._counts.append((now, records + observation.n_records, so_far + len(observation.outliers)))
            self._chart(observation.partition, now // CHART_S, max(scores, default=0.0), len(observation.outliers))
            for outlier in observation.outliers[-MAX_INCIDENTS:]:
                self._alert(observation.partition, outlier)
            for name in observation.closed:
                self._end(name)

    def silence(self, partition: int, notice: Notice) -> None:
        summary = notice.summary
        with self._lock:
            if summary["status"] == CLOSED:
                self._end(summary["incident"])
            else:
                fields = {"about": summary["status"], "of": summary["of"], "severity": "warning"}
                fields["quiet_s"] = summary.get("quiet_s")
                self._take(summary["incident"], partition, summary["from"], notice.key, fields)

    def committed(self, seconds: Sequence[float], ages: Sequence[float], took: float) -> None:
        now = self._clock()
        for latencies, values in ((self._waits, seconds), (self._ages, ages)):
            if values:
                with self._lock:
                    latencies.add(now, values)

    def _chart(self, partition: int, step: int, highest: float, alerts: int) -> None:
        chart = self._charts.setdefault(partition, deque(maxlen=CHART_STEPS + 1))
        if chart and chart[-1][0] == step:
            chart[-1] = [step, max(chart[-1][1], highest), chart[-1][2] + alerts]
        else:
            chart.append([step, highest, alerts])

    def _alert(self, partition: int, outlier: Outlier) -> None:
        result = outlier.result
        name = result.get("incident") or f"{partition}-{result['offset']}"
        incident = self._take(name, partition, result, outlier.key, {"about": "outlier"})
        if result["offset"] <= incident["last"] and incident["alerts"]:
            return  # the record was scored again after a failed commit
        score = result["score"] or 0.0
        if score >= incident["score"]:
            incident |= {"score": score, "severity": result["severity"]}
            incident["features"] = _feature_names(result.get("reasons", ()))
        incident |= {"alerts": incident["alerts"] + 1, "last": result["offset"], "surprise": result.get("surprise")}
        incident |= {"until": _record_time_s(result)}

    def _take(
        self, name: str, partition: int, begin: Mapping[str, Any], key: Key, fields: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the incident of this name, updated, and make it the newest."""
        incident = self._incidents.pop(name, None)
        if incident is None:
            shown = _as_utf8(key_in_sentence(key)) if self._show_keys and key is not None else None
            place = {"incident": name, "partition": partition, "offset": begin["offset"], "key": shown}
            empty: dict[str, Any] = {"score": 0.0, "features": [], "alerts": 0, "surprise": None}
            incident = {**place, **dict.fromkeys(("since", "until"), _record_time_s(begin)), "last": begin["offset"]}
            incident |= empty
        incident |= {"open": True, **fields}
        self._incidents[name] = incident
        if len(self._incidents) > MAX_INCIDENTS:
            del self._incidents[next(iter(self._incidents))]
        return incident

    def _end(self, name: str) -> None:
        if name in self._incidents:
            self._incidents[name]["open"] = False

    # --- for the page ---------------------------------------------------------------------------------------

    def status(self, snapshot: Snapshot, realised_rate: float | None = None) -> bytes:
        """Return the data of the page, as JSON."""
        return orjson.dumps(self.data(snapshot, realised_rate))

    def data(self, snapshot: Snapshot, realised_rate: float | None = None) -> dict[str, Any]:
        """Return the data of the page. Durations are seconds, dates are seconds since 1970.

        realised_rate: share of outliers among the last records; None while there are too few.
        """
        present = self._clock()
        now = int(present)
        with self._lock:
            counts = list(self._counts)
            incidents = [dict(incident) for incident in reversed(self._incidents.values())]  # newest first
            charts = {number: list(chart) for number, chart in self._charts.items()}
            waits, ages = (latencies.quantiles(present) for latencies in (self._waits, self._ages))
        complete = [(second, records) for second, records, _ in counts if second < now]
        seconds = min(RATE_S, max(1, now - self._began))
        rate = sum(records for second, records in complete if second >= now - seconds) / seconds
        lag = sum(partition.lag or 0 for partition in snapshot.partitions)
        return {
            "version": __version__,
            "time": time.time(),
            "instance": _instance_data(snapshot),
            "partitions": [
                {**_partition_data(partition), "chart": _chart_data(charts.get(partition.number, ()), now)}
                for partition in snapshot.partitions
            ],
            "rate": {
                "per_second": rate,
                "over_s": seconds,
                "step_s": STEP_S,
                "series": self._series(now, complete),
            },
            "catch_up_s": lag / rate if rate else None,  # at this rate; records that arrive meanwhile come on top
            "latency": {"over_s": LATENCY_S, "end_to_end": ages, "poll_to_commit": waits},
            "alerts": {
                "over_s": STEP_S * STEPS,
                "outliers": sum(outliers for second, _, outliers in counts if second > now - STEP_S * STEPS),
                "requested_rate": snapshot.alert_rate,
                "realised_rate": realised_rate,
            },
            "shows_keys": self._show_keys,
            "incidents": sorted(incidents, key=lambda incident: not incident["open"]),
        }

    def _series(self, now: int, complete: Sequence[tuple[int, int]]) -> list[float | None]:
        """Return the records per second in each step, oldest first; None before the board began."""
        last = now // STEP_S  # not complete yet
        sums = dict.fromkeys(range(last - STEPS, last), 0)
        for second, records in complete:
            if second // STEP_S in sums:
                sums[second // STEP_S] += records
        return [total / STEP_S if step * STEP_S >= self._began else None for step, total in sums.items()]


def topic_overview(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the line of one topic in the page of a process with several."""
    instance, partitions = status["instance"], status["partitions"]
    lags = [partition["lag"] for partition in partitions if partition["lag"] is not None]
    return {
        **{name: instance[name] for name in ("topic", "state", "not_ready")},
        "partitions": len(partitions),
        "per_second": status["rate"]["per_second"],
        "lag": sum(lags) if lags else None,
        "outliers": status["alerts"]["outliers"],
        "incidents": sum(incident["open"] for incident in status["incidents"]),
    }


def _chart_data(chart: Sequence[Sequence[float]], now: int) -> dict[str, Any]:
    """Return the highest score and the alerts of a partition in the last steps, oldest first; None without records."""
    by_step = {int(step): (highest, alerts) for step, highest, alerts in chart}
    steps = range(now // CHART_S - CHART_STEPS + 1, now // CHART_S + 1)
    scores = [round(by_step[step][0], 4) if step in by_step else None for step in steps]
    return {"step_s": CHART_S, "score": scores, "alerts": [int(by_step.get(step, (0, 0))[1]) for step in steps]}


def _record_time_s(record: Mapping[str, Any]) -> float:
    """Return the time of a record, in seconds since 1970; now if it has none."""
    timestamp = record.get("timestamp")
    return time.time() if timestamp is None else timestamp / 1000


def _instance_data(snapshot: Snapshot) -> dict[str, Any]:
    names = ("state", "topic", "out", "alerts", "group", "instance_id", "model", "kernel")
    lists = {name: [_as_utf8(text) for text in getattr(snapshot, name)] for name in ("not_ready", "features")}
    return {**{name: getattr(snapshot, name) for name in names}, **lists}


def _partition_data(partition: PartitionSnapshot) -> dict[str, Any]:
    return {
        **{name: value for name, value in vars(partition).items() if name != "detector"},
        **partition.detector._asdict(),
    }


def _feature_names(reasons: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the features that reasons name, without values."""
    names = dict.fromkeys(reason[role] for reason in reasons for role in ("feature", "with") if role in reason)
    return [_as_utf8(name if len(name) <= MAX_NAME else name[: MAX_NAME - 1] + "…") for name in names]


def _as_utf8(text: str) -> str:
    """Return a text that can be written as UTF-8: lone surrogates, which JSON may have, are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()
