"""The outbox: every output is acknowledged or refused for itself, whatever happens to its neighbours.

The broker's part is played by a producer that fails whole batches when told to: no broker does so on demand.
"""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from fomo_stream.outbox import Outbox, Output

TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)


class Batching:
    """A producer that sends all that it holds as one batch, which the broker takes or refuses as a whole."""

    def __init__(self) -> None:
        self.batch: list[tuple[bytes, Any]] = []

    def produce(self, _topic: str, value: bytes, on_delivery: Any, **_options: Any) -> None:
        self.batch.append((value, on_delivery))

    def poll(self, _seconds: float) -> None:
        """Acknowledgements come by `deliver`."""

    def deliver(self) -> list[bytes]:
        """Send; a batch with a value that begins with b"bad" is refused. Returns what was in it."""
        batch, self.batch = self.batch, []
        refused = any(value.startswith(b"bad") for value, _ in batch)
        for _, on_delivery in batch:
            on_delivery(TOO_LARGE if refused else None, None)
        return [value for value, _ in batch]


class Sending:
    """An outbox over such a producer, and what became of each output."""

    def __init__(self) -> None:
        self.producer = Batching()
        self.outbox = Outbox(lambda **_: self.producer, max_records=1000)
        self.done: dict[bytes, str | None] = {}

    def send(self, value: bytes) -> None:
        self.outbox.send(Output("t", None, value, [], lambda refusal: self.done.__setitem__(value, refusal)))

    def turn(self) -> list[bytes]:
        batch = self.producer.deliver()
        self.outbox.poll()
        return batch


def test_an_output_that_is_tried_alone_stays_alone_while_others_come() -> None:
    sending = Sending()
    sending.send(b"bad 1")
    sending.send(b"good")
    assert sending.turn() == [b"bad 1", b"good"]  # refused: which of them is it?
    assert sending.turn() == [b"bad 1"]
    sending.send(b"bad 2")  # now, while nothing but "good" is under way
    assert sending.turn() == [b"good"]
    assert sending.turn() == [b"bad 2"]
    assert sending.turn() == [b"bad 2"]
    assert {value: refusal is None for value, refusal in sending.done.items()} == {
        b"bad 1": False,
        b"good": True,
        b"bad 2": False,
    }


@given(st.lists(st.sampled_from(["good", "bad", "turn"]), max_size=40))
def test_exactly_those_that_the_broker_never_takes_are_refused(steps: list[str]) -> None:
    sending = Sending()
    sent = []
    for number, step in enumerate(steps):
        if step == "turn":
            sending.turn()
        else:
            sent.append(f"{step} {number}".encode())
            sending.send(sent[-1])
    for _ in range(10 * len(sent)):
        sending.turn()
    assert {value: refusal is not None for value, refusal in sending.done.items()} == {
        value: value.startswith(b"bad") for value in sent
    }
    assert sending.outbox.outstanding == 0
