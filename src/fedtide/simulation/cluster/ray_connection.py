"""The connection to a Ray cluster."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedtide.errors import InvalidInputError

_CONNECT_SECONDS = 4.0
_ANSWER_SECONDS = 60.0  # a busy machine takes half a minute to import Ray and to connect
_PROBE = (
    "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"
)
_HINT = "start a cluster with `ray start --head` and give the address that it prints"


@contextmanager
def connect_ray(address: str, field: str = "ray") -> Iterator[Any]:
    """Yield the module `ray`, connected to the cluster at `address`, with its log turned off.

    If the process is already connected, this connection is used, and stays open.

    Args:
        address: HOST:PORT of the head, a ray:// address, or "auto".
        field: the argument that gave the address, for error messages.

    Raises:
        InvalidInputError: Ray is not installed, or no cluster answers within a minute; a port
            that is closed is refused at once.
    """
    try:
        import ray
    except ImportError:
        raise InvalidInputError(
            f"{field}: Ray is not installed; pip install 'fedtide[ray]'"
        ) from None
    if ray.is_initialized():
        yield ray
        return
    _check_address(address, field)
    _check_cluster(address, field)
    try:
        with _sigterm_kept():
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Restore the handler of SIGTERM, even after an error: Ray's own aborts the process."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _check_address(address: str, field: str) -> None:
    """Refuse an address that is not HOST:PORT or does not accept connections."""
    if address == "auto":
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        raise InvalidInputError(f"{field}: {address!r} is not HOST:PORT; {_HINT}")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError):
        raise InvalidInputError(f"{field}: nothing answers at {address!r}; {_HINT}") from None


def _check_cluster(address: str, field: str) -> None:
    """Refuse an address without a cluster; `ray.init` alone waits for minutes."""
    probe = [sys.executable, "-c", _PROBE, address]
    try:
        ended = subprocess.run(probe, capture_output=True, timeout=_ANSWER_SECONDS)
        failed, said = ended.returncode != 0, ended.stderr
    except subprocess.TimeoutExpired as error:
        failed, said = True, error.stderr or b""
    if failed and b"InvalidAuthToken" in said:
        # Unless told to, Ray sends no token to an address that the user gives.
        raise InvalidInputError(
            f"{field}: the cluster at {address!r} asks for a token; set RAY_AUTH_MODE=token, with "
            "the cluster's token in ~/.ray/auth_token"
        )
    if failed and b"Version mismatch" in said:
        raise InvalidInputError(
            f"{field}: the cluster at {address!r} runs another version of Ray or Python; install "
            "the same on all machines"
        )
    if failed:
        raise InvalidInputError(f"{field}: no Ray cluster answers at {address!r}; {_HINT}")
