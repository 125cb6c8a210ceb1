"""Files of arrays (.npz). Pretraining reads them, too, so this needs no package but NumPy."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from fomo_stream.errors import ConfigError, FomoError
from fomo_stream.wording import clean

MAX_ARRAY_BYTES = 4 << 30  # of all arrays of an .npz file, unpacked


@contextmanager
def open_arrays(path: Path) -> Iterator[Any]:
    """Open an .npz file as `np.load` does: each array is read when it is asked for. Raises ConfigError."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            if sum(member.file_size for member in archive.zip.infolist()) > MAX_ARRAY_BYTES:
                raise ValueError(f"its arrays have more than {MAX_ARRAY_BYTES >> 30} GiB")
            if other := next((name for name in archive.zip.namelist() if not name.endswith(".npy")), None):
                raise ValueError(f"it holds {clean(other)[:60]}; save a spreadsheet as CSV, or unpack an archive")
            yield archive
    except FomoError:
        raise
    except (OSError, ValueError, BadZipFile, EOFError, zlib.error, MemoryError, RuntimeError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read as npz: {getattr(error, 'strerror', None) or error}") from None
