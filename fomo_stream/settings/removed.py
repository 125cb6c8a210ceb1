"""Settings of earlier builds: what to use instead, and those with another name now. Both stay for one release."""

from __future__ import annotations

_MESSAGES_HINT = "--per-hour of notify limits messages, and Alertmanager groups and repeats them"
_TARGETS_HINT = "give the addresses in FOMO_TO, FOMO_WEBHOOK and FOMO_ALERTMANAGER, or in the file of --config"

REMOVED = {
    **dict.fromkeys(("throttle", "update-every", "group-above", "template", "look-back", "notify"), _MESSAGES_HINT),
    **dict.fromkeys(("targets", "targets-file"), _TARGETS_HINT),
    **dict.fromkeys(("webhook-secret", "webhook-secret-file"), "use https, with user:password@ in the address"),
    "target-ca": "set SSL_CERT_FILE (for --to REQUESTS_CA_BUNDLE) to a file with it and those of the system",
    "target-timeout": "leave it out: a target has 10 s to answer",
    "rate-change": "Prometheus tells of unusual rates, by the rule FomoRecordRateUnusual of the chart",
    "input-format": "leave it out: --schema-file says that values are Avro",
    "json": "group prints text; replay and doctor write JSON",
    "format": "the demo sends JSON; score and replay have it for their files",
    "missing-is": "leave it out: a missing value is unknown; `missing` of each result counts them",
    "reasons": "leave it out: a record has three reasons at most",
    "plain": "leave it out: the demo prints lines",
    "rate": "leave it out: the demo has 500 records a second",
}


RENAMED = {"still": "stuck_values", "kernel": "backend"}  # the old name still works, with a note


def replacement_hint(name: str) -> str:
    """Return the end of a sentence about a removed setting, written as a flag or a variable; empty: it never existed.

    >>> replacement_hint("FOMO_TARGET_TIMEOUT")
    ': it is gone; leave it out: a target has 10 s to answer'
    """
    plain = name.lower().removeprefix("fomo_").lstrip("-").replace("_", "-")
    return f": it is gone; {REMOVED[plain]}" if plain in REMOVED else ""
