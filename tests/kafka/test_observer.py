"""Several observers of one service."""

from __future__ import annotations

import inspect

from fomo_stream.kafka.observer import Observer, Observers

METHODS = [name for name, _ in inspect.getmembers(Observer, inspect.isfunction) if not name.startswith("_")]


class Recorder(Observer):
    """Records every call, with its arguments, in a list that several may share."""

    def __init__(self, name: str, calls: list[tuple[str, str, tuple[object, ...]]]) -> None:
        for method in METHODS:
            setattr(self, method, lambda *given, method=method: calls.append((name, method, given)))


def test_every_report_reaches_all_observers_in_order() -> None:
    calls: list[tuple[str, str, tuple[object, ...]]] = []
    both = Observers([Recorder("first", calls), Recorder("second", calls)])
    expected = []
    for method in METHODS:
        given = tuple(object() for _ in list(inspect.signature(getattr(Observer, method)).parameters)[1:])
        getattr(both, method)(*given)
        expected += [("first", method, given), ("second", method, given)]
    assert calls == expected
    assert len(METHODS) == 11
