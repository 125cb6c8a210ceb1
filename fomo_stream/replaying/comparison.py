"""What changed between two replays, and whether by more than chance."""

from __future__ import annotations

from pathlib import Path


def compare_files(before: Path, after: Path) -> str:
    """The comparison of two JSON reports, as text."""
    raise NotImplementedError
