"""Files of arrays (.npz). For pretraining, too: it needs no package but NumPy."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from fomo_stream.errors import ConfigError, FomoError

MOST_ARRAY_BYTES = 4 << 30  # of all arrays of an .npz file, unpacked


@contextmanager
def open_arrays(path: Path) -> Iterator[Any]:
    """The arrays of an .npz file, read when they are asked for, as `np.load` gives them. Raises ConfigError."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            if sum(member.file_size for member in archive.zip.infolist()) > MOST_ARRAY_BYTES:
                raise ValueError(f"its arrays have more than {MOST_ARRAY_BYTES >> 30} GiB")
            yield archive
    except FomoError:
        raise
    except (OSError, ValueError, BadZipFile, EOFError, zlib.error, MemoryError, RuntimeError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read as npz: {getattr(error, 'strerror', None) or error}") from None
