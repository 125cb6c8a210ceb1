"""The label entries of the state topic, read back: when which labels took effect, for a replay. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple, overload

import numpy as np
import orjson

from fomo_stream.errors import DamagedStateError
from fomo_stream.kafka.feedback.effects import Effect

DELETED = -1  # number of labels


class LabelEffect(NamedTuple):
    """Labels that took effect together, before the record at `input_offset` was scored."""

    input_offset: int
    labels: tuple[tuple[int, bool], ...]  # offset of the labelled record, and whether it is an outlier; in order


class RecordedEffects(Sequence[LabelEffect]):
    """The label effects of one partition in the order in which they took effect; compact, there may be millions.

    >>> effects = RecordedEffects.of([LabelEffect(9, ((3, True),)), LabelEffect(5, ((1, False), (2, True)))])
    >>> [effect.input_offset for effect in effects], effects[0].labels
    ([5, 9], ((1, False), (2, True)))
    """

    def __init__(self, inputs: array[int], stops: array[int], offsets: array[int], outlier: bytes) -> None:
        self._inputs = inputs
        self._stops = stops  # labels of this effect and of all before it
        self._offsets, self._outlier = offsets, outlier  # of the labels

    @classmethod
    def of(cls, effects: Iterable[LabelEffect]) -> RecordedEffects:
        """These effects; those at one input offset stay in their order."""
        inputs, stops, offsets, outlier = array("q"), array("q"), array("q"), bytearray()
        for effect in sorted(effects, key=lambda effect: effect.input_offset):
            inputs.append(effect.input_offset)
            offsets.extend(offset for offset, _ in effect.labels)
            outlier.extend(is_outlier for _, is_outlier in effect.labels)
            stops.append(len(offsets))
        return cls(inputs, stops, offsets, bytes(outlier))

    def __len__(self) -> int:
        return len(self._inputs)

    @overload
    def __getitem__(self, at: int) -> LabelEffect: ...
    @overload
    def __getitem__(self, at: slice) -> list[LabelEffect]: ...
    def __getitem__(self, at: int | slice) -> LabelEffect | list[LabelEffect]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        number = range(len(self))[at]
        start, stop = self._stops[number - 1] if number else 0, self._stops[number]
        verdicts = map(bool, self._outlier[start:stop])
        return LabelEffect(self._inputs[number], tuple(zip(self._offsets[start:stop], verdicts, strict=True)))


class EffectLog:
    """Collects the label entries of one partition of the state topic, record by record, in the order of the log."""

    def __init__(self) -> None:
        # of each record of the log, about an entry with these offsets and this place
        self._inputs, self._firsts, self._places = array("q"), array("q"), array("q")
        self._starts, self._counts = array("q"), array("q")  # its labels; DELETED: the entry was deleted
        self._offsets, self._outlier = array("q"), bytearray()  # of all labels
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
                labels = [(int(offset), bool(outlier)) for _, offset, outlier in orjson.loads(value)["labels"]]
            except (ValueError, KeyError, TypeError) as error:
                raise DamagedStateError(f"the entry {effect.key.decode()} is not readable ({error})") from None
            self._offsets.extend(offset for offset, _ in labels)
            self._outlier.extend(outlier for _, outlier in labels)
            count = len(labels)
        self._counts.append(count)

    def effects(self) -> RecordedEffects:
        """The entries that the log has now: of each, its last record counts."""
        entries = np.array([self._places, self._inputs, self._firsts], dtype=np.int64)
        n = entries.shape[1]
        order = np.lexsort((np.arange(n), *entries))  # the records about one entry together, in their order
        last = np.append((np.diff(entries[:, order]) != 0).any(axis=0), True)[:n]
        kept = np.sort(order[last])
        kept = kept[np.array(self._counts, dtype=np.int64)[kept] != DELETED]
        kept = kept[np.argsort(entries[1, kept], kind="stable")]
        inputs, stops, offsets, outlier = array("q"), array("q"), array("q"), bytearray()
        for number in kept.tolist():
            labels = slice(self._starts[number], self._starts[number] + self._counts[number])
            inputs.append(self._inputs[number])
            offsets.extend(self._offsets[labels])
            outlier.extend(self._outlier[labels])
            stops.append(len(offsets))
        return RecordedEffects(inputs, stops, offsets, bytes(outlier))
