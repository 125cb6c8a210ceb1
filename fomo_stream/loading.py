"""A model that is ready to score: loaded, and its kernels compiled.

`python -m fomo_stream.loading` compiles the kernels ahead, for example when an image is built.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from fomo_stream.logs import configure_logging, kv

if TYPE_CHECKING:
    from fomo_stream.model.zero_shot import ZeroShotModel

log = logging.getLogger("fomo_stream.loading")  # also as a program

SLOW_S = 1.0  # longer than to read compiled kernels from the cache


def load_ready(name_or_path: str = "default", device: str = "auto", kernel: str = "auto") -> ZeroShotModel:
    """`load_model` for a program, and a first score, which compiles the kernels where the cache does not have them.

    Compiling takes about 10 seconds, in which the process does nothing else, so it must not come with the first record.
    """
    from fomo_stream.model.checkpoint import load_model
    from fomo_stream.model.scoring import warm_up

    model = load_model(name_or_path, device, kernel)
    effect = "it takes about 10 s, and is done once where a cache can be written"
    with _logged_if_slow(kv("compiling_kernels", effect=effect)) if model.kernel == "numba" else nullcontext():
        warm_up(model)
    # Collecting the garbage of all modules would stop every thread for 80 ms; they stay as long as the process.
    gc.collect()
    gc.freeze()
    return model


@contextmanager
def _logged_if_slow(line: str) -> Iterator[None]:
    timer = threading.Timer(SLOW_S, log.warning, [line])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


if __name__ == "__main__":
    configure_logging("info")
    load_ready()
