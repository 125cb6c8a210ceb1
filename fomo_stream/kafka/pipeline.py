"""The way from a record that was read to an output that can be committed: decode, take, score, send.

A `Partition` holds all state of one input partition. The `Pipeline` moves records through the partitions, those of each
in order. It has no consumer and no clock: the caller passes the time and decides when to commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from typing import Any

from confluent_kafka import TopicPartition

from fomo_stream.detector.detector import Detector
from fomo_stream.errors import DamagedStateError, FomoError, RecordError, SchemaError, StateError
from fomo_stream.kafka.broker.cluster import PartitionId
from fomo_stream.kafka.decoding import Decoder
from fomo_stream.kafka.delivery.base import Delivery
from fomo_stream.kafka.guard import Guard, unexpected_error
from fomo_stream.kafka.observer import Observation, Observer, Outlier
from fomo_stream.kafka.outputs import Outputs, dead_letter_reason
from fomo_stream.kafka.references import References
from fomo_stream.kafka.registry import codec_for
from fomo_stream.kafka.restore import to_output, unusable_state_error
from fomo_stream.kafka.topics.watch import InputEnd, TopicsAnswer
from fomo_stream.limits import INFER_RECORDS
from fomo_stream.loading import check_schema, first_detector, read_reference
from fomo_stream.logs import Throttle, kv
from fomo_stream.model.architecture import Model
from fomo_stream.partition.incidents import Notice
from fomo_stream.partition.labels import BAD_FEEDBACK, DueLabels, parse_label
from fomo_stream.partition.partition import Partition, Waiting
from fomo_stream.partition.position import Restored
from fomo_stream.partition.record import Pending, Record
from fomo_stream.partition.rules import Rules
from fomo_stream.partition.running import Running, ScoredBatch
from fomo_stream.records.derivations import parse_derivations
from fomo_stream.records.derived import inputs_without_value
from fomo_stream.records.evolution import SchemaEvolution
from fomo_stream.records.inference import TooManyFeaturesError, infer_from_records, input_notes, roles_of, unnamed_note
from fomo_stream.records.presence import Presence
from fomo_stream.records.schema import Schema, look_up, shown_names
from fomo_stream.records.writer_schema import WrittenFields
from fomo_stream.settings.service_settings import ServiceSettings

log = logging.getLogger(__name__)

VALUE_KINDS = {type(None): "absent", str: "text", list: "list"}  # of values other than numbers
MIN_SAMPLE_RECORDS = 20  # a smaller sample may not be typical

MAX_LEFT_OUT_LINES = 50  # log lines about fields that are not features
WARM_UP_LOGGED_S = 10.0
LABELS_LOGGED_S = 1.0  # between two log lines at level info about labels of a partition that take effect


class Pipeline:
    """Receives records; sends outputs, dead letters and changes of state; knows the position of each partition.

    executor: encodes contexts. partitions: returns the current partition counts by topic; a record keeps its partition
    if input and output have equally many.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        model: Model,
        delivery: Delivery,
        executor: Executor,
        partitions: Callable[[], Mapping[str, int]],
        observer: Observer | None = None,
        references: References | None = None,
    ) -> None:
        self.partitions: dict[int, Waiting | Running] = {}
        self.schema: Schema | None = None  # the features that are scored; None while they are not known
        self._settings, self._model, self._delivery, self._executor = settings, model, delivery, executor
        self._observer, self._references = observer or Observer(), references or References(settings)
        codec, self.schemas = codec_for(settings, of_service=True)
        self.decoder = Decoder(codec, settings.key)
        self.guard = Guard()
        self._evolution = SchemaEvolution()
        self._rules = Rules.of(settings)
        self.presence = Presence()
        self._outputs = Outputs(settings, delivery, partitions, codec, self._observer)
        self._throttle = Throttle(LABELS_LOGGED_S)
        self._throttle_warm_up = Throttle(WARM_UP_LOGGED_S)
        self._last_fields: dict[int, Mapping[str, Any]] = {}  # by partition: of the last record
        self._sample: list[Mapping[str, Any]] | None = []  # the first records; None: their features were checked
        self._first: Detector | None = None  # every partition begins with a copy of this detector
        self._former_detectors: dict[int, Detector] = {}  # of partitions that are restored again, for their contexts
        # When records were polled (monotonic seconds), and their timestamps: of the next commit, and of the last one.
        self._finished: list[tuple[float, int | None]] = []
        self._staged: list[tuple[float, int | None]] = []

    # --- partitions ---------------------------------------------------------------------------------------

    def add(self, number: int, topic_ids: Mapping[str, str]) -> Waiting:
        """Begin a partition, which waits to be restored. Forget its state if it was here before."""
        self._former_detectors.pop(number, None)
        if isinstance(former := self.partitions.get(number), Running):
            self._former_detectors[number] = former.detector
        self.decoder.forget(number)
        self.partitions[number] = partition = Waiting(
            number,
            self._settings,
            topic=self._settings.topic,
            feedback=self._settings.feedback,
            ids=topic_ids,
            batch_size=self._settings.batch_size,
            age=self._settings.batch_age_ms / 1000,
            rules=self._rules,
        )
        return partition

    def activate(self, partition: Waiting, restored: Restored) -> None:
        """Continue a partition from its restored state. Raises StateError when that state cannot be used."""
        newest = partition.rules
        try:
            with _errors_as_damage():
                partition.restore(restored)
        except DamagedStateError as error:
            raise unusable_state_error(self._settings.state_topic, partition.number, error) from None
        if partition.rules is not newest:
            self._log_rules(partition)
        self._begin(partition)

    def set_rules(self, rules: Rules) -> None:
        """Apply these rules from the next record of each partition on."""
        self._rules = rules
        self._warn_of_rules()
        for partition in self.partitions.values():
            if partition.set_rules(rules) and partition.is_active:  # else its restore decides from where on they hold
                self._log_rules(partition)

    def follow_reference(self, now: float) -> None:
        """Use another file of --reference, or the first records once they are all there, from the next record of each
        partition on. now: seconds, monotonic.
        """
        if self._first is None or self.schema is None or self._settings.reference is None:
            return
        read = partial(read_reference, self._settings, self._model, self.schema, self._references.agree)
        former = self._first.reference
        reference = self._references.changed(now, read, former)
        if reference is None or (former is not None and reference.name == former.name):
            return
        self._first.reference = reference
        for partition in self.partitions.values():
            if isinstance(partition, Running):
                partition.detector.reference = reference
                self._log_reference(partition)

    def _log_reference(self, partition: Running) -> None:
        """Log that another reference counts from here on."""
        place = {"topic": self._settings.topic, "partition": partition.number, "offset": partition.position}
        log.info(kv("reference", **place, digest=getattr(partition.detector.reference, "name", "")))

    def _log_rules(self, partition: Partition) -> None:
        rules, offset = partition.rules.now, partition.rules.changes[-1].offset
        counts = {"rules": len(rules.rules), "windows": len(rules.windows) + len(rules.from_feedback)}
        log.info(kv("rules", topic=self._settings.topic, partition=partition.number, offset=offset, **counts))

    def _warn_of_rules(self) -> None:
        if self.schema is not None:
            for text in self._rules.warnings(self.schema, has_keys=True):
                log.warning(kv("check_rules", hint=text))

    def _begin(self, partition: Waiting) -> None:
        """Score from now on, if the features are known. Raises StateError, with a remedy, if its state does not fit."""
        if self._first is None or self.schema is None:
            return
        number = partition.number
        former = self._former_detectors.pop(number, None)
        try:
            with _errors_as_damage():
                running = Running(partition, self._first, self.schema, former=former, follows_clock=True)
        except StateError as error:
            topic = self._settings.state_topic
            if self._settings.delivery == "exactly-once" or not isinstance(error, DamagedStateError):
                raise unusable_state_error(topic, number, error) from None
            # Without transactions, a crash may leave a state that is only partly written.
            place = {"topic": topic, "partition": number}
            log.warning(kv("state_damaged", **place, reason=error, effect="warming up again"))
            partition.discard_state()
            running = Running(partition, self._first, self.schema, follows_clock=True)
        self.partitions[number] = running
        if running.detector.reference is not None and running.detector.reference.replaced:
            self._log_reference(running)

    def drop(self, number: int) -> None:
        self.partitions.pop(number, None)
        self._former_detectors.pop(number, None)
        self.decoder.forget(number)

    # --- commits ------------------------------------------------------------------------------------------

    def stage(self, answer: TopicsAnswer) -> list[TopicPartition]:
        """Send the changes of the state of every partition; returns the offsets to commit, of existing topics."""
        offsets = []
        self._staged, self._finished = self._finished, []
        for partition in self.partitions.values():
            changes, uncommitted = partition.changes(), list(self._uncommitted(partition, answer.partitions))
            topic, number = self._settings.state_topic, partition.number
            self._delivery.send(*(to_output(topic, number, name, value) for name, value in changes.items()))
            if changes and not uncommitted and partition.position is not None:
                # Labels took effect, but no offset moved. The broker checks the membership only with the offsets of a
                # transaction. So without one, it would accept the state of a former owner of the partition.
                uncommitted.append(TopicPartition(self._settings.topic, partition.number, partition.position))
            offsets += uncommitted
        return offsets

    def committed(self, offsets: Iterable[TopicPartition], began: float, now: float, clock: float) -> None:
        """Note that the staged changes are committed, with these offsets.

        began, now: when the commit began and ended, seconds, monotonic; clock: the time now, seconds since 1970.
        """
        for offset in offsets:
            if (partition := self.partitions.get(offset.partition)) is not None:
                is_of_labels = offset.topic == self._settings.feedback
                (partition.labels if is_of_labels else partition).committed = offset.offset
                self.guard.committed((offset.topic, offset.partition), offset.offset)
        ages = [max(0.0, clock - timestamp / 1000) for _, timestamp in self._staged if timestamp is not None]
        self._observer.committed([now - polled_at for polled_at, _ in self._staged], ages, now - began)

    def committed_offsets(self) -> dict[TopicPartition, int]:
        """Return the committed offset of the group, as far as known, by active partition of the input."""
        topic, tasks = self._settings.topic, self.partitions.values()
        return {TopicPartition(topic, own.number): own.committed for own in tasks if own.committed is not None}

    def _uncommitted(self, partition: Partition, topics: Mapping[str, object]) -> Iterator[TopicPartition]:
        position, labels, feedback = partition.position, partition.labels, self._settings.feedback
        if position is not None and position != partition.committed:
            # Also if the topic is gone: then outputs and offset fail together; else outputs would be written twice.
            yield TopicPartition(self._settings.topic, partition.number, position)
        if feedback in topics and labels.committable not in (None, labels.committed):
            yield TopicPartition(feedback, partition.number, labels.committable)

    def aborted(self, topic_ids: Mapping[str, str]) -> list[Waiting]:
        """Forget everything since the last commit: every partition waits to be restored again."""
        self._observer.aborted()
        self._finished.clear()
        self.guard.has_failed = False
        return [self.add(number, topic_ids) for number in list(self.partitions)]

    # --- the schema ---------------------------------------------------------------------------------------

    def begin(self, schema: Schema) -> None:
        """Score records with `schema` from now on, beginning with those that waited for it. Raises SchemaError."""
        self._first = first_detector(self._settings, self._model, schema, self._executor, self._references.agree)
        self.schema = schema
        for view in self._first.left_out:
            log.warning(kv("view_left_out", view=view.view, columns=view.columns, limit=view.limit))
        log.info(kv("schema", features=shown_names(schema.features), count=len(schema.features)))
        self._warn_of_rules()

    def infer(self) -> Schema | None:
        """Infer a schema from the waiting records; None if they have no features: then they become dead letters.

        Raises SchemaError if the model cannot take the schema. The sample keeps the records of each partition together,
        so that a counter in a partition is recognised.
        """
        waiting = ((number, item) for number, partition in self.partitions.items() for item in partition.waiting.items)
        usable = [(number, item) for number, item in waiting if item.error is None]
        sample, settings = [item.fields for _, item in usable], self._settings
        series = [(number, item.key) for number, item in usable]
        try:
            schema, left_out = infer_from_records(settings, sample, roles_of(settings), series)
        except Exception as error:
            if not isinstance(error, FomoError):
                self._find_in_sample(usable, error)
                return None
            if not isinstance(error, SchemaError):
                raise
            log.error(kv("schema_not_inferred", reason=error))
            reason = "too_many_features" if isinstance(error, TooManyFeaturesError) else "no_features"
            for partition in self.partitions.values():
                items = partition.waiting.take()
                for item in _after_warm_up(partition, items):
                    self._outputs.dead_letter(item.record, *dead_letter_reason(item.error, reason, str(error)))
                partition.skip(items)
            return None
        for name, reason in list(left_out.items())[:MAX_LEFT_OUT_LINES]:
            log.info(kv("feature_left_out", name=shown_names([name]), reason=reason))
        if len(sample) < MIN_SAMPLE_RECORDS:
            effect = "fields that none of these has are never scored; if there are any, name all with --features"
            log.warning(kv("schema_of_few_records", records=len(sample), effect=effect))
        self._check_features(schema, sample)
        check_schema(self._settings, self._model, schema, self._references.check)
        return schema

    def _find_in_sample(self, items: Sequence[tuple[int, Pending]], error: Exception) -> None:
        """Mark the records that raise an error alone, or else all, with this error. The next sample is without them."""
        guilty = set()
        for number, item in items:
            try:
                infer_from_records(self._settings, [item.fields], roles_of(self._settings), [(number, item.key)])
            except SchemaError:
                pass
            except Exception:
                guilty.add((number, item.offset))
        for number, partition in self.partitions.items():
            for position, item in enumerate(partition.waiting.items):
                if item.error is None and (not guilty or (number, item.offset) in guilty):
                    marked = unexpected_error(item.record.where(), error)
                    partition.waiting.items[position] = item._replace(fields={}, error=marked)

    def _check_features(self, schema: Schema, records: Sequence[Mapping[str, Any]]) -> None:
        """Log once the properties of the features that the user may not expect."""
        self.presence.learn(records)
        self._sample = None
        try:
            notes = list(input_notes(schema, records, values=False))
            notes += unnamed_note(schema, records) if self._settings.features is None else []
            lacking = inputs_without_value(parse_derivations(self._settings.derive), records)
            notes += [f"no {kind} in {shown_names([name])}, which --derive names" for name, kind in lacking]
        except Exception as error:  # a failed hint must not stop scoring
            unexpected_error(self._settings.topic, error)
            return
        for note in notes:
            log.warning(kv("check_features", note=note))

    # --- records ------------------------------------------------------------------------------------------

    def receive(self, record: Record, now: float) -> None:
        """Take one record; it is scored when its micro-batch is full or old enough. now: seconds, monotonic."""
        partition = self.partitions.get(record.partition)
        if partition is None or not partition.is_active:
            return  # the partition was given up, or is restored again, since the fetch
        if (item := self.decoder.receive(record, now)) is not None:
            self._take(record.partition, item, now)

    def _take(self, number: int, item: Pending, now: float) -> None:
        if (error := self.guard.error((self._settings.topic, number), item.offset)) is not None:
            item = item._replace(fields={}, error=error)  # so that features are not inferred from it
        if self.partitions[number].offer(item, now):
            self._score(number)

    def _take_ready(self, number: int, now: float) -> None:
        """Take the records whose schema was missing and is known now."""
        if self.partitions[number].is_active:
            for item in self.decoder.ready(number):
                self._take(number, item, now)

    @property
    def n_waiting(self) -> int:
        """Return the number of records of all partitions that wait to be scored."""
        return sum(len(partition.waiting) for partition in self.partitions.values())

    def has_waiting(self, partition: Partition) -> bool:
        """Return whether records of a partition were read, but not scored yet."""
        return bool(len(partition.waiting)) or self.decoder.waits(partition.number)

    def _log_new_schemas(self) -> None:
        """Log the new schemas of writers, and the effects on features."""
        while self.schemas is not None and self.schemas.news:
            news, features = self.schemas.news.popleft(), self.schema
            place = {"id": news.schema_id, "type": shown_names([news.writer.name])}
            if news.places:  # a schema can be in several subjects
                own = f"{self._settings.topic}-value"
                place |= next((other for other in news.places if other.subject == own), news.places[-1])._asdict()
            names = ((), ()) if features is None else (features.features, features.categorical)
            for change in self._evolution.changes_of(news.writer, place, *names):
                if change.is_incompatible:
                    log.warning(kv("schema_incompatible", **change.about))
                else:
                    log.info(kv("schema_of_writer", **change.about))
                    self._observer.schema_seen(change.new_fields)

    def _log_presence(self, partition: Running, items: Sequence[Pending], batch: ScoredBatch) -> None:
        """Log once the features that have lost their values, or have them again, and new fields with numbers."""
        sound = [item.fields for item in items if item.error is None]
        if not sound:
            return
        features, place = partition.schema.features, {"topic": self._settings.topic, "partition": partition.number}
        n_empty = int((batch.missing == len(features)).sum()) - (len(items) - len(sound))
        changed = self.presence.follow(batch.rows, n_empty).tolist()
        gone = [features[column] for column in changed if self.presence.gone[column]]
        if gone:
            now = sorted({VALUE_KINDS.get(type(look_up(sound[-1], name)), "no number") for name in gone})
            effect = "the records are scored without them; were they renamed, or did they become text?"
            log.warning(kv("features_missing", **place, fields=shown_names(gone), now=",".join(now), effect=effect))
        if back := [features[column] for column in changed if not self.presence.gone[column]]:
            log.info(kv("features_back", **place, fields=shown_names(back)))
        is_json = not isinstance(sound[-1], WrittenFields)  # else its schema shows new fields
        if is_json and self._sample is None and (new := self.presence.new_fields(sound[-1], len(sound))):
            log.warning(kv("new_fields", **place, fields=shown_names(new), effect="they are not scored"))
            self._observer.schema_seen(len(new), 0)

    def receive_label(self, record: Record, exists: Callable[[int, int], bool]) -> None:
        """Take one record of the feedback topic; its label takes effect after the labelled record was scored.

        exists: whether the input has a record at (partition, offset).
        """
        partition, settings = self.partitions.get(record.partition), self._settings
        if partition is None or not partition.is_active or not partition.labels.open(record.offset):
            return
        try:
            if (guard_error := self.guard.error((record.topic, record.partition), record.offset)) is not None:
                raise _bad_label(guard_error)
            about = (settings.topic, settings.result_field, settings.max_record_bytes)
            partition.label(record.offset, parse_label(record.value, record.key, record.partition, *about), exists)
            return
        except RecordError as caught:
            error = caught
        except Exception as caught:
            error = _bad_label(unexpected_error(record.where(), caught))
        if partition.position is None or partition.position >= partition.warm.stop:
            self._outputs.dead_letter(record, error.reason, str(error), error)
        partition.labels.close(record.offset)

    def score_due(self, now: float) -> None:
        """Score every micro-batch that is full or old enough, and apply the labels about scored records.

        A micro-batch whose next generation is not built yet waits.
        """
        self._log_new_schemas()
        for number in self.partitions:
            self._take_ready(number, now)
            partition = self.partitions[number]
            if partition.is_active and partition.waiting.is_due(now):
                self._score(number)
            elif isinstance(partition, Running):
                self._apply_labels(partition)

    def finish(self, numbers: Iterable[int]) -> None:
        """Score the records that were read of these partitions.

        Records whose generation is not built are left; the next owner reads them again.
        """
        for number in numbers:
            if number in self.partitions and self.partitions[number].is_active:
                self._take_ready(number, time.monotonic())
                self._score(number)

    def _score(self, number: int) -> None:
        """Score the waiting records; stop where a generation is not built yet."""
        if isinstance(waiting := self.partitions[number], Waiting):
            self._begin(waiting)
        partition, place = self.partitions[number], (self._settings.topic, number)
        if not isinstance(partition, Running):
            return
        self._apply_labels(partition)
        is_done = False
        while not is_done:
            if self._skip_faulty(partition, place):
                continue
            clock, began = round(time.time() * 1000), time.perf_counter()
            try:
                batch = partition.step(
                    time.monotonic(), clock, lambda first: self.guard.max_together(place, first.offset)
                )
                is_done = batch is None
                if batch is not None:
                    self._send(partition, batch, began)
            except FomoError:
                raise
            except Exception as error:
                self._give_up(partition, place, [item.offset for item in partition.batch], error)
            finished = _after_warm_up(partition, partition.batch)
            self._finished += [(item.polled_at, item.record.timestamp) for item in finished]
            self._apply_labels(partition)

    def _skip_faulty(self, partition: Running, place: PartitionId) -> bool:
        """Turn the first waiting record into a dead letter if the guard knows its error. Return whether it did."""
        waiting = partition.waiting.items if partition.is_active else []
        error = self.guard.error(place, waiting[0].offset) if waiting else None
        if error is None:
            return False
        items = partition.waiting.take(1)
        partition.skip(items)
        for item in _after_warm_up(partition, items):
            self._outputs.dead_letter(item.record, error.reason, str(error), error)
            self._finished.append((item.polled_at, item.record.timestamp))
        self._apply_labels(partition)
        return True

    def _give_up(self, partition: Running, place: PartitionId, offsets: Sequence[int], error: Exception) -> None:
        """Stop a partition whose state may be half changed; the next commit fails."""
        self.guard.blame(place, offsets, error)
        partition.position = None

    def _send(self, partition: Running, batch: ScoredBatch, began: float) -> None:
        """Send the outputs of scored records, in their order, and report them to the observer."""
        items = partition.batch
        if self._sample is not None and self.schema is not None:
            self._sample += [item.fields for item in items if item.error is None]
            if len(self._sample) >= INFER_RECORDS:
                self._check_features(self.schema, self._sample)
        self._log_presence(partition, items, batch)
        scored = time.perf_counter()
        now = _after_warm_up(partition, items)
        n_warm = len(items) - len(now)
        # Alerts of the warm-up are not sent. So neither is the end of an incident whose last alert was there.
        batch = batch._replace(
            closed=[end for end in batch.closed if end.summary["to"]["offset"] >= partition.warm.stop]
        )
        if now:
            self._outputs.send(now, batch.results[n_warm:], batch.notices)
            self._log_silence(partition, batch.silence)
            sound = [item.fields for item in now if item.error is None]
            self._last_fields |= {partition.number: sound[-1]} if sound else {}
        if n_warm:
            self._log_warm_up(partition)
        sent = time.perf_counter()
        for _ in range(batch.shifts):
            self._observer.regime_changed()
            place = {"topic": self._settings.topic, "partition": partition.number, "offset": items[-1].offset}
            log.warning(kv("regime", **place, reason="unlike the history"))
        done = [(item, result) for item, result in zip(now, batch.results[n_warm:], strict=True) if result is not None]
        self._observer.scored(
            Observation(
                self._settings.topic,
                partition.number,
                results=[result for _, result in done],
                outliers=[Outlier(item.fields, result, item.key) for item, result in done if result["outlier"]],
                context_rows=partition.detector.context_rows,
                generation=partition.detector.generation,
                opened=0 if n_warm else batch.opened,
                closed=[end.summary["incident"] for end in batch.closed],
                score_s=scored - began,
                produce_s=sent - scored,
            )
        )

    def follow_silence(self, partition: Running, ends: InputEnd, is_read: bool) -> None:
        """Pass an answer about the ends of the input on; see `Silence.poll`."""
        fields = self._last_fields.get(partition.number)
        # A notice is written with the schema of a record, so it needs one.
        can_notify = fields is not None or self._settings.output_format == "json"
        notices = partition.silence.poll(ends.asked_ms, is_read, ends.total, ends.partitions, can_notify)
        self._outputs.tell(partition.number, notices, fields or {})
        self._log_silence(partition, notices)

    def _log_silence(self, partition: Partition, notices: Sequence[Notice]) -> None:
        for notice in notices:
            level, status = notice.summary["of"], notice.summary["status"]
            self._observer.silence(partition.number, notice)
            place = {"topic": self._settings.topic, "partition": partition.number, "of": level}
            if (suppressed := self._throttle.allow(f"{level} {status}")) is not None:
                about = {name: notice.summary[name] for name in ("incident", "quiet_s") if name in notice.summary}
                log.warning(kv("silence", **place, status=status, **about, suppressed=suppressed))

    def _log_warm_up(self, partition: Partition) -> None:
        place, warm = {"topic": self._settings.topic, "partition": partition.number}, partition.warm
        if (position := partition.position or 0) >= warm.stop:
            log.info(kv("warmed_up", **place, offsets=len(warm)))
        elif self._throttle_warm_up.allow(str(partition.number)) is not None:
            done = (position - warm.start) / len(warm)
            log.info(kv("warming_up", **place, offset=position, until=warm.stop, done=f"{100 * done:.0f} %"))

    def _apply_labels(self, partition: Running) -> None:
        place = self._settings.feedback or "", partition.number
        while offsets := partition.due_labels():
            max_labels = self.guard.max_together(place, min(offsets))
            try:
                due = partition.apply_labels(max_labels)
            except Exception as error:
                self._give_up(partition, place, sorted(offsets[:max_labels]), error)
            else:
                self._log_labels(partition, due)

    def _log_labels(self, partition: Partition, due: DueLabels) -> None:
        counts = {
            "labels": len(due.labels) + due.too_late,
            "mutes": len(due.mutes),
            "windows": len(due.windows) + len(due.cancelled),
        }
        effects = {"new_verdicts": due.new_verdicts, "too_late": due.too_late, "takes_effect": due.takes_effect}
        line = kv("feedback", topic=self._settings.feedback, partition=partition.number, **counts, **effects)
        is_throttled = self._throttle.allow(str(partition.number)) is None
        log.log(logging.DEBUG if is_throttled else logging.INFO, line)
        if due.labels:
            self._observer.labelled(partition.number, due)


@contextmanager
def _errors_as_damage() -> Iterator[None]:
    """Turn unexpected errors into DamagedStateError."""
    try:
        yield
    except FomoError:
        raise
    except Exception as error:
        raise DamagedStateError(str(unexpected_error("the state", error))) from error


def _bad_label(error: RecordError) -> RecordError:
    return RecordError(BAD_FEEDBACK, str(error))


def _after_warm_up(partition: Partition, items: list[Pending]) -> list[Pending]:
    """Return the items, in order, that come after the warm-up of their partition."""
    if not items or items[0].offset >= partition.warm.stop:
        return items
    return [item for item in items if item.offset >= partition.warm.stop]
