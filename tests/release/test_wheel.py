"""The sdist and the wheel: what is in them, and that they work without the repository, with what they declare alone."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from documents import ROOT
from packaging.requirements import Requirement

BIN = Path(sys.executable).parent
LARGEST = 5_000_000  # bytes of the wheel
NOT_IN_WHEEL = {"fomo_stream/weights/paper-100.safetensors"}


def make(target: str, folder: Path) -> None:
    """Run a target of the Makefile with the tools of this environment, which is taken as up to date."""
    command = ["make", "-C", str(ROOT), target, "-o", ".venv/.installed-dev", f"BIN={BIN}", f"DIST={folder}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    make("dist", folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


# --- files


def package() -> set[str]:
    files = (path for path in (ROOT / "fomo_stream").rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts} - NOT_IN_WHEEL


@pytest.mark.slow
def test_the_wheel_has_the_whole_package_and_nothing_else(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
    metadata = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    assert names - metadata == package()
    assert {"fomo_stream/py.typed", "fomo_stream/ops/page/page.html", "fomo_stream/weights/fomo.md"} <= names
    assert wheel.stat().st_size < LARGEST


@pytest.mark.slow
def test_the_sdist_has_what_the_wheel_is_built_from(dist: Path, wheel: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names == package() | {"PKG-INFO", "pyproject.toml", "README.md", "LICENSE", ".gitignore"}
    # the wheel is built from it, without git: it has the version of its metadata
    assert wheel.name.startswith(path.name.removesuffix(".tar.gz") + "-py3")


@pytest.mark.parametrize(
    ("git", "version"),
    [
        ([], "0.0"),
        (["init -q", "add .", "commit -qm first", "tag v0.1.0"], "0.1.0"),
        (["init -q", "add .", "commit -qm first", "tag v0.1.0", "commit -qm more --allow-empty"], "0.1.1.dev1+"),
    ],
)
def test_the_version_is_that_of_the_last_tag(git: list[str], version: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    author = {f"GIT_{who}_{what}": "test" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    for arguments in git:
        subprocess.run(["git", *arguments.split()], cwd=tmp_path, env={**os.environ, **author}, check=True)
    done = subprocess.run([BIN / "hatchling", "version"], cwd=tmp_path, capture_output=True, text=True, check=True)
    found = done.stdout.strip()
    assert found.startswith(version) if version.endswith("+") else found == version


@pytest.mark.slow
def test_the_bill_of_materials_lists_what_is_installed(tmp_path: Path) -> None:
    make("sbom", tmp_path)
    bill = json.loads((tmp_path / "sbom.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    found = {part["name"]: part["version"] for part in bill["components"]}
    for name in ("fomo-stream", "numba", "confluent-kafka", "torch"):
        assert found[name] == distribution(name).version


# --- installed


def required(name: str) -> list[Distribution]:
    """The distributions that a package requires, and those that these require, as installed beside the tests."""
    seen: set[tuple[str, str]] = set()
    found: dict[str, Distribution] = {}
    wanted = [(name, "")]
    while wanted:
        name, extra = one = wanted.pop()
        if one in seen:
            continue
        seen.add(one)
        found[name] = distribution(name)
        for requirement in map(Requirement, found[name].requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                wanted += [(requirement.name, extra) for extra in ("", *requirement.extras)]
    return list(found.values())


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel and what it requires; folder: empty at first, commands run there."""

    bin: Path
    folder: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        # Kernels of the same sources are there; tests/test_loading.py has them compiled anew.
        kernels = {"NUMBA_CACHE_DIR": str(ROOT / "fomo_stream" / "model" / "kernels" / "__pycache__")}
        own = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.folder), "OMP_NUM_THREADS": "1"}
        environment = {**own, **kernels}
        program: list[str | Path] = [self.bin / command[0], *command[1:]]
        return subprocess.run(program, cwd=self.folder, env=environment, capture_output=True, text=True)

    def succeed(self, *command: str) -> str:
        done = self.run(*command)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """Without an index: the distributions that the wheel declares, no others, are links to those beside the tests."""
    place = tmp_path_factory.mktemp("installed")
    venv.create(place / "env", symlinks=True)
    python = place / "env" / "bin" / "python"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    subprocess.run([*pip, "--no-index", "--no-deps", wheel], check=True)
    (site,) = place.glob("env/lib/python*/site-packages")
    for one in required("fomo-stream"):
        if one.name != "fomo-stream":
            for name in {path.parts[0] for path in one.files or () if path.parts[0] != ".."}:
                (site / name).symlink_to(one.locate_file(name))  # type: ignore[arg-type]  # a path
    (place / "folder").mkdir()
    yield Installed(place / "env" / "bin", place / "folder")
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def rows(installed: Installed) -> np.ndarray:
    """Rows of `rows.csv`, the last of which is odd."""
    rows = np.random.default_rng(0).normal(size=(400, 3))
    rows[-1] = 9.0
    np.savetxt(installed.folder / "rows.csv", rows, delimiter=",", header="flow,pressure,rpm", comments="")
    return rows


@pytest.mark.slow
def test_the_installed_program_is_the_wheel_and_its_commands_work(
    installed: Installed, wheel: Path, rows: np.ndarray
) -> None:
    where = installed.succeed("python", "-c", "import fomo_stream; print(fomo_stream.__file__)")
    assert where.startswith(str(installed.bin.parent))
    assert installed.succeed("fomo-stream", "--version").split() == ["fomo-stream", wheel.name.split("-")[1]]
    installed.succeed("fomo-stream", "score", "rows.csv", "-o", "scored.csv", "--min-context", "100")
    with (installed.folder / "scored.csv").open() as file:
        scored = list(csv.DictReader(file))
    assert len(scored) == len(rows)
    assert scored[-1]["fomo_outlier"] == "true"
    shown = installed.succeed("fomo-stream", "demo", "--seconds", "4", "--report", "demo.html")
    assert f"report: {installed.folder / 'demo.html'}" in shown
    installed.succeed("fomo-stream", "replay", "--file", "rows.csv", "--min-context", "100", "--report", "replay.html")
    for report in ("demo.html", "replay.html"):
        assert "</html>" in (installed.folder / report).read_text()


RIVER = """
import csv
from river import compose, preprocessing
from fomo_stream import FoMoDetector
pipeline = compose.Pipeline(preprocessing.StandardScaler(), FoMoDetector(min_context=100))
for row in csv.DictReader(open("rows.csv")):
    x = {name: float(value) for name, value in row.items()}
    score = pipeline.score_one(x)
    pipeline.learn_one(x)
print(score > 0.99)
"""
SCIKIT_LEARN = """
import numpy as np
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from fomo_stream import ZeroShotDetector
rows = np.loadtxt("rows.csv", delimiter=",", skiprows=1)
detector = make_pipeline(StandardScaler(), ZeroShotDetector()).fit(rows[:-1])
print(detector.predict(rows[-1:])[0] == -1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("code", [RIVER, SCIKIT_LEARN], ids=["river", "scikit-learn"])
def test_installed_adapters(code: str, installed: Installed, rows: np.ndarray) -> None:
    assert installed.succeed("python", "-c", code) == "True\n"


WITHOUT_EXTRAS = """
import sys
import fomo_stream
from fomo_stream.cli.main import main
sys.stderr = sys.stdout
for line in sys.argv[1:]:
    if line.startswith("."):
        try:
            eval("fomo_stream.replay('rows.csv', min_context=100)" + line)
        except Exception as error:
            print(error)
    else:
        print("code", main(line.split()))
    print("===")
"""
EXTRAS = {
    "notify --alerts a --to json://127.0.0.1": "notify",
    "replay --file rows.parquet": "parquet",
    "score rows.avro": "registry",
    "--topic t --registry http://127.0.0.1:1": "registry",
    "--topic t --schema-file rows.avsc": "registry",
    "--topic t --otlp": "otel",
    "doctor --topic t --registry http://127.0.0.1:1": "registry",
    **dict.fromkeys((".metrics", ".plot()", ".incidents()"), "notebook"),
}


@pytest.mark.slow
def test_what_an_extra_has_is_asked_for_by_its_name(installed: Installed, rows: np.ndarray) -> None:
    """By commands, and by what `replay` of the library returns."""
    for name in ("rows.avro", "rows.avsc", "rows.parquet"):
        (installed.folder / name).touch()
    shown = installed.succeed("python", "-c", WITHOUT_EXTRAS, *EXTRAS).split("===\n")
    for (use, extra), text in zip(EXTRAS.items(), shown[:-1], strict=True):
        said = " ".join(text.split())  # doctor writes its findings below each other
        assert "which is not installed" in said, use
        assert f"pip install 'fomo-stream[{extra}]'" in said, use
        assert "Traceback" not in said, use
        assert use.startswith(".") or said.endswith("code 7" if use.startswith("doctor") else "code 2"), said


@pytest.mark.slow
def test_weights_that_are_not_in_the_wheel_say_where_they_are(installed: Installed, rows: np.ndarray) -> None:
    done = installed.run("fomo-stream", "score", "rows.csv", "--model", "paper-100")
    assert "no model named 'paper-100'; shipped: fomo, streams" in done.stderr
    assert "fomo_stream/weights/paper-100.safetensors in a clone of the repository" in done.stderr
