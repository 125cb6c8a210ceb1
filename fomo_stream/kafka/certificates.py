"""Notices that certificates or keys of the clients of Kafka and of the schema registry were renewed.

A client reads these files when it is made, and never again. Its connections outlive the certificate, but after its end
no new connection is accepted, for example when a broker restarts. So the clients have to be made again in time.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from fomo_stream.errors import FomoError
from fomo_stream.kafka.broker.clients import connect
from fomo_stream.kafka.watched_files import WatchedFiles
from fomo_stream.logs import Throttle, kv, make_thread
from fomo_stream.settings.flags import BrokerFlags

log = logging.getLogger(__name__)

CHECK_S = 10.0
FILES = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.keystore.location", "ssl.crl.location")


class Certificates:
    """The files that the settings name, watched in a thread until `stop`."""

    def __init__(self, settings: BrokerFlags) -> None:
        self._settings = settings
        self._registry: dict[str, str] = getattr(settings, "registry", {})
        tables = settings.kafka, self._registry
        self._files = WatchedFiles(Path(table[name]) for table in tables for name in FILES if name in table)
        self._stopped, self._renewed = threading.Event(), threading.Event()
        if self._files:
            make_thread(self._watch, "fomo-certificates").start()

    @property
    def are_renewed(self) -> bool:
        """Return whether a broker has accepted a client with new files. The present clients have the old ones."""
        return self._renewed.is_set()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def _watch(self) -> None:
        throttle, has_changed = Throttle(), False
        while not (self._stopped.wait(CHECK_S) or self.are_renewed):
            has_changed |= self._files.changed()
            if not has_changed:
                continue
            try:
                connect(self._settings)
                if self._registry:
                    from fomo_stream.kafka.registry.client import RegistryClient  # needs an extra

                    RegistryClient(self._registry)
                self._renewed.set()
            except FomoError as error:  # half of the files are new, or the broker does not know the issuer yet
                if throttle.allow(str(error)) is not None:
                    log.warning(kv("certificates_not_used", reason=error, effect="the old ones stay in use"))
