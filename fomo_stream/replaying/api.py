"""`fomo_stream.replay`: replay past records from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.stable.v2.typing import IntoDataFrame, IntoSeries
from numpy.typing import ArrayLike, NDArray

from fomo_stream.errors import ConfigError
from fomo_stream.replaying import command
from fomo_stream.replaying.progress import shown_progress
from fomo_stream.replaying.replay_result import ReplayResult
from fomo_stream.replaying.tables import InMemory, in_memory
from fomo_stream.settings.removed import RENAMED
from fomo_stream.settings.replay import ReplaySettings
from fomo_stream.settings.sources import load
from fomo_stream.wording import did_you_mean

Grid: TypeAlias = Mapping[str, object] | Sequence[str] | str
Data: TypeAlias = str | Path | IntoDataFrame | NDArray[Any] | Sequence[Mapping[str, Any]]


def replay(
    data: Data | None = None,
    *,
    topic: str | None = None,
    from_: str | datetime | np.datetime64 | None = None,
    to: str | datetime | np.datetime64 | None = None,
    last: str | None = None,
    group: str | None = None,
    key: str | None = None,
    time: str | None = None,
    label: str | None = None,
    labels: ArrayLike | IntoSeries | None = None,
    compare: str | Sequence[str] = (),
    grid: Grid = (),
    progress: bool = False,
    **settings: Any,
) -> ReplayResult:
    """Replay past records through the detector of the service, and return how well it would have done.

    data: path of a CSV, JSON lines, parquet or npz file, a DataFrame (a DatetimeIndex is the time of its rows), an
    array (records, features), or a list of dictionaries. Alternatively topic: name of a topic; from_, to, last and
    group choose its records and the group, as the flags of `fomo-stream replay` do.
    label: field that says whether a record is an outlier; labels: the same for data in memory, (n,), as 0, 1 or NaN.
    compare: other detectors, as in --compare. grid: own settings, {"alert_rate": [0.01, 0.001]} or as in --grid.
    progress: show a progress bar. settings: all other flags by name, such as context_size=5000; the environment and
    a configuration file count as for the command.

    It writes no report; the result can (`save_report`, `save`). Raises FomoError, in one sentence, if the records
    cannot be replayed or a setting is wrong.
    """
    names = [name for name in ReplaySettings.model_fields if name not in ("report", "json_")]
    if unknown := [name for name in settings if name not in (*names, *RENAMED)]:
        hint = did_you_mean(unknown[0], [*names, "labels", "progress"])
        raise ConfigError(
            f"replay() takes no {unknown[0]}{hint or '; save() and save_report() of the result write it'}"
        )
    flags = dict(settings, topic=topic, from_=from_, to=to, last=last, group=group, key=key, time=time, label=label)
    flags = {name: _plain(value, name) for name, value in flags.items()}
    flags |= {"compare": compare, "grid": grid_words(grid), "report": "none"}
    records: InMemory | None = None
    if data is None and labels is not None:
        raise ConfigError("labels= goes with data in memory; for a topic use label=, labels_topic= or labels_file=")
    if isinstance(data, (str, Path)):
        flags["file"] = _existing(Path(data), labels)
    elif data is not None:
        records = in_memory(data, labels)
        if records.label is not None and label is not None:
            raise ConfigError("label= and labels= name different labels; give one of them")
        flags |= {"file": Path(records.name), "time": time or records.time, "label": label or records.label}
    if data is not None:
        flags["topic"] = topic or ""  # also where the environment names one
    loaded = load(ReplaySettings, {name: value for name, value in flags.items() if value not in (None, ())})
    return command.replay_settings(loaded, shown_progress() if progress else None, records)


def grid_words(grid: Grid) -> tuple[str, ...]:
    """Return a grid as the words of `--grid`.

    >>> grid_words({"alert_rate": [0.01, 0.001], "views": ["fast", ("trimmed", "recent")], "lags": range(2)})
    ('alert_rate=0.01,0.001', 'views=fast,trimmed+recent', 'lags=0,1')
    """
    if isinstance(grid, str):
        return tuple(grid.split())
    if not isinstance(grid, Mapping):
        return tuple(grid)

    def text(value: object) -> str:
        return "+".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)

    plain = {name: _plain(value, name) for name, value in grid.items()}
    lists = {name: value if isinstance(value, (list, tuple)) else [value] for name, value in plain.items()}
    return tuple(f"{name}={','.join(map(text, values))}" for name, values in lists.items())


def _plain(value: Any, name: str) -> Any:
    """Return an array, an index or a series as a list, and a number of NumPy or a time as Python or a flag has them."""
    if getattr(value, "ndim", 0) > 1 or nw.dependencies.is_into_dataframe(value):
        raise ConfigError(f"{name}= takes no table; write it to a file, and give the path")
    if isinstance(value, np.datetime64):
        return str(np.datetime_as_string(value, unit="ms"))
    if isinstance(value, range):
        return list(value)
    way = next((way for way in ("tolist", "to_list", "isoformat") if hasattr(value, way)), None)
    return value if way is None else getattr(value, way)()


def _existing(path: Path, labels: object) -> Path:
    if not path.exists():
        raise ConfigError(f"there is no file {path}; to replay a topic, write topic={str(path)!r}")
    if labels is not None:
        raise ConfigError("labels= goes with data in memory; for a file use label= or labels_file=")
    return path
