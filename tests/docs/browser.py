"""A Chromium that opens pages from the disk and reports what they load and complain about."""

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from websockets.sync.client import connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)


class Tab:
    """One tab, driven through the DevTools protocol; `requests` and `errors` are of its page."""

    def __init__(self, socket):
        self._socket, self._number = socket, 0
        self.requests, self.errors = [], []
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """Return the result of a command."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        self._socket.send(json.dumps(command))
        while (message := self._receive()).get("id") != self._number:
            pass
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']}")
        return message["result"]

    def open(self, file):
        """Open a page and wait until it has loaded."""
        self.requests, self.errors = [], []
        self.call("Page.navigate", url=file.as_uri())
        while self._receive().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, script):
        """Return the value of an expression of JavaScript."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"]
        return result.get("value")

    def wait_for(self, script, seconds=20):
        """Return the value of an expression as soon as it is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if value := self.evaluate(script):
                return value
            time.sleep(0.1)
        raise TimeoutError(script)

    def _receive(self):
        message = json.loads(self._socket.recv(timeout=60))
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] == "error":
            self.errors.append(str(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(str(parameters["entry"]))
        return message


@contextmanager
def browser_tab(profile: Path):
    """Start a browser with an empty profile and yield its tab; the browser ends with it."""
    command = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, start_new_session=True, **quiet)
    try:
        with connect(_tab_address(profile), max_size=None, proxy=None) as socket:
            yield Tab(socket)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=20)


def _tab_address(profile, seconds=60):
    """Return the address of the first tab; the browser writes its port into the profile."""
    file, end = profile / "DevToolsActivePort", time.monotonic() + seconds
    while not (file.exists() and file.read_text().count("\n")):
        if time.monotonic() > end:
            raise TimeoutError("the browser has not started")
        time.sleep(0.05)
    port = file.read_text().splitlines()[0]
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"http://127.0.0.1:{port}/json", timeout=20) as answer:
        tabs = json.load(answer)
    return next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
