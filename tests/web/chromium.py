"""A headless Chromium over its debugging pipe, with the standard library only."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = Path("/usr/bin/chromium")


class Tab:
    """One page. `logged` collects what the browser logs or throws while it is open."""

    def __init__(self, commands: int, replies: int) -> None:
        self._commands, self._replies = commands, replies
        self._buffer = b""
        self._last = 0
        self._loads = 0
        self._session: str | None = None
        self.logged: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the result of one command of the DevTools protocol."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._read()
            if reply.get("id") == self._last:
                assert "error" not in reply, reply["error"]
                return reply["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = os.read(self._replies, 1 << 20)
            assert piece, "the browser ended"
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._loads += message.get("method") == "Page.loadEventFired"
        if message.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.logged.append(json.dumps(message["params"])[:500])
        return message

    def open(self, address: str) -> None:
        """Load an address to the end."""
        with self.loaded():
            self.call("Page.navigate", url=address)

    @contextmanager
    def loaded(self) -> Iterator[None]:
        """Return from the block once the page has loaded, or loaded again, since it was entered."""
        before = self._loads
        yield
        while self._loads == before:
            self._read()

    def look(self, expression: str) -> Any:
        """Return the value of an expression in the page; of a promise, what it resolves to."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Return once the expression is true; the page's own changes are what is waited for, across reloads."""
        script = f"""new Promise((resolve) => {{
            const check = () => {{ if ({condition}) {{ observer.disconnect(); resolve(true); }} }};
            const observer = new MutationObserver(check);
            observer.observe(document, {{ subtree: true, childList: true, characterData: true, attributes: true }});
            check();
        }})"""
        self.look(script)

    def screenshot(self, path: Path) -> None:
        """Write the whole page as PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    def size(self, width: int, height: int) -> None:
        """Set the size of the window, as small as a telephone's if asked."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )


@contextmanager
def browse(profile: Path) -> Iterator[Tab]:
    """Give a tab of a browser that ends with the block."""
    to_browser, commands = os.pipe()
    replies, from_browser = os.pipe()
    arguments = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions",
        "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
        f"--user-data-dir={profile}", "--remote-debugging-pipe",
    ]  # fmt: skip
    # The browser reads commands from descriptor 3 and writes replies to 4, whatever numbers the pipes have here.
    script = f'exec 3<&{to_browser} 4>&{from_browser}; exec "$@"'
    browser = subprocess.Popen(
        ["bash", "-c", script, "chromium", *arguments],
        pass_fds=(to_browser, from_browser),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(profile)},
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Tab(commands, replies)
    finally:
        os.close(commands)
        os.close(replies)
        browser.terminate()
        browser.wait(20)
