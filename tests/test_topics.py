"""What the broker says about topics: which were created anew, and must be read from their beginning."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fomo_stream.checkpoint import shared_model
from fomo_stream.service import Service
from fomo_stream.settings import ServiceSettings
from fomo_stream.topics import TopicsSeen

HERE, ANOTHER, NO_IDS, GONE = "A", "B", "", None  # the id of a topic that the broker has


def seen(topic: str, topic_id: str | None) -> TopicsSeen:
    return TopicsSeen({} if topic_id is None else {topic: 1}, {topic: topic_id} if topic_id else {})


@pytest.mark.parametrize(
    ("answers", "restarts"),
    [
        ([HERE, HERE], 0),
        ([HERE, GONE, HERE], 0),  # out of sight for a moment
        ([HERE, GONE, GONE, ANOTHER], 1),
        ([HERE, ANOTHER], 1),  # too quick to be seen missing
        ([HERE, GONE], 0),
        ([NO_IDS, GONE, NO_IDS], 1),
        ([NO_IDS, NO_IDS], 0),
    ],
)
@pytest.mark.parametrize("topic", ["t", "f"])
def test_only_a_topic_that_was_created_anew_takes_partitions_back_to_what_is_restored(
    topic: str, answers: list[str | None], restarts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(ServiceSettings(topic="t" if topic == "t" else "other", feedback="f"), shared_model())
    aborts = 0
    service._topics.seen, *later = (seen(topic, answer) for answer in answers)
    for answer in later:
        monkeypatch.setattr(service, "_watch", SimpleNamespace(seen=answer), raising=False)
        service._look_at_topics()
        aborts += service._must_abort
        service._must_abort = False
    assert aborts == restarts
