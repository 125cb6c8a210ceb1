"""The service: scores one topic as a member of a consumer group, until it is stopped.

`start` checks everything and makes the `Member`; `Member.run` joins the group and has the main loop; `pipeline` takes a
record from reading to its output; `commits` commits outputs, state and offsets together.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from fomo_stream.kafka.member import Member
from fomo_stream.kafka.observer import Observer
from fomo_stream.kafka.start import start, warn_of_settings
from fomo_stream.settings.service import ServiceSettings

if TYPE_CHECKING:
    from fomo_stream.model.zero_shot import ZeroShotModel

STALLED_AFTER_S = 120.0


class Service:
    """One instance of the service.

    model: a loaded checkpoint; None loads the one that the settings name. observer: receives reports of its work.
    """

    def __init__(
        self, settings: ServiceSettings, model: ZeroShotModel | None = None, observer: Observer | None = None
    ) -> None:
        self._settings = settings
        self._model = model
        self._observer = observer or Observer()
        self._stopping = threading.Event()
        self._state = "starting"
        self._began = time.monotonic()
        self.member: Member | None = None  # set when it has started

    def stop(self) -> None:
        """Ask `run` to score read records, commit and leave the group. Any thread or signal handler may call it."""
        self._stopping.set()

    @property
    def ready(self) -> bool:
        """Whether records that arrive now are scored."""
        return not self.not_ready()

    def not_ready(self) -> list[str]:
        """Reasons why records are not being scored; empty if they are."""
        if self._state != "running" or self.member is None:
            return [f"the service is {self._state}"]
        return self.member.not_ready()

    def not_live(self) -> list[str]:
        """Reasons to restart the process; empty while the main loop turns."""
        stalled = time.monotonic() - (self._began if self.member is None else self.member.turned_at)
        return [f"the loop has not turned for {stalled:.0f} s"] if stalled > STALLED_AFTER_S else []

    def run(self) -> None:
        """Score records until `stop`. Raises FomoError when it cannot start, or has to give up."""
        with ExitStack() as stack:
            stack.callback(setattr, self, "_state", "stopped")
            warn_of_settings(self._settings)
            if self._model is None:
                from fomo_stream.loading import load_ready

                settings = self._settings
                self._model = load_ready(settings.model, settings.device, settings.kernel)
            if self._stopping.is_set():  # loading may have taken long
                return
            self.member = start(self._settings, self._model, self._observer, stack)
            self._state = "running"
            try:
                self.member.run(self._stopping.is_set)
            except BaseException:
                self._state = "failed"
                raise
            self._state = "stopping"
            self.member.finish()
