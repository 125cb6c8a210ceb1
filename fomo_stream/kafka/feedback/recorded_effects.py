"""The label entries of the state topic, read back: when which labels took effect, for a replay. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, overload

import numpy as np
import orjson

from fomo_stream.errors import DamagedStateError
from fomo_stream.partition.effects import PREFIX, Effect

DELETED = -1  # number of labels


class LabelEffect(NamedTuple):
    """Labels that took effect together, before the record at `input_offset` was scored."""

    input_offset: int
    labels: tuple[tuple[int, bool], ...]  # offset of the labelled record, and whether it is an outlier; in order


class LabelsRead(NamedTuple):
    """Which labels of a partition of the feedback topic are finished: those before `start`, and these after it."""

    start: int = 0
    finished: frozenset[int] = frozenset()


NOTHING_READ = LabelsRead()


@dataclass(frozen=True)
class RecordedEffects(Sequence[LabelEffect]):
    """The label effects of one partition in the order in which they took effect; compact, there may be millions.

    >>> effects = RecordedEffects.of([LabelEffect(9, ((3, True),)), LabelEffect(5, ((1, False), (2, True)))])
    >>> [effect.input_offset for effect in effects], effects[0].labels
    ([5, 9], ((1, False), (2, True)))
    """

    inputs: array[int] = field(default_factory=lambda: array("q"))  # input offset of each effect
    stops: array[int] = field(default_factory=lambda: array("q"))  # labels of it and of all effects before it
    # of each label: the offset of its record, its own in the labels' topic, the verdict, and the number of its place
    offsets: array[int] = field(default_factory=lambda: array("q"))
    own_offsets: array[int] = field(default_factory=lambda: array("q"))
    outlier: bytearray = field(default_factory=bytearray)
    places: bytearray = field(default_factory=bytearray)
    place_names: tuple[bytes, ...] = ()  # `feedback/<topic>/<partition>` by number
    place: bytes = b""  # the one that the group reads now
    read: LabelsRead = NOTHING_READ  # and the labels that are finished there

    @classmethod
    def of(cls, effects: Iterable[LabelEffect]) -> RecordedEffects:
        """These effects; those at one input offset stay in their order."""
        made = cls()
        for effect in sorted(effects, key=lambda effect: effect.input_offset):
            for offset, is_outlier in effect.labels:
                made.add(-1, offset, is_outlier, 0)
            made.end(effect.input_offset)
        return made

    def add(self, own_offset: int, offset: int, is_outlier: bool, place: int) -> None:
        """Add a label to the effect that `end` ends."""
        self.own_offsets.append(own_offset)
        self.offsets.append(offset)
        self.outlier.append(is_outlier)
        self.places.append(place)

    def end(self, input_offset: int) -> None:
        """The labels since the last call took effect before the record at this offset was scored."""
        self.inputs.append(input_offset)
        self.stops.append(len(self.offsets))

    def __len__(self) -> int:
        return len(self.inputs)

    @overload
    def __getitem__(self, at: int) -> LabelEffect: ...
    @overload
    def __getitem__(self, at: slice) -> list[LabelEffect]: ...
    def __getitem__(self, at: int | slice) -> LabelEffect | list[LabelEffect]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        number = range(len(self))[at]
        labels = self._labels(number)
        verdicts = map(bool, self.outlier[labels])
        return LabelEffect(self.inputs[number], tuple(zip(self.offsets[labels], verdicts, strict=True)))

    def _labels(self, number: int) -> slice:
        return slice(self.stops[number - 1] if number else 0, self.stops[number])

    def read_until(self, position: int) -> LabelsRead:
        """The labels of `place` that were finished when the record at input offset `position` was to be scored.

        Labels that had no effect, because they came too late or could not be read, count as read only if that is sure.
        """
        later: set[int] = set()  # took effect after `position`
        last = -1  # of the labels that took effect before
        for at, input_offset in enumerate(self.inputs):
            for own, number in zip(self.own_offsets[self._labels(at)], self.places[self._labels(at)], strict=True):
                if self.place_names and self.place_names[number] != self.place:
                    continue
                if input_offset > position:
                    later.add(own)
                else:
                    last = max(last, own)
        if not later:
            return self.read
        unfinished = {at for at in later if at <= last}
        unfinished |= {at for at in range(self.read.start, last + 1) if at not in self.read.finished}
        start = min(unfinished, default=last + 1)
        return LabelsRead(start, frozenset(at for at in range(start, last + 1) if at not in unfinished))

    def entries_until(self, position: int, partition: int) -> Iterator[tuple[bytes, bytes]]:
        """The entries, as keys and values, of labels that took effect before that; see `labelling`."""
        for at, input_offset in enumerate(self.inputs):
            if input_offset > position:
                return
            labels = self._labels(at)
            verdicts = map(bool, self.outlier[labels])
            values = [*zip(self.own_offsets[labels], self.offsets[labels], verdicts, strict=True)]
            if values and self.place_names:
                name = self.place_names[self.places[labels.start]]
                topic = name.removeprefix(PREFIX).rpartition(b"/")[0].decode()
                key = Effect.of(topic, partition, input_offset, values[0][0]).key
                yield key, orjson.dumps({"input_offset": input_offset, "labels": values})


class EffectLog:
    """Collects the label entries of one partition of the state topic, record by record, in the order of the log."""

    def __init__(self) -> None:
        # of each record of the log, about an entry with these offsets and this place
        self._inputs, self._firsts, self._places = array("q"), array("q"), array("q")
        self._starts, self._counts = array("q"), array("q")  # its labels; DELETED: the entry was deleted
        self._own, self._offsets, self._outlier = array("q"), array("q"), bytearray()  # of all labels
        self._place_numbers: dict[bytes, int] = {}

    def add(self, effect: Effect, value: bytes | None) -> None:
        """Take one record: the entry `effect` was written, or deleted (None). Raises DamagedStateError."""
        self._inputs.append(effect.input_offset)
        self._firsts.append(effect.label_offset)
        self._places.append(self._place_numbers.setdefault(effect.place, len(self._place_numbers)))
        self._starts.append(len(self._offsets))
        count = DELETED
        if value is not None:
            try:
                labels = [(int(own), int(at), bool(outlier)) for own, at, outlier in orjson.loads(value)["labels"]]
            except (ValueError, KeyError, TypeError) as error:
                raise DamagedStateError(f"the entry {effect.key.decode()} is not readable ({error})") from None
            self._own.extend(own for own, _, _ in labels)
            self._offsets.extend(offset for _, offset, _ in labels)
            self._outlier.extend(outlier for _, _, outlier in labels)
            count = len(labels)
        self._counts.append(count)

    def effects(self, place: bytes, read: LabelsRead) -> RecordedEffects:
        """The entries that the log has now: of each, its last record counts. place, read: see `RecordedEffects`."""
        entries = np.array([self._places, self._inputs, self._firsts], dtype=np.int64)
        n = entries.shape[1]
        order = np.lexsort((np.arange(n), *entries))  # the records about one entry together, in their order
        is_last = np.append((np.diff(entries[:, order]) != 0).any(axis=0), True)[:n]
        kept = np.sort(order[is_last])
        kept = kept[np.array(self._counts, dtype=np.int64)[kept] != DELETED]
        kept = kept[np.argsort(entries[1, kept], kind="stable")]
        made = RecordedEffects(place_names=tuple(self._place_numbers), place=place, read=read)
        for number in kept.tolist():
            for at in range(self._starts[number], self._starts[number] + self._counts[number]):
                made.add(self._own[at], self._offsets[at], bool(self._outlier[at]), self._places[number])
            made.end(self._inputs[number])
        return made
