"""The pictures of the documentation: `make pictures` makes them again in docs/pictures, from the programs as they are.

All but `prior.svg` have the data of the tutorial. Needs chromium, and a Kafka as the tests do.
"""

from __future__ import annotations

import base64
import io
import os
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from brokers import free_ports, open_broker
from browser import Browser, open_browser
from confluent_kafka import Consumer
from documents import ROOT, Document
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from pretrain.evaluation.plots import new_figure, save_figure
from pretrain.priors.draws import Draws
from pretrain.priors.gmm import GmmConfig, chi2_table, mahalanobis, sample_gmm
from pretrain.priors.reuse import draw_transform

if TYPE_CHECKING:
    from collections.abc import Iterator

PICTURES = ROOT / "docs" / "pictures"
# Without the fonts that rich would load from another host.
SVG = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
FEATURES = "flow,pressure,temperature,vibration"


def terminal(width: int = 110, height: int = 30) -> Console:
    """A terminal whose contents become a picture."""
    return Console(width=width, height=height, record=True, force_terminal=True, file=io.StringIO(), highlight=False)


def save(console: Console, name: str, title: str) -> None:
    (PICTURES / f"{name}.svg").write_text(console.export_svg(title=title, code_format=SVG, unique_id=name))


def run(folder: Path, *words: str, **variables: str) -> str:
    """What a command of the project prints."""
    environment = {**os.environ, **variables}
    command = [sys.executable, *(("-m", "fomo_stream.cli", *words[1:]) if words[0] == "fomo-stream" else words)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def session(folder: Path, name: str, *commands: str, **variables: str) -> None:
    """The picture of commands and of the first lines that they print."""
    console = terminal()
    for command in commands:
        console.print(Text.assemble(("$ ", "bold green"), re.sub(r"^(?=\w+\.py)", "python ", command)))
        console.print(Text("\n".join(run(folder, *command.split(), **variables).splitlines()[:18])))
    save(console, name, "fomo-stream")


def page(browser: Browser, url: str, name: str, theme: str, ready: str = "true") -> None:
    """The first screen of a page, once it is complete and `ready`, a JavaScript expression, holds."""
    opened = browser.open(url, theme=theme, width=1280, height=800)
    opened.until(f"document.readyState === 'complete' && {ready}")
    opened.frame()
    taken = opened.ask("Page.captureScreenshot", format="webp", quality=80)
    (PICTURES / f"{name}.webp").write_bytes(base64.b64decode(taken["data"]))
    opened.close()


@contextmanager
def service(folder: Path, bootstrap: str, port: int) -> Iterator[None]:
    """The service at work on the week of the tutorial and one more record; it has scored all of them."""
    words = ["--topic", "pumps", "--alerts", "pumps-alerts", "--bootstrap", bootstrap, "--show-keys"]
    command = [sys.executable, "-m", "fomo_stream.cli", *words, "--health-port", str(port)]
    with (folder / "service.log").open("w") as log, subprocess.Popen(command, cwd=folder, stderr=log) as process:
        try:
            count = sum(1 for _ in (folder / "week.csv").open())
            settings = {"bootstrap.servers": bootstrap, "group.id": "pictures", "auto.offset.reset": "earliest"}
            consumer = Consumer({**settings, "topic.metadata.refresh.interval.ms": 1000})
            consumer.subscribe(["pumps-scores"])
            while count:
                message = consumer.poll(60)
                assert message is not None, (folder / "service.log").read_text()
                count -= message.error() is None
            consumer.close()
            yield
        finally:
            process.terminate()


def prior(seed: int = 634, mixtures: int = 3, rows: int = 60) -> None:
    """Mixtures of the prior in two dimensions, with the limits of inliers and outliers; below, transformed by T."""
    draws = Draws(seed)
    data = sample_gmm(GmmConfig(min_features=2, max_features=2), draws, mixtures, rows, rows)
    t = draw_transform(data.mixtures.inflated, draws)
    figure = new_figure(9, 6.2)
    for panel, axes in enumerate(figure.subplots(2, mixtures).flatten()):
        which, moved = panel % mixtures, panel >= mixtures
        one = torch.tensor([which])
        parts = data.inliers, data.outliers
        parts = (t.rows(parts[0]), t.rows(parts[1])) if moved else parts
        seen = np.concatenate([part[which].numpy() for part in parts])
        low, high = seen.min(0) - 1, seen.max(0) + 1
        grid = np.stack(np.meshgrid(*(np.linspace(a, b, 60) for a, b in zip(low, high, strict=True))), -1)
        places = torch.from_numpy(grid.reshape(-1, 2)).float()
        if moved:  # the limits are those of the places before T
            places = torch.linalg.solve(t.weight[which], (places - t.bias[which]).T).T
        distance = mahalanobis(places[None], data.mixtures[one])[0].reshape(grid.shape[:2])
        features = int(data.mixtures.inflated[which].sum())
        limits = [chi2_table(percentile)[features] for percentile in (85.0, 95.0)]
        axes.contour(*grid.transpose(2, 0, 1), distance, levels=limits, colors=["tab:blue", "tab:red"], linewidths=1)
        for part, colour in zip(parts, ("tab:blue", "tab:red"), strict=True):
            axes.plot(*part[which].T.numpy(), ".", color=colour, markersize=3)
        components = int(data.mixtures.components[which])
        axes.set_title(
            "after T" if moved else f"components: {components}, features of outliers: {features}", fontsize=9
        )
    save_figure(figure, PICTURES / "prior.svg")


def main() -> None:
    """Make all pictures."""
    PICTURES.mkdir(exist_ok=True)
    prior()
    with tempfile.TemporaryDirectory() as name, open_browser(Path(name)) as browser, open_broker(None) as broker:
        folder, port, kafka = Path(name), free_ports(1), {"FOMO_BOOTSTRAP": broker.bootstrap}
        for block in Document.read(ROOT / "docs" / "tutorial.md").blocks:
            if block.language == "python":
                (folder / block.code.split()[1].strip(":")).write_text(block.code)
        run(folder, "pumps.py")
        session(
            folder,
            "score",
            f"fomo-stream score week.csv --key pump --features {FEATURES} -o scored.csv",
            "incidents.py",
        )
        replay = (
            f"replay --file week.csv --time time --key pump --label fault --features {FEATURES} --report report.html"
        )
        run(folder, "fomo-stream", *replay.split())
        for theme in ("light", "dark"):
            page(browser, (folder / "report.html").as_uri(), f"report-{theme}", theme)
        for script in ("send.py", "one.py"):  # the second one begins an incident that stays open
            run(folder, script, **kafka)
        with service(folder, broker.bootstrap, port):
            page(browser, f"http://127.0.0.1:{port}", "status", "light", "document.querySelector('td')")
            session(folder, "notify", "fomo-stream notify --alerts pumps-alerts --dry-run", **kafka)


if __name__ == "__main__":
    main()
