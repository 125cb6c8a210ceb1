"""What the reader of a report could try next: at most three commands, each with what in the data speaks for it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fomo_stream.replaying.advice import Found, hours, roles, shortened
from fomo_stream.replaying.plan import Plan
from fomo_stream.wording import counted

MOST = 3
MANY = 2.0  # times as many incidents a day as are wanted, from which a configuration may help
OFTEN = 0.5  # share of the alerts that are false, or of the outliers that are missed, from which the rate may be wrong
WEEKS = 14.0  # days from which the time of day and week may be worth a try
LASTING = 200  # records of a fault that may become usual while it lasts
DAY_MS = 86_400_000
# settings that a command repeats if they were given
REPEATED = ("key", "time", "label", "categorical", "alert_rate", "seed_context", "report")


class Suggestion(NamedTuple):
    """A command, or a call in Python, to try."""

    why: str  # one sentence
    command: str


def suggestions(plan: Plan, report: Mapping[str, Any]) -> list[dict[str, str]]:
    """At most MOST suggestions. report: its source, detectors, incidents and segments."""
    found = [*_roles(plan, report), *_rates(plan, report), *_lasting(plan, report)]
    return [one._asdict() for one in found[:MOST]]


def _roles(plan: Plan, report: Mapping[str, Any]) -> Iterator[Suggestion]:
    """Fields with a role that no setting gives them; features that were chosen are left alone."""
    settings, source = plan.settings, plan.source
    found = roles(settings, source) if source.kind != "topic" else Found()
    if settings.features is not None:
        found.values.pop("categorical", None)
    said = [f"{found.values[name]} is {found.why[name]}" for name in ("time",) if name in found.values]
    said += [f"{found.values[name]} has {found.why[name]}" for name in ("key",) if name in found.values]
    said += [found.why[name] for name in ("categorical",) if name in found.values]
    if said:
        yield Suggestion(f"{'. '.join(said)}.", _command(plan, **found.values))
    if source.kind != "topic" and _days(report) >= WEEKS and (names := hours(settings, source)):
        why = (
            f"The hour of the day explains more than half of {shortened(names)}. This compares 3 a.m. with 3 a.m.; "
            "compare the incidents."
        )
        yield Suggestion(why, _command(plan, time_features=("hour", "weekday")))


def _rates(plan: Plan, report: Mapping[str, Any]) -> Iterator[Suggestion]:
    settings, own = plan.settings, report["detectors"][0]
    rate = settings.alert_rate
    precision, recall = (own["metrics"].get(name) for name in ("alert_precision", "alert_recall"))
    if precision and recall:
        wrong, missed = 1.0 - precision["value"], 1.0 - recall["value"]
        if wrong > OFTEN and missed <= OFTEN:
            why = f"{100 * wrong:.0f} % of the alerts on labelled records are no outliers. Ask for fewer alerts."
            yield Suggestion(why, _command(plan, alert_rate=rate / 5))
        elif missed > OFTEN and wrong <= OFTEN:
            why = f"{100 * missed:.0f} % of the labelled outliers raised no alert. Ask for more alerts."
            yield Suggestion(why, _command(plan, alert_rate=min(0.2, rate * 3)))
        return
    a_day = report["incidents"]["count"] / max(1.0, _days(report))
    if _days(report) and a_day > MANY * settings.incidents_per_day and settings.suggest is None:
        most = f"{settings.incidents_per_day:g}"
        why = f"About {a_day:.2g} incidents a day. This writes a configuration with at most {most} a day, if it can."
        yield Suggestion(why, _command(plan, suggest="suggested.yaml"))


def _days(report: Mapping[str, Any]) -> float:
    """How long the records take; 0 if they have no times."""
    return ((report["source"].get("to_ms") or 0) - (report["source"].get("from_ms") or 0)) / DAY_MS


def _lasting(plan: Plan, report: Mapping[str, Any]) -> Iterator[Suggestion]:
    """Faults that last are found better where rows are compared with a file without faults."""
    settings = plan.settings
    if plan.source.kind != "file" or settings.seed_context is not None or settings.key is not None:
        return
    missed = [one["records"] for one in report["segments"] if one["detected"] is False]
    longest = max([*missed, report["incidents"]["most_records"] or 0])
    if longest < LASTING:
        return
    what = "A labelled fault that was missed" if longest in missed else "An incident"
    why = (
        f"{what} lasts {counted(longest, 'record')}. Faults that last are found better where rows are compared "
        "with a file without faults, and nothing else."
    )
    yield Suggestion(why, shlex.join(["fomo-stream", "score", str(settings.file), "--context", "without-faults.csv"]))


def _command(plan: Plan, **more: Any) -> str:
    """The command, or for data in memory the call, with these settings and the given ones that matter most."""
    settings = plan.settings
    given = {name: getattr(settings, name) for name in REPEATED if settings.is_given(name)} | more
    texts = {name: ",".join(value) if isinstance(value, tuple) else value for name, value in given.items()}
    if plan.source.kind == "memory":
        texts.pop("report", None)
        return f"replay({', '.join(['data', *(f'{name}={value!r}' for name, value in texts.items())])})"
    words = ["--topic", settings.topic] if settings.file is None else ["--file", str(settings.file)]
    for name, value in texts.items():
        words += [f"--{name.replace('_', '-')}", f"{value:.3g}" if isinstance(value, float) else str(value)]
    return shlex.join(["fomo-stream", "replay", *words])
