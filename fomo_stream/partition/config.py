"""What the settings say of a partition, as far as it has to know: the flags of the same names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.settings.rules import Rule, Window


class ResumeConfig(Protocol):
    """What decides where a partition resumes."""

    delivery: Literal["exactly-once", "at-least-once"]
    on_lost_offset: Literal["fail", "earliest", "latest"]


class Config(Protocol):
    """What a partition does with its records."""

    lags: int
    mute_key: tuple[str, ...]
    time: str | None
    time_features: tuple[str, ...]
    timezone: str
    silence: float | None
    silence_of: tuple[str, ...]
    keys: int

    @property
    def quiet(self) -> tuple[int, int]: ...

    @property
    def least_silence_ms(self) -> int: ...

    @property
    def all_rules(self) -> Sequence[Rule]: ...

    @property
    def windows(self) -> Sequence[Window]: ...

    def detector_config(self) -> DetectorConfig: ...
