"""Compile the kernels, and keep their code.

Code that was just compiled and the same code read from a file do not round alike: logits differ by up to 1e-7. So a
process that needs kernels which no folder has starts another Python, which compiles all of them into a new folder, and
then loads them, as every later process does. A folder that is there is complete and never changes, so it may also be
read-only. Where that is not possible, the process compiles for itself and keeps nothing. The kernels of attention have
a folder of their own, because most processes never need them.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

try:
    import numba
    from llvmlite import binding
    from numba.misc.appdirs import user_cache_dir

    from fomo_stream.model.kernels.numba_files import keep
except ModuleNotFoundError:  # torch scores, and the kernels of the detector are plain Python: slow, but the same
    numba = None
ARE_COMPILED = numba is not None and not numba.config.DISABLE_JIT

# The target that kernels are compiled for, and the features that a processor needs for it.
PORTABLE = {
    "x86_64": ("x86-64-v3", ("avx2", "fma", "bmi2")),  # from 2013 (Intel) and 2015 (AMD) on
    "aarch64": ("generic", ()),  # all of 64 bits: they have NEON and FMA
    "arm64": ("generic", ()),  # the same, as macOS names it
}
PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from fomo_stream.model.kernels import compiling
compiling.compile_into(sys.argv[2], sys.argv[3])
from fomo_stream.model.checkpoint import load_model
from fomo_stream.detector.step.warm_up import warm_up
warm_up(load_model(sys.argv[3], "cpu", "numba"))
"""
# Shipped models; what each needs is in the folders of all up to its own.
MODELS = DEFAULT, ATTENTION = "default", "fomo"
MODULES_OF_ATTENTION = ("network", "router_attention")
FOLDERS = ("model/kernels", "detector/step")  # of the package, with modules that define kernels
MAX_COMPILE_S = 900.0


def _compile_for_all() -> None:
    """Compile for `PORTABLE`, not for this very processor, unless NUMBA_CPU_NAME asks for another one.

    So the compiled code can be kept in an image and used on other hosts, and scores do not depend on the processor.
    It holds for all that numba compiles in this process after the first kernel.
    """
    if numba is None or platform.machine() not in PORTABLE or numba.config.CPU_NAME or numba.config.CPU_FEATURES:
        return
    name, needed = PORTABLE[platform.machine()]
    has = binding.get_host_cpu_features() if needed else {}
    if all(has.get(feature) for feature in needed):
        numba.config.CPU_NAME, numba.config.CPU_FEATURES = name, ""


_compile_for_all()


def version_of(package: Path) -> str:
    """A digest of what compiled code follows from: the package's kernels, whose code is in one another's, and tools."""
    host = "" if numba.config.CPU_NAME else f"{binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}"
    target = f"{numba.config.CPU_NAME} {numba.config.CPU_FEATURES} {host} {platform.machine()} {sys.platform}"
    tools = f"{numba.__version__} {sys.implementation.cache_tag} {target}"
    sources = [path.read_bytes() for folder in FOLDERS for path in sorted((package / folder).glob("*.py"))]
    return sha256(b"".join([tools.encode(), *sources])).hexdigest()[:12]


def _find_folder(model: str) -> Path | None:
    """The folder that has the kernels of a model, or else the first one that can be made; None: none can.

    It is in that of NUMBA_CACHE_DIR, if it is set; else next to the package, or in the user's cache.
    """
    if numba is None:
        return None
    package = Path(__file__).parents[2]
    beside = [Path(__file__).parent / "__pycache__", Path(user_cache_dir("numba"))]
    places = [Path(numba.config.CACHE_DIR)] if numba.config.CACHE_DIR else beside
    folders = [place / f"fomo-stream-{version_of(package)}-{model}" for place in places]
    made = (folder for folder in folders if folder.is_dir())
    return next(made, None) or next((folder for folder in folders if _can_be_written(folder.parent)), None)


def _can_be_written(place: Path) -> bool:
    with suppress(OSError):
        place.mkdir(parents=True, exist_ok=True)
    return place.is_dir() and os.access(place, os.W_OK)


_folders = {model: _find_folder(model) for model in MODELS}
_filled: list[str] = []  # the models for which this process compiles, for others


def compile_into(folder: str, model: str) -> None:
    """Keep what this process compiles for a model in a folder; to be called before any kernel is defined."""
    _folders[model] = Path(folder)
    _filled.append(model)


def are_missing(model: str) -> bool:
    """Return whether another process has to compile the kernels of one of `MODELS`, and can keep them."""
    needed = [_folders[name] for name in MODELS[: MODELS.index(model) + 1]]
    return any(folder is not None and not folder.is_dir() for folder in needed)


@cache
def prepare(model: str) -> str:
    """Have the kernels of one of `MODELS` compiled if they are missing.

    Returns why this process compiles for itself; "": it does not.
    """
    folder = _folders[model]
    if model in _filled:
        return ""
    if model != DEFAULT and (reason := prepare(DEFAULT)):
        return reason
    if folder is None:
        return "no folder of the cache can be written"
    if folder.is_dir():
        return ""
    # An application that embeds Python, or is packed with it, is another program, which must not be started again.
    if not Path(sys.executable or "").name.lower().startswith("python") or hasattr(sys, "frozen"):
        return "this program is not started by a Python that could compile for it"
    return _compile_in_other_process(model, folder)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process is in this block with the folder, if its file system has locks."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        yield
        return
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _compile_in_other_process(model: str, folder: Path) -> str:
    """Make the folder, complete, unless another process has made it meanwhile. Returns why it is not there."""
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
    command = [sys.executable, "-c", PROGRAM, json.dumps(sys.path), str(unfinished), model]
    with _alone_in(folder.parent):
        if folder.is_dir():
            return ""
        try:
            unfinished.mkdir(exist_ok=True)
            subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=MAX_COMPILE_S
            )
            unfinished.rename(folder)
        except subprocess.CalledProcessError as error:
            last = error.stderr.strip().rpartition("\n")[2] or f"exit status {error.returncode}"
            return f"another process that compiled them failed: {last}"
        except (OSError, subprocess.TimeoutExpired) as error:
            return "" if folder.is_dir() else f"another process that compiled them failed: {error}"
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return ""


# Rows are complete and finite in the kernels (missing values are replaced first), so NaN need not be kept.
FAST = {"reassoc", "contract", "nnan", "nsz"}


def kernel(function: Callable[..., Any], exact: bool = False, inline: bool = False, has_address: bool = False) -> Any:
    """Compile a function when it is first called, or load its code.

    exact: sums and products run as they are written, and NaN is allowed; inline: into its callers; has_address: it is
    called by its address. One whose name begins with "_" can be called by other kernels only.
    """
    if numba is None:
        return function
    # "fastmath" is named even where it is off, because a function that does not name it takes its caller's.
    options = {"nogil": True, "error_model": "numpy", "fastmath": False if exact else FAST}
    options["inline"] = "always" if inline else "never"
    # What other languages and Python call a function by is a tenth of the work of the compiler.
    options["no_cfunc_wrapper"] = not has_address
    options["no_cpython_wrapper"] = has_address or function.__name__.startswith("_")
    compiled = numba.njit(**options)(function)
    model = ATTENTION if function.__module__.rpartition(".")[2] in MODULES_OF_ATTENTION else DEFAULT
    keep(compiled, function, _folders[model], model in _filled, partial(prepare, model))
    return compiled


exact_kernel = partial(kernel, exact=True)
inline_kernel = partial(kernel, inline=True)
addressed_kernel = partial(kernel, has_address=True)
