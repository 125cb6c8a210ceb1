"""The documentation as a site: it builds without a warning, and its pages load nothing from another host."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from browser import Browser
from documents import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a warning, mkdocs fails."""
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return site


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_every_page_loads_from_its_own_host_alone(site: Path, address: str, browser: Browser) -> None:
    """Scripts as well: the theme has the addresses of scripts that it would load where a page needs them."""
    paths = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    assert len(paths) > 20
    for path in paths:
        page = browser.open(f"{address}/{path}")
        page.until("document.readyState === 'complete' && !document.querySelector('pre.mermaid')")
        assert [url for url in page.requests if not url.startswith((address, "blob:"))] == [], path
        assert page.problems == [], path
        page.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_diagrams_are_drawn_in_the_colours_that_the_reader_prefers(address: str, browser: Browser, theme: str) -> None:
    page = browser.open(f"{address}/docs/how-it-decides.html", theme=theme)
    page.until("document.querySelector('div.mermaid')?.offsetHeight > 100")
    page.run("localStorage.clear()")
    scheme = page.run("document.body.getAttribute('data-md-color-scheme')")
    assert scheme == {"light": "default", "dark": "slate"}[theme]
    page.close()
