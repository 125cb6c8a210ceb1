"""Whatever comes: every record has an output or a dead letter, in order, and the service neither ends nor stalls."""

from __future__ import annotations

import itertools
import json
import struct
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker, wait_for
from confluent_kafka.schema_registry import Schema as RegistrySchema
from confluent_kafka.schema_registry import SchemaRegistryClient
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from raw_batches import Raw, produce
from services import Command, flags_of, make_settings, unique

from fomo_stream.settings.service_settings import ServiceSettings

FOREVER = str(2**63 - 1)
SECONDS = 12.0  # of each of three configurations
ROUNDS = 10  # are drawn at once
STALL_S = 30.0  # also on a busy machine
START_S = 60.0  # after a restart, until records are scored again
NUMBERS = (0, 1)
NAMES = ("flow", "pressure", "temp", "energy", "site", "time", "device", "fomo", "outlier", "maintenance")

numbers = st.one_of(st.floats(), st.integers(), st.integers(-(10**30), 10**30), st.sampled_from([-9999, 2**63, 1e308]))
words = st.one_of(
    st.text(max_size=30), st.sampled_from(["0.42", "5 bar", "@everyone", "\x1b[2J", "\ud800", "x" * 5000])
)
scalars = st.one_of(st.none(), st.booleans(), numbers, words)
contents = st.recursive(
    scalars, lambda its: st.one_of(st.lists(its, max_size=5), st.dictionaries(words, its, max_size=5)), max_leaves=12
)
objects = st.dictionaries(st.one_of(st.sampled_from(NAMES), words), contents, max_size=12)
readings = st.fixed_dictionaries(
    {"flow": st.floats(160, 180), "pressure": st.floats(4, 6), "temp": st.floats(55, 65)},
    optional={"site": st.sampled_from(["north", "south"]), "energy": st.integers(0, 10**6), "device": words},
)
wide = st.integers(100, 4000).map(lambda n: {f"f{i}": i for i in range(n)})
odd_bytes = st.one_of(
    st.none(),
    st.binary(max_size=60),
    st.sampled_from([b"", b"{", b"[" * 50_000, b'{"flow": 1' + b"0" * 10_000 + b"}", b"\x00\x00\x00\x00\x07", b"null"]),
)


def as_json(content: Any) -> bytes:
    return json.dumps(content).encode()


values = st.one_of(*[readings.map(as_json)] * 5, objects.map(as_json), wide.map(as_json), odd_bytes)
keys = st.one_of(st.none(), st.sampled_from([b"p1", b"p2", b"p3"]), st.binary(max_size=20), st.just(b"k" * 20_000))
header_names = st.one_of(st.binary(max_size=10), st.sampled_from([b"trace", b"fomo-reason", b"gr\xf6\xdfe"]))
headers = st.lists(st.tuples(header_names, st.one_of(st.none(), st.binary(max_size=10))), max_size=3)
now_ms = st.integers(-10_000, 10_000).map(lambda ms: round(time.time() * 1000) + ms)
odd_times = st.sampled_from([-1, 0, 1, -62_135_596_800_000, 253_402_300_799_999, 10**15, 10**18, 2**63 - 1])
times = st.one_of(now_ms, now_ms, odd_times)

offsets = st.one_of(st.integers(0, 200), st.sampled_from([-1, 2**63, 1.5, "7", None, 10**30]))
verdicts = st.fixed_dictionaries(
    {"outlier": st.one_of(st.booleans(), scalars)}, optional={"offset": offsets, "key": words, "partition": scalars}
)
mutes = st.fixed_dictionaries({"mute": st.one_of(st.booleans(), scalars)}, optional={"key": scalars})
rules = st.sampled_from(
    [
        *("FREQ=DAILY", "FREQ=DAILY;INTERVAL=0", "FREQ=DAILY;INTERVAL=99999999999", "FREQ=WEEKLY;BYDAY=SU,MO"),
        "FREQ=DAILY;BYSECOND=" + ",".join(map(str, range(60))) + ";BYMINUTE=" + ",".join(map(str, range(60))),
        *("FREQ=YEARLY;COUNT=1", "FREQ=SECONDLY", "FREQ=DAILY\nRRULE:FREQ=HOURLY", "FREQ=DAILY;UNTIL=99991231", "x"),
        *("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "FREQ=DAILY;BYEASTER=0", "FREQ=MONTHLY;BYSETPOS=-366"),
    ]
)
moments = st.sampled_from(["2026-11-01", "2026-11-28T00:00Z", "0001-01-01", "9998-12-31", "9999-12-31T23:59", 7, None])
windows = st.fixed_dictionaries(
    {"maintenance": words, "from": moments, "to": moments},
    optional={"repeat": rules, "keys": st.lists(words, max_size=3), "cancel": scalars, "timezone": words},
)
labels = st.builds(
    Raw, keys, st.one_of(verdicts.map(as_json), mutes.map(as_json), windows.map(as_json), values), headers, times
)


def rounds(values: st.SearchStrategy[bytes | None], some_keys: st.SearchStrategy[bytes | None] = keys) -> Any:
    """Records and labels that come, and what happens to the service then."""
    return st.fixed_dictionaries(
        {
            "records": st.lists(st.builds(Raw, some_keys, values, headers, times), min_size=15, max_size=60),
            "labels": st.lists(labels, max_size=6),
            "then": st.sampled_from(["nothing"] * 18 + ["stop", "kill"]),
        }
    )


ALL: dict[str, Any] = {"batch_size": 16, "alert_rate": 0.05, "instance_id": "i0", "lags": 2, "silence": "5x"}
CONFIGURATIONS: list[dict[str, Any]] = [
    {"features": "flow,pressure,temp,energy", "categorical": "site", "only_rises": "temp", "valid": "flow=0:400"},
    {"features": None, "key": "device", "time_features": "hour,weekday", "explain": "all"},
]


class Restarted:
    """The service, as a process that is started again whenever a test has ended it."""

    def __init__(self, folder: Path, its: ServiceSettings) -> None:
        self._folder, self._settings, self._starts = folder, its, 0
        self.process: Command | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        self.start()
        try:
            yield
        finally:
            assert self.process is not None
            self.process.kill()

    def start(self) -> None:
        self._starts += 1
        self.process = Command(self._folder / f"{self._starts}.log", *flags_of(self._settings))

    def logs(self) -> str:
        """What all its processes have logged."""
        return "".join(path.read_text() for path in self._folder.glob("*.log"))

    def then(self, what: str) -> None:
        assert self.process is not None
        assert self.process.process.poll() is None, self.process.text()[-3000:]
        if what != "nothing":
            self.process.wait_for_log(" started ", START_S)
        if what == "kill":
            self.process.kill()
            self.start()
        elif what == "stop":
            assert self.process.terminate() == 0, self.process.text()[-3000:]
            self.start()


@pytest.mark.slow
@pytest.mark.parametrize("changes", CONFIGURATIONS, ids=["named", "inferred"])
def test_whatever_comes_has_an_output_or_a_dead_letter_and_nothing_ends_or_stalls(
    broker: Broker, real_kafka: None, tmp_path: Path, changes: dict[str, Any]
) -> None:
    first = [as_json({"flow": 170 + n % 7, "pressure": n % 3, "temp": n % 5}) for n in range(250)]
    play(broker, tmp_path, changes, first, rounds(values))


@pytest.mark.slow
def test_whatever_comes_with_a_schema_has_an_output_or_a_dead_letter_and_nothing_ends_or_stalls(
    broker: Broker, real_kafka: None, registry_url: str, tmp_path: Path
) -> None:
    client = SchemaRegistryClient({"url": registry_url})
    name = unique("reading")

    def wire(kind: str, schema: str, body: bytes) -> bytes:
        number: int = client.register_schema(unique("fuzz"), RegistrySchema(schema, kind))
        return b"\0" + number.to_bytes(4, "big") + body

    fields = [{"name": field, "type": ["null", "double"], "default": None} for field in ("flow", "pressure", "temp")]
    avro = json.dumps({"type": "record", "name": name.replace("-", "_"), "fields": fields})
    head = wire("AVRO", avro, b"")
    good = [
        head + b"".join(b"\x02" + struct.pack("<d", value) for value in (170 + n % 7, n % 3, n % 5)) for n in range(250)
    ]
    twice: Any = "int"
    for level in range(26):
        twin = [{"name": "a", "type": twice}, {"name": "b", "type": f"T{level - 1}" if level else "int"}]
        twice = {"type": "record", "name": f"T{level}", "fields": twin}
    itself = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    tree = {"type": "object", "properties": {name: {"$ref": "#"} for name in "abcdefgh"}}
    proto = 'syntax = "proto3"; message Reading { double flow = 1; Reading next = 2; map<string, Reading> all = 3; }'
    odd = [
        *(wire("AVRO", json.dumps(schema), b"\x02" * 40) for schema in (twice, itself)),
        *(wire("JSON", json.dumps(tree), body) for body in (first_json, b"{", b"[" * 50_000)),
        *(wire("PROTOBUF", proto, body) for body in (b"\0", b"\0" + b"\x12\x02" * 300, b"\x04\0\0")),
    ]
    unknown = st.integers(2**30, 2**31 - 1).map(lambda number: b"\0" + number.to_bytes(4, "big") + b"x")
    whole = st.sampled_from(good)
    cut = st.tuples(whole, st.integers(0, 40)).map(lambda its: its[0][: its[1]])
    noise = st.binary(max_size=60).map(lambda body: head + body)
    some = st.one_of(whole, whole, whole, st.sampled_from(odd), unknown, cut, noise, odd_bytes)
    changes = {"registry": registry_url, "features": "flow,pressure,temp"}
    play(broker, tmp_path, changes, good, rounds(some, st.one_of(keys, some)))


first_json = as_json({"flow": 171, "pressure": 1, "temp": 2})


def play(
    broker: Broker, tmp_path: Path, changes: dict[str, Any], first: list[bytes], its_rounds: st.SearchStrategy[Any]
) -> None:
    """Let rounds come for a while, then compare what was written with what came."""
    topic, feedback, alerts = unique("fuzz"), unique("labels"), unique("alerts")
    for name in (topic, feedback, alerts, f"{topic}-scores", f"{topic}-dead-letters"):
        broker.create_topic(name, len(NUMBERS), config={"message.timestamp.after.max.ms": FOREVER})
    its = make_settings(broker, topic, feedback=feedback, alerts=alerts, **{**ALL, **changes})
    service = Restarted(tmp_path, its)
    sent = {(name, number): 0 for name in (topic, feedback) for number in NUMBERS}
    deadline = time.monotonic() + SECONDS

    def is_done() -> bool:
        assert service.process is not None
        assert service.process.process.poll() is None, service.process.text()[-3000:]
        return broker.committed(its.group, topic) == sum(count for (name, _), count in sent.items() if name == topic)

    def let_come(one: dict[str, Any]) -> None:
        if time.monotonic() > deadline:  # of a batch of rounds
            return
        number = len(one["records"]) % len(NUMBERS)
        for name, raws in ((topic, one["records"]), (feedback, one["labels"])):
            if raws:
                produce(broker.bootstrap, name, number, raws)
                sent[name, number] += len(raws)
        service.then(one["then"])
        wait_for(is_done, "everything to be committed", STALL_S if one["then"] == "nothing" else START_S)

    with service.running():
        produce(broker.bootstrap, topic, 0, [Raw(b"p1", value, (), round(time.time() * 1000)) for value in first])
        sent[topic, 0] += len(first)
        wait_for(is_done, "the first records", START_S)
        checks = list(HealthCheck)
        batch = settings(max_examples=ROUNDS, database=None, phases=[Phase.generate], suppress_health_check=checks)
        for number in itertools.count():  # the same at each run, as far as the time allows
            if number and time.monotonic() > deadline:
                break
            seed(number)(batch(given(its_rounds)(let_come)))()
        service.then("stop")
    done = defaultdict(list)
    for message in broker.read(its.out):
        result = json.loads(message.value())["fomo"]
        done[result["partition"]].append((result["offset"], "output"))
    letters = defaultdict(list)
    for message in broker.read(its.dead_letters):
        if (about := letter_of(message))[0] == topic:
            letters[about[1]].append((about[2], "letter"))
    for number in NUMBERS:
        assert done[number] == sorted(done[number])
        assert letters[number] == sorted(letters[number])
        assert sorted(offset for offset, _ in done[number] + letters[number]) == list(range(sent[topic, number]))
    assert sum(map(len, done.values())) > len(first)
    assert "Traceback" not in service.logs()


def letter_of(message: Any) -> tuple[str, int, int]:
    """Topic, partition and offset of the source of a dead letter; records may have headers of these names, too."""
    found = dict(message.headers())
    return (
        (found["fomo-source-topic"] or b"").decode(),
        int(found["fomo-source-partition"] or b""),
        int(found["fomo-source-offset"] or b""),
    )
