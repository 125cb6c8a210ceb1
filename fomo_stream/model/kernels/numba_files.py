"""The files in which numba keeps the compiled code of kernels: the one place that knows how numba does that.

Written for numba 0.61 to 0.68. These classes are private there. What is public, `cache=True` with NUMBA_CACHE_DIR, does
not do: it depends on the times of source files, which a package that is installed again changes; it does not see that a
kernel in another file has changed; it cannot read a folder that is read-only; and it writes into a folder that other
processes already read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from numba.core.caching import CompileResultCacheImpl, FunctionCache


class _Files(CompileResultCacheImpl):
    """numba's files, in a folder whose name says all about their version."""

    def __init__(self, function: Callable[..., Any], folder: Path | None) -> None:
        self._locator, self._folder = self, folder
        self._filename_base = f"{function.__module__}.{function.__qualname__}"

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return ""

    def ensure_cache_path(self) -> None:
        pass


class _Kept(FunctionCache):
    """The compiled code of one kernel."""

    def __init__(
        self, function: Callable[..., Any], folder: Path | None, fills: bool, prepare: Callable[[], str]
    ) -> None:
        self._impl_class, self._fills, self._prepare = partial(_Files, folder=folder), fills, prepare
        super().__init__(function)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        is_there = self._fills or not self._prepare()
        return super().load_overload(sig, target_context) if is_there else None

    def save_overload(self, sig: Any, data: Any) -> None:
        if self._fills:
            super().save_overload(sig, data)


def pointer_to(compiled: Any, signature: Any) -> int:
    """Return the address of a compiled function, which C can call."""
    result = compiled.get_compile_result(signature)
    address: int = result.library.get_pointer_to_function(result.fndesc.llvm_cfunc_wrapper_name)
    return address


def keep(
    compiled: Any, function: Callable[..., Any], folder: Path | None, fills: bool, prepare: Callable[[], str]
) -> None:
    """Let a function that numba compiled have its code in a folder, as `enable_caching()` has it elsewhere.

    fills: it is written there; else it is read, if `prepare()`, which is called before, returns no reason against it.
    """
    compiled._cache = _Kept(function, folder, fills, prepare)
