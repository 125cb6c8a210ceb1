"""Runs the Helm chart on a real API server and a real Kafka: is every record scored once, and how long is the silence?

    KAFKA_HOME=... KUBE_HOME=... python benchmarks/chart_bench.py
    KAFKA_HOME=... KUBE_HOME=... python benchmarks/chart_bench.py --earlier CHECKOUT --kernels FOLDER

A namespace allows only pods that are restricted. Three pods score 6 partitions with a steady feed of numbered records.
Then: `helm test`, an upgrade to a version that cannot read the state, an upgrade that restarts all pods, scaling in and
out, an eviction, a pod that is killed, an upgrade that the group refuses, `helm uninstall`. The pods are processes of
this machine; all share its processors.

Prints one JSON line last: counts that must be 0, and in seconds the longest silence of each partition in the rolling
restart and in the scale-in, and the time until the group is empty after `helm uninstall`. Needs root.

With --earlier, instead: an upgrade from the chart and the program of another checkout, whose kernels are compiled in a
folder of their own; back to that program; and the upgrade again. `differences` are results after the first upgrade that
are not those of one detector of this version, which goes on from the same state without an interruption.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("tests", "tests/integration", "benchmarks")]

from brokers import Broker, Kafka, free_ports, kafka_home, wait_for
from documents import ROOT
from fault_streams import FEATURES, Feed, Outputs
from pipelines import FLAGS, Instance
from services import results

from fomo_stream.kafka.broker.topic_reader import to_record
from fomo_stream.kafka.restore import KEY_PREFIX, VERSION
from fomo_stream.model.checkpoint import shared_model
from fomo_stream.partition.position import POSITION, Restored, SavedPosition
from fomo_stream.records.schema import Schema
from fomo_stream.settings.service_settings import ServiceSettings

NAMESPACE, RELEASE, NAME = "scoring", "fomo", "fomo-fomo-stream"
TOPIC, OUT, GROUP, PARTITIONS = "sensors", "sensors-scores", "fomo-stream", 6
LIMIT_S = 600  # for any step, also on a busy machine
RECORDS, RATE = 18_000, 150  # before an upgrade, when the busy keys have contexts of their own; and in a second
MUST_BE_0 = (
    "lost",
    "duplicates",
    "dead_letters",
    "restarts_by_the_refused_upgrade",
    "pods_after_one_that_failed",
)
OTHER_FORMAT = "from fomo_stream.detector import config\nconfig.FORMAT += 2\n"


def kube_home() -> Path | None:
    """Folder of the Kubernetes to use, with `bin/kube-start` and `bin/podhost`, if any."""
    home = os.environ.get("KUBE_HOME")
    return Path(home).resolve() if home else None


class Cluster:
    """An API server, and a node whose pods are processes here. folder: for its data and the logs of pods."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.folder = folder
        self.pods = folder / "pods"
        self._environment = {**os.environ, "KUBECONFIG": str(folder / "kube" / "kubeconfig"), "HOME": str(folder)}
        folder.mkdir(exist_ok=True)
        folder.chmod(0o700)  # so pods run as root, because other users may perhaps not read this installation
        command: list[Any] = [home / "bin" / "kube-start", folder / "kube", str(free_ports(4))]
        self._server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == "ready\n"
        node: list[Any] = [sys.executable, home / "bin" / "podhost", "--root", self.pods]
        node += ["--kubeconfig", self._environment["KUBECONFIG"], "--env", f"PYTHONPATH={ROOT}"]
        node += ["--entry", Path(sys.prefix) / "bin" / "fomo-stream"]
        if kernels := os.environ.get("NUMBA_CACHE_DIR"):  # compiled once, as in the image, and not by each pod
            node += ["--env", f"NUMBA_CACHE_DIR={kernels}"]
        with open(folder / "podhost.log", "wb") as log:  # with a group of its own, for the processes of the pods
            self._node = subprocess.Popen(node, stdout=log, stderr=log, start_new_session=True)

    def stop(self) -> None:
        os.killpg(self._node.pid, signal.SIGKILL)
        self._node.wait()
        self._server.terminate()
        self._server.wait()

    def run(self, program: Path, *words: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, "--namespace", NAMESPACE, *words],
            env=self._environment,
            input=given,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )

    def kubectl(self, *words: str) -> str:
        done = self.run(Path(sys.prefix) / "bin" / "kubectl", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def get(self, kind: str) -> list[Any]:
        """All objects of a kind in the namespace."""
        found: list[Any] = json.loads(self.kubectl("get", kind, "--output", "json"))["items"]
        return found

    def helm(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(self.folder / "kube" / "bin" / "helm", *words)

    def install(
        self,
        command: str,
        values: dict[str, Any],
        checkout: Path = ROOT,
        seconds: int | None = LIMIT_S,
        **settings: Any,
    ) -> subprocess.CompletedProcess[str]:
        """`helm install` or `helm upgrade`, until all pods are ready, or so many seconds; None: it does not wait."""
        path = self.folder / "values.json"
        path.write_text(json.dumps({**values, "settings": {**values["settings"], **settings}}))
        chart = str(checkout / "deploy" / "chart")
        waiting = [] if seconds is None else ["--wait", "--timeout", f"{seconds}s"]
        return self.helm(command, RELEASE, chart, "--values", str(path), *waiting)

    def evict(self, pod: str) -> subprocess.CompletedProcess[str]:
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
        words = ["create", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction", "--filename", "-"]
        return self.run(Path(sys.prefix) / "bin" / "kubectl", *words, given=json.dumps(eviction))

    def services(self) -> dict[str, tuple[str, int]]:
        """The pods of the service: name to unique id and number of restarts."""
        found = {}
        for pod in self.get("pods"):
            if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "service":
                (container,) = pod["status"].get("containerStatuses", [{}])  # a new pod has none
                found[pod["metadata"]["name"]] = pod["metadata"]["uid"], container.get("restartCount", 0)
        return found

    def are_ready(self, count: int) -> bool:
        """Whether there are exactly so many pods, all of them ready."""
        (found,) = self.get("statefulsets")
        status = found["status"]
        return {status.get("readyReplicas", 0), status["replicas"], found["spec"]["replicas"]} == {count}

    def log_of(self, beginning: str) -> str:
        """What the pods whose names begin like this have written."""
        return "".join(path.read_text() for path in sorted(self.pods.glob(f"{beginning}*.log")))


@contextmanager
def cluster(home: Path, folder: Path) -> Iterator[Cluster]:
    made = Cluster(home, folder)
    try:
        yield made
    finally:
        made.stop()


class EndlessFeed(Feed):
    """Writes records until it is ended."""

    def __init__(self, broker: Broker, records_per_s: float, first: int = 0) -> None:
        super().__init__(broker, TOPIC, 10**9, PARTITIONS, 10**9 / records_per_s, first=first)

    def end(self) -> int:
        """Number of records."""
        self.stop()
        self.join()
        return len(self.acknowledged)

    def stop(self) -> None:
        """Write no more."""
        self._count = 0


class Scenario:
    """The chart in operation."""

    def __init__(
        self, kube: Cluster, broker: Broker, records_per_s: float, checkout: Path = ROOT, **values: Any
    ) -> None:
        self.kube = kube
        self.broker = broker
        settings = {"topic": TOPIC, "bootstrap": broker.bootstrap, "group": GROUP, "features": list(FEATURES)}
        self.values: dict[str, Any] = {"settings": settings, "partitions": PARTITIONS, "replicas": 3}
        broker.create_topic(TOPIC, PARTITIONS)
        kube.kubectl("create", "namespace", NAMESPACE)
        kube.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
        succeeded(kube.install("install", {**self.values, **values}, checkout=checkout))
        self.outputs = Outputs(broker, OUT)
        self.rate, self.feed = records_per_s, EndlessFeed(broker, records_per_s)
        self.settled(3)

    def settled(self, count: int) -> None:
        """Wait until so many pods share all partitions, and every partition is scored."""
        names = {f"{NAME}-{number}" for number in range(count)}

        def shared() -> bool:
            members = self.broker.members(GROUP)
            return set(members) == names and sum(map(len, members.values())) == PARTITIONS

        wait_for(lambda: self.kube.are_ready(count) and shared(), f"{count} pods to share the partitions", LIMIT_S)
        began, before = time.monotonic(), len(self.outputs.seen)

        def scored() -> bool:
            return {one["fomo"]["partition"] for _, one in self.outputs.seen[before:]} == set(range(PARTITIONS))

        wait_for(scored, f"every partition to be scored after {began:.0f}", LIMIT_S)

    def silences(self, began: float) -> dict[int, float]:
        """Of each partition, the longest time since `began` without a new output, in seconds."""
        times: dict[int, list[float]] = {number: [began] for number in range(PARTITIONS)}
        for at, record in self.outputs.seen:
            if at > began:
                times[record["fomo"]["partition"]].append(at)
        return {number: round(max(b - a for a, b in pairwise(found)), 2) for number, found in times.items()}

    def fail(self) -> int:
        """An upgrade to a version that reads other states, and fails after it was ready; how many pods followed it."""
        version = self.kube.folder / "version"
        version.mkdir()
        (version / "sitecustomize.py").write_text(OTHER_FORMAT)
        before, last = self.kube.services(), f"{NAME}-2"
        env = [{"name": "PYTHONPATH", "value": f"{version}:{ROOT}"}]
        succeeded(self.kube.install("upgrade", {**self.values, "extraEnv": env}, seconds=None))
        refusals = "another version of fomo-stream wrote the state"
        wait_for(lambda: self.kube.log_of(last).count(refusals) > 1, "the new version to fail twice", LIMIT_S)
        after = self.kube.services()
        return sum(before[name] != after.get(name) for name in before if name != last)

    def restart(self) -> dict[int, float]:
        """An upgrade that changes a setting; the silences."""
        began = time.monotonic()
        before = self.kube.services()
        change: dict[str, Any] = {"alert-rate": 0.02}
        succeeded(self.kube.install("upgrade", self.values, **change))
        self.settled(3)
        after = self.kube.services()
        assert not set(before.values()) & set(after.values()), "not all pods were replaced"
        assert self.kube.get("jobs") == []
        assert not any(found["metadata"]["name"].endswith("-check") for found in self.kube.get("configmaps"))
        return self.silences(began)

    def scale(self, count: int) -> dict[int, float]:
        """The silences."""
        began = time.monotonic()
        self.kube.kubectl("scale", "statefulset", NAME, f"--replicas={count}")
        self.settled(count)
        return self.silences(began)

    def evict(self) -> None:
        """Of two pods, one may go at a time."""
        gone = self.kube.services()[f"{NAME}-0"]
        # As kubectl drain does: a pod that is late for its probe counts as one that is gone.
        wait_for(lambda: self.kube.evict(f"{NAME}-0").returncode == 0, "the pod to be evicted", LIMIT_S)
        refused = self.kube.evict(f"{NAME}-1")
        assert refused.returncode != 0
        assert "disruption budget" in refused.stderr, refused.stderr
        wait_for(lambda: self.kube.services().get(f"{NAME}-0", gone) != gone, "the pod to be replaced", LIMIT_S)
        self.settled(3)

    def kill(self) -> None:
        """Kill a pod without a chance to leave the group; it comes back under its name."""
        self.kube.kubectl("delete", "pod", f"{NAME}-2", "--grace-period=0", "--force")
        wait_for(lambda: f"{NAME}-2" in self.kube.services(), "the pod to come back", LIMIT_S)
        self.settled(3)

    def refuse(self) -> int:
        """An upgrade that the group refuses; the number of pods that were touched."""
        before = self.kube.services()
        refused = self.kube.install("upgrade", self.values, features=["load", "pressure"])
        assert refused.returncode != 0
        assert "pre-upgrade hooks failed" in refused.stderr, refused.stderr
        assert "differs from the features of group" in self.kube.log_of(f"{NAME}-check")
        after = self.kube.services()
        return sum(before[name] != after.get(name) for name in before)

    def uninstall(self) -> float:
        """Seconds until the group is empty."""
        began = time.monotonic()
        succeeded(self.kube.helm("uninstall", RELEASE))
        wait_for(lambda: not self.broker.members(GROUP), "the group to be empty", LIMIT_S)
        return time.monotonic() - began

    def count(self, sent: int) -> dict[str, int]:
        """The committed outputs against the inputs."""
        source = self.broker.read(TOPIC, at_least=sent)
        wanted = {(message.partition(), message.offset()) for message in source}
        scored = [(one["fomo"]["partition"], one["fomo"]["offset"]) for one in results(self.broker.read(OUT))]
        return {
            "records": len(wanted),
            "lost": len(wanted - set(scored)),
            "duplicates": len(scored) - len(set(scored)),
            "dead_letters": len(self.broker.read(f"{TOPIC}-dead-letters")),
        }

    def stored(self) -> Restored:
        """What the group has stored of partition 0 when all is scored."""
        entries: dict[str, bytes] = {}
        for message in self.broker.read(f"{GROUP}-{TOPIC}-state"):
            if message.partition() == 0 and (message.key() or b"").startswith(KEY_PREFIX):
                name = message.key().removeprefix(KEY_PREFIX).decode()
                entries[name] = (message.value() or VERSION)[len(VERSION) :]
                if message.value() is None:
                    del entries[name]
        end = self.broker.ends(TOPIC, committed=True)[0]
        return Restored(end, entries, learned_until=SavedPosition.decode(entries[POSITION]).offset, committed=end)

    def differences(self, restored: Restored) -> dict[str, int]:
        """How many results of partition 0 are not those of one detector that goes on from this state."""
        usual = {name: ServiceSettings.model_fields[name].default for name in FLAGS if name != "kind"}
        alone = Instance(Schema(FEATURES), model=shared_model(), kind=ServiceSettings, **usual)
        alone.pipeline.drop(0)
        alone.restore(restored)
        for message in self.broker.read(TOPIC):
            if message.partition() == 0 and message.offset() >= restored.start:
                alone.pipeline.receive(to_record(message)._replace(topic="t"), 0.0)
        alone.pipeline.finish([0])
        own = [json.loads(value or b"")["fomo"] for topic, value in alone.results() if topic == "t-scores"]
        found = (record["fomo"] for record in results(self.broker.read(OUT)))
        given = {result["offset"]: {**result, "topic": "t"} for result in found if result["partition"] == 0}
        odd = [result != given[result["offset"]] for result in own]
        first = odd.index(False) if False in odd else 0  # those before were still scored by the version before
        return {"compared": len(own) - first, "differences": sum(odd[first:])}


def upgraded(scenario: Scenario, records: int, earlier: dict[str, Any]) -> dict[str, Any]:
    """Upgrade from an earlier version after so many records, go back to it, and upgrade again."""
    here = {"extraEnv": program(ROOT, os.environ.get("NUMBA_CACHE_DIR", ""))}
    try:
        wait_for(lambda: len(scenario.outputs.numbers) > records, "the records before the upgrade", LIMIT_S)
        before = scenario.feed.end()
        wait_for(lambda: len(scenario.outputs.numbers) == before, "the last outputs", LIMIT_S)
        state = scenario.stored()
        scenario.feed = EndlessFeed(scenario.broker, scenario.rate, first=before)
        succeeded(scenario.kube.install("upgrade", {**scenario.values, **here}))
        scenario.settled(3)
        pods = scenario.kube.services()
        back = scenario.kube.install("upgrade", {**scenario.values, **earlier}, seconds=60)
        replaced = sum(pod[0] != pods[name][0] for name, pod in scenario.kube.services().items())
        succeeded(scenario.kube.install("upgrade", {**scenario.values, **here}))
        scenario.settled(3)
        sent = before + scenario.feed.end()
        wait_for(lambda: len(scenario.outputs.numbers) == sent, "the last outputs", LIMIT_S)
        scenario.outputs.stop()
    finally:
        scenario.feed.stop()
    return {
        "benchmark": "chart",
        **scenario.count(sent),
        "before": before,
        "own_contexts": sum(name.startswith("detector/own/") and name.endswith("/about") for name in state.entries),
        **scenario.differences(state),
        "way_back": "refused" if back.returncode else "done",
        "pods_on_the_way_back": replaced,
    }


def program(checkout: Path, kernels: str) -> list[dict[str, str]]:
    """Variables with which a pod runs the program of a checkout."""
    return [{"name": "PYTHONPATH", "value": str(checkout)}, {"name": "NUMBA_CACHE_DIR", "value": kernels}]


def succeeded(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, f"{done.args}: {done.stdout}{done.stderr}"


def measured(scenario: Scenario) -> dict[str, Any]:
    try:
        succeeded(scenario.kube.helm("test", RELEASE, "--timeout", f"{LIMIT_S}s"))
        followed = scenario.fail()
        restart = scenario.restart()
        scale_in = scenario.scale(2)
        scenario.scale(3)
        scenario.evict()
        scenario.kill()
        touched = scenario.refuse()
        sent = scenario.feed.end()
        wait_for(lambda: len(scenario.outputs.numbers) == sent, "the last outputs", LIMIT_S)
        empty_s = scenario.uninstall()
        scenario.outputs.stop()
    finally:
        scenario.feed.stop()
    return {
        "benchmark": "chart",
        **scenario.count(sent),
        "restarts_by_the_refused_upgrade": touched,
        "pods_after_one_that_failed": followed,
        "silence_in_restart_s": max(restart.values()),
        "silence_in_restart_by_partition_s": restart,
        "silence_in_scale_in_s": max(scale_in.values()),
        "empty_after_uninstall_s": round(empty_s, 2),
    }


def run(
    kafka: Path, kube: Path, folder: Path, records_per_s: float = 300, earlier: Path | None = None, kernels: str = ""
) -> dict[str, Any]:
    """Run the whole scenario; see the module's docstring. folder: for logs and data of the cluster."""
    broker = Kafka(kafka)
    try:
        with cluster(kube, folder) as made:
            try:
                if earlier is None:
                    return measured(Scenario(made, broker, records_per_s))
                values = {"extraEnv": program(earlier, kernels)}
                return upgraded(Scenario(made, broker, RATE, earlier, **values), RECORDS, values)
            except BaseException:
                for log in (folder / "podhost.log", *sorted(made.pods.glob("*.log"))):
                    print(f"--- the end of {log}", *log.read_text().splitlines()[-12:], sep="\n")
                raise
    finally:
        broker.remove()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--earlier", type=Path)
    parser.add_argument("--kernels", default="")
    options = parser.parse_args()
    kafka, kube = kafka_home(), kube_home()
    if kafka is None or kube is None:
        parser.error("set KAFKA_HOME to an Apache Kafka, and KUBE_HOME to a Kubernetes")
    folder = Path(tempfile.mkdtemp(prefix="fomo-chart-"))
    print(f"logs and what the cluster stores: {folder}", flush=True)
    result = run(kafka, kube, folder, earlier=options.earlier, kernels=options.kernels)
    print(json.dumps(result))
    if any(result.get(what) for what in (*MUST_BE_0, "differences")):
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
