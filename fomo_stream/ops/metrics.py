"""Every metric of the service, with its type, unit and description. Collected when they are asked for."""

from __future__ import annotations

from typing import Literal, NamedTuple

PREFIX = "fomo_"


class Metric(NamedTuple):
    """A metric. A counter is exposed as `<name>_total`, a histogram as `<name>_bucket`, `_sum` and `_count`."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "info"]
    text: str
    labels: tuple[str, ...] = ()


def _metric(name: str, kind: Literal["counter", "gauge", "histogram", "info"], text: str, *labels: str) -> Metric:
    return Metric(PREFIX + name, kind, text, labels)


# The unit is the end of the name; numbers of things have none.
METRICS = (
    _metric(
        "info",
        "info",
        "Version, checkpoint, kernel, topic and group.",
        "version",
        "model",
        "kernel",
        "topic",
        "group",
    ),
    _metric("ready", "gauge", "1 while records are being scored, else 0; /readyz has the reasons."),
    _metric("partitions_assigned", "gauge", "Input partitions that the group has given to this instance."),
    _metric("partitions_restoring", "gauge", "Of these, partitions that wait for their state."),
    _metric("records", "counter", "Records scored."),
    _metric("records_calibrated", "counter", "Records scored with status ok: only these can be outliers."),
    _metric("score", "histogram", "Scores, from 0 to 1."),
    _metric("alerts", "counter", "Records by severity; warning and critical are outliers.", "severity"),
    _metric("alert_rate_requested_ratio", "gauge", "The setting --alert-rate."),
    _metric("alert_rate_realised_ratio", "gauge", "Share of outliers among the last calibrated records, about 10,000."),
    _metric("dead_letters", "counter", "Records that could not be used, by reason.", "reason"),
    _metric("missing_values", "counter", "Feature values that scored records lack."),
    _metric("features", "gauge", "Features that are scored; 0 while they are not known."),
    _metric("labels", "counter", "Labels that took effect."),
    _metric("rows_learned", "counter", "Rows that were learned."),
    _metric("trimmed_rows", "gauge", "Rows that the newest trimmed context has left out.", "partition"),
    _metric("regimes", "counter", "Lasting shifts that were announced."),
    _metric("drift", "gauge", "How much of what announces a new regime was seen, from 0 to 1.", "partition"),
    _metric("lag_records", "gauge", "Records from the committed offset to the end of the partition.", "partition"),
    _metric(
        "oldest_unscored_seconds",
        "gauge",
        "Age of the oldest record not scored yet; 0: none.",
        "partition",
    ),
    _metric(
        "open_transaction_seconds",
        "gauge",
        "How long readers have waited for a transaction to end.",
        "topic",
        "partition",
    ),
    _metric("decode_seconds", "histogram", "Time to decode the records of one poll."),
    _metric("score_seconds", "histogram", "Time to score and learn one micro-batch."),
    _metric("produce_seconds", "histogram", "Time to encode and send the outputs of one micro-batch."),
    _metric("commit_seconds", "histogram", "Time of one commit."),
    _metric("end_to_end_seconds", "histogram", "Time from the timestamp of a record to the commit of its score."),
    _metric("commits", "counter", "Commits (with exactly-once: transactions), by outcome.", "outcome"),
    _metric("rebalances", "counter", "Partitions that the group has given or taken, by event.", "event"),
    _metric("restores", "counter", "Partitions whose state was restored."),
    _metric("restore_retries", "counter", "Attempts to restore a partition that have to be repeated."),
    _metric("restore_seconds", "histogram", "Time from the assignment of a partition until it is read."),
    _metric("generations", "counter", "Contexts that took effect."),
    _metric("generation_age_seconds", "gauge", "Time since the newest context took effect.", "partition"),
    _metric("generation_age_records", "gauge", "Records since the newest context took effect.", "partition"),
    _metric("build_seconds", "histogram", "Time to build one context."),
    _metric("context_rows", "gauge", "Rows of the history of which contexts are made.", "partition"),
)
