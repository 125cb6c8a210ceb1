"""The flow of a replay, from settings to a report."""

from __future__ import annotations

from fomo_stream.settings.replay import ReplaySettings


def run_replay(settings: ReplaySettings) -> int:
    """Replay, write the report, and print a summary; returns the exit code."""
    raise NotImplementedError
