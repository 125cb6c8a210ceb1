"""A headless Chromium that tests open pages in, driven over its DevTools pipe."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools import needed

PATIENCE_S = 60.0
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--remote-debugging-pipe",
    "--disable-dev-shm-usage",
)
# Chromium reads commands from descriptor 3 and writes answers to 4; the pipes are moved out of the way first.
START = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """Commands of the DevTools protocol, and its events by page."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._ids = itertools.count(1)
        self._rest = b""
        self.events: list[dict[str, Any]] = []

    def ask(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """The result of a command; raises AssertionError if the browser refuses it."""
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while b"\0" not in self._rest:
            ready = select.select([self._answers], [], [], max(0, deadline - time.monotonic()))[0]
            assert ready, "the browser does not answer"
            found = os.read(self._answers, 1 << 20)
            assert found, "the browser has ended"
            self._rest += found
        text, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(text)
        if "method" in answer:
            self.events.append(answer)
        return answer

    def open(
        self, url: str, *, width: int = 1280, height: int = 900, theme: str = "light", touch: bool = False
    ) -> Page:
        """A page in a tab of its own, in the colours that its user prefers."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, target, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.ask(f"{domain}.enable")
        page.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        page.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        page.ask("Page.navigate", url=url)
        return page


class Page:
    """A page that is open."""

    def __init__(self, browser: Browser, target: str, session: str) -> None:
        self._browser, self._target, self._session = browser, target, session

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command for this page."""
        return self._browser.ask(method, self._session, **parameters)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until a JavaScript expression is true; it is looked at every 5 ms."""
        self.run(
            "new Promise((done, fail) => { const end = Date.now() + 30000; const look = () => {"
            f" let is = false; try {{ is = {condition}; }} catch {{ /* not there yet */ }}"
            " if (is) done(); else if (Date.now() > end) fail(new Error('never')); else setTimeout(look, 5);"
            " }; look(); })"
        )

    def frame(self) -> None:
        """Wait until what has changed is drawn."""
        self.run("new Promise((next) => requestAnimationFrame(() => requestAnimationFrame(next)))")

    def press(self, key: str) -> None:
        """Press and release a key, as a user does."""
        code = {"Enter": 13, "Tab": 9, "Home": 36, "End": 35, "ArrowLeft": 37, "ArrowRight": 39, " ": 32}.get(key, 0)
        common = {"key": key, "windowsVirtualKeyCode": code}
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        self.ask("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **common)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press the mouse at one place of the window, and release it at another."""
        for kind, (x, y) in (
            ("mouseMoved", start),
            ("mousePressed", start),
            ("mouseMoved", end),
            ("mouseReleased", end),
        ):
            held = {} if kind == "mouseMoved" and (x, y) == start else {"button": "left", "clickCount": 1}
            buttons = 1 if kind != "mouseReleased" and held else 0
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, buttons=buttons, **held)

    @property
    def problems(self) -> list[str]:
        """Errors and warnings that the browser has logged for this page, and errors of its scripts."""
        found = []
        for event in self._events():
            data = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(data["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and data["entry"]["level"] in ("error", "warning"):
                found.append(data["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and data["type"] in ("error", "warning", "assert"):
                found.append(json.dumps(data["args"]))
        return found

    @property
    def requests(self) -> list[str]:
        """The addresses that the page has asked for, other than data in the page itself."""
        sent = [
            event["params"]["request"] for event in self._events() if event["method"] == "Network.requestWillBeSent"
        ]
        return [one["url"] for one in sent if not one["url"].startswith("data:")]

    def _events(self) -> list[dict[str, Any]]:
        return [event for event in self._browser.events if event.get("sessionId") == self._session]

    def paper(self) -> bytes:
        """The page as it is printed, as PDF."""
        return base64.b64decode(self.ask("Page.printToPDF", printBackground=True)["data"])

    def close(self) -> None:
        self._browser.ask("Target.closeTarget", targetId=self._target)


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """A browser with a new profile in a folder; it ends with the context."""
    chromium = needed("chromium", "chromium")
    their_commands, commands = os.pipe()
    answers, their_answers = os.pipe()
    command = [sys.executable, "-S", "-c", START, str(their_commands), str(their_answers)]
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, chromium, *FLAGS, f"--user-data-dir={folder / 'profile'}"],
            pass_fds=(their_commands, their_answers),
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    os.close(their_commands)
    os.close(their_answers)
    try:
        browser = Browser(commands, answers)
        yield browser
        browser.ask("Browser.close")
    finally:
        os.close(commands)  # the browser ends with its pipe
        os.close(answers)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
