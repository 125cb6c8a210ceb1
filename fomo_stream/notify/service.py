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
from fomo_stream.logs import kv
from fomo_stream.notify import metrics
from fomo_stream.notify.follower import TIMEOUT_S, Follower, Reader, Topic
from fomo_stream.notify.targets import targets_of
from fomo_stream.ops.http import HttpServer, Sources
from fomo_stream.settings.notify import NotifySettings

log = logging.getLogger(__name__)

LOOK_S = 3.0  # between two looks whether the topic was created again
STUCK_S = 120.0  # each follower has to turn once within this time
FINISH_S = 10.0  # after SIGTERM, for messages that are under way
PATIENCE_S = 30.0  # of a dry run, for the next record


class Service:
    """One instance of `fomo-stream notify`. Raises FomoError for what keeps it from starting."""

    is_loading = False

    def __init__(self, settings: NotifySettings) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self._topic = Topic("", 0)
        self._trouble = "it starts"
        self._error: BaseException | None = None
        self._followers: list[Follower] = []
        groups: set[str] = set()
        for target in targets_of(settings):
            group = f"{settings.group}-{re.sub(r'[^a-zA-Z0-9._]+', '-', target.name).strip('-')}"
            if group in groups:
                what = f"two targets would share the consumer group {group}, and each message would reach one of them"
                raise ConfigError(what, "name each target once, or start another notify with a --group of its own")
            groups.add(group)
            own = settings.model_copy(update={"group": group})
            self._followers.append(Follower(own, target, lambda: self._topic, self._stop))

    def stop(self) -> None:
        """End soon; called by a handler of signals."""
        self._stop.set()

    def run(self) -> None:
        """Tell of incidents until `stop`. Raises BrokerError."""
        threads = [threading.Thread(target=self._follow, args=(one,), daemon=True) for one in self._followers]
        with self._serve(), closing(Cluster(self._settings)) as cluster:
            while not self._stop.is_set():
                self._look(cluster)
                for thread in threads if self._topic.partitions else ():
                    if thread.ident is None:
                        thread.start()
                self._stop.wait(LOOK_S)
            end = time.monotonic() + FINISH_S
            for thread in threads:  # one that waits for an answer is left behind
                if thread.ident is not None:
                    thread.join(max(0.0, end - time.monotonic()))
        if self._error is not None:
            raise self._error

    def _look(self, cluster: Cluster) -> None:
        """See which topic there is now. Raises BrokerError if there was none yet; with --wait it is tried again."""
        try:
            if not self._topic.partitions:
                cluster.connect()
            found = look(cluster, self._settings)
        except BrokerError as error:
            if self._topic.partitions:  # the consumers tell of it, too
                return
            if not self._settings.wait:
                raise
            self._trouble = str(error)
            log.warning(kv("waiting", reason=error))
            return
        if self._topic.is_another(found.id):
            log.warning(kv("topic_recreated", topic=self._settings.alerts, effect="reading from its beginning"))
        self._topic, self._trouble = found, ""

    def _follow(self, follower: Follower) -> None:
        """The thread of a target. An error that it cannot live with ends the process."""
        try:
            with broker_errors(f"topic {self._settings.alerts} cannot be read"):
                follower.run()
        except BaseException as error:
            self._error = error
        self._stop.set()

    def not_live(self) -> list[str]:
        """Reasons to restart this process."""
        still = 0.0 if self._trouble else time.monotonic() - min(one.turned for one in self._followers)
        return [f"a follower has not turned for {still:.0f} s"] if still > STUCK_S else []

    def not_ready(self) -> list[str]:
        """Reasons why people are not told."""
        own = [self._trouble] if self._trouble else []
        return own or [f"{one.name} is not told: {one.trouble}" for one in self._followers if one.trouble]

    def metrics(self) -> bytes:
        """In the text format of Prometheus."""
        metrics.value_of(metrics.READY).set(not self.not_ready())
        for one in self._followers:
            since = one.since
            metrics.value_of(metrics.OLDEST, one.name).set(0.0 if since is None else time.monotonic() - since)
            metrics.value_of(metrics.HELD, one.name).set(one.limit.held)
        return generate_latest(metrics.registry)

    def _serve(self) -> AbstractContextManager[object]:
        if self._settings.health_port is None:
            return nullcontext()
        sources = Sources(live=self.not_live, ready=self.not_ready, metrics=self.metrics)
        return HttpServer(self._settings.http_host, self._settings.health_port, sources)


def look(cluster: Cluster, settings: NotifySettings) -> Topic:
    """The topic of alerts as it is now. Raises BrokerError."""
    with broker_errors(f"topic {settings.alerts} cannot be described"):
        partitions, ids = cluster.partitions([settings.alerts])
    if settings.alerts not in partitions:
        what = f"there is no topic {settings.alerts} on {settings.bootstrap}, or it may not be described"
        raise TopicError(what, "check --alerts")
    return Topic(ids.get(settings.alerts, ""), partitions[settings.alerts])


def rehearse(settings: NotifySettings, out: TextIO) -> None:
    """Print the messages about all that the topic holds now, without limit. Sends and commits nothing."""
    from fomo_stream.kafka.broker.topic_reader import NoProgressError, TopicReader  # numpy

    if settings.has_target:
        targets_of(settings)  # only to refuse wrong ones
    what, messages = f"topic {settings.alerts} cannot be read", Reader(settings)
    with closing(Cluster(settings)) as cluster:
        cluster.connect()
        count = look(cluster, settings).partitions
    with broker_errors(what), TopicReader(settings) as reader:
        ends = {number: (0, reader.range_now(settings.alerts, number, TIMEOUT_S)[1]) for number in range(count)}
        try:
            for record in reader.read(settings.alerts, ends, PATIENCE_S):
                if (message := messages.read(record)) is not None:
                    print(message.title, *(f"  {line}" for line in message.text.splitlines()), "", sep="\n", file=out)
        except NoProgressError as error:
            raise BrokerError(f"{what}: nothing came for {PATIENCE_S:g} s ({error})") from None
