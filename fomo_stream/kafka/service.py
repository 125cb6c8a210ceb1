"""The service: scores one topic as a member of a consumer group, until it is stopped."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
from contextlib import ExitStack

from fomo_stream.errors import BrokerError, FencedError, FomoError
from fomo_stream.kafka.certificates import Certificates
from fomo_stream.kafka.member import GroupMember
from fomo_stream.kafka.observer import Observer
from fomo_stream.kafka.references import References
from fomo_stream.kafka.snapshot import Snapshot, not_ready_reasons, partition_snapshots
from fomo_stream.kafka.start import start
from fomo_stream.kafka.topics.checks import without_effect
from fomo_stream.logs import Throttle, kv, quiet_clients
from fomo_stream.model.architecture import Model
from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.topic_flags import NO_TOPIC

log = logging.getLogger(__name__)

STALLED_AFTER_S = 120.0  # without a turn of the main loop
SWITCH_S = 0.0005  # the longest time for which another thread keeps the loop waiting; Python's own is ten times longer
GARBAGE_OBJECTS = 10_000  # new objects between two searches for unused cycles; Python's own number is 700
WAIT_S = 2.0  # with --wait: until the next attempt to start


class Service:
    """One instance of the service.

    model: a loaded checkpoint; None loads the one that the settings name. observer: receives reports of its work.
    """

    def __init__(self, settings: ServiceSettings, model: Model | None = None, observer: Observer | None = None) -> None:
        self._settings, self._model, self._observer = settings, model, observer or Observer()
        self._stopping = threading.Event()
        self._trouble = ""  # why it waits
        self._state = "starting"
        self._began = time.monotonic()
        self._references = References(settings)
        self.member: GroupMember | None = None  # set when it has started

    def stop(self) -> None:
        """Ask `run` to score read records, commit, leave the group and end. For any thread or signal handler."""
        self._stopping.set()

    has_one_topic = True

    @property
    def services(self) -> dict[str, Service]:
        """Return itself, by its topic."""
        return {self._settings.topic: self}

    @property
    def is_loading(self) -> bool:
        """Return whether the model is not loaded yet. Until then the service has no client."""
        return self._model is None

    @property
    def ready(self) -> bool:
        """Return whether records that arrive now are scored."""
        return not self.not_ready()

    def not_ready(self) -> list[str]:
        """Return the reasons why records are not scored; empty if they are."""
        if self._state != "running" or self.member is None:
            return [f"the service is {self._state}" + (f": {self._trouble}" if self._trouble else "")]
        return not_ready_reasons(self.member)

    def not_live(self) -> list[str]:
        """Return reasons to restart the process; empty while the main loop turns, a model loads, or a reference."""
        if self.is_loading:  # compiling its kernels takes minutes where a container has little CPU time
            return []
        turned_at = 0.0 if self.member is None else self.member.turned_at
        stalled = time.monotonic() - max(self._began, turned_at, self._references.read_at)
        return [f"the loop has not turned for {stalled:.0f} s"] if stalled > STALLED_AFTER_S else []

    def snapshot(self) -> Snapshot:
        """Return the state of this instance. Safe from any thread."""
        settings, model, member = self._settings, self._model, self.member
        schema = None if member is None else member.pipeline.schema
        return Snapshot(
            state=self._state,
            not_ready=tuple(self.not_ready()),
            topic=settings.topic,
            out=None if settings.out == NO_TOPIC else settings.out,
            alerts=settings.alerts,
            group=settings.group,
            instance_id=settings.instance_id,
            model=model.name if model is not None else "",
            kernel=model.kernel if model is not None else "",
            features=schema.features if schema is not None else (),
            alert_rate=settings.alert_rate,
            partitions=partition_snapshots(member, time.monotonic(), time.time()) if member is not None else (),
            restore_retries=member.restorer.retries if member is not None else 0,
            features_missing=int(member.pipeline.presence.gone.sum()) if member is not None else 0,
        )

    def run(self) -> None:
        """Score records until `stop`. Raises FomoError when it cannot start, or has to give up."""
        try:
            self._run()
            self._state = "stopped"
        except BaseException as error:  # the message of another error could hold contents of a record
            self._state, self._trouble = "failed", str(error) if isinstance(error, FomoError) else type(error).__name__
            raise

    def _run(self) -> None:
        for hint in without_effect(self._settings):
            log.warning(kv("check_settings", hint=hint.what))
        if self._model is None:
            from fomo_stream.loading import load_ready

            settings = self._settings
            self._model = load_ready(settings.model, settings.device, settings.backend)
        while not self._stopping.is_set():
            self._state = "starting"
            with ExitStack() as stack:
                self._work(self._model, stack)
            present = self._settings if self.member is None else self.member.settings_file.present
            self._settings = present.model_copy(update={"reset_state": False})

    def _work(self, model: Model, stack: ExitStack) -> None:
        """Be a member of the group until `stop`, or until it has to join again: for certificates or settings."""
        certificates = Certificates(self._settings)
        stack.callback(certificates.stop)
        self.member = self._start(model, stack)
        if self.member is None:
            return
        self._state = "running"
        _let_the_loop_run()
        file = self.member.settings_file
        self.member.run(lambda: self._stopping.is_set() or certificates.are_renewed or file.is_newer)
        if certificates.are_renewed and not self._stopping.is_set():
            log.info(kv("certificates_renewed", topic=self._settings.topic, effect="joining the group again with them"))
        self._state = "stopping"
        self.member.finish()

    def _start(self, model: Model, stack: ExitStack) -> GroupMember | None:
        """Return a member that is ready to run; with --wait, as soon as it can start. None: stopped before."""
        throttle = Throttle()
        while not self._stopping.is_set():
            self._began = time.monotonic()
            try:
                with quiet_clients(), ExitStack() as attempt:  # the error that is raised has the reason
                    self._references = References(self._settings)
                    member = start(self._settings, model, self._observer, self._references, attempt)
                    stack.push(attempt.pop_all())
                    self._trouble = ""
                    return member
            except BrokerError as error:
                # It waits, too, if it only joins its group again: a file that changes during an outage must not end it.
                if isinstance(error, FencedError) or not (self._settings.wait or self.member is not None):
                    raise
                self._state, self._trouble = "waiting", str(error)
                if throttle.allow(self._trouble) is not None:
                    log.warning(kv("waiting", reason=error, effect="trying again"))
            self._stopping.wait(WAIT_S)
        return None


def _let_the_loop_run() -> None:
    """Keep Python itself from stopping the loop for long: other threads, and searches for unused cycles of objects.

    A search among everything that the start has made takes 0.1 s, so all that is left out of later searches.
    """
    sys.setswitchinterval(SWITCH_S)
    if not gc.get_freeze_count():  # else for another topic
        gc.collect()
        gc.freeze()
        gc.set_threshold(GARBAGE_OBJECTS)
