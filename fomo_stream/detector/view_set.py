"""The views of a scope: each scores the records with its own generations."""

from __future__ import annotations

from concurrent.futures import Executor
from functools import cached_property, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from fomo_stream.detector.attribution import BackgroundRows
from fomo_stream.detector.changelog import Copied, Document, Entries, StoredEntries
from fomo_stream.detector.context import Context
from fomo_stream.detector.generation import ContextSpec, Generation, confidence
from fomo_stream.detector.results import Scores
from fomo_stream.detector.step import view_columns as step
from fomo_stream.detector.step.follow import Batch
from fomo_stream.detector.view_inputs import ViewInput
from fomo_stream.detector.views import View
from fomo_stream.errors import DamagedStateError
from fomo_stream.model.architecture import Model
from fomo_stream.model.bulk import Bulk

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]


class ContextBuilder:
    """Builds a generation from its spec: in an executor at once, or in the thread that first asks for it.

    made: the generation, if it is known already. An executor may run the builder first whose `needed_at` is smallest.
    """

    def __init__(
        self, model: Model, spec: ContextSpec, executor: Executor | None, made: Generation | None = None
    ) -> None:
        self.spec = spec
        # the rows of its context and of another builder's, or None; made when a record is first explained
        self.background: tuple[ContextBuilder | None, BackgroundRows] | None = None
        self._model, self._made = model, made
        self._future = None if executor is None or made is not None else executor.submit(self)

    def __call__(self) -> Generation:
        """Build it: what an executor runs."""
        made = Generation.build(self._model, self.spec)
        if self._model.kernel == "numba":
            _ = made.handle  # which scoring would have to make
        return made

    @cached_property
    def bulk(self) -> Bulk:
        """The bulk of the rows of the context."""
        return Bulk.of_rows(self.spec.rows).without(self.spec.categorical)

    @property
    def needed_at(self) -> int:
        """Number of the record of its partition that needs it."""
        return self.spec.takes_effect

    @property
    def done(self) -> bool:
        """Return whether `result` returns without waiting for another thread."""
        return self._future is None or self._future.done()

    @property
    def is_made(self) -> bool:
        """Return whether `result` costs nothing."""
        return self._made is not None or (self._future is not None and self._future.done())

    def result(self) -> Generation:
        """The generation; waits for it if necessary."""
        if self._made is None:
            self._made = self() if self._future is None else self._future.result()
        return self._made


UNREACHED_NUMBER = 2**62  # number of a record that never comes
INPUT_CODES = {
    "record": step.RECORD_INPUT,
    "past": step.RECORD_INPUT,
    "movement": step.MOVEMENT_INPUT,
    "relative": step.RELATIVE_INPUT,
    "key_value": step.KEY_VALUE_INPUT,
}


class ViewContexts(Copied):
    """The generation of a view that scores the next record, and, once it is triggered, the one that takes effect later.

    The log stores a generation of the reservoir as two documents, in slot 0 or 1 by number % 2: the spec, written
    once when it is made, and the generation, written once when it has scored records for a while: in a young stream
    most are replaced before. So nothing is rewritten when the next generation becomes the current one, and a detector
    that recovers from the log encodes only few contexts again. Of a generation of recent records the log has only
    their numbers: it is encoded again from the history.
    """

    def __init__(self, view: View, model: Model, executor: Executor | None) -> None:
        self.view = view
        self._model, self._executor = model, executor
        self.current: ContextBuilder | None = None
        self.next: ContextBuilder | None = None
        self._recovered()

    @property
    def number(self) -> int:
        """Number of the current generation; 0 without one."""
        return 0 if self.current is None else self.current.spec.number

    def begin(self, spec: ContextSpec) -> None:
        """Build a generation that becomes the current one at once."""
        self.current = ContextBuilder(self._model, spec, self._executor)

    def add(self, spec: ContextSpec) -> None:
        """Build the next generation."""
        self.next = ContextBuilder(self._model, spec, self._executor)

    def advance(self, records: int) -> None:
        """Make the next generation the current one if it scores the record of number `records`."""
        if self.next is not None and records >= self.next.spec.takes_effect:
            self.current, self.next = self.next, None

    def until_next(self, records: int) -> int | None:
        """Return how many records from number `records` on the current generation still scores; None: no end."""
        return None if self.next is None else self.next.spec.takes_effect - records

    def until_wait(self, records: int) -> int | None:
        """Return how many records from number `records` on need no generation that is being built; None: no end."""
        if self.current is not None and not self.current.done:
            return 0
        return None if self.next is None or self.next.done else self.next.spec.takes_effect - records

    def builder_of(self, number: int) -> ContextBuilder | None:
        """The generation that scores the record of this number; None without a generation."""
        later = self.next is not None and number >= self.next.spec.takes_effect
        return self.next if later else self.current

    def parts(self, numbers: Int) -> list[tuple[Int, Generation]]:
        """Which records (n,), of these numbers, have a generation, and which one."""
        is_later = np.zeros(len(numbers), bool) if self.next is None else numbers >= self.next.spec.takes_effect
        parts = (np.flatnonzero(~is_later), self.current), (np.flatnonzero(is_later), self.next)
        return [(at, builder.result()) for at, builder in parts if builder is not None and len(at)]

    def plan(self, row: Int, stop: int, lags: int) -> None:
        """Write the plan of the view, which `step.view_columns` reads, for the records before number `stop` into row
        (PLAN_SIZE,)."""
        is_needed = self.next is not None and stop > self.next.spec.takes_effect
        takes_effect = UNREACHED_NUMBER if self.next is None else self.next.spec.takes_effect
        now = None if self.current is None else self.current.result()
        later = self.next.result() if self.next is not None and is_needed else None
        addresses = [0 if generation is None else generation.handle.address for generation in (now, later)]
        numbers = [0 if generation is None else generation.number for generation in (now, later)]
        row[:] = INPUT_CODES[self.view.input], self.view.n_vectors(lags), takes_effect, *addresses, *numbers

    # -- log -----------------------------------------------------------------------------------------------------

    @property
    def _is_stored(self) -> bool:
        return self.view.sample == "reservoir"

    @property
    def _builders(self) -> list[ContextBuilder]:
        return [builder for builder in (self.current, self.next) if builder is not None]

    def plain(self) -> list[Any]:
        """The plain numbers of the state: those of the current and the next generation, and what they are made from."""
        numbers = [0 if builder is None else builder.spec.number for builder in (self.current, self.next)]
        return [*numbers, [] if self._is_stored else [_numbers_of_recent(builder.spec) for builder in self._builders]]

    def changes(self, last: int, encoded: bool) -> Entries:
        """Entries that the log does not have yet; not the plain numbers. See `ViewSet.changes`."""
        entries: Entries = {}
        for builder in self._builders if self._is_stored else ():
            number, parity = builder.spec.number, builder.spec.number % 2
            name = f"generation/{self.view.name}/{parity}"
            if self._planned[parity] != number:
                entries |= self._spec_logs[parity].changes(name, save(builder.spec.to_arrays()))
                self._planned[parity] = number
            is_lasting = encoded and builder.spec.takes_effect <= last
            if self._built[parity] != number and is_lasting and builder.is_made:
                made = save(builder.result().to_arrays())
                entries |= self._generation_logs[parity].changes(f"{name}/encoded", made)
                self._built[parity] = number
        return entries

    def recover(
        self, entries: StoredEntries, plain: list[Any], context: Context, at: int, reusable: ViewContexts | None
    ) -> None:
        """Take the state from the entries and plain numbers. Raises StateError when they do not fit.

        context: it has recovered, and this belongs to its views[at]; reusable: contexts whose generations need
        not be built again.
        """
        self._recovered()
        at_hand = [] if reusable is None else reusable._builders
        made_from = iter(plain[2])
        for name, number in zip(("current", "next"), plain, strict=False):
            builder = None
            if number and self._is_stored:
                builder = self._stored(entries, number, at_hand)
            elif number:
                number, takes_effect, first, stop, *missing = next(made_from)
                numbers = np.setdiff1d(np.arange(first, stop), np.array(missing, dtype=np.int64))
                spec = context.spec_of_recent(at, number, takes_effect, numbers)
                builder = self._match(spec, None, at_hand)
            setattr(self, name, builder)

    def _stored(self, entries: StoredEntries, number: int, at_hand: list[ContextBuilder]) -> ContextBuilder:
        name, parity = f"generation/{self.view.name}/{number % 2}", number % 2
        spec = ContextSpec.from_arrays(load(self._spec_logs[parity].recover(entries, name)))
        if spec.number != number:
            raise DamagedStateError(f"the state is damaged: it has generation {spec.number}, not {number}")
        self._planned[parity] = number
        made = None
        if f"{name}/encoded/0" in entries:
            arrays = load(self._generation_logs[parity].recover(entries, f"{name}/encoded"))
            try:
                made = Generation.from_arrays(arrays, spec, self._model)
            except KeyError as error:
                raise DamagedStateError(f"the state is damaged: generation {number} lacks {error}") from None
            self._built[parity] = int(arrays["number"])
        return self._match(spec, made, at_hand)

    def _match(self, spec: ContextSpec, made: Generation | None, at_hand: list[ContextBuilder]) -> ContextBuilder:
        same = (builder for builder in at_hand if builder.spec.equals(spec))
        return next(same, None) or ContextBuilder(self._model, spec, self._executor, made)

    def _recovered(self) -> None:
        """Start with an empty log."""
        self._spec_logs, self._generation_logs = (Document(), Document()), (Document(), Document())
        self._planned, self._built = [0, 0], [0, 0]  # numbers of the specs and generations in the log


def _numbers_of_recent(spec: ContextSpec) -> list[int]:
    """Return what a spec of recent records is made from: its number, when it takes effect, and its records' numbers."""
    first, stop = int(spec.numbers[0]), int(spec.numbers[-1]) + 1
    missing: Int = np.zeros(0, dtype=np.int64)
    if len(spec.numbers) < stop - first:  # outliers by feedback
        missing = np.setdiff1d(np.arange(first, stop), spec.numbers)
    return [spec.number, spec.takes_effect, first, stop, *missing.tolist()]


class ViewSet(Copied):
    """The contexts of all views. `Scores.combined` makes one logit of a record's logits in them.

    That of what is usual for keys comes last, and begins when enough records of known keys have come.
    """

    def __init__(
        self,
        views: tuple[View, ...],
        model: Model,
        executor: Executor | None,
        lags: int = 0,
        numeric: Bool | None = None,
    ) -> None:
        """numeric: (d,) features that are not categories; None: all."""
        self._model, self._executor, self._lags = model, executor, lags
        self._numeric: Bool = np.ones(0, bool) if numeric is None else numeric
        widths = [view.n_vectors(lags) * len(self._numeric) for view in views]
        ends = np.cumsum([0, *widths])
        # of each view, see `score_views`
        self.column_ranges = np.stack([ends[:-1], ends[1:], [int(view.is_of_keys) for view in views]], axis=1)
        self.view_contexts = [ViewContexts(view, model, executor) for view in views]
        self.steps = 0  # since the warm-up
        self._may_wait = True  # whether `until_wait` may have an end
        self._choose_bulk_view()

    @property
    def views(self) -> tuple[View, ...]:
        return tuple(contexts.view for contexts in self.view_contexts)

    @property
    def generation(self) -> int:
        """Counts the contexts that took effect after the first ones, from 1; 0 while there are none."""
        numbers = [contexts.number for contexts in self.view_contexts]
        return sum(numbers) - len(self._shared) + 1 if numbers[0] else 0

    @property
    def _shared(self) -> list[ViewContexts]:
        """The contexts of all views but `key`: their mean is the logit."""
        return [contexts for contexts in self.view_contexts if not contexts.view.is_of_keys]

    @property
    def trimmed_rows(self) -> int:
        """Rows that the current trimmed contexts have left out."""
        builders = [contexts.current for contexts in self.view_contexts if contexts.view.trim]
        made = [builder for builder in builders if builder is not None and builder.is_made]
        return sum(len(builder.spec.numbers) - len(builder.result().numbers) for builder in made)

    def generation_age(self, records: int) -> int:
        """Records since the newest context took effect. records: number of the next record."""
        builders = [contexts.current for contexts in self.view_contexts]
        return records - max((b.spec.takes_effect for b in builders if b is not None), default=records)

    def begin(self, context: Context) -> None:
        """Build the first generations, which take effect at once."""
        for at, contexts in enumerate(self.view_contexts):
            if not contexts.view.is_of_keys or context.is_due(at):
                contexts.begin(context.context_spec(at, 1, context.history.records))
        self._may_wait = True

    def renew(self, context: Context, takes_effect: int) -> None:
        """Build the next generation of one view, at a step, if it is due."""
        n = len(self.view_contexts) if len(context.relatives) else len(self._shared)
        for turn in range(n):
            at = (self.steps + turn) % n
            contexts = self.view_contexts[at]
            if contexts.next is None and context.is_due(at):
                contexts.add(context.context_spec(at, contexts.number + 1, takes_effect))
                self._may_wait = True
                break  # one a step, so that two never take effect together
        self.steps += 1

    def advance(self, records: int) -> None:
        """Make the next generations current that score the record of number `records`."""
        for contexts in self.view_contexts:
            contexts.advance(records)

    def until_next(self, records: int) -> int | None:
        """Return how many records from number `records` on the current generations still score; None: no end."""
        ends = (contexts.until_next(records) for contexts in self.view_contexts)
        return min((end for end in ends if end is not None), default=None)

    def until_wait(self, records: int) -> int | None:
        """Return how many records from number `records` on need no generation that is being built; None: no end."""
        if not self._may_wait:
            return None  # mostly
        ends = [contexts.until_wait(records) for contexts in self.view_contexts]
        self._may_wait = any(end is not None for end in ends)
        return min((end for end in ends if end is not None), default=None)

    def _choose_bulk_view(self) -> None:
        """Choose the view whose context tells which values are far: of the reservoir if possible, untrimmed."""
        plain = [contexts for contexts in self.view_contexts if contexts.view.input == "record"]
        self._bulk_view = min(plain, key=lambda each: (each.view.sample != "reservoir", each.view.trim), default=None)

    def plan(self, plan: Int, stop: int) -> None:
        """Write the plans of all views, which `step.view_columns` reads, for the records before number `stop` into plan
        (views, PLAN_SIZE)."""
        if self._model.kernel != "numba" or not self._numeric.all():
            return
        for row, contexts in zip(plan, self.view_contexts, strict=False):
            contexts.plan(row, stop, self._lags)

    def planned_until(self, stop: int) -> int:
        """Up to which number of a record the plan for those before `stop` is good."""
        builders = (contexts.next for contexts in self.view_contexts)
        effects = (builder.spec.takes_effect for builder in builders if builder is not None)
        return min((number for number in effects if number >= stop), default=UNREACHED_NUMBER)

    def inputs(self, batch: Batch, vectors: Float, at: Int, numbers: Int, of_keys: Int) -> list[ViewInput]:
        """Return the inputs of all views for some records of a batch, at (q,).

        vectors: those of the batch, or others to look at; numbers: (q,) of the records here, and in the view of keys.
        """
        categorical, inputs = tuple(np.flatnonzero(~self._numeric).tolist()), []
        for contexts in self.view_contexts:
            view = contexts.view
            rows = view.columns((batch.relative if view.is_of_keys else vectors)[at], self._lags, categorical)
            parts = contexts.parts(of_keys if view.is_of_keys else numbers)
            inputs.append(ViewInput(rows, view.gaps(batch.gaps[at], self._lags), parts, view.is_of_keys))
        return inputs

    def generations(self, inputs: list[ViewInput]) -> Int:
        """Return how many contexts took effect before records (q,) that these views look at; see `generation`."""
        counts = np.full(len(inputs[0].rows), 1 - len(self._shared) if self.view_contexts[0].number else 0)
        for view_input in inputs:
            for part, generation in view_input.parts:
                counts[part] += generation.number
        return counts

    def until_next_bulk(self, records: int) -> int | None:
        """Return how many records from number `records` on have the same `bulk`; None: no end."""
        return None if self._bulk_view is None else self._bulk_view.until_next(records)

    def bulk(self, number: int) -> Bulk | None:
        """Which values are far, as of the record of this number; None: that is not known."""
        builder = None if self._bulk_view is None else self._bulk_view.builder_of(number)
        return None if builder is None else builder.bulk

    def builders(self, number: int) -> list[tuple[View, ContextBuilder]]:
        """Each view, with the generation that scores the record of this number; none before the first ones."""
        pairs = ((contexts.view, contexts.builder_of(number)) for contexts in self.view_contexts)
        return [(view, builder) for view, builder in pairs if builder is not None]

    def first_scores(self, records: int) -> tuple[Int, Scores]:
        """Numbers (n,) and scores of the records that are in the first contexts of all views; of none later.

        Each is scored against the half of a context that does not have it.
        """
        builders = [contexts.current for contexts in self._shared if contexts.number == 1]
        first = [builder for builder in builders if builder is not None and records == builder.spec.takes_effect]
        if len(first) < len(self._shared):
            return np.zeros(0, dtype=np.int64), Scores.unknown(0, len(self._shared))
        numbers = reduce(np.intersect1d, [builder.spec.numbers for builder in first])
        parts = [builder.result().first[np.isin(builder.spec.numbers, numbers)] for builder in first]
        votes = [builder.result().vote(logits) for builder, logits in zip(first, parts, strict=True)]
        return numbers, Scores.of(np.stack(parts, axis=1), np.ones(len(numbers), np.int64), confidence(votes))

    def is_odd(self, by_view: Float) -> tuple[Bool, Bool] | None:
        """Return whether the last records (n,) are odd in the history, and among recent ones, from logits (n, views).

        None without a view of each. Odd: the logit is above those of most of the context's own rows.
        """
        views = list(enumerate(self.views))
        history = next((i for i, view in views if view.sample == "reservoir" and view.input == "record"), None)
        recent = next((i for i, view in views if view.sample == "recent"), None)
        if history is None or recent is None:
            return None
        odd = [by_view[:, at] > self._usual(at) for at in (history, recent)]
        return odd[0], odd[1]

    def _usual(self, at: int) -> float:
        builder = self.view_contexts[at].current
        assert builder is not None
        return builder.result().usual

    # -- log -----------------------------------------------------------------------------------------------------

    def plain(self) -> list[list[Any]]:
        """The plain numbers of the state."""
        return [contexts.plain() for contexts in self.view_contexts]

    def changes(self, last: int, encoded: bool) -> Entries:
        """Entries that the log does not have yet; not the plain numbers.

        last: generations are written, if `encoded`, that took effect up to the record of this number. Another one is
        built again by a detector that recovers.
        """
        entries: Entries = {}
        for contexts in self.view_contexts:
            entries |= contexts.changes(last, encoded)
        return entries

    def recover(
        self, entries: StoredEntries, plain: list[list[Any]], context: Context, reusable: ViewSet | None
    ) -> None:
        """Take the state from entries, plain numbers, and the context, which has recovered. Raises StateError."""
        others = {} if reusable is None else {each.view: each for each in reusable.view_contexts}
        for at, contexts in enumerate(self.view_contexts):
            contexts.recover(entries, plain[at], context, at, others.get(contexts.view))
        self._may_wait = True

    def _recovered(self) -> None:
        self._choose_bulk_view()
