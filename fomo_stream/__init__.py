"""Zero-shot outlier detection on event streams.

>>> import fomo_stream
>>> print(*sorted(fomo_stream.__all__))
Detector DetectorConfig FoMoDetector FomoError FomoWarning ReplayResult ZeroShotDetector load_model replay

The names load on first use: importing the package imports neither torch nor a Kafka client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str  # of the installed package

    from fomo_stream.adapters.river import FoMoDetector as FoMoDetector
    from fomo_stream.adapters.scikit_learn import ZeroShotDetector as ZeroShotDetector
    from fomo_stream.detector.config import DetectorConfig as DetectorConfig
    from fomo_stream.detector.detector import Detector as Detector
    from fomo_stream.errors import FomoError as FomoError
    from fomo_stream.errors import FomoWarning as FomoWarning
    from fomo_stream.model.checkpoint import load_model as load_model
    from fomo_stream.replaying.api import replay as replay
    from fomo_stream.replaying.replay_result import ReplayResult as ReplayResult

_HOMES = {
    "Detector": "detector.detector",
    "DetectorConfig": "detector.config",
    "FoMoDetector": "adapters.river",
    "FomoError": "errors",
    "FomoWarning": "errors",
    "ReplayResult": "replaying.replay_result",
    "ZeroShotDetector": "adapters.scikit_learn",
    "load_model": "model.checkpoint",
    "replay": "replaying.api",
}
__all__ = list(_HOMES)


if not TYPE_CHECKING:  # else type checkers would accept any name as part of the package

    def __getattr__(name):
        if name == "__version__":
            return _version()
        if name not in _HOMES:
            raise AttributeError(f"module 'fomo_stream' has no attribute {name!r}")
        return getattr(import_module(f"fomo_stream.{_HOMES[name]}"), name)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("fomo-stream")
    except PackageNotFoundError:
        return "0.0"  # a clone that is not installed


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
