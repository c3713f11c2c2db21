"""A headless Chromium of this machine, asked over the DevTools protocol: what a person would see, without the person.

Promises: it reaches loopback only, keeps its profile in the test's folder, and ends with the block.
Source: https://chromedevtools.github.io/devtools-protocol/ (Page, Runtime, Log).
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, cast

from needs import lacks
from polling import eventually
from websockets.sync.client import ClientConnection, connect

from nodeattest_sandbox.child_process import Process, wait

_LIMIT: Final = 60.0
"""Seconds until a page shows what it must; starting Chromium on a busy machine takes some ten."""
_LARGEST: Final = 64 << 20
"""Bytes of one DevTools message; a screenshot is one."""
_FLAGS: Final = (
    "--headless",
    "--no-sandbox",  # CI is root in a container; the pages are ours
    "--no-first-run",
    "--no-proxy-server",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-port=0",
    "--window-size=900,600",
)


class Page:
    """One tab."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._number = 0
        self.told: list[str] = []
        """What the browser logged on the way: refused scripts, failed requests."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, url: str) -> None:
        """Go to an address as if it had been typed."""
        self._call("Page.navigate", url=url)

    def send_always(self, headers: dict[str, str]) -> None:
        """Send these headers with every request."""
        self._call("Network.setExtraHTTPHeaders", headers=headers)

    def evaluate(self, script: str) -> object:
        """Run a script in the page, wait for its promise, and return its value."""
        answer = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        return cast("dict[str, object]", answer["result"]).get("value")

    def text(self, selector: str) -> str:
        """Read what an element shows; empty where there is none."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def until(self, selector: str, text: str) -> None:
        """Wait until an element shows this text."""
        self.until_true(f"document.querySelector({json.dumps(selector)})?.innerText === {json.dumps(text)}")

    def until_true(self, script: str) -> None:
        """Wait until a script says so."""
        eventually(
            lambda: self.evaluate(script) is True, script, seconds=_LIMIT, state=lambda: (self.text("body"), self.told)
        )

    def screenshot(self) -> bytes:
        """Return the page as a PNG."""
        return base64.b64decode(str(self._call("Page.captureScreenshot", format="png")["data"]))

    def _call(self, method: str, **parameters: object) -> dict[str, object]:
        self._number += 1
        self._connection.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = cast("dict[str, object]", json.loads(self._connection.recv(_LIMIT)))
            if message.get("id") == self._number:
                assert "result" in message, message
                return cast("dict[str, object]", message["result"])
            if message.get("method") in {"Log.entryAdded", "Runtime.exceptionThrown"}:
                self.told.append(json.dumps(message["params"]))


@contextmanager
def browsing(directory: Path) -> Generator[Page]:
    """Open a browser with a fresh profile and one empty tab; skips where there is no Chromium."""
    binary = shutil.which("chromium")
    if binary is None:
        lacks("no chromium on PATH: run tools/system-packages chromium")
    directory.mkdir(parents=True)
    profile = directory / "profile"
    home = {"HOME": str(directory), "XDG_CONFIG_HOME": str(directory), "XDG_CACHE_HOME": str(directory)}
    wrapper = [sys.executable, "-m", "nodeattest_sandbox.child_process", str(directory / "chromium.pid")]
    command = [*wrapper, binary, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
    process = Process("chromium", command, directory, directory / "chromium.pid", environment=home)
    try:
        told = profile / "DevToolsActivePort"
        wait(process, lambda: told.exists() and told.read_text(encoding="ascii").count("\n") == 1)
        with connect(_tab(int(told.read_text(encoding="ascii").split()[0])), max_size=_LARGEST, proxy=None) as opened:
            yield Page(opened)
    finally:
        process.stop()


def _tab(port: int) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/json/list", timeout=_LIMIT) as answer:
        targets = cast("list[dict[str, str]]", json.load(answer))
    return next(each["webSocketDebuggerUrl"] for each in targets if each["type"] == "page")
