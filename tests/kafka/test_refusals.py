"""Outputs that a broker never accepts are found one by one; all others take effect."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError
from delivery_setup import Kind, Setup, both, output, record
from hypothesis import given
from hypothesis import strategies as st
from memory_producer import abortable, retriable

from fomo_stream.errors import BrokerError
from fomo_stream.kafka.delivery.base import Outcome
from fomo_stream.kafka.delivery.exactly_once import ExactlyOnce
from fomo_stream.kafka.delivery.output import Output


class Sending(Setup):
    """Sends records as the service does: after a failure again from the last commit on, refused ones to `dead`."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(kind)
        self.position = 0  # committed
        self.waiting: list[bytes] = []

    def take(self, value: bytes) -> None:
        number = self.position + len(self.waiting)
        self.waiting.append(value)
        refusals, why = self.delivery.refused("out", record(number))
        assert (why is None) == (refusals == 0)
        self.send(value if not refusals else b"dead " + value, number, "dead" if refusals else "out")

    def try_to_commit(self) -> bool:
        if self.commit(self.position + len(self.waiting)) is Outcome.COMMITTED:
            self.position += len(self.waiting)
            self.waiting.clear()
            return True
        while not self.delivery.abort():
            pass
        again, self.waiting = self.waiting, []
        for value in again:
            self.take(value)
        return False


steps = st.lists(st.sampled_from(["good", "good", "large", "commit"]), max_size=30)
troubles = st.lists(st.sampled_from([None, None, retriable(), abortable()]), max_size=6)


@both
@given(steps, st.fixed_dictionaries(dict.fromkeys(("send_offsets_to_transaction", "commit_transaction"), troubles)))
def test_exactly_the_outputs_that_the_broker_never_accepts_are_refused(
    kind: Kind, what: list[str], answers: dict[str, list[KafkaError | None]]
) -> None:
    sending = Sending(kind)
    sending.broker.answers.update(answers)
    wanted = []
    for number, step in enumerate(what):
        if step == "commit":
            sending.try_to_commit()
        else:
            wanted.append(f"{step} {number}".encode())
            sending.take(wanted[-1])
    attempts = 0
    while not sending.try_to_commit():
        attempts += 1
        assert attempts < 2 * len(what) + 20
    good = [value for value in wanted if value.startswith(b"good")]
    dead = [b"dead " + value for value in wanted if value.startswith(b"large")]
    if kind is ExactlyOnce:
        assert (sending.out(), sending.broker.values("dead")) == (good, dead)
    else:  # what was taken before the commit failed is sent again
        assert (list(dict.fromkeys(sending.out())), list(dict.fromkeys(sending.broker.values("dead")))) == (good, dead)
    assert sending.broker.offsets == {("t", 0): len(wanted)}


@both
def test_the_refused_output_of_a_batch_is_found_and_then_batches_are_whole_again(kind: Kind) -> None:
    setup = Setup(kind)
    for value in (b"good", b"large"):
        setup.send(value, number=[b"good", b"large"].index(value))
    assert setup.commit() is Outcome.FAILED
    assert setup.delivery.abort()
    assert [setup.delivery.refused("out", record(number))[0] for number in (0, 1)] == [0, 0]
    assert not setup.delivery.has_refusal
    for number, value in enumerate((b"good", b"large")):
        setup.send(value, number)
    assert setup.commit() is Outcome.FAILED
    known = [setup.delivery.has_refusal]
    assert setup.delivery.abort()
    assert [*known, setup.delivery.has_refusal] == [True, False]
    counts = [setup.delivery.refused("out", record(number)) for number in (0, 1)]
    assert counts[0] == (0, None)
    assert (counts[1][0], counts[1][1].code()) == (1, KafkaError.MSG_SIZE_TOO_LARGE)  # type: ignore[union-attr]
    assert setup.broker.producers[-1].options["batch.num.messages"] == 1
    setup.send(b"good")
    assert setup.commit() is Outcome.COMMITTED
    assert "batch.num.messages" not in setup.broker.producers[-1].options
    assert setup.delivery.refused("out", record(1)) == (0, None)


def test_a_record_can_be_refused_again_and_for_another_reason() -> None:
    setup = Setup()
    codes = []
    for value, stamp in ((b"late", -1), (b"late", -1), (b"large", 0)):
        sent = output(value)
        sent.timestamp = stamp
        setup.delivery.send(sent)
        assert setup.commit() is Outcome.FAILED
        assert setup.delivery.abort()
        refusals, why = setup.delivery.refused("out", record(0))
        codes.append((refusals, why.code() if why is not None else None))
    assert codes == [(0, None), (1, KafkaError.INVALID_TIMESTAMP), (2, KafkaError.MSG_SIZE_TOO_LARGE)]


def test_a_refusal_is_of_one_topic_and_one_source() -> None:
    """A record of the input and one of the feedback topic may have the same partition and offset."""
    setup = Setup()
    for _ in range(2):
        setup.send(b"large", number=7, topic="dead")
        setup.commit()
        setup.delivery.abort()
    assert setup.delivery.refused("dead", record(7))[0] == 1
    assert setup.delivery.refused("out", record(7))[0] == 0
    assert setup.delivery.refused("dead", record(7, "feedback"))[0] == 0


def test_a_refused_record_without_a_source_ends_the_service_with_an_error() -> None:
    setup = Setup()
    state = Output("state", b"k", b"large", [], 0)
    setup.delivery.send(state)
    assert setup.commit() is Outcome.FAILED
    assert setup.delivery.abort()
    setup.delivery.send(state)
    with pytest.raises(BrokerError, match=r"topic state refuses a record .* check that topic's configuration"):
        setup.commit()


@both
def test_an_output_that_may_succeed_later_is_never_refused(kind: Kind) -> None:
    setup = Setup(kind)
    for _ in range(3):
        setup.send(b"denied")
        assert setup.commit() is Outcome.FAILED
        assert setup.delivery.abort()
    assert setup.delivery.refused("out", record(0)) == (0, None)
    assert all("batch.num.messages" not in producer.options for producer in setup.broker.producers)
