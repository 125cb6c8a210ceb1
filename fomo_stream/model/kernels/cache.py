"""Where compiled kernels are kept: numba's own cache, which may also be read-only or damaged.

numba uses a folder only where it can write, and stops with an error where a file of the cache is damaged. Here a folder
that holds kernels of this version is used even where it cannot be written, as in a container with a read-only root
file system. A file that cannot be read counts as missing: the kernel is compiled.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from numba.core.caching import CompileResultCacheImpl, FunctionCache

from fomo_stream.model.kernels import compiling


def _digest_of_sources() -> str:
    """A digest of all modules of this package: the compiled code of one holds functions and constants of others."""
    paths = sorted(Path(__file__).parent.glob("*.py"))
    return sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:12]


SOURCES = _digest_of_sources()


class _Folder:
    """How numba looks for a folder (`_CacheLocator`), with the digest of the sources as the version of its files.

    numba compares a function in the cache with the function's own file alone (its time in older versions, else its
    content), and would use old code after a change in another file. The digest is a part of the name of each file.
    Files of old versions stay there.
    """

    get_cache_path: Any  # of numba's class

    def ensure_cache_path(self) -> None:
        """Raise OSError if the folder can neither be written nor holds kernels."""
        try:
            super().ensure_cache_path()  # type: ignore[misc]
        except OSError:
            if not any(Path(self.get_cache_path()).glob(f"*-{SOURCES}.*.nbi")):
                raise

    def can_be_written(self) -> bool:
        try:
            super().ensure_cache_path()  # type: ignore[misc]
        except OSError:
            return False
        return True

    def get_source_stamp(self) -> str:
        return SOURCES

    def get_disambiguator(self) -> str:
        return f"{super().get_disambiguator()}-{SOURCES}"  # type: ignore[misc]


FOLDERS: tuple[Any, ...] = tuple(
    type(kind.__name__, (_Folder, kind), {}) for kind in CompileResultCacheImpl._locator_classes
)


class _Files(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = FOLDERS


class KernelCache(FunctionCache):  # type: ignore[misc]
    """The cache of one function. RuntimeError if there is no folder for it."""

    _impl_class = _Files

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled code for a signature; None if this process has to compile it.

        That is: it is missing, damaged, or may not be read, and another process cannot change that.
        """
        found = self._read(sig, target_context)
        if found is not None or not self._can_be_filled():
            return found
        with compiling.one_at_a_time(Path(self.cache_path)):
            if self._read(sig, target_context) is None:
                compiling.compile_in_other_process()
            return self._read(sig, target_context)

    def _can_be_filled(self) -> bool:
        is_kernel = self._py_func.__module__.startswith(f"{__package__}.")
        return is_kernel and compiling.may_be_started() and self._impl.locator.can_be_written()

    def _read(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # pickle raises errors of any kind on damaged files
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep compiled code where the folder can be written."""
        try:
            super().save_overload(sig, data)
        except OSError:
            pass
        except Exception:  # the index is damaged: begin a new one
            with suppress(OSError):
                self.flush()
                super().save_overload(sig, data)
