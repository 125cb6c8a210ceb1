"""Scores several topics in one process: a `Service` for each, in a thread of its own.

The topics share the process, its model and its HTTP port, and nothing else: each has its own group, clients, state and
transactions. So a topic that fails is tried again later, while the others go on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from fomo_stream.errors import BrokerError, ConfigError, FomoError
from fomo_stream.kafka.broker.clients import connect
from fomo_stream.kafka.group.written_topics import WrittenTopics
from fomo_stream.kafka.observer import Observer
from fomo_stream.kafka.service import Service
from fomo_stream.kafka.watched_files import WatchedFiles
from fomo_stream.loading import load_ready
from fomo_stream.logs import Throttle, kv, raised_at, set_topic
from fomo_stream.model.architecture import Model
from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.sources import files_of, reload_settings
from fomo_stream.settings.topic_selection import TopicCatalog

log = logging.getLogger(__name__)

LISTING_S = 15.0  # between two looks at the topics of the broker
ANSWER_S = 3.0  # for a list of topics; a signal is handled after it
MIN_RETRY_S, MAX_RETRY_S = 5.0, 300.0  # from a failure of a topic to the next attempt; it doubles with each
SETTLED_S = 600.0  # a topic that was scored for so long begins with the shortest pause again


class TopicService:
    """One topic: its `Service`, made again some time after each failure.

    model: loads the model of some settings. changed: is called when the state of the service has changed.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        model: Callable[[ServiceSettings], Model],
        observer: Observer,
        changed: Callable[[], None],
    ) -> None:
        self.settings, self.observer = settings, observer
        self.error: FomoError | None = None  # of the last attempt
        self.had_member = False
        self._load, self._changed = model, changed
        self._stopping = threading.Event()
        self.service = Service(settings, None, observer)
        self._thread = threading.Thread(target=self._run, name=f"fomo-{settings.topic}", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Return whether it holds its partitions, or will try to."""
        return self._thread.is_alive()

    @property
    def is_stopping(self) -> bool:
        """Return whether it was asked to end."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Ask the service to commit, leave its group and end."""
        self._stopping.set()
        self.service.stop()

    def wait(self) -> None:
        """Wait for its end."""
        self._thread.join()

    def _run(self) -> None:
        set_topic(self.settings.topic)
        pause = MIN_RETRY_S
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self.service = Service(self.settings, self._load(self.settings), self.observer)
                self.error = None
                if not self._stopping.is_set():
                    self.service.run()
            except Exception as error:
                if time.monotonic() - began > SETTLED_S:
                    pause = MIN_RETRY_S
                self._fail(error, pause)
            self.had_member |= self.service.member is not None
            self._changed()
            if self._stopping.wait(pause):
                return
            pause = min(2 * pause, MAX_RETRY_S)
            resets = self.settings.reset_state and not self.had_member  # never what was learned since the start
            with suppress(ConfigError):  # it is the reason of the failure, or the service has logged it
                self.settings = reload_settings(self.settings)
            self.settings = self.settings.model_copy(update={"reset_state": resets})

    def _fail(self, error: Exception, pause: float) -> None:
        if isinstance(error, FomoError):
            self.error, place = error, {}
        else:  # the message is left out, as it could hold contents of a record
            self.error, place = FomoError(f"a defect of this program: {type(error).__name__}"), {"at": raised_at(error)}
        log.error(kv("topic_failed", topic=self.settings.topic, reason=self.error, **place, retry_in_s=pause))


class TopicServices:
    """The services of all topics that a catalog selects; those that match a pattern come and go with their topics.

    observe: returns the observer of a topic, which stays the same when its service is made again.
    """

    def __init__(self, catalog: TopicCatalog[ServiceSettings], observe: Callable[[ServiceSettings], Observer]) -> None:
        self._catalog, self._observe = catalog, observe
        self._stopping, self._changed = threading.Event(), threading.Event()
        self._loading = threading.Lock()
        self._load = lru_cache(load_ready)  # topics with the same model share it
        self._admin: AdminClient | None = None  # made again after an error: its certificates may be old
        self._has_listed = False
        self._written = WrittenTopics(catalog.process)
        self._refused: dict[str, ConfigError] = {}  # topics with wrong settings
        self._missing_since: dict[str, float] = {}  # topics that the broker has not listed lately: seconds, monotonic
        self._known: set[str] = set()  # topics that had a service
        self._throttle = Throttle()
        self._files = WatchedFiles(files_of(catalog.process))
        self.topics: dict[str, TopicService] = {}

    def stop(self) -> None:
        """Ask `run` to stop all services. For any thread or signal handler."""
        self._stopping.set()
        self._changed.set()

    has_one_topic = False

    @property
    def services(self) -> dict[str, Service]:
        """Return the present service of each topic."""
        return {name: topic.service for name, topic in list(self.topics.items())}

    @property
    def is_loading(self) -> bool:
        """Return whether no topic has a client yet."""
        return not self.topics

    def not_ready(self) -> list[str]:
        """Return the reasons why no topic is scored; empty while one is, as the others must not hold it."""
        reasons = {name: topic.service.not_ready() for name, topic in list(self.topics.items())}
        if reasons and not all(reasons.values()):
            return []
        reasons |= {name: [str(error)] for name, error in self._refused.items()}
        return [f"{name}: {reason}" for name, own in reasons.items() for reason in own] or ["no topic was found yet"]

    def not_live(self) -> list[str]:
        """Return reasons to restart the process."""
        topics = [(name, topic) for name, topic in list(self.topics.items()) if not (topic.error or topic.is_stopping)]
        return [f"{name}: {reason}" for name, topic in topics for reason in topic.service.not_live()]

    def run(self) -> None:
        """Score records until `stop`. Raises FomoError when no topic can start."""
        for settings in self._catalog.topics([])[0].values():
            self._model(settings)
        try:
            while not self._stopping.is_set():
                if (listed := self._listed()) is not None:
                    self._follow(listed)
                self._changed.wait(LISTING_S)
                self._changed.clear()
                self._compare_selection()
                errors = [topic.error for topic in self.topics.values() if topic.error and not topic.had_member]
                if errors and len(errors) == len(self.topics) and not self._catalog.process.wait:
                    raise errors[0]
        finally:
            for topic in self.topics.values():
                topic.stop()
            for topic in self.topics.values():
                topic.wait()

    def _compare_selection(self) -> None:
        """Log it if the file selects other topics now: that counts at the next start."""
        if self._files.changed():
            with suppress(ConfigError):  # the services log it
                if reload_settings(self._catalog.process).topic != self._catalog.process.topic:
                    log.warning(kv("settings_changed", names="topics", effect="restart the instances to use them"))

    def _listed(self) -> list[str] | None:
        """Return the topics of the broker that patterns may select; None: it does not answer now."""
        if not self._catalog.selection.patterns:
            return []
        try:
            if self._admin is None:
                self._admin, answer = connect(self._catalog.process)
                self._has_listed = True
            else:
                answer = self._admin.list_topics(timeout=ANSWER_S)
            return self._written.without(answer.topics)
        except (BrokerError, KafkaException) as error:
            self._admin = None
            if not (self._has_listed or self._catalog.process.wait):
                raise
            if self._throttle.allow("list") is not None:
                log.warning(kv("topics_not_listed", reason=error, effect="no topics come or go"))
            return None

    def _follow(self, listed: list[str]) -> None:
        """Start the services of new topics, and stop those of topics that are gone."""
        settings, self._refused = self._catalog.topics(listed)
        for name, error in self._refused.items():
            if self._throttle.allow(name) is not None:
                log.error(kv("topic_failed", topic=name, reason=error, retry_in_s=LISTING_S))
        now = time.monotonic()
        missing = self.topics.keys() - settings.keys() - self._refused.keys()
        self._missing_since = {name: self._missing_since.get(name, now) for name in missing}
        for name, since in self._missing_since.items():
            if now - since >= LISTING_S and not self.topics[name].is_stopping:  # one listing may be incomplete
                log.warning(kv("topic_gone", topic=name, effect="it is not scored any more"))
                self.topics[name].stop()
        self.topics = {name: topic for name, topic in self.topics.items() if topic.is_alive}
        for name, own in settings.items():
            if name in self.topics:
                continue
            if name in self._known:  # it comes back: what it has learned is kept
                own = own.model_copy(update={"reset_state": False})
            try:
                self.topics[name] = TopicService(own, self._model, self._observe(own), self._changed.set)
                self._known.add(name)
            except RuntimeError as error:  # the system allows no more threads
                if self._throttle.allow(name) is not None:
                    log.error(kv("topic_failed", topic=name, reason=error, retry_in_s=LISTING_S))

    def _model(self, settings: ServiceSettings) -> Model:
        with self._loading:
            return self._load(settings.model, settings.device, settings.backend)
