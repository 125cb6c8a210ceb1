"""A model that is ready to score: loaded, and its kernels compiled.

`python -m fomo_stream.loading` compiles the kernels ahead, for example when an image is built.
"""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING

from fomo_stream.logs import configure_logging, kv

if TYPE_CHECKING:
    from fomo_stream.model.config import Model

log = logging.getLogger("fomo_stream.loading")  # also as a program


def load_ready(name_or_path: str = "default", device: str = "auto", kernel: str = "auto") -> Model:
    """`load_model` for a program, and a first score, so that all kernels are there.

    Where the cache does not have them, another process compiles them. That takes about 25 seconds of a processor, so it
    must not come with the first record.
    """
    # Looking for garbage among all modules would take 100 ms while they are loaded, and later stop every thread for
    # 80 ms. They stay as long as the process.
    gc.disable()
    try:
        from fomo_stream.model.checkpoint import load_model
        from fomo_stream.model.scoring import warm_up

        model = load_model(name_or_path, device, kernel)
        if model.kernel == "numba":
            _prepare_kernels()
        warm_up(model)
    finally:
        gc.freeze()
        gc.enable()
    return model


def _prepare_kernels() -> None:
    from fomo_stream.model.kernels import compiling

    if compiling.are_missing():
        log.warning(kv("compiling_kernels", effect="it takes about 25 s, and is done once"))
    if reason := compiling.prepare():
        effect = "it takes about 25 s at each start, and last digits of scores may differ between processes"
        log.warning(kv("compiling_kernels", effect=effect, reason=reason))


if __name__ == "__main__":
    configure_logging("info")
    load_ready()
