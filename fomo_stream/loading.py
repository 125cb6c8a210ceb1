"""A model that is ready to score: loaded, and its kernels compiled.

`python -m fomo_stream.loading` compiles the kernels ahead, for example when an image is built.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from fomo_stream.logs import configure_logging, kv

if TYPE_CHECKING:
    from fomo_stream.model.zero_shot import ZeroShotModel

log = logging.getLogger("fomo_stream.loading")  # also as a program


def load_ready(name_or_path: str = "default", device: str = "auto", kernel: str = "auto") -> ZeroShotModel:
    """`load_model` for a program, and a first score, so that all kernels are there.

    Where the cache does not have them, another process compiles them. That takes about 25 seconds of a processor, so it
    must not come with the first record.
    """
    from fomo_stream.model.checkpoint import load_model
    from fomo_stream.model.scoring import warm_up

    model = load_model(name_or_path, device, kernel)
    with _compiling_is_logged() if model.kernel == "numba" else nullcontext():
        warm_up(model)
    # Collecting the garbage of all modules would stop every thread for 80 ms; they stay as long as the process.
    gc.collect()
    gc.freeze()
    return model


@contextmanager
def _compiling_is_logged() -> Iterator[None]:
    """Log one line when another process begins to compile, and one when this process does.

    Reading compiled code from the cache is no compiling.
    """
    from numba.core import event

    from fomo_stream.model.kernels import compiling

    class Listener(event.Listener):  # type: ignore[misc]
        def __init__(self) -> None:
            self.logged: set[str] = set()

        def on_start(self, begun: Any) -> None:
            if begun.kind not in self.logged:
                self.logged.add(begun.kind)
                self.log(begun.kind == compiling.EVENT)

        def log(self, is_elsewhere: bool) -> None:
            if is_elsewhere:
                log.warning(kv("compiling_kernels", effect="it takes about 25 s, and is done once"))
            else:
                effect = "it takes about 25 s at each start, and last digits of scores may differ between processes"
                log.warning(kv("compiling_kernels", effect=effect, reason=compiling.why_here()))

        def on_end(self, _event: Any) -> None:
            pass

    listener = Listener()
    with event.install_listener("numba:compile", listener), event.install_listener(compiling.EVENT, listener):
        yield


if __name__ == "__main__":
    configure_logging("info")
    load_ready()
