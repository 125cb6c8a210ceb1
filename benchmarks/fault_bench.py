"""Injects faults for minutes: is every record scored exactly once, with the same result as without faults?

    KAFKA_HOME=... python benchmarks/fault_bench.py [--seconds 420] [--nodes 3] [--seed 0] [--busy]
    [--protocol consumer] [--format avro] [--topics 3] [--hot-settings]

A producer writes numbered records to 6 partitions of a cluster, some of 12 keys that are busy there and get contexts of
their own, the others of 10,000 keys; three instances of `fomo-stream` score them, two of
them with --instance-id, each restarted by a supervisor whenever it ends. With --busy there is also a process that burns
time on each core, and at random moments, whatever else goes on, an instance is suspended for 8 to 20 s. With
--protocol consumer the broker assigns partitions (KIP-848). With --format avro records and outputs are Avro, with a
schema registry. With --topics N each instance scores N topics, and each of them has its own producer and is judged by
itself. With --hot-settings all instances read a configuration file that changes every few seconds: rules and windows of
maintenance, for all topics and for some, and now and then the alert rate; sometimes it is wrong for a while, or half
written. Meanwhile faults are injected, one after the other and in
pairs: kill -9, SIGTERM, SIGSTOP beyond the session timeout, kill -9 and SIGTERM of a broker, kill -9
and SIGSTOP of the broker that coordinates the group, also while an instance starts, kill -9 of the one that coordinates
its transactions, a broker that hangs, produce errors (the output or the state topic asks for more replicas than there
are), labels on scored records, another partition. Then it counts, in the committed outputs:

- lost, duplicates, out of order: records without an output, with more than one, after a later one of their partition;
- different: outputs whose result has a field that is not, bit for bit, that of a process that was never interrupted,
  with the same records, and the labels, rules and alert rates that took effect between the same records;
- labels without an effect, or with more than one; dead letters; whether the committed offsets are complete; exit codes
  of instances, and aborts among them;
- stall: the longest time from a record's acknowledgement until its output can be read, over all records; beside it how
  long the producer itself had to wait for the brokers at most.

Prints one JSON line last. Exits with 1 unless the first of these are all 0.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("tests", "tests/integration", "benchmarks")]

from brokers import Broker, kafka_home, wait_for
from clusters import Cluster
from fault_streams import FEATURES, JSON, Feed, Form, HotSettings, Labels, Outputs, Stream, avro_form
from fault_verdict import histories, verdict
from faults import DOUBLE, Injector, Supervised, burners, freezes, inject_for
from registries import Registry, registry_home
from services import flags_of, unique

from fomo_stream.settings.service_settings import ServiceSettings
from fomo_stream.settings.sources import option
from fomo_stream.settings.topic_flags import DEFAULT_DEAD_LETTERS, DEFAULT_OUT

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


@contextmanager
def service_group(
    broker: Broker,
    folder: Path,
    topics: Sequence[str],
    session_s: float,
    protocol: str,
    form: Form,
    config: Path | None = None,
) -> Iterator[tuple[list[Supervised], list[ServiceSettings]]]:
    """Three instances, the first two with names of their own, and the settings of each topic. config: their file."""
    session = str(int(1000 * session_s))
    kafka = {"topic.metadata.refresh.interval.ms": "2000", "transaction.timeout.ms": session}
    if protocol == "classic":
        kafka |= {"session.timeout.ms": session, "heartbeat.interval.ms": "1000"}
    else:  # these two are the broker's
        kafka |= {"group.protocol": protocol}
    common: dict[str, Any] = {"bootstrap": broker.bootstrap, "features": FEATURES, "kafka": kafka, **form.settings}
    names = {
        "group": "group-{topic}",
        "feedback": "{topic}-labels",
        "out": DEFAULT_OUT,
        "dead_letters": DEFAULT_DEAD_LETTERS,
    }
    if config is not None:
        common |= {"min_context": 50}  # so that rules have alerts to look at early
    own = [ServiceSettings(**{"topic": topic, **names, **common}) for topic in topics]
    flags = [*flags_of(own[0]), "--topic", ",".join(topics)]  # of flags that are given twice the last counts
    flags += [word for name, text in names.items() for word in (option(name), text)]
    flags += [] if config is None else ["--config", str(config)]
    instances = [Supervised(folder, name, [*flags, "--instance-id", name], topics) for name in ("static", "b")]
    instances.append(Supervised(folder, "c", flags, topics))
    try:
        yield instances, own
    finally:
        for instance in instances:
            instance.stop()


def summary(injector: Injector, verdicts: list[dict[str, Any]], elapsed: float) -> dict[str, Any]:
    """The result of the whole run. verdicts: about each topic."""
    exits = collections.Counter(code for instance in injector.instances for code in instance.exits)
    several = {"topics": verdicts} if verdicts[1:] else {}
    counts = {name: sum(one[name] for one in verdicts) for name, value in verdicts[0].items() if type(value) is int}
    worst = {name: max(one[name] for one in verdicts) for name, value in verdicts[0].items() if type(value) is float}
    longest = [0.0] * len(injector.rounds)  # by round
    for at, stall in itertools.chain(*(stream.stalls() for stream in injector.streams)):
        i = max(sum(began < at for began, _ in injector.rounds) - 1, 0)
        longest[i] = max(longest[i], stall)
    by_fault = [("+".join(names), round(stall, 1)) for (_, names), stall in zip(injector.rounds, longest, strict=True)]
    return {
        "benchmark": "faults",
        "faults": len(injector.injected) + injector.freezes,
        "freezes_at_random": injector.freezes,
        "kinds": dict(collections.Counter(injector.injected)),
        "seconds": round(elapsed),
        **verdicts[0],
        **counts,
        **worst,
        "offsets_complete": all(one["offsets_complete"] for one in verdicts),
        **several,
        "longest_stall_of_single_faults_s": max(
            (stall for name, stall in by_fault if "+" not in name and name not in DOUBLE), default=0.0
        ),
        "stalls_s": by_fault,
        "aborts": exits[-signal.SIGABRT],
        "session_timeout_s": injector.session_s,
        "exits": {instance.name: dict(collections.Counter(instance.exits)) for instance in injector.instances},
        "exits_by_itself": [line for instance in injector.instances for line in instance.exits_by_itself],
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
    n_topics: int = 1,
    hot: bool = False,
) -> dict[str, Any]:
    """Run the whole experiment; see the module's docstring.

    folder: for logs, and what the brokers store. count: records of each topic. registry: a schema registry, for records
    in Avro. at_least: as many faults, also if they take longer than `seconds`.
    """
    partitions = 6
    millis = {"session.timeout": int(1000 * session_s), "min.session.timeout": 6000}
    millis |= {"heartbeat.interval": 1000, "min.heartbeat.interval": 1000}
    cluster = Cluster(home, n_nodes, folder, [f"group.consumer.{name}.ms={value}" for name, value in millis.items()])
    stack, rng = ExitStack(), random.Random(seed)
    try:
        topics = [unique("faults") for _ in range(n_topics)]
        form = JSON if registry is None else avro_form(stack.enter_context(Registry(registry)).url, topics[0])
        for topic in topics:
            cluster.create_topic(topic, partitions)
        file = HotSettings(folder / "fomo.yaml", topics, random.Random(seed)) if hot else None
        config = None if file is None else file.path
        group = service_group(cluster, folder, topics, session_s, protocol, form, config)
        with group as (instances, settings), burners(busy):
            wait_for(lambda: all(cluster.partitions(own.out) for own in settings), "the outputs", 300)
            outputs = [Outputs(cluster, own.out, form) for own in settings]
            wait_for(lambda: all(instance.has_partitions for instance in instances), "the group to be complete", 300)
            changing = stack.enter_context(ExitStack())
            changing.enter_context(file or nullcontext())
            feeds = [Feed(cluster, topic, count, partitions, seconds, form) for topic in topics]
            labels = [Labels(cluster, own.feedback) for own in settings]
            streams = list(map(Stream, settings, feeds, outputs, labels))
            wait_for(lambda: all(len(out.numbers) > 100 for out in outputs), "the first outputs", 300)
            began = time.monotonic()
            injector = Injector(cluster, instances, streams, session_s, rng, only)
            with freezes(injector) if busy else nullcontext():
                inject_for(injector, began + seconds - 2 * session_s, at_least)
            changing.close()
            elapsed = time.monotonic() - began
            sources = [finish(cluster, stream, count, file) for stream in streams]
        time.sleep(2)  # in case further outputs come, which would be wrong
        verdicts = []
        for stream, source in zip(streams, sources, strict=True):
            stream.outputs.stop()
            verdicts.append(verdict(cluster, stream, source))
        changes = {} if file is None else {"changes_of_file": file.changes, "mistakes": file.mistakes}
        return summary(injector, verdicts, elapsed) | changes
    except BaseException:
        for log in sorted(folder.glob("*.log")):
            print(f"--- the end of {log}", *log.read_text().splitlines()[-12:], sep="\n")
        raise
    finally:
        cluster.stop()
        stack.close()


def finish(cluster: Cluster, stream: Stream, count: int, file: HotSettings | None) -> list[Any]:
    """Wait until all of a topic is scored and committed, and has the last rules. The records of its input."""
    settings = stream.settings
    stream.feed.join()
    wait_for(lambda: len(stream.outputs.numbers) >= count, "the last outputs", 300)
    source = cluster.read(settings.topic, at_least=count)  # an idempotent producer, too, may repeat when brokers die
    wait_for(lambda: cluster.committed(settings.group, settings.topic) == len(source), "all to be committed", 300)
    heeded = partial(cluster.committed, settings.group, settings.feedback or "")
    wait_for(lambda: heeded() == stream.labels.given, "all labels to be heeded", 300)
    if file is not None:
        newest = file.rules(settings.topic)
        stored = partial(histories, cluster, settings)
        wait_for(lambda: all(own.stored == newest for own in stored().values()), "the last rules", 60, every=1.0)
    return source


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=50_000, help="of each topic")
    parser.add_argument("--topics", type=int, default=1, help="scored by each instance")
    parser.add_argument("--hot-settings", action="store_true", help="change the configuration file all the time")
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
    ways = {"busy": options.busy, "protocol": options.protocol, "n_topics": options.topics, "hot": options.hot_settings}
    result = run(home, folder, *amount, registry=registry, **ways)
    print(json.dumps(result))
    if any(result[what] for what in MUST_BE_0) or not result["offsets_complete"]:
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
