"""A container without a container engine.

A process with the command and the environment of the image, in the root folder, as the image's user, without
privileges. It can write no byte to any file, and change nothing in the folders of the program and the kernels.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from dockerfile import Dockerfile
from documents import ROOT

DOCKERFILE = Dockerfile(ROOT / "deploy" / "Dockerfile")
IMAGE = DOCKERFILE.image("cpu")
VENV = "/opt/fomo"  # in the image
IDENTITY = "import os, sys, fomo_stream, torch; print(os.getuid(), sys.base_prefix, fomo_stream.__file__)"


def environment(kernels: Path, **changes: str) -> dict[str, str]:
    """The image's environment, with the paths of this installation, and changes as by `docker run -e`."""
    found = {name: value.replace(f"{VENV}/kernels", str(kernels)) for name, value in IMAGE.environment.items()}
    found = {name: value.replace(VENV, sys.prefix) for name, value in found.items()}
    return {**found, "HOME": "/nonexistent", "PYTHONPATH": str(ROOT), **changes}


@cache
def confined() -> tuple[str, ...]:
    """What to put before a command, so that it runs as the image's user and cannot write.

    Tests that another user than root runs are unprivileged already, and keep their user. Where only root may read this
    installation, the process gets the privilege to read all files. Skips the test where that is not possible either.
    """
    no_writes = ("sh", "-c", 'ulimit -f 0 && exec "$@"', "sh")
    if os.getuid() != 0:
        return no_writes
    user, group = IMAGE.user.split(":")
    drop = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs"]
    for allowed in ("-all", "-all,+dac_read_search"):
        prefix = (*drop, *(f"--{name}={allowed}" for name in ("bounding-set", "inh-caps", "ambient-caps")), *no_writes)
        try:
            answer = run([sys.executable, "-c", IDENTITY], {"PYTHONPATH": str(ROOT)}, prefix)
        except OSError:
            continue
        expected = f"{user} {sys.base_prefix} {ROOT / 'fomo_stream' / '__init__.py'}\n"
        if answer.returncode == 0 and answer.stdout == expected:
            return prefix
    pytest.skip("no other user may read this installation, and root may not allow it here")


def run(
    command: list[str], environment: dict[str, str], prefix: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end as a container would, and return its output."""
    return subprocess.run(
        [*(prefix or confined()), *command], env=environment, cwd="/", capture_output=True, text=True, timeout=120
    )


class Container:
    """The image's entry point, running. `log`: what it has written so far."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self._lines: list[str] = []
        self.process = subprocess.Popen(
            [*confined(), *IMAGE.entrypoint, *arguments],
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self._lines.extend(self.process.stdout)

    @property
    def log(self) -> str:
        return "".join(self._lines)

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *_: Any) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def read_only_folder() -> Iterator[Path]:
    """An empty folder that every user can enter. After `close_to_writers` nobody but root can change it."""
    folder = Path(tempfile.mkdtemp(prefix="fomo-image-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        for path in (folder, *folder.rglob("*")):
            if path.is_dir():
                path.chmod(0o755)
        shutil.rmtree(folder)


def close_to_writers(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)


def copy_kernels(folder: Path, package: Path) -> None:
    """Put the compiled kernels of this process into `folder` (NUMBA_CACHE_DIR), for the copy `package` of the sources.

    Compiling takes 20 s of processor time, so they are compiled once, by `load_ready` here or before.
    """
    from fomo_stream.loading import load_ready
    from fomo_stream.model.kernels.cache import FOLDERS, SOURCES
    from fomo_stream.model.kernels.network import score_rows

    load_ready(kernel="numba")
    of_package = FOLDERS[0].get_suitable_cache_subpath(str(package / "model" / "kernels" / "network.py"))
    (folder / of_package).mkdir(parents=True)
    for path in Path(score_rows.stats.cache_path).glob(f"*-{SOURCES}.*.nb[ci]"):
        shutil.copyfile(path, folder / of_package / path.name)


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Every path below a folder, with size and time of change."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
    }
