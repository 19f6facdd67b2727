"""A headless browser, controlled by the DevTools protocol over a pipe, so that no port is opened."""

import base64
import contextlib
import fcntl
import io
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

BROWSER_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
"""Browsers that speak the protocol."""

TIMEOUT_SECONDS = 60.0
"""Maximum time of an answer on a busy machine."""

LAUNCHER = """
import os, sys
read, write, *command = sys.argv[1:]
os.dup2(int(read), 3)
os.dup2(int(write), 4)
os.execvp(command[0], command)
"""
"""Program that replaces itself by the browser, which reads commands from descriptor 3 and answers on 4."""


def find_browser() -> str | None:
    """Returns the path of a browser: ``BROWSER_FOR_TESTS``, or the first that is installed."""
    named = os.environ.get("BROWSER_FOR_TESTS")
    return named or next((path for name in BROWSER_NAMES if (path := shutil.which(name))), None)


class Browser:
    """A browser process."""

    def __init__(self, program: str, profile: Path) -> None:
        self._number = 0
        self._pending = b""
        self.events: list[dict[str, Any]] = []
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        # duplicated to descriptors from 10 up, which the launcher's dup2 calls do not overwrite
        passed = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (commands, answers)]
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--no-default-browser-check",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-extensions",
            "--force-color-profile=srgb",
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
            "about:blank",
        ]
        self._log = (profile / "log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", LAUNCHER, *map(str, passed), program, *options],
            pass_fds=passed,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        for end in (commands, answers, *passed):
            os.close(end)

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Sends a command and returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(time.monotonic() + TIMEOUT_SECONDS)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(self._read, 2**20) if ready else b""
            if not part:
                raise TimeoutError(f"the browser is silent; its log:\n{Path(self._log.name).read_text()[-2000:]}")
            self._pending += part
        first, _, self._pending = self._pending.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        return message

    def close(self) -> None:
        """Ends the browser."""
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):
            self.call("Browser.close")
        try:
            self._process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for end in (self._read, self._write):
            os.close(end)
        self._log.close()


class Tab:
    """A page in the browser. Its log messages, exceptions and network requests are recorded."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a command for this page."""
        return self._browser.call(method, self._session, **params)

    def open(self, path: Path, *, width: int = 1280, height: int = 900, ratio: float = 1.0, ready: str = "") -> None:
        """Opens a file in a window of this size, and waits until it is ready."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=ratio, mobile=False
        )
        self.call("Page.navigate", url=path.absolute().as_uri())
        self.wait(f"document.readyState === 'complete' && {ready or 'true'}")

    def run(self, script: str) -> Any:
        """Returns the value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Waits until an expression is true."""
        self.wait_until(lambda: bool(self.run(condition)), condition)

    def wait_until(self, holds: Callable[[], bool], what: str = "it") -> None:
        """Waits until a condition is true."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} does not come true")
            time.sleep(0.02)

    def press(self, key: str, *, shift: bool = False) -> None:
        """Presses and releases a key."""
        text = {"text": key} if key == " " else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code="Space" if key == " " else key,
                modifiers=8 if shift else 0,
                windowsVirtualKeyCode=KEYS[key],
                **(text if kind == "keyDown" else {}),
            )

    def click(self, x: float, y: float) -> None:
        """Clicks at a point in the window."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def canvas(self, selector: str) -> np.ndarray:
        """Returns the pixels of a canvas, ``[height, width, 3]``, on a white background."""
        from PIL import Image

        url = self.run(f"document.querySelector({selector!r}).toDataURL('image/png')")
        drawn = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGBA")
        paper = Image.new("RGBA", drawn.size, "white")
        return np.array(Image.alpha_composite(paper, drawn).convert("RGB"))

    def screenshot(self) -> np.ndarray:
        """Returns the pixels of the window."""
        from PIL import Image

        data = self.call("Page.captureScreenshot", format="png")["data"]
        return np.array(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))

    def problems(self) -> list[Any]:
        """Returns logged errors and warnings, and uncaught exceptions."""
        self.run("0")  # earlier events arrive before this answer
        problems = []
        for event in self._events():
            name, params = event["method"], event["params"]
            if name == "Runtime.exceptionThrown":
                problems.append(params["exceptionDetails"])
            elif name == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                problems.append(params["args"])
            elif name == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                problems.append(params["entry"])
        return problems

    def requests(self) -> list[str]:
        """Returns the requested addresses."""
        self.run("0")
        return [e["params"]["request"]["url"] for e in self._events() if e["method"] == "Network.requestWillBeSent"]

    def _events(self) -> Iterator[dict[str, Any]]:
        return (event for event in self._browser.events if event.get("sessionId") == self._session)

    def close(self) -> None:
        """Closes the page."""
        self._browser.call("Target.closeTarget", targetId=self._target)


KEYS = {" ": 32, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Escape": 27}
"""Windows virtual key codes."""


# --- actions of users on a replay's page ---

READY = "document.getElementById('player') && !document.getElementById('player').hidden"
REDUCED_MOTION = [{"name": "prefers-reduced-motion", "value": "reduce"}]

OpenReplay = Callable[..., Tab]
"""Type of the fixture ``open_replay``."""


def shown_frame(tab: Tab) -> int:
    """Returns the frame number that the page displays."""
    text = tab.run("document.getElementById('frame').textContent")
    return int(text.split()[1])


def set_input(tab: Tab, name: str, value: Any) -> None:
    """Sets a slider or a list, with the events of a user's input."""
    tab.run(
        f"(() => {{ const it = document.getElementById('{name}'); it.value = '{value}';"
        " it.dispatchEvent(new Event('input')); it.dispatchEvent(new Event('change')); })()"
    )


def text_of(tab: Tab, selector: str) -> str:
    return str(tab.run(f"document.querySelector({selector!r}).textContent"))


def point_in(tab: Tab, selector: str, across: float, down: float) -> tuple[float, float]:
    """Returns window coordinates of a point in an element, as fractions of its width and height."""
    left, top, width, height = tab.run(
        f"(() => {{ const it = document.querySelector({selector!r}); it.scrollIntoView();"
        " const box = it.getBoundingClientRect(); return [box.left, box.top, box.width, box.height]; })()"
    )
    return left + across * width, top + down * height
