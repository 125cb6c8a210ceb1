"""JSON objects that are not one in each line: one array over the whole file, or each object over several lines."""

from __future__ import annotations

import re
from collections.abc import Callable

from fomo_stream.errors import SchemaError
from fomo_stream.limits import MAX_RECORD_BYTES

# how such a text begins: an array of objects, or a brace that stands alone in its line
OBJECTS = re.compile(rb'\s*(\[\s*\{|\{\s*\n\s*")')
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["{}]', re.DOTALL)
_BETWEEN = b" \t\r\n,[]"  # what may stand between two objects


class OneEachLine:
    """The same text with one object in each line, read as it arrives, in memory bounded by one object.

    Anything else between two objects gets a line of its own, so that only this line cannot be read.
    """

    def __init__(self, read: Callable[[int], bytes], name: str) -> None:
        self._source, self._name = read, name
        self._depth, self._text, self._at = 0, b"", 0  # open braces; text that is not complete, and how far it was seen
        self._objects = 0  # so far

    def read(self, size: int) -> bytes:
        """Return complete lines, or none at the end of the text. Raises SchemaError if that is inside of an object."""
        while chunk := self._source(size):
            if lines := self._lines_in(chunk):
                return lines
        if self._depth:  # all objects after a quote or a brace that is missing are part of this one
            raise SchemaError(
                f"cannot read all of {self._name}: object {self._objects + 1:,} has no end",
                "a quote or a brace is missing, or the file was cut off; write one object per line",
            )
        rest, self._text = _in_one_line(self._text), b""
        return rest

    def _lines_in(self, chunk: bytes) -> bytes:
        text, lines, end = self._text + chunk, [], 0
        seen = len(text)
        for token in _TOKEN.finditer(text, self._at):
            if token[0] == b'"':  # the rest of this text has not arrived
                seen = token.start()
                break
            if token[0] == b"{":
                if self._depth == 0:
                    lines.append(_in_one_line(text[end : token.start()]))
                    end = token.start()
                self._depth += 1
            elif token[0] == b"}" and self._depth:
                self._depth -= 1
                if self._depth == 0:
                    lines.append(_in_one_line(text[end : token.end()]))
                    end, self._objects = token.end(), self._objects + 1
        self._text, self._at = text[end:], seen - end
        if self._at > MAX_RECORD_BYTES:  # a line that is too long is cut by those who take lines
            lines.append(_without_breaks(text[end:seen]))
            self._text, self._at = text[seen:], 0
        if len(self._text) - self._at > MAX_RECORD_BYTES:
            limit = f"a text is longer than {MAX_RECORD_BYTES >> 20} MiB, or its quote is missing"
            raise SchemaError(f"cannot read all of {self._name}: {limit}", "write one object per line")
        return b"".join(lines)


def _in_one_line(text: bytes) -> bytes:
    """Return a part of the text as a line, or nothing if it has only what may stand between objects."""
    text = text.strip(_BETWEEN) if b"{" not in text else text.strip()
    return _without_breaks(text) + b"\n" if text else b""


def _without_breaks(text: bytes) -> bytes:
    return text.replace(b"\r", b" ").replace(b"\n", b" ")
