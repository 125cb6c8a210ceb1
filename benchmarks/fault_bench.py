"""Injects faults for minutes: is every record scored exactly once, with the same result as without faults?

    KAFKA_HOME=... python benchmarks/fault_bench.py [--seconds 420] [--nodes 3] [--seed 0] [--busy]
    [--protocol consumer] [--format avro]

A producer writes numbered records to 6 partitions of a cluster, some of 12 keys that are busy there and get contexts of
their own, the others of 10,000 keys; three instances of `fomo-stream` score them, two of
them with --instance-id, each restarted by a supervisor whenever it ends. With --busy there is also a process that burns
time on each core, and at random moments, whatever else goes on, an instance is suspended for 8 to 20 s. With
--protocol consumer the broker assigns partitions (KIP-848). With --format avro records and outputs are Avro, with a
schema registry. Meanwhile faults are injected, one after the other and in
pairs: kill -9, SIGTERM, SIGSTOP beyond the session timeout, kill -9 and SIGTERM of a broker, kill -9
and SIGSTOP of the broker that coordinates the group, also while an instance starts, kill -9 of the one that coordinates
its transactions, a broker that hangs, produce errors (the output or the state topic asks for more replicas than there
are), labels on scored records, another partition. Then it counts, in the committed outputs:

- lost, duplicates, out of order: records without an output, with more than one, after a later one of their partition;
- different: outputs whose logit or p-value is not, bit for bit, that of a detector that was never interrupted and had
  the same records and labels;
- labels without an effect, or with more than one; dead letters; whether the committed offsets are complete; exit codes
  of instances, and aborts among them;
- stall: the longest time from a record's acknowledgement until its output can be read, over all records; beside it how
  long the producer itself had to wait for the brokers at most.

Prints one JSON line last. Exits with 1 unless the first of these are all 0.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("tests", "tests/integration", "benchmarks")]

from brokers import Broker, kafka_home, wait_for
from clusters import Cluster
from fault_streams import FEATURES, JSON, Feed, Form, Labels, Outputs, avro_form
from faults import DOUBLE, Injector, Supervised, burners, freezes, inject_for
from label_effects import effects_in
from registries import Registry, registry_home
from services import unique

from fomo_stream.detector.detector import Detector
from fomo_stream.detector.results import Results
from fomo_stream.model.checkpoint import load_model
from fomo_stream.settings.service_settings import ServiceSettings

MUST_BE_0 = (
    "lost",
    "duplicates",
    "out_of_order",
    "different",
    "dead_letters",
    "labels_lost",
    "labels_repeated",
    "aborts",
)
# Labels (own offset, offset of the record, outlier) by partition and input offset before which they took effect.
Effects = dict[int, dict[int, list[tuple[int, int, bool]]]]


def verdict(
    source: list[Any], written: list[Any], effects: Effects, injector: Injector, settings: ServiceSettings
) -> dict[str, Any]:
    """Compares the outputs that were written with the input `source`, both in order within a partition.

    While the output has fewer partitions than the input, records go to them by key: so the order of a partition of the
    input is kept in each partition of the output.
    """
    feed, outputs = injector.feed, injector.outputs
    records = [feed.form.read(message.value()) for message in written]
    places = [(record["fomo"]["partition"], record["fomo"]["offset"]) for record in records]
    wanted = {(message.partition(), message.offset()) for message in source}
    last: dict[tuple[int, int], int] = {}
    disorder = 0
    for message, (number, offset) in zip(written, places, strict=True):
        where = message.partition(), number
        disorder += offset <= last.get(where, -1)
        last[where] = offset
    stalls = [at - feed.acknowledged[record["n"]] for at, record in outputs.seen]
    longest = [0.0] * len(injector.rounds)  # by round
    for (at, _), stall in zip(outputs.seen, stalls, strict=True):
        i = sum(began < at for began, _ in injector.rounds) - 1
        longest[max(i, 0)] = max(longest[max(i, 0)], stall)
    by_fault = [("+".join(names), round(stall, 1)) for (_, names), stall in zip(injector.rounds, longest, strict=True)]
    return {
        "records": len(wanted),
        "lost": len(wanted - set(places)),
        "duplicates": len(places) - len(set(places)),
        "repeated": [place for place, times in collections.Counter(places).items() if times > 1][:20],
        "out_of_order": disorder,
        **count_differences(source, records, effects, settings, feed.form),
        "longest_stall_s": round(max(stalls), 1),
        "longest_stall_of_single_faults_s": max(
            (stall for name, stall in by_fault if "+" not in name and name not in DOUBLE), default=0.0
        ),
        "longest_wait_of_the_producer_s": round(feed.longest_s, 1),
        "median_latency_s": round(float(np.median(stalls)), 2),
        "stalls_s": by_fault,
    }


def effects_of(broker: Broker, settings: ServiceSettings) -> Effects:
    """When labels took effect, from the state topic."""
    effects: Effects = collections.defaultdict(lambda: collections.defaultdict(list))
    for message in broker.read(settings.state_topic):
        for effect in effects_in([(message.key(), message.value())]):
            effects[message.partition()][effect["input_offset"]] += effect["labels"]
    return effects


def judge_labels(effects: Effects, given: int) -> dict[str, Any]:
    """Labels without an effect, and with more than one."""
    heeded = collections.Counter(
        (number, label[0]) for number, found in effects.items() for labels in found.values() for label in labels
    )
    return {"labels": given, "labels_lost": given - len(heeded), "labels_repeated": heeded.total() - len(heeded)}


def count_differences(
    source: list[Any], records: list[Any], effects: Effects, settings: ServiceSettings, form: Form
) -> dict[str, int]:
    """Number of outputs that differ from a replay of the same records and labels without interruptions.

    And how many keys had contexts of their own at the end, over all partitions.
    """
    own_contexts = []
    found = {
        (record["fomo"]["partition"], record["fomo"]["offset"]): (record["fomo"]["logit"], record["fomo"]["p_value"])
        for record in records
    }
    model, different = load_model(settings.model, settings.device), 0
    for partition in sorted({message.partition() for message in source}):
        messages = [message for message in source if message.partition() == partition]
        number_of = {message.offset(): number for number, message in enumerate(messages)}
        values = [form.read(message.value()) for message in messages]
        rows = np.array([[value[name] for name in sorted(FEATURES)] for value in values])
        detector = Detector(model, len(FEATURES), settings.detector_config()).staggered(partition)
        keys = [message.key() for message in messages]
        parts, done = [], 0
        for offset, labels in sorted(effects[partition].items()):
            number = number_of.get(offset, len(rows))  # the record before which they took effect
            parts.append(detector.process(rows[done:number], keys[done:number]))
            numbers = np.array([number_of[label[1]] for label in labels])
            detector.feedback(numbers, np.array([label[2] for label in labels]))
            done = number
        scored = Results.concatenate([*parts, detector.process(rows[done:], keys[done:])])
        own_contexts.append(detector.summary.own_contexts)
        for message, logit, p in zip(messages, scored.logit.tolist(), scored.p_value.tolist(), strict=True):
            place = (partition, message.offset())
            expected = tuple(None if x != x else x for x in (logit, float(f"{p:.3g}")))  # as results have them
            different += place in found and found[place] != expected
    return {"different": different, "own_contexts": sum(own_contexts)}


@contextmanager
def service_group(
    broker: Broker, folder: Path, topic: str, session_s: float, protocol: str, form: Form
) -> Iterator[list[Supervised]]:
    """Three instances, the first two with names of their own."""
    session = str(int(1000 * session_s))
    kafka = {"topic.metadata.refresh.interval.ms": "2000", "transaction.timeout.ms": session}
    if protocol == "classic":
        kafka |= {"session.timeout.ms": session, "heartbeat.interval.ms": "1000"}
    else:  # these two are the broker's
        kafka |= {"group.protocol": protocol}
    common: dict[str, Any] = {"bootstrap": broker.bootstrap, "topic": topic, "group": f"group-{topic}"}
    common |= {"features": FEATURES, "kafka": kafka, "feedback": f"{topic}-labels", **form.settings}
    named = [ServiceSettings(**common, instance_id=name) for name in ("static", "b")]
    all_settings = [*named, ServiceSettings(**common)]
    instances = [Supervised(folder, name, s) for name, s in zip(("static", "b", "c"), all_settings, strict=True)]
    try:
        yield instances
    finally:
        for instance in instances:
            instance.stop()


def summary(injector: Injector, source: list[Any], elapsed: float) -> dict[str, Any]:
    """The result of the whole run. source: the records of the input."""
    cluster, settings, instances = injector.cluster, injector.settings, injector.instances
    effects = effects_of(cluster, settings)
    exits = collections.Counter(code for instance in instances for code in instance.exits)
    return {
        "benchmark": "faults",
        "faults": len(injector.injected) + injector.freezes,
        "freezes_at_random": injector.freezes,
        "kinds": dict(collections.Counter(injector.injected)),
        "seconds": round(elapsed),
        **verdict(source, cluster.read(settings.out), effects, injector, settings),
        **judge_labels(effects, injector.labels.given),
        "partitions": injector.feed.partitions,
        "aborts": exits[-signal.SIGABRT],
        "dead_letters": len(cluster.read(settings.dead_letters)),
        "offsets_complete": cluster.committed(settings.group, settings.topic) == len(source),
        "session_timeout_s": injector.session_s,
        "exits": {instance.name: dict(collections.Counter(instance.exits)) for instance in instances},
        "exits_by_itself": [line for instance in instances for line in instance.exits_by_itself],
    }


def run(
    home: Path,
    folder: Path,
    count: int,
    seconds: float,
    n_nodes: int,
    session_s: float,
    seed: int,
    only: tuple[str, ...] = (),
    at_least: int = 0,
    busy: bool = False,
    protocol: str = "classic",
    registry: Path | None = None,
) -> dict[str, Any]:
    """Run the whole experiment; see the module's docstring.

    folder: for logs, and what the brokers store. registry: a schema registry, for records in Avro. at_least: as many
    faults, also if they take longer than `seconds`.
    """
    partitions = 6
    millis = {"session.timeout": int(1000 * session_s), "min.session.timeout": 6000}
    millis |= {"heartbeat.interval": 1000, "min.heartbeat.interval": 1000}
    cluster = Cluster(home, n_nodes, folder, [f"group.consumer.{name}.ms={value}" for name, value in millis.items()])
    stack = ExitStack()
    try:
        topic = unique("faults")
        form = JSON if registry is None else avro_form(stack.enter_context(Registry(registry)).url, topic)
        cluster.create_topic(topic, partitions)
        with service_group(cluster, folder, topic, session_s, protocol, form) as instances, burners(busy):
            settings = instances[1].settings
            out = wait_for(lambda: cluster.partitions(settings.out) and settings.out, "the outputs", 300)
            outputs = Outputs(cluster, out, form)
            wait_for(lambda: all(instance.has_partitions for instance in instances), "the group to be complete", 300)
            feed = Feed(cluster, topic, count, partitions, seconds, form)
            wait_for(lambda: len(outputs.numbers) > 100, "the first outputs", 300)
            began = time.monotonic()
            labels = Labels(cluster, settings.feedback or "")
            rng = random.Random(seed)
            injector = Injector(cluster, instances, settings, feed, outputs, labels, session_s, rng, only)
            with freezes(injector) if busy else nullcontext():
                inject_for(injector, began + seconds - 2 * session_s, at_least)
            elapsed = time.monotonic() - began
            feed.join()
            wait_for(lambda: len(outputs.numbers) >= count, "the last outputs", 300)
            source = cluster.read(topic, at_least=count)  # an idempotent producer, too, may repeat when brokers die
            wait_for(lambda: cluster.committed(settings.group, topic) == len(source), "all to be committed", 300)
            given = labels.given
            heeded = partial(cluster.committed, settings.group, settings.feedback or "")
            wait_for(lambda: heeded() == given, "all labels to be heeded", 300)
        time.sleep(2)  # in case further outputs come, which would be wrong
        outputs.stop()
        return summary(injector, source, elapsed)
    except BaseException:
        for log in sorted(folder.glob("*.log")):
            print(f"--- the end of {log}", *log.read_text().splitlines()[-12:], sep="\n")
        raise
    finally:
        cluster.stop()
        stack.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=420)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--session", type=float, default=10, help="session timeout, seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--busy", action="store_true", help="burn time on each core, and suspend instances at random")
    parser.add_argument("--protocol", choices=("classic", "consumer"), default="classic", help="of the group")
    parser.add_argument("--format", choices=("json", "avro"), default="json", help="of records; avro: REGISTRY_HOME")
    parser.add_argument("--only", default="", help="kinds of faults, separated by commas (default: all)")
    options = parser.parse_args()
    home = kafka_home()
    if home is None:
        parser.error("set KAFKA_HOME to an Apache Kafka")
    registry = registry_home() if options.format == "avro" else None
    if options.format == "avro" and registry is None:
        parser.error("set REGISTRY_HOME to a schema registry")
    folder = Path(tempfile.mkdtemp(prefix="fomo-faults-"))
    print(f"logs and what the brokers store: {folder}", flush=True)
    only = tuple(filter(None, options.only.split(",")))
    amount = (options.records, options.seconds, options.nodes, options.session, options.seed, only)
    result = run(home, folder, *amount, busy=options.busy, protocol=options.protocol, registry=registry)
    print(json.dumps(result))
    if any(result[what] for what in MUST_BE_0) or not result["offsets_complete"]:
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
