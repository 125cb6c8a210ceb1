"""The messages that people would have got during a replay: `fomo-stream replay --notify --dry-run`.

Each partition notes its alerts and the ends of its incidents in a file. At the end the files are read together, by the
time of the records.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, TextIO

import orjson

from fomo_stream.notify.events import key_text, read_event
from fomo_stream.notify.messages import Template
from fomo_stream.notify.rehearsal import Rehearsal
from fomo_stream.replaying.blocks import Block
from fomo_stream.replaying.output import written_to
from fomo_stream.settings.notify import MessageFlags


def append_told(path: Path, block: Block, name: str, has_times: bool) -> None:
    """Note what the records of a block say of incidents. name: of the source."""
    notices, last = list(block.notices), (block.offsets.tolist() or [0])[-1]
    with written_to(path.parent), path.open("ab") as file:
        rows = zip(block.offsets.tolist(), block.times.tolist(), block.outputs, block.keys, strict=True)
        for offset, time, result, key in rows:
            at = time if has_times else None
            order = at or offset, block.partition, offset
            while notices and ((notices[0].offset or 0) <= offset or offset == last):
                one = notices.pop(0)
                _append(file, order, {"topic": name, **one.summary}, key_text(one.key))
            if result["outlier"]:
                place = {"topic": name, "partition": block.partition, "offset": offset, "timestamp": at}
                _append(file, order, {**place, **result}, key_text(key))


def print_told(paths: Sequence[Path], settings: MessageFlags, has_times: bool, out: TextIO) -> None:
    """Print the messages about what the files note."""
    rehearsal = Rehearsal(settings, Template(settings.template, settings.status_url), out, has_times)
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("rb")) for path in paths if path.exists()]
        for (_, partition, offset), result, key in heapq.merge(*map(_lines, files), key=lambda one: one[0]):
            rehearsal.take(read_event({"fomo": result}, "fomo", key), partition, offset)
    rehearsal.finish()


def _append(file: IO[bytes], order: tuple[int, int, int], result: dict[str, Any], key: str | None) -> None:
    file.write(orjson.dumps([order, result, key]) + b"\n")


def _lines(file: IO[bytes]) -> Iterator[tuple[tuple[int, int, int], dict[str, Any], str | None]]:
    for line in file:
        order, result, key = orjson.loads(line)
        yield tuple(order), result, key
