"""The web server of a monitor: the page at /, the metrics at /metrics."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from logging import getLogger
from threading import Thread
from urllib.parse import parse_qs

from fedtide.errors import InvalidInputError
from fedtide.monitoring.exporter import CONTENT_TYPE
from fedtide.monitoring.monitor import Monitor, MonitorSettings
from fedtide.monitoring.watch_page import CONTENT_SECURITY_POLICY, render_page

log = getLogger("fedtide")

PORT = 9570
"""The port of `fedtide watch`."""

_REQUEST_SECONDS = 10.0  # that a request may take to arrive


class MonitorServer(ThreadingHTTPServer):
    """Serves the page and metrics of a monitor; it answers GET and HEAD requests only.

    Args:
        monitor: of the federation.
        host: the address to listen on.
        port: the port; 0: a free one.

    Raises:
        InvalidInputError: an address or a port on which it cannot listen.
    """

    daemon_threads = True

    def __init__(self, monitor: Monitor, host: str, port: int) -> None:
        self.monitor = monitor
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:  # the latter at a port beyond 65535
            in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            reason = "is in use" if in_use else f"cannot be listened on ({error})"
            raise InvalidInputError(
                f"port: {port} {reason} at {host}; give another one, 0 for any free one, and an "
                "address of this machine"
            ) from None

    @property
    def url(self) -> str:
        """The address of the page."""
        host, port = str(self.server_address[0]), int(self.server_address[1])
        return f"http://{host}:{port}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Log the error, unless it is one of the connection."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            log.error("a request to the page failed", exc_info=error)


@contextmanager
def serve(monitor: Monitor, host: str = "127.0.0.1", port: int = PORT) -> Iterator[MonitorServer]:
    """Follow the ledger and serve the page and the metrics within the context, in threads.

    Raises:
        InvalidInputError: as `MonitorServer`.
    """
    with MonitorServer(monitor, host, port) as server:
        thread = Thread(target=server.serve_forever, args=(0.1,), name="fedtide-watch", daemon=True)
        thread.start()
        monitor.start()
        try:
            yield server
        finally:
            monitor.stop()
            server.shutdown()
            thread.join()


@contextmanager
def serve_ledger(
    url: str, clients: int | Sequence[str], host: str, port: int
) -> Iterator[MonitorServer]:
    """Serve the page and the metrics of a ledger, as `serve`, and log where.

    Args:
        url: of the ledger.
        clients: N, or the names of the clients.
        host: the address to listen on.
        port: the port; 0: a free one.
    """
    with serve(Monitor(url, MonitorSettings(clients)), host, port) as server:
        getLogger("flwr").info("Page and metrics: %s", server.url)
        yield server


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: MonitorServer
    protocol_version, server_version, sys_version = "HTTP/1.1", "fedtide", ""
    timeout = _REQUEST_SECONDS

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        monitor = self.server.monitor
        if path == "/metrics":
            self._answer(HTTPStatus.OK, CONTENT_TYPE, monitor.metrics)
        elif path == "/":
            find = parse_qs(query).get("find", [""])[0][:200]
            page = render_page(monitor, find, time.time())
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", page.encode())
        else:
            text = b"not found; the page is at /, the metrics at /metrics\n"
            self._answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", text)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        if {"content-length", "transfer-encoding"} & {name.lower() for name in self.headers}:
            self.close_connection = True  # the unread body must not be taken for a request
        self.send_response(status)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: requests come every few seconds."""
