"""Start an instance: check everything that can be checked before it joins its group."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from fomo_stream.kafka.background import BackgroundExecutor
from fomo_stream.kafka.broker.clients import depart, make_consumer, make_producer
from fomo_stream.kafka.broker.cluster import TopicLimits
from fomo_stream.kafka.delivery.at_least_once import AtLeastOnce
from fomo_stream.kafka.delivery.base import Delivery
from fomo_stream.kafka.delivery.exactly_once import ExactlyOnce
from fomo_stream.kafka.delivery.transactions import START_S, BlockingCall
from fomo_stream.kafka.group.agreed_schema import GroupSchema
from fomo_stream.kafka.group.agreement import Agreement
from fomo_stream.kafka.group.group_log import GroupLog
from fomo_stream.kafka.member import ConsumerErrors, GroupMember, SchemaSearch
from fomo_stream.kafka.observer import Observer
from fomo_stream.kafka.pipeline import Pipeline
from fomo_stream.kafka.references import References
from fomo_stream.kafka.registry import codec_for
from fomo_stream.kafka.restore import Restorer
from fomo_stream.kafka.settings_file import SettingsFile
from fomo_stream.kafka.topics.setup import TopicSetup, start_at_latest
from fomo_stream.kafka.topics.watch import TopicReport, TopicWatch
from fomo_stream.kafka.warm_start import agree_on_warm_start
from fomo_stream.loading import check_schema
from fomo_stream.logs import kv
from fomo_stream.model.architecture import Model
from fomo_stream.records.inference import named_schema
from fomo_stream.settings.service_settings import ServiceSettings

log = logging.getLogger(__name__)

CLOSE_S = 5.0  # to leave the group
LATE = "its partitions go to others when its session times out"


def start(
    settings: ServiceSettings, model: Model, observer: Observer, references: References, stack: ExitStack
) -> GroupMember:
    """Make a member that is ready to run. stack: closes, at the end, everything opened here, and the references.

    1. Check the schema registry, topics, permissions and named features. Create the state topic if it is missing; with
       --reset-state, delete it first.
    2. Agree with the group on the settings, the schema and a warm start; an instance with other settings is refused.
    3. Create the topics that are missing, and start watching all of them.
    4. Open the delivery. With exactly-once this fences off another instance of the same --instance-id. So nearly all
       checks come before it; only `Agreement.check` comes later, before the first partition is restored.
    5. Make everything else, the consumer last. The member subscribes when it runs.

    Raises FomoError.
    """
    settings_file, watch = SettingsFile(settings), TopicWatch(settings)
    stack.callback(watch.stop)
    stack.callback(references.stop)
    if (schemas := codec_for(settings, of_service=False)[1]) is not None:
        schemas.check()
    setup = TopicSetup(settings, watch)
    setup.begin(partial(GroupLog(settings).entries, b""))
    if settings.features is not None:
        check_schema(settings, model, named_schema(settings), references.check)
    group_log = GroupLog(settings)
    agreement = Agreement(settings, model.name, model.kernel, group_log)
    settings = agreement.join()
    group_schema = GroupSchema(settings, group_log)
    schema = group_schema.stored() if settings.features is None else group_schema.agree_on_flags(settings.features)
    if schema is not None:
        check_schema(settings, model, schema, references.check)
    setup.finish(is_known=not agreement.is_new)
    warm = agree_on_warm_start(settings, group_log, watch.answer, round(1000 * time.time()))
    topics = TopicReport(settings)
    topics.begin(watch.answer)
    watch.start()
    delivery = _open_delivery(settings, watch.limits)
    stack.callback(delivery.close)
    executor = BackgroundExecutor("fomo-generation", observer.built)
    stack.callback(executor.shutdown, wait=False, cancel_futures=True)
    pipeline = Pipeline(settings, model, delivery, executor, lambda: topics.answer.partitions, observer, references)
    if pipeline.schemas is not None:
        stack.callback(pipeline.schemas.stop)
    watch.numbers = lambda: pipeline.partitions
    if schema is not None:
        pipeline.begin(schema)
    restorer = Restorer(settings, watch, lambda own: pipeline.partitions.get(own.number) is own, agreement.check, warm)
    stack.callback(restorer.stop)
    errors = ConsumerErrors()
    answers = {"on_commit": delivery.offsets_committed} if isinstance(delivery, AtLeastOnce) else {}
    consumer = make_consumer(settings, error_cb=errors, **answers)
    stack.callback(_close, consumer, settings)
    if settings.start == "latest" and not warm.spans:
        for topic in filter(None, (settings.topic, settings.feedback)):
            start_at_latest(consumer, topic, topics.answer.partitions[topic])
    return GroupMember(
        settings,
        consumer=consumer,
        errors=errors,
        pipeline=pipeline,
        delivery=delivery,
        restorer=restorer,
        search=SchemaSearch(group_schema, pipeline),
        watch=watch,
        topics=topics,
        settings_file=settings_file,
        observer=observer,
    )


def _open_delivery(settings: ServiceSettings, limits: Mapping[str, TopicLimits]) -> Delivery:
    """Start the delivery. limits: of the topics of outputs, where the broker reports them."""
    codecs = (settings.kafka.get(key, "none") for key in ("compression.type", "compression.codec"))
    compresses = any(codec != "none" for codec in codecs)
    options = {"batch.size": min([1_000_000, *(limit.max_bytes for limit in limits.values())])}
    if settings.delivery == "at-least-once":
        return AtLeastOnce(partial(make_producer, settings, None, **options), limits, compresses=compresses)
    producer = partial(make_producer, settings, settings.transactional_id, **options)
    delivery = ExactlyOnce(producer, limits, compresses=compresses)
    delivery.start(START_S)
    return delivery


def _close(consumer: Any, settings: ServiceSettings) -> None:
    """Leave the group. The client would wait for the brokers without limit, so it closes in a thread of its own."""
    is_assigned_by_broker = settings.kafka.get("group.protocol") == "consumer"
    if is_assigned_by_broker and settings.instance_id is not None:  # librdkafka never gives up its place
        log.warning(kv("group_not_left", reason="group.protocol is consumer", effect=LATE))
    close = consumer.close if is_assigned_by_broker else partial(depart, consumer)
    if not BlockingCall(close).wait(CLOSE_S):
        log.warning(kv("group_not_left", reason="the broker does not answer", effect=LATE))
