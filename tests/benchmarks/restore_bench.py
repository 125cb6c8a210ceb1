"""Measures the time to restore a partition, and the cost of writing its state.

    KAFKA_HOME=... python tests/benchmarks/restore_bench.py [--records 1000000]

Prints one JSON line for each measurement:

- wide: context of 5,000 rows with 100 features, full; restored at once after the last commit;
- long: a million records, all admitted, with 10 features and a context of 1,000, committed every 300 records; restored
  right after the last commit, however far compaction has come.

`restore_s` is from requesting the partition until its detector is restored, with all entries read from the broker;
`encode_s` is the time to score 64 records then, including the context if it must be encoded again. `state_mib` is the
size of the entries in use.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "integration")]

from brokers import Broker, open_broker, wait_for
from services import unique

from fomo_stream.detector.detector import Detector
from fomo_stream.kafka.broker.clients import make_producer
from fomo_stream.kafka.restore import Restorer, to_output
from fomo_stream.kafka.topics.setup import TopicSetup
from fomo_stream.kafka.topics.watch import TopicWatch
from fomo_stream.model.checkpoint import load_model
from fomo_stream.partition.partition import Waiting
from fomo_stream.partition.position import POSITION, Position
from fomo_stream.settings.service import ServiceSettings

COMMIT_EVERY = 300  # records


class Log:
    """Commits the changes of a detector, as the service does."""

    def __init__(self, settings: ServiceSettings, detector: Detector) -> None:
        self._topic, self._detector = settings.state_topic, detector
        self._producer = make_producer(settings, settings.transactional_id)
        self._producer.init_transactions(30)
        self.bytes = 0
        self.seconds = 0.0  # to find the changes
        self.commits = 0

    def commit(self, offset: int) -> None:
        began = time.perf_counter()
        entries = self._detector.changes()
        self.seconds += time.perf_counter() - began
        self.commits += 1
        self._producer.begin_transaction()
        for name, value in {**entries, POSITION: Position(offset).encode()}.items():
            output = to_output(self._topic, 0, name, value)
            self.bytes += len(output.key or b"") + len(output.value or b"")
            self._producer.produce(output.topic, key=output.key, value=output.value, partition=0)
        self._producer.commit_transaction(30)


def measure(broker: Broker, name: str, records: int, features: int, context: int) -> dict[str, Any]:
    topic = unique(name)
    broker.create_topic(topic, 1)
    settings = ServiceSettings(
        topic=topic, bootstrap=broker.bootstrap, group=topic, context_size=context, min_context=context, admit="all"
    )
    watch = TopicWatch(settings)
    TopicSetup(settings, watch).begin()
    model = load_model("fusion")
    detector = Detector(model, features, settings.detector_config())
    log = Log(settings, detector)
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(features, features))
    began = time.perf_counter()
    for start in range(0, records, COMMIT_EVERY):
        detector.process(rng.normal(size=(min(COMMIT_EVERY, records - start), features)) @ mixing)
        log.commit(start)
    elapsed = time.perf_counter() - began

    restorer = Restorer(settings, watch, lambda _: True)
    twin = Detector(model, features, settings.detector_config())
    began = time.perf_counter()
    restorer.request(Waiting(0, settings))
    ((_, restored),) = wait_for(restorer.take_results, "the partition", 120)
    read = time.perf_counter() - began
    twin.recover({key: value for key, value in restored.entries.items() if key != POSITION})
    restore = time.perf_counter() - began
    probe = rng.normal(size=(64, features)) @ mixing
    encoded = time.perf_counter()
    scored = twin.process(probe)
    encode = time.perf_counter() - encoded
    assert np.array_equal(scored.logit, detector.process(probe).logit), "restored state scores differently"
    restorer.stop()
    watch.stop()
    return {
        "benchmark": f"restore_{name}",
        "records": records,
        "features": features,
        "context": context,
        "restore_s": round(restore, 2),
        "read_s": round(read, 2),
        "encode_s": round(encode, 2),
        "entries": len(restored.entries),
        "state_mib": round(sum(map(len, restored.entries.values())) / 2**20, 1),
        "written_bytes_per_record": round(log.bytes / records),
        "changes_ms_per_commit": round(1000 * log.seconds / log.commits, 3),
        "records_per_s": round(records / elapsed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000, help="of the long measurement; 0: leave it out")
    options = parser.parse_args()
    with open_broker() as broker:
        print(json.dumps(measure(broker, "wide", 12_000, 100, 5000)), flush=True)
        if options.records:
            print(json.dumps(measure(broker, "long", options.records, 10, 1000)), flush=True)


if __name__ == "__main__":
    main()
