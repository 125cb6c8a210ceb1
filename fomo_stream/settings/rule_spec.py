"""Rules and windows of maintenance in the configuration file: which deviations do not matter, or when."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from fomo_stream.errors import ConfigError
from fomo_stream.limits import FIRST_YEAR, LAST_YEAR, MAX_RULES
from fomo_stream.wording import did_you_mean

if TYPE_CHECKING:
    from numpy.typing import NDArray

KINDS = ("only", "ignore", "valid", "min_severity")  # the fields that make a rule; each rule has one of them
MAX_PATTERN_CHARACTERS, MAX_TABLES_CHARACTERS = 100_000, 400_000  # of the patterns of a table; of all rules, or windows
Pattern = Annotated[str, Field(max_length=200)]
Patterns = Annotated[tuple[Pattern, ...], BeforeValidator(lambda value: split_names(value)), Field(max_length=1000)]
Limit = float | None


def split_names(value: Any) -> Any:
    """Split `"a, b"` into `("a", "b")`, and `'"a, b"'` into `("a, b",)`; return other values unchanged."""
    if isinstance(value, str):
        names = next(csv.reader([value], skipinitialspace=True), ()) if '"' in value else value.split(",")
        return tuple(name.strip() for name in names if name.strip())
    return value


def zone(name: str) -> ZoneInfo:
    """Return a time zone by its name. Raises ValueError."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        from zoneinfo import available_timezones

        hint = did_you_mean(name, sorted(available_timezones()))
        raise ValueError(f"unknown time zone {name[:60]}{hint or '; write it as Europe/Berlin'}") from None


Zone = Annotated[str, AfterValidator(lambda name: zone(name).key), Field(max_length=100)]


class ConfigTable(BaseModel):
    """A table of the configuration file; names of fields may have dashes."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)

    name: str = Field(min_length=1, max_length=100)
    keys: Patterns = ()  # patterns of keys, such as pump-*; none: all keys

    @model_validator(mode="before")
    @classmethod
    def _names_may_have_dashes(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            return {str(name).replace("-", "_"): value for name, value in values.items()}
        return values

    @model_validator(mode="after")
    def _patterns_are_short(self) -> Self:
        if sum(map(len, (*self.keys, *getattr(self, "features", ())))) > MAX_PATTERN_CHARACTERS:
            raise ValueError(f"its patterns have more than {MAX_PATTERN_CHARACTERS:,} characters: use * in them")
        return self

    def plain(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, ready for JSON."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)


AnyConfigTable = TypeVar("AnyConfigTable", bound=ConfigTable)


class Rule(ConfigTable):
    """A rule about features: deviations that give no alert, or values that always give one. It has one of KINDS."""

    features: Patterns = ()  # patterns of names; none: all
    only: Literal["rises", "falls"] | None = None  # the other direction gives no alert
    # smaller deviations from the expected value, or smaller than this share of it ("5%"), give no alert
    ignore: str | float | None = None
    valid: tuple[Limit, Limit] | None = None  # a value outside this range always gives an alert
    min_severity: Literal["warning", "critical"] | None = None  # records below it give no alert

    @field_validator("ignore")
    @classmethod
    def _amount_is_known(cls, value: str | float | None) -> str | float | None:
        if value is None:
            return None
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*", str(value))
        if match is None or float(match[1]) == 0:
            raise ValueError("write an amount in the unit of the feature, as 2.5, or a share, as 5%; more than 0")
        return f"{match[1]}%" if match[2] else float(match[1])

    @field_validator("valid", mode="before")
    @classmethod
    def _range_has_two_ends(cls, value: Any) -> Any:
        if value is not None and (not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2):
            raise ValueError("write the lowest and the highest value, as [0, 100]; null: no limit")
        return value

    @field_validator("valid")
    @classmethod
    def _range_is_one(cls, value: tuple[Limit, Limit] | None) -> tuple[Limit, Limit] | None:
        if value is not None:
            low, high = value
            if low is None and high is None:
                raise ValueError("it has no limit: give the lowest value, the highest, or both")
            if low is not None and high is not None and low > high:
                raise ValueError("the lowest value comes first")
        return value

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        kinds = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(kinds) != 1:
            has = f"it has {' and '.join(kinds)}" if kinds else "it has none of them"
            raise ValueError(f"a rule says one of {', '.join(KINDS).replace('_', '-')}; {has}")
        if self.valid is not None and not self.features:
            raise ValueError("a valid range needs features: the names of the features that it is for")
        return self

    @property
    def amount(self) -> tuple[float, float]:
        """The largest deviation that is ignored: absolute, and as a share of the expected value."""
        if isinstance(self.ignore, str):
            return 0.0, float(self.ignore[:-1]) / 100.0
        return self.ignore or 0.0, 0.0


class Window(ConfigTable):
    """A time of maintenance, by the time of records: from `from` to just before `to`, optionally repeated."""

    from_: datetime = Field(alias="from")  # on the clocks of `timezone`
    to: datetime
    # Empty: the zone of --timezone.
    timezone: Annotated[str, AfterValidator(lambda name: name and zone(name).key), Field(max_length=100)] = ""
    repeat: str = ""  # a rule of iCalendar: FREQ=WEEKLY;BYDAY=SU
    without: tuple[datetime, ...] = Field((), max_length=1000)  # begins of repetitions that do not take place
    # what is skipped for records in the window: their alerts, learning them, or both
    skip: Literal["alerts", "learning", "both"] = "both"

    @field_validator("from_", "to", mode="before")
    @classmethod
    def _time_can_be_read(cls, value: Any) -> Any:
        try:
            moment = datetime.fromisoformat(value.strip()) if isinstance(value, str) else value
        except ValueError:
            moment = None
        if isinstance(moment, date):
            if not FIRST_YEAR <= moment.year <= LAST_YEAR:
                raise ValueError(f"a window is in the years {FIRST_YEAR} to {LAST_YEAR}")
            return moment if isinstance(moment, datetime) else datetime(moment.year, moment.month, moment.day)
        raise ValueError("write a time as 2026-10-01 or 2026-10-01T06:30, optionally with a zone: Z, +02:00")

    @field_validator("repeat")
    @classmethod
    def _rule_can_be_read(cls, text: str) -> str:
        text = text.strip().removeprefix("RRULE:")
        parts = dict(part.partition("=")[::2] for part in text.upper().split(";"))
        if text and parts.get("FREQ") not in ("DAILY", "WEEKLY", "MONTHLY", "YEARLY"):
            raise ValueError("write it as iCalendar does, by the day or longer: FREQ=WEEKLY;BYDAY=SU")
        return text

    @model_validator(mode="after")
    def _ends_after_it_begins(self) -> Self:
        for name in ("from_", "to"):
            moment: datetime = getattr(self, name)
            if moment.tzinfo is not None:
                object.__setattr__(self, "timezone", self.timezone or "UTC")
                object.__setattr__(self, name, _on_clocks(moment, self.timezone))
        if self.to <= self.from_:
            raise ValueError(f"it ends ({self.to}) before it begins ({self.from_})")
        if self.repeat:
            try:
                self.repetitions()
            except ValueError as error:
                raise ValueError(f"repeat: {error}; write it as iCalendar does: FREQ=WEEKLY;BYDAY=SU") from None
        return self

    def repetitions(self) -> tuple[NDArray[Any], time]:
        """Return the days of the window, and when it begins on them, in local time of its zone; see `repetitions`."""
        from fomo_stream.records.recurrence import repetitions

        return repetitions(self.repeat, self.from_, zone(self.timezone or "UTC"), self.length)

    @property
    def length(self) -> timedelta:
        """The duration, in local time of its zone."""
        return self.to - self.from_


def parse_table(cls: type[AnyConfigTable], content: Mapping[str, Any]) -> AnyConfigTable:
    """Make a table from plain values. Raises ValueError, which says what is wrong."""
    try:
        return cls.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place, what = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{place}: {what}" if place else what) from None


def in_zone(windows: Sequence[Window], timezone: str) -> tuple[Window, ...]:
    """Return the windows, with this time zone where they name none."""
    return tuple(window if window.timezone else window.model_copy(update={"timezone": timezone}) for window in windows)


def check_names(tables: Sequence[ConfigTable], what: str) -> None:
    """Raise ValueError for a name that is used twice, or too many tables."""
    names = [table.name for table in tables]
    repeated = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if repeated is not None:
        raise ValueError(f"two {what} are called {repeated}; give each a name of its own")
    if len(names) > MAX_RULES:
        raise ValueError(f"there are {len(names)} {what}; at most {MAX_RULES} are possible")
    if sum(len(table.model_dump_json()) for table in tables) > MAX_TABLES_CHARACTERS:
        raise ValueError(f"the {what} together have more than {MAX_TABLES_CHARACTERS:,} characters: use * in patterns")


def read_calendar(path: Path, timezone: str) -> tuple[Window, ...]:
    """Return the events of an iCalendar file as windows. timezone: of times without a zone. Raises ConfigError.

    The categories of an event say what is skipped: alerts, learning, or both (the default). Cancelled events are left
    out. A repetition that has an event of its own takes place as this one says.
    """
    from icalendar import Calendar

    try:
        events: Sequence[Any] = Calendar.from_ical(path.read_bytes()).walk("VEVENT")
        moved: dict[str, list[date]] = {}  # by UID, the begins of repetitions that have events of their own
        for event in events:
            if "RECURRENCE-ID" in event:
                if "RANGE" in event["RECURRENCE-ID"].params:
                    name = event.get("SUMMARY", event.get("UID", ""))
                    raise ValueError(f"the event {name} moves all later repetitions (RANGE), which is not supported")
                moved.setdefault(str(event.get("UID")), []).append(event["RECURRENCE-ID"].dt)
        windows = [
            _window_of_event(event, timezone, () if "RECURRENCE-ID" in event else moved.get(str(event.get("UID")), ()))
            for event in events
            if str(event.get("STATUS", "")).upper() != "CANCELLED"
        ]
    except OSError as error:
        raise ConfigError(f"--calendar {path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, IndexError, OverflowError, AttributeError, TypeError) as error:
        # the last two: a property that is there twice, or of another kind
        raise ConfigError(f"--calendar {path}: cannot be read as iCalendar: {str(error)[:200]}") from None
    if not events:
        raise ConfigError(f"--calendar {path}: it has no event")
    names: dict[str, int] = {}
    for i, window in enumerate(windows):  # events may have the same name
        names[window.name] = count = names.get(window.name, 0) + 1
        if count > 1:
            windows[i] = window.model_copy(update={"name": f"{window.name} ({count})"})
    return tuple(windows)


def _window_of_event(event: Any, timezone: str, moved: Sequence[date]) -> Window:
    name = str(event.get("SUMMARY", event.get("UID", ""))).strip()[:90] or "maintenance"
    if "DTSTART" not in event:
        raise ValueError(f"the event {name} has no DTSTART")
    begin, end = event["DTSTART"].dt, event.get("DTEND")
    default_duration = timedelta(0 if isinstance(begin, datetime) else 1)
    end = end.dt if end is not None else begin + (event["DURATION"].dt if "DURATION" in event else default_duration)
    event_zone = getattr(begin, "tzinfo", None)
    if (unknown := event["DTSTART"].params.get("TZID")) and event_zone is None:
        raise ValueError(f"the event {name} has the time zone {unknown}, which is not known")
    zone_name = timezone if event_zone is None else getattr(event_zone, "key", None) or "UTC"
    rules = event.get("RRULE")
    if isinstance(rules, list) or "RDATE" in event:
        raise ValueError(f"the event {name} repeats in a way that is not supported: it may have one RRULE")
    lists = event.get("EXDATE", [])
    dates = [moment.dt for each in (lists if isinstance(lists, list) else [lists]) for moment in each.dts] + [*moved]
    kinds = {str(kind).lower() for kind in getattr(event.get("CATEGORIES"), "cats", ())} & {"alerts", "learning"}
    content = {
        "name": name,
        "from": _on_clocks(begin, zone_name),
        "to": _on_clocks(end, zone_name),
        "timezone": zone_name,
        "repeat": rules.to_ical().decode() if rules else "",
        "without": tuple(_on_clocks(moment, zone_name) for moment in dates),
        "skip": kinds.pop() if len(kinds) == 1 else "both",
    }
    try:
        return parse_table(Window, content)
    except ValueError as error:
        raise ValueError(f"the event {name}: {error}") from None


def _on_clocks(moment: date, timezone: str) -> datetime:
    if not isinstance(moment, datetime):
        return datetime(moment.year, moment.month, moment.day)
    return moment if moment.tzinfo is None else moment.astimezone(zone(timezone)).replace(tzinfo=None)
