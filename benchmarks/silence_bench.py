"""Silence in a real run: is each told once, and none that is not there, whatever happens to instances and the broker?

    KAFKA_HOME=... python benchmarks/silence_bench.py [--minutes 30] [--keys 5000] [--rate 1000] [--steady]
    KAFKA_HOME=... python benchmarks/silence_bench.py --cost 3 [--keys 5000]

A producer writes records of many keys with very different gaps (1:1,000) to 3 partitions. Two instances of
`fomo-stream --silence 5x` score them. The first third of the time is only for learning. Then some keys that send often
stop, and most of them come back later. Meanwhile, unless --steady is given, instances are killed, stopped, suspended
for longer than their session, and the broker is down or suspended for half a minute; the producer goes on as soon as it
can. At the end the whole topic stops. Counts in the committed records of the topic of alerts:

- repeated: silences or ends that were told twice, or ends without a beginning;
- false: silences of keys, partitions or the topic that sent as before;
- missed: of keys that stopped, or came back, for so long that it had to be told; and of the topic.

Prints one JSON line last. Exits with 1 unless all of these are 0.
"""

from __future__ import annotations

import argparse
import collections
import heapq
import json
import math
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("tests", "tests/integration", "benchmarks")]

from brokers import Kafka, kafka_home, open_broker, wait_for
from confluent_kafka import Producer
from faults import Supervised
from services import CLIENT, flags_of, unique
from suite.load import stretch
from suite.service import service_with

from fomo_stream.settings.service_settings import ServiceSettings

PARTITIONS, STOPPED = 3, 40
OFTEN_S = 5.0  # keys that send more often than this, on average, are stopped
AWAY_S = 360.0  # for so long
FIRST, LAST = 60_000, 240_000  # records between which the cost is measured
OUTAGE_S, FREEZE_S = 30.0, 15.0
END_S = 180.0  # for which the topic is silent at the end
FAULTS = ("kill", "freeze", "terminate", "broker down", "kill", "broker frozen", "freeze", "terminate")


class Feed:
    """Sends records of keys with gaps from the shortest to 1,000 times that, at random times, from a thread.

    Together the keys send `rate` records a second.
    """

    def __init__(self, kafka: Kafka, topic: str, n: int, rate: float, rng: random.Random) -> None:
        gaps = [math.exp(rng.uniform(0, math.log(1000))) for _ in range(n)]
        scale = sum(1 / gap for gap in gaps) / rate
        self.gaps = [gap * scale for gap in gaps]
        self.stopped: frozenset[int] = frozenset()
        self.sent = 0
        self._topic, self._rng = topic, rng
        limits = {"queue.buffering.max.messages": 1_000_000, "message.timeout.ms": 300_000, "linger.ms": 20}
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, **limits})
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Send no more; all that was sent has arrived."""
        self._is_over.set()
        self._thread.join()
        assert self._producer.flush(300) == 0

    def _run(self) -> None:
        now = time.time()
        due = [(now + self._rng.expovariate(1 / gap), key) for key, gap in enumerate(self.gaps)]
        heapq.heapify(due)
        while not self._is_over.is_set():
            at, key = due[0]
            if at > time.time():
                self._producer.poll(min(0.01, max(0.0, at - time.time())))
                continue
            heapq.heapreplace(due, (at + self._rng.expovariate(1 / self.gaps[key]), key))
            if key not in self.stopped:
                value = {"t": round(self._rng.gauss(20, 2), 3), "u": round(self._rng.gauss(5, 1), 3)}
                self._producer.produce(self._topic, json.dumps(value).encode(), b"%d" % key)
                self.sent += 1


def inject(fault: str, kafka: Kafka, instance: Supervised) -> None:
    """A fault, to its end."""
    print(f"{time.strftime('%H:%M:%S')} {fault}", flush=True)
    if fault == "broker down":
        kafka.kill()
        time.sleep(OUTAGE_S)
        kafka.start()
    elif fault == "broker frozen":
        kafka.freeze()
        time.sleep(OUTAGE_S)
        kafka.go_on()
    elif fault == "freeze":
        instance.freeze(FREEZE_S)
    else:
        instance.signal(signal.SIGKILL if fault == "kill" else signal.SIGTERM)


def verdict(told: list[dict[str, Any]], stopped: set[str], returned: set[str]) -> dict[str, Any]:
    """Compares what was told, in order, with what happened: keys that stopped, and those of them that came back."""
    by_place: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for notice in told:
        place = notice.get("key") or str(notice["partition"])
        by_place[notice["of"], place].append(notice["status"])
    expected = {("key", key): ["silent", "closed"] if key in returned else ["silent"] for key in stopped}
    expected["topic", "0"] = ["silent"]
    repeated = [
        place for place, found in by_place.items() if found != (["silent", "closed"] * len(found))[: len(found)]
    ]
    false = [place for place in by_place if place not in expected]
    missed = [place for place, wanted in expected.items() if by_place.get(place, [])[: len(wanted)] != wanted]
    more = [place for place, wanted in expected.items() if len(by_place.get(place, ())) > len(wanted)]
    delays = sorted(one["quiet_s"] for one in told if one["of"] == "key" and one["status"] == "silent")
    return {
        "told": len(told),
        "repeated": len(repeated),
        "false": len(false) + len(more),
        "missed": len(missed),
        "median_quiet_s": delays[len(delays) // 2] if delays else None,
        "longest_quiet_s": delays[-1] if delays else None,
        "wrong": [*repeated, *false, *missed, *more][:10],
    }


def run(home: Path, seconds: float, n_keys: int, rate: float, has_faults: bool, seed: int) -> dict[str, Any]:
    """One run, of `seconds` and END_S more."""
    rng, kafka = random.Random(seed), Kafka(home)
    try:
        topic = unique("silence")
        kafka.create_topic(topic, PARTITIONS)
        kafka.create_topic("pages", PARTITIONS)
        settings = ServiceSettings(
            bootstrap=kafka.bootstrap,
            topic=topic,
            alerts="pages",
            group="watch",
            features=("t", "u"),
            views=("fast",),
            explain="none",
            silence=5.0,
            kafka=CLIENT,
        )
        feed = Feed(kafka, topic, n_keys, rate, rng)
        with tempfile.TemporaryDirectory() as folder:
            instances = [Supervised(Path(folder), name, flags_of(settings), [topic]) for name in ("a", "b")]
            began = time.monotonic()
            time.sleep(seconds / 3)
            often = [key for key, gap in enumerate(feed.gaps) if gap <= OFTEN_S]
            feed.stopped = gone = frozenset(rng.sample(often, min(STOPPED, len(often))))
            back_at, faults = time.monotonic() + AWAY_S, list(FAULTS) if has_faults else []
            while time.monotonic() - began < seconds:
                if faults:
                    inject(faults.pop(0), kafka, rng.choice(instances))
                time.sleep(min(45.0, max(0.0, began + seconds - time.monotonic())))
                if time.monotonic() > back_at and len(feed.stopped) == len(gone):
                    feed.stopped = frozenset(rng.sample(sorted(gone), len(gone) // 2))
            feed.stop()
            lag = kafka.committed
            wait_for(lambda: lag("watch", topic) == sum(kafka.ends(topic, True)), "all to be scored", 300)
            time.sleep(END_S)
            for instance in instances:
                instance.stop()
        told = [json.loads(one.value())["fomo"] for one in kafka.read("pages")]
        returned = {str(key) for key in gone - feed.stopped}
        found = verdict([one for one in told if "of" in one], set(map(str, gone)), returned)
        by_exit = collections.Counter(code for one in instances for code in one.exits)
        run_of = {"seconds": seconds, "keys": n_keys, "records": feed.sent, "stopped": len(gone), "back": len(returned)}
        return {**run_of, **found, "exits": {str(code): count for code, count in sorted(by_exit.items())}}
    finally:
        kafka.remove()


def cost(n_keys: int, rounds: int) -> dict[str, Any]:
    """CPU time a record with and without silence, one after the other on the same broker."""
    spent: dict[str, list[float]] = {"without": [], "with": []}
    rates: dict[str, list[float]] = {"without": [], "with": []}
    with open_broker() as broker, tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for name, factor in (("without", None), ("with", 5.0)):
                changes: dict[str, Any] = {} if factor is None else {"silence": factor}
                changes |= {"alerts": unique("pages"), "views": ("fast",)}
                with service_with(
                    broker, Path(folder), PARTITIONS, int(LAST * 1.05), keys=n_keys, **changes
                ) as service:
                    service.until(LAST)
                begin, end = stretch(service.progress.samples, FIRST, LAST)
                count = end.records - begin.records
                brokers = (end.broker_s or 0.0) - (begin.broker_s or 0.0)
                spent[name].append(1e6 * (end.service_s - begin.service_s + brokers) / count)
                rates[name].append(count / (end.at - begin.at))
    us, a_second = ({name: median(found) for name, found in of.items()} for of in (spent, rates))
    return {
        "keys": n_keys,
        "us_per_record": us,
        "records_per_s": a_second,
        "cpu_ratio": us["with"] / us["without"],
        "rate_ratio": a_second["with"] / a_second["without"],
        "all_us": spent,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--keys", type=int, default=5000)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--steady", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cost", type=int, metavar="ROUNDS", help="measure what it costs, in place of all this")
    options = parser.parse_args()
    if (home := kafka_home()) is None:
        sys.exit("needs KAFKA_HOME")
    if options.cost:
        print(json.dumps(cost(options.keys, options.cost)))
        return
    result = run(home, options.minutes * 60, options.keys, options.rate, not options.steady, options.seed)
    print(json.dumps(result))
    sys.exit(int(any(result[name] for name in ("repeated", "false", "missed"))))


if __name__ == "__main__":
    main()
