"""Values of schema types that JSON does not have, as text without loss."""

from __future__ import annotations

from base64 import b64encode
from datetime import datetime, timedelta

MAX_DECIMAL_BYTES = 400  # bytes: Python refuses to write thousands of digits

_EPOCH = datetime(1970, 1, 1)


def base64_text(value: bytes) -> str:
    return b64encode(value).decode()


def decimal_text(scale: int, value: bytes) -> str:
    """Return a decimal with all its digits, as text: a number of JSON would be read as a float. Too long: its bytes.

    scale: digits behind the point; value: the number without the point, big-endian, in two's complement.
    """
    if len(value) > MAX_DECIMAL_BYTES or not 0 <= scale <= 3 * MAX_DECIMAL_BYTES:
        return base64_text(value)
    number = int.from_bytes(value, "big", signed=True)
    digits = str(abs(number)).rjust(scale + 1, "0")
    text = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
    return f"-{text}" if number < 0 else text


def time_text(places: int, zone: str, ticks: int) -> str | int:
    """Return ticks of 10^-places s since 1970 in ISO 8601, with this zone; after the year 9999, stay a number."""
    seconds, fraction = divmod(ticks, 10**places)
    try:
        text = (_EPOCH + timedelta(seconds=seconds)).isoformat()
    except OverflowError:
        return ticks
    return f"{text}.{fraction:0{places}d}{zone}" if fraction else text + zone
