"""`fomo-stream notify`: a follower for each target, in a thread of its own; and the dry run."""

from __future__ import annotations

import logging
import re
import threading
import time
from contextlib import AbstractContextManager, closing, nullcontext
from typing import TextIO

from prometheus_client import generate_latest

from fomo_stream.errors import BrokerError, ConfigError, TopicError
from fomo_stream.kafka.broker.clients import broker_errors
from fomo_stream.kafka.broker.cluster import Cluster
from fomo_stream.kafka.certificates import Certificates
from fomo_stream.logs import Throttle, kv
from fomo_stream.notify.follower import TIMEOUT_S, AlertReader, AlertTopic, Follower
from fomo_stream.notify.notify_metrics import HELD, OLDEST, READY, metric_value, registry
from fomo_stream.notify.targets import targets_of
from fomo_stream.ops.http import Endpoints, HttpServer
from fomo_stream.settings.notify import NotifySettings

log = logging.getLogger(__name__)

TOPIC_POLL_S = 3.0  # between two checks whether the topic was created again
STUCK_S = 120.0  # each follower has to begin a turn within this time
FINISH_S = 10.0  # after SIGTERM, for messages that are being sent
DRY_RUN_TIMEOUT_S = 30.0  # for the next record of a dry run


class Notifier:
    """One instance of `fomo-stream notify`. Raises FomoError if it cannot start."""

    is_loading = False

    def __init__(self, settings: NotifySettings) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self._topic, self._is_connected = AlertTopic("", 0), False
        self._trouble, self._throttle = "it starts", Throttle()
        self._error: BaseException | None = None
        self._followers: list[Follower] = []
        groups: set[str] = set()
        for target in targets_of(settings):
            group = f"{settings.group}-{re.sub(r'[^a-zA-Z0-9._]+', '-', target.name).strip('-')}"
            if group in groups:
                what = f"two targets would share the consumer group {group}, and each message would reach one of them"
                raise ConfigError(what, "name each target once, or start another notify with a --group of its own")
            groups.add(group)
            target_settings = settings.model_copy(update={"group": group})
            self._followers.append(Follower(target_settings, target, lambda: self._topic, self._stop))

    def stop(self) -> None:
        """Make `run` return soon; called by a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Send messages about incidents until `stop`. Raises BrokerError."""
        followers = self._followers
        threads = [threading.Thread(target=self._follow, args=(follower,), daemon=True) for follower in followers]
        certificates = Certificates(self._settings)
        with self._serve(), closing(Cluster(self._settings)) as cluster:
            while not self._stop.is_set():
                if certificates.are_renewed:
                    log.info(kv("certificates_renewed", topic=self._settings.alerts, effect="reading with new clients"))
                    certificates, self._is_connected = Certificates(self._settings), False
                    self._topic = self._topic._replace(clients=self._topic.clients + 1)
                self._poll_topic(cluster)
                for thread in threads if self._topic.partitions else ():
                    if thread.ident is None:
                        thread.start()
                self._stop.wait(TOPIC_POLL_S)
            certificates.stop()
            end = time.monotonic() + FINISH_S
            for thread in threads:  # a thread that still waits for an answer is abandoned
                if thread.ident is not None:
                    thread.join(max(0.0, end - time.monotonic()))
        if self._error is not None:
            raise self._error

    def _poll_topic(self, cluster: Cluster) -> None:
        """Find the topic as it is now. Raises BrokerError if there never was one; with --wait it is tried again."""
        try:
            if not self._is_connected:
                cluster.connect()
            topic = find_topic(cluster, self._settings)
            self._is_connected = True
        except BrokerError as error:
            self._is_connected = False  # the certificates of the client may be old
            if not (self._topic.partitions or self._settings.wait):
                raise
            self._trouble = str(error)  # the consumers try again, and say nothing
            if self._throttle.allow(self._trouble) is not None:
                log.warning(kv("waiting", reason=error))
            return
        if self._topic.is_another(topic.id):
            log.warning(kv("topic_recreated", topic=self._settings.alerts, effect="reading from its beginning"))
        self._topic, self._trouble = topic._replace(clients=self._topic.clients), ""

    def _follow(self, follower: Follower) -> None:
        """Run the thread of a target. An error that ends the thread ends the process."""
        try:
            with broker_errors(f"topic {self._settings.alerts} cannot be read"):
                follower.run()
        except BaseException as error:
            self._error = error
        self._stop.set()

    def not_live(self) -> list[str]:
        """Reasons to restart this process."""
        idle_s = 0.0 if self._trouble else time.monotonic() - min(follower.last_turn_s for follower in self._followers)
        return [f"a follower has not turned for {idle_s:.0f} s"] if idle_s > STUCK_S else []

    def not_ready(self) -> list[str]:
        """Reasons why messages are not sent."""
        if self._trouble:
            return [self._trouble]
        return [f"{follower.name} is not told: {follower.trouble}" for follower in self._followers if follower.trouble]

    def metrics(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        metric_value(READY).set(not self.not_ready())
        for follower in self._followers:
            since = follower.since
            metric_value(OLDEST, follower.name).set(0.0 if since is None else time.monotonic() - since)
            metric_value(HELD, follower.name).set(follower.limit.held)
        return generate_latest(registry)

    def _serve(self) -> AbstractContextManager[object]:
        if self._settings.health_port is None:
            return nullcontext()
        endpoints = Endpoints(live=self.not_live, ready=self.not_ready, metrics=self.metrics)
        return HttpServer(self._settings.http_host, self._settings.health_port, endpoints)


def find_topic(cluster: Cluster, settings: NotifySettings) -> AlertTopic:
    """Return the alert topic as it is now. Raises BrokerError."""
    with broker_errors(f"topic {settings.alerts} cannot be described"):
        partitions, ids = cluster.partitions([settings.alerts])
    if settings.alerts not in partitions:
        what = f"there is no topic {settings.alerts} on {settings.bootstrap}, or it may not be described"
        raise TopicError(what, "check --alerts")
    return AlertTopic(ids.get(settings.alerts, ""), partitions[settings.alerts])


def print_messages(settings: NotifySettings, out: TextIO) -> None:
    """Print the messages about all records that the topic holds now, without limit. Sends and commits nothing."""
    from fomo_stream.kafka.broker.topic_reader import NoProgressError, TopicReader  # numpy

    if settings.has_target:
        targets_of(settings)  # only to refuse invalid ones
    what, messages = f"topic {settings.alerts} cannot be read", AlertReader(settings)
    with closing(Cluster(settings)) as cluster:
        cluster.connect()
        count = find_topic(cluster, settings).partitions
    with broker_errors(what), TopicReader(settings) as reader:
        ends = {number: (0, reader.range_now(settings.alerts, number, TIMEOUT_S)[1]) for number in range(count)}
        try:
            for record in reader.read(settings.alerts, ends, DRY_RUN_TIMEOUT_S):
                if (message := messages.read(record)) is not None:
                    print(message.title, *(f"  {line}" for line in message.text.splitlines()), "", sep="\n", file=out)
        except NoProgressError as error:
            raise BrokerError(f"{what}: nothing came for {DRY_RUN_TIMEOUT_S:g} s ({error})") from None
