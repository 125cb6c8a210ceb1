"""Published results per table, and ours beside them as in the paper: ranks, and p by the kind of table.

The files are those beside the code of DTE (Livernoche et al. 2024) and FoMo-0D: `semi_aucroc.xlsx` (tables x methods,
cells `83.8(0.5)`: mean and deviation, in percent), and `avg_METHOD_aucroc.csv`, whose last column is the mean over the
hyperparameters of a method; likewise `aucpr` and `aucf1`. `dim.xlsx` has the width of each table.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from fomo_stream.errors import ConfigError
from pretrain.evaluation.comparison import Scoreboard
from pretrain.evaluation.tables import Float

FILES = {"auroc": "aucroc", "aupr": "aucpr", "f1": "aucf1"}
VISION = ("CIFAR10", "FashionMNIST", "MNIST-C", "MVTec-AD", "SVHN")
LANGUAGE = ("20news", "agnews", "amazon", "imdb", "yelp")
# These lists are not formatted: a name a line would take a page. Tables that choices of this project were made on; so
# on them our figures are not independent.
DEVELOPMENT = (
    "annthyroid", "campaign", "cardio", "Cardiotocography", "donors", "fault", "glass", "Ionosphere", "letter",
    "mammography", "mnist", "musk", "pendigits", "Pima", "skin", "SpamBase", "thyroid", "vowels", "Wilt", "wine",
)  # fmt: skip
SHALLOW = (
    "CBLOF", "COPOD", "ECOD", "FeatureBagging", "HBOS", "IForest", "kNN", "LODA", "LOF", "MCD", "OCSVM", "PCA",
)  # fmt: skip
WIDTHS = (20, 50, 100, 200, 500)  # features; the groups of tables in the paper


@dataclass(frozen=True)
class Published:
    """methods: k names; values: by metric and lower-case name of a table (k,), percent, NaN = not published;
    features: by lower-case name, number of columns, as far as published."""

    methods: list[str]
    values: Mapping[str, Mapping[str, Float]]
    features: Mapping[str, float]

    def names_of(self, datasets: Iterable[str]) -> dict[str, str]:
        """The published table (lower case) of each dataset; only those that there are.

        The number in front of a name does not count (`12_fault`), and `MVTec-AD_bottle` is a part of MVTec-AD.
        """
        found = {}
        for dataset in datasets:
            text = re.sub(r"^\d+_", "", dataset).lower()
            parts = [text[: i.start()] for i in re.finditer("_", text)]
            name = next((name for name in [text, *reversed(parts)] if name in self.values["auroc"]), None)
            if name is not None:
                found[dataset] = name
        return found

    def among(self, board: Scoreboard, metric: str, models: Collection[str]) -> Scoreboard:
        """Some methods of `board` and all published ones, on the tables for which every method has a value."""
        values = self.values[metric]
        tables = sorted(name for name in board.datasets if name in values and not np.isnan(values[name]).any())
        places = [board.datasets.index(name) for name in tables]
        own = board.mean[np.ix_(places, [board.methods.index(model) for model in models])]
        others = np.array([values[name] for name in tables]).reshape(len(tables), len(self.methods))
        mean = np.column_stack([own, others])
        return Scoreboard(tables, [*models, *self.methods], mean, np.zeros_like(mean), board.features[places])


def is_development(table: str) -> bool:
    """Whether choices of this project were made on this table."""
    return table.lower() in {name.lower() for name in DEVELOPMENT}


def subsets(tables: Sequence[str], features: Float) -> dict[str, NDArray[np.bool_]]:
    """The paper's groups of tables, and those in and not in development: (m,) masks. The first is all of them."""
    seen = np.array([is_development(name) for name in tables], dtype=bool)
    pictures = np.isin([name.lower() for name in tables], [name.lower() for name in (*LANGUAGE, *VISION)])
    return {
        "all": np.ones(len(tables), dtype=bool),
        "not in development": ~seen,
        "development": seen,
        "no language, no vision": ~pictures,
        **{f"d ≤ {width}": features <= width for width in WIDTHS},
    }


def read_published(folder: Path) -> Published:
    """Raises ConfigError if a file is missing or is none of these."""
    values: dict[str, dict[str, Float]] = {}
    methods: list[list[str]] = []
    try:
        for metric, kind in FILES.items():
            sheet = _sheet(folder / f"semi_{kind}.xlsx")
            averages = {
                path.name.split("_")[1]: _last_column(path) for path in sorted(folder.glob(f"avg_*_{kind}.csv"))
            }
            letters = [letter for letter in sheet[0] if letter != "A"]
            methods.append([sheet[0][letter] for letter in letters] + [f"{name}-avg" for name in averages])
            values[metric] = {}
            for row in sheet[1:]:
                name = row["A"].lower()
                cells = [row.get(letter, "") for letter in letters] + [each[name] for each in averages.values()]
                values[metric][name] = np.array([_number(cell) for cell in cells])
        widths = _sheet(folder / "dim.xlsx")[1:] if (folder / "dim.xlsx").exists() else []
        features = {row["A"].lower(): float(row["C"]) for row in widths}
    except (OSError, BadZipFile, KeyError, IndexError, ValueError, ElementTree.ParseError) as error:
        raise ConfigError(f"{folder}: published results cannot be read ({type(error).__name__}: {error})") from None
    if methods != methods[:1] * len(methods):
        raise ConfigError(f"{folder}: the files of AUROC, AUPR and F1 have other methods")
    return Published(methods[0], values, features)


def _last_column(path: Path) -> dict[str, str]:
    with path.open(newline="", encoding="utf-8") as file:
        return {row[0].lower(): row[-1] for row in csv.reader(file) if row}


def _number(cell: str) -> float:
    """`83.8(0.5)` -> 83.8; NaN for a cell without a number."""
    found = re.match(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", cell)
    return float(found[0]) if found else float("nan")


def _sheet(path: Path) -> list[dict[str, str]]:
    """The rows of the first sheet of an .xlsx file: texts by the letter of the column."""
    space = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
    with ZipFile(path) as archive:
        shared = ElementTree.fromstring(archive.read("xl/sharedStrings.xml"))
        rows = ElementTree.fromstring(archive.read("xl/worksheets/sheet1.xml"))
    texts = ["".join(part.text or "" for part in text.iter(f"{space}t")) for text in shared]

    def text_of(cell: ElementTree.Element) -> str:
        value = cell.findtext(f"{space}v") or ""
        return texts[int(value)] if cell.get("t") == "s" else value

    return [{cell.get("r", "").rstrip("0123456789"): text_of(cell) for cell in row} for row in rows.iter(f"{space}row")]
