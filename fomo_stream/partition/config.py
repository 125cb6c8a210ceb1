"""What the settings say of a partition, as far as it has to know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fomo_stream.detector.config import DetectorConfig
from fomo_stream.settings.rules import Rule, Window


class ResumeConfig(Protocol):
    """What decides where a partition resumes."""

    @property
    def delivery(self) -> str: ...

    @property
    def on_lost_offset(self) -> str: ...


class Config(Protocol):
    """What a partition does with its records; the properties are the flags of the same names."""

    @property
    def lags(self) -> int: ...

    @property
    def quiet(self) -> tuple[int, int]: ...

    @property
    def mute_key(self) -> tuple[str, ...]: ...

    @property
    def time(self) -> str | None: ...

    @property
    def time_features(self) -> tuple[str, ...]: ...

    @property
    def timezone(self) -> str: ...

    @property
    def silence(self) -> float | None: ...

    @property
    def silence_of(self) -> tuple[str, ...]: ...

    @property
    def least_silence_ms(self) -> int: ...

    @property
    def keys(self) -> int: ...

    @property
    def all_rules(self) -> Sequence[Rule]: ...

    @property
    def windows(self) -> Sequence[Window]: ...

    def detector_config(self) -> DetectorConfig: ...
