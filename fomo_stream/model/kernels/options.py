"""How the kernels are compiled."""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numba
from llvmlite import binding

from fomo_stream.model.kernels.cache import KernelCache

PORTABLE = "x86-64-v3"  # x86 processors with AVX2 and FMA: from 2013 (Intel) and 2015 (AMD) on


def _compile_for_all() -> None:
    """Compile for `PORTABLE` in place of this very processor, unless NUMBA_CPU_NAME asks for another one.

    So the compiled code can be cached in an image and used on other hosts, and scores do not depend on the processor.
    It holds for all that numba compiles in this process after the first kernel.
    """
    if platform.machine() != "x86_64" or numba.config.CPU_NAME or numba.config.CPU_FEATURES:
        return
    has = binding.get_host_cpu_features()
    if all(has.get(feature) for feature in ("avx2", "fma", "bmi2")):
        numba.config.CPU_NAME, numba.config.CPU_FEATURES = PORTABLE, ""


_compile_for_all()


# Rows are complete and finite in the kernels (missing values are replaced first), so NaN need not be kept.
FAST = {"reassoc", "contract", "nnan", "nsz"}


def kernel(function: Callable[..., Any], exact: bool = False, inline: bool = False) -> Any:
    """Compile a function when it is first called, and keep the code in numba's cache (see NUMBA_CACHE_DIR).

    exact: sums and products run as they are written, and NaN is allowed; inline: into its callers.
    Where no folder can be written and none holds the code, each process compiles for itself.
    """
    # "fastmath" is named even where it is off, because a function that does not name it takes its caller's.
    options = {"nogil": True, "error_model": "numpy", "fastmath": False if exact else FAST}
    options["inline"] = "always" if inline else "never"
    compiled = numba.njit(**options)(function)
    with suppress(RuntimeError):  # there is no folder
        compiled._cache = KernelCache(function)  # as enable_caching() does with numba's own
    return compiled


exact_kernel = partial(kernel, exact=True)
inline_kernel = partial(kernel, inline=True)
