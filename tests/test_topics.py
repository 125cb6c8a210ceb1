"""What the broker says about topics: which were created anew, and must be read from their beginning."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fomo_stream.checkpoint import load_model
from fomo_stream.service import Service
from fomo_stream.settings import ServiceSettings
from fomo_stream.topics import TopicsSeen

HERE = TopicsSeen({"t": 1}, {"t": "A"})
GONE = TopicsSeen({}, {})
ANOTHER = TopicsSeen({"t": 1}, {"t": "B"})
NO_IDS = TopicsSeen({"t": 1}, {})


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
def test_a_topic_is_read_again_only_if_it_was_created_anew(
    answers: list[TopicsSeen], restarts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(ServiceSettings(topic="t"), load_model())
    restarted = []
    monkeypatch.setattr(service, "_restart_topic", lambda: restarted.append(True))
    service._seen = answers[0]
    for answer in answers[1:]:
        monkeypatch.setattr(service, "_watch", SimpleNamespace(seen=answer), raising=False)
        service._look_at_topics()
    assert len(restarted) == restarts
