"""A reference: rows that a user calls good, by key. It never learns, and it decides what is an outlier.

Contexts that learn take for usual what lasts. A reference does not change: a record that is odd for it stays odd
however long this lasts, and a usual one stays usual however rare it was lately.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fomo_stream.detector.alerts import continued, peak_of
from fomo_stream.detector.config import DetectorConfig
from fomo_stream.detector.generation import ContextSpec
from fomo_stream.detector.keys import DIGEST_BYTES
from fomo_stream.detector.rarity import MAX_FAR_SHARE, far_outside, p_values
from fomo_stream.detector.results import Reason
from fomo_stream.detector.row_spec import RowSpec
from fomo_stream.detector.series import MOVEMENT_VECTORS
from fomo_stream.detector.step.follow import Batch
from fomo_stream.detector.step.judge import CLEAR, HEIGHT, INCIDENT_GAP, MEDIAN, MIN_TAIL_SHARE, TOP, severities
from fomo_stream.detector.view_inputs import ViewInput, score_view_inputs
from fomo_stream.detector.view_set import ContextBuilder
from fomo_stream.detector.views import VIEWS, View
from fomo_stream.errors import DamagedStateError, SchemaError
from fomo_stream.model.architecture import Model

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

MAX_VALUES = 600_000  # in all keys: 50,000 rows of 12 features, so that memory is bounded
# A feature with so large a share of one value has no movement here. After its last change the spread falls for about a
# hundred records, each odd for those before, so that nothing would be clearly odder than all good rows.
STANDS_STILL = 0.95
ALL_KEYS = bytes(DIGEST_BYTES)  # stands for the digest of a key
ENTRY = "reference"


@dataclass(frozen=True)
class KeyReference:
    """The contexts and logits that records of a key, or of all keys, are compared with; from rows of a reference."""

    builders: tuple[tuple[View, ContextBuilder], ...]
    ascending: Float  # (n,) logits of the rows, each against the half of them that does not have it
    peak: tuple[float, ...]  # see `peak_of`, of these
    stands_still: Bool  # (d,) features whose movement does not count

    @classmethod
    def of(cls, model: Model, vectors: Float, spec: RowSpec, config: DetectorConfig) -> KeyReference:
        """Make it from vectors (n, vectors, d) of rows in the order of time."""
        n, names = len(vectors), ("all", "movement") if vectors.shape[1] > 1 else ("all",)
        common = [np.unique(column, return_counts=True)[1].max() for column in vectors[:, 0].T]
        stands_still = np.array(common) >= STANDS_STILL * n
        vectors = without_movement(vectors, stands_still)
        none, no = np.zeros(0, np.int64), np.zeros((0, spec.n_features))
        empty = ContextSpec(1, 0, config.seed, (), 0.0, 0.0, none, no, np.zeros(0), np.zeros(n, bool), no)
        builders = []
        for view in map(VIEWS.__getitem__, names):
            context_spec = replace(
                empty,
                categorical=view.codes(spec.n_features, 0, spec.categorical),
                once=0.0 if view.is_computed else float(len(names)),
                numbers=np.arange(n),
                rows=view.columns(vectors, 0, spec.categorical),
            )
            builders.append((view, ContextBuilder(model, context_spec, None)))
        first = np.sum([builder.result().first for _, builder in builders], axis=0) / len(names)
        size = config.peak_size
        peak = peak_of(first, math.inf, config.alert_rate, size)
        # a fault in rows that were called good must not hide later ones
        usual = first[~far_outside(first, peak[CLEAR])]
        peak = peak_of(usual, math.inf, config.alert_rate, size)
        return cls(tuple(builders), np.sort(usual), peak, stands_still)

    def judged(self, logits: Float) -> tuple[Float, Float, Float]:
        """Return how far logits (q,) rise above those of all rows, their p-values, and 1 - score; see `Alerts`."""
        rise = np.maximum(logits - self.peak[TOP], 0.0) / self.peak[HEIGHT]
        p = p_values(logits, self.ascending)
        return rise, p, np.maximum(p / (1.0 + 2.0 * rise) ** 3, MIN_TAIL_SHARE)


def without_movement(vectors: Float, features: Bool) -> Float:
    """Vectors (n, vectors, d) of records, where these features (d,) have no level and no spread."""
    if vectors.shape[1] > MOVEMENT_VECTORS and features.any():
        vectors = vectors.copy()
        vectors[:, -MOVEMENT_VECTORS:, features] = np.nan
    return vectors


class ReferenceJudgement(NamedTuple):
    """The judgement of a reference on n records; NaN and False where it cannot score one."""

    logit: Float  # (n,)
    score: Float  # (n,)
    p: Float  # (n,)
    outlier: Bool  # (n,)
    severity: NDArray[np.int8]  # (n,)
    references: list[KeyReference]  # what records are compared with
    which: Int  # (n,) which of these each record is

    def compared(self, batch: Batch, i: int) -> tuple[Batch, tuple[tuple[View, ContextBuilder], ...]]:
        """The i-th record of a batch as a batch (1,), and what it was compared with."""
        single, reference = batch.part(np.array([i])), self.references[int(self.which[i])]
        return single._replace(vectors=without_movement(single.vectors, reference.stands_still)), reference.builders


class Reference:
    """Rows that are called good: those of each key, and those of all keys for keys with too few.

    kept: by the digest of the key, ALL_KEYS first, how many rows were given, and those that are kept, (n, vectors, d).
    Keys with too few do not count. Raises SchemaError if there are too few of all keys.
    """

    def __init__(
        self, model: Model, spec: RowSpec, config: DetectorConfig, kept: Mapping[bytes, tuple[int, Float]]
    ) -> None:
        self._model, self._spec, self._config, self._kept = model, spec, config, kept
        self.records, _ = kept[ALL_KEYS]  # good ones that were given
        min_rows = _min_rows(config)
        if self.records < min_rows:
            remedy = "give more rows" + (", or raise --alert-rate" if min_rows > config.min_context else "")
            raise SchemaError(
                f"the reference has {self.records:,} usable rows; at least {min_rows} are needed",
                f"{remedy}, or lower --min-context" if min_rows == config.min_context else remedy,
            )
        self._rows = {digest: rows for digest, (given, rows) in kept.items() if given >= min_rows}
        self.replaced = False  # whether the state was stored with another one, or without
        self._of_keys: dict[bytes, KeyReference] = {}  # those that were needed so far; shared by copies
        hashed = blake2b(digest_size=8)
        for digest, rows in self._rows.items():
            hashed.update(digest + rows.tobytes())
        self.name = hashed.hexdigest()
        self._left: dict[int, int] = {}  # by number of a series: in how many more records an incident can continue

    def pack(self) -> bytes:
        """The rows, compressed. Bytes of the same significance are together, as those compress well."""
        parts = [(digest.hex(), given, *rows.shape) for digest, (given, rows) in self._kept.items()]
        rows = np.concatenate([rows.ravel() for _, rows in self._kept.values()])
        return json.dumps(parts).encode() + b"\n" + zlib.compress(rows.view(np.uint8).reshape(-1, 8).T.tobytes())

    @classmethod
    def unpacked(cls, model: Model, spec: RowSpec, config: DetectorConfig, data: bytes) -> Reference:
        """The reference that was packed. It may have been made with another alert rate: its rows stay the same."""
        head, _, body = data.partition(b"\n")
        values = np.frombuffer(zlib.decompress(body), np.uint8).reshape(8, -1).T.copy().view(np.float64).ravel()
        kept: dict[bytes, tuple[int, Float]] = {}
        for digest, given, *shape in json.loads(head):
            rows, values = np.split(values, [math.prod(shape)])
            kept[bytes.fromhex(digest)] = given, rows.reshape(shape)
        return cls(model, spec, config, kept)

    def prepare(self, other: Reference) -> None:
        """Encode what the other one has encoded so far, so that records of these keys do not wait for it."""
        for digest in list(other._of_keys):
            self._of_key(digest)

    @property
    def keys(self) -> int:
        """Keys with rows of their own."""
        return len(self._rows) - 1

    def _of_key(self, digest: bytes) -> KeyReference:
        digest = digest if digest in self._rows else ALL_KEYS
        if digest not in self._of_keys:
            self._of_keys[digest] = KeyReference.of(self._model, self._rows[digest], self._spec, self._config)
        return self._of_keys[digest]

    def judge(self, batch: Batch, digests: NDArray[np.uint64] | None, learn: bool) -> ReferenceJudgement:
        """Judge the next records (n,). digests: (n, 2) of their keys; None: they have none.

        learn: whether later ones can continue their incidents.
        """
        n, rate = len(batch.slots), self._config.alert_rate
        keys = [ALL_KEYS] * n if digests is None else [digest.tobytes() for digest in digests]
        places = {key: at for at, key in enumerate(dict.fromkeys(keys))}
        references, which = [self._of_key(key) for key in places], np.array([places[key] for key in keys], np.int64)
        parts = [(reference, np.flatnonzero(which == at)) for at, reference in enumerate(references)]
        logit, (rise, p, odd) = self._logits(batch, parts), np.full((3, n), np.nan)
        for reference, at in parts:
            rise[at], p[at], odd[at] = reference.judged(logit[at])
        outlier, left = np.zeros(n, bool), self._left if learn else dict(self._left)
        for i, slot in enumerate(batch.slots.tolist()):
            before, peak = left.pop(slot, 0) * (not batch.begins[i]), references[which[i]].peak
            continues = before > 0 and p[i] <= continued(rate, 5.0) and logit[i] > peak[MEDIAN]
            if rise[i] > peak[CLEAR] or continues:
                outlier[i], left[slot] = True, INCIDENT_GAP
            elif before > 1:
                left[slot] = before - 1
        return ReferenceJudgement(logit, 1.0 - odd, p, outlier, severities(outlier, 1.0 - odd, rate), references, which)

    def _logits(self, batch: Batch, parts: Sequence[tuple[KeyReference, Int]]) -> Float:
        """The logits (n,) of records: the mean over the views."""
        inputs, vectors = [], batch.vectors.copy()
        for reference, at in parts:
            vectors[at] = without_movement(vectors[at], reference.stands_still)
        for v, (view, _) in enumerate(parts[0][0].builders if parts else ()):
            rows = view.columns(vectors, 0, self._spec.categorical)
            builders = [(at, reference.builders[v][1].result()) for reference, at in parts]
            inputs.append(ViewInput(rows, view.gaps(batch.gaps, 0), builders, False))
        by_view = score_view_inputs(self._model, [inputs])[0][0] if inputs else np.zeros((1, 0))
        return np.asarray(sum(by_view[1:], by_view[0]) / len(by_view), dtype=np.float64)

    def __copy__(self) -> Reference:
        """Return a copy in the same state; the references are shared."""
        twin = Reference.__new__(Reference)
        vars(twin).update({**vars(self), "_left": dict(self._left)})
        return twin

    def encode(self) -> bytes:
        """The state for the log, without the rows: these are given at each start."""
        return json.dumps([self.name, sorted(self._left.items())]).encode()

    def decode(self, data: bytes) -> None:
        """Take the state from the log, unless it is of another reference. Raises DamagedStateError."""
        try:
            name, left = json.loads(data or b'["", []]')
            self._left = {int(slot): int(n_records) for slot, n_records in left} if name == self.name else {}
            self.replaced = name != self.name
        except (ValueError, TypeError) as error:
            raise DamagedStateError(f"the state is damaged: {ENTRY} cannot be read ({error})") from None


def chosen_rows(config: DetectorConfig, n_features: int, digests: NDArray[np.uint64]) -> dict[bytes, tuple[int, Int]]:
    """Choose the rows that a reference keeps, by the digests (n, 2) of their keys: how many there are, and which.

    Of each key at most `context_size` are kept, by chance, and of all together MAX_VALUES values: of very many keys
    those with most rows have their own.
    """
    _, of_key = np.unique(digests, axis=0, return_inverse=True)
    groups = np.split(np.argsort(of_key, kind="stable"), np.cumsum(np.bincount(of_key))[:-1])
    rng, min_rows, room = np.random.default_rng(config.seed), _min_rows(config), MAX_VALUES // n_features
    groups = [group for group in groups if len(group) >= min_rows and digests[group[0]].any()]
    groups = sorted(groups, key=len, reverse=True)[: max(0, room // min_rows - 1)]
    max_rows = min(config.context_size, room // (1 + len(groups)))
    of_keys = [(digests[group[0]].tobytes(), group) for group in groups]
    chosen = [(ALL_KEYS, np.arange(len(digests))), *of_keys]
    return {digest: (len(group), np.sort(rng.permutation(group)[:max_rows])) for digest, group in chosen}


def _min_rows(config: DetectorConfig) -> int:
    """Enough for the alert rate, even if as many as may be are far outside."""
    return max(config.min_context, math.ceil(1.0 / config.alert_rate / (1.0 - MAX_FAR_SHARE)))


def reference_reasons(reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
    """These reasons, whose numbers are of a reference."""
    return tuple(reason._replace(scope=ENTRY) for reason in reasons)
