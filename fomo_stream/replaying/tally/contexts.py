"""Turnover of the context, and regimes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fomo_stream.replaying.blocks import Block
from fomo_stream.replaying.tally.spec import Arrays, Float, Int

LISTED = 2000  # generations that the report lists
CHANGES = 1000  # changes of regime that it lists
_COLUMNS = ("number", "partition", "time", "generation", "rows")


class Contexts:
    """Generations of a partition, thinned evenly, and changes of its regime.

    notes: (m, 5) by _COLUMNS, of each `stride`-th generation; renewed: (m,); last: (partitions, 3) number of
    generations, time and rows of the last one; turnover: sum and number of the shares that were renewed;
    changes: (c, 3) partition, offset, time of the first CHANGES.
    """

    def __init__(self) -> None:
        self.stride = 1
        self.notes: Int = np.zeros((0, len(_COLUMNS)), np.int64)
        self.renewed: Float = np.zeros(0)
        self.last: Int = np.zeros((1, 3), np.int64)
        self.turnover: Float = np.zeros(2)
        self.regime, self.n_changes = 0, 0
        self.changes: Int = np.zeros((0, 3), np.int64)

    def add(self, block: Block) -> None:
        """Take the generations and the regimes of a block."""
        for note in block.contexts:
            number, time = int(self.last[0, 0]), int(block.times[note.record])
            self.last[0] = number + 1, time, note.rows
            if not np.isnan(note.renewed):
                self.turnover += note.renewed, 1.0
            if number % self.stride == 0:
                row = np.array([[number, block.partition, time, note.generation, note.rows]])
                self.notes, self.renewed = np.concatenate([self.notes, row]), np.append(self.renewed, note.renewed)
                self._thin()
        regime = block.results.regime
        before = np.append(self.regime, regime[:-1])
        places = np.flatnonzero((regime != before) & (before > 0))
        self.regime = int(regime[-1])
        self.n_changes += len(places)
        row = np.stack([np.full(len(places), block.partition), block.offsets[places], block.times[places]], axis=1)
        self.changes = np.concatenate([self.changes, row])[:CHANGES]

    def merge(self, other: Contexts) -> None:
        """Take the generations of another partition."""
        self.stride = max(self.stride, other.stride)
        self.notes = np.concatenate([self.notes, other.notes])
        self.renewed = np.concatenate([self.renewed, other.renewed])
        self._keep(self.notes[:, 0] % self.stride == 0)
        self._thin()
        self.last = np.concatenate([self.last, other.last])
        self.turnover = self.turnover + other.turnover
        self.regime = max(self.regime, other.regime)
        self.n_changes += other.n_changes
        changes = np.concatenate([self.changes, other.changes])
        self.changes = changes[np.lexsort((changes[:, 1], changes[:, 0], changes[:, 2]))][:CHANGES]

    def _thin(self) -> None:
        """Keep every second generation, until they are few; the first of each partition stays."""
        while len(self.notes) > LISTED and self.notes[:, 0].any():
            self.stride *= 2
            self._keep(self.notes[:, 0] % self.stride == 0)
        self._keep(slice(LISTED))

    def _keep(self, rows: Any) -> None:
        self.notes, self.renewed = self.notes[rows], self.renewed[rows]

    def generations(self) -> dict[str, Any]:
        """The list of generations, by time."""
        order = np.lexsort((self.notes[:, 1], self.notes[:, 2]))
        columns = dict(zip(_COLUMNS, self.notes[order].T, strict=True))
        return {
            "count": int(self.last[:, 0].sum()),
            "times": columns["time"],
            **{name: columns[name] for name in ("generation", "partition", "rows")},
            "renewed": self.renewed[order],
        }

    def report(self) -> dict[str, Any]:
        """The turnover as a whole."""
        total, n = self.turnover
        used = self.last[self.last[:, 0] > 0]
        changes = [dict(zip(("partition", "offset", "time"), row, strict=True)) for row in self.changes.tolist()]
        return {
            "generations": int(self.last[:, 0].sum()),
            "rows": int(used[np.argmax(used[:, 1]), 2]) if len(used) else 0,
            "renewed_mean": total / n if n else None,
            "regimes": self.regime,
            "regime_change_count": self.n_changes,
            "regime_changes": changes,
        }

    def arrays(self) -> Arrays:
        """The state, to be stored."""
        arrays = ("notes", "renewed", "last", "turnover", "changes")
        numbers = np.array([self.stride, self.regime, self.n_changes])
        return {"numbers": numbers, **{name: getattr(self, name).copy() for name in arrays}}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Contexts:
        """As `arrays` gave them."""
        result = cls()
        result.stride, result.regime, result.n_changes = arrays["numbers"].tolist()
        for name in ("notes", "renewed", "last", "turnover", "changes"):
            setattr(result, name, arrays[name].copy())
        return result
