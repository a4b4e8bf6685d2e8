"""The connection to a Ray cluster."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedtide.errors import InvalidInputError, first_line

_CONNECT_SECONDS = 4.0
_HINT = "start a cluster with `ray start --head` and give the address that it prints"


@contextmanager
def connect_ray(address: str, field: str = "ray") -> Iterator[Any]:
    """Yield the module `ray`, connected to the cluster at `address`, with its log turned off.

    If the process is already connected, this connection is used, and stays open.

    Args:
        address: HOST:PORT of the head, a ray:// address, or "auto".
        field: the argument that gave the address, for error messages.

    Raises:
        InvalidInputError: Ray is not installed, or no cluster answers; a port that is closed is
            refused at once.
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
    try:
        try:
            with _sigterm_kept():
                ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (OSError, RuntimeError, ValueError) as error:
            raise InvalidInputError(
                f"{field}: no Ray cluster answers at {address!r} ({first_line(error)}); {_HINT}"
            ) from None
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
