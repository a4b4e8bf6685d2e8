"""Stands in for one of Flower's programs: has the fork server start a process in its place.

Needs only Python's standard library, and starts in some 20 ms.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import chdir
from typing import NamedTuple

SOCKET = "socket"
TAKEN = b"1"
_INSTALLS = "--allow-runtime-dependency-installation"
"""Flower's option to install an app's dependencies: the fork server may hold other versions."""


class Request(NamedTuple):
    """What a process inherits from the one that started it, besides its standard streams."""

    name: str
    arguments: list[str]
    folder: str
    environment: dict[str, str]


def main() -> None:
    """Have the fork server run this process, or run the original program if it cannot."""
    folder, program, *arguments = sys.argv[1:]
    if _INSTALLS in arguments or not _hand_over(folder, os.path.basename(program), arguments):
        os.execv(program, [program, *arguments])


def _hand_over(folder: str, name: str, arguments: list[str]) -> bool:
    """Return whether the fork server has started a process of this program."""
    try:
        request = Request(name, arguments, os.getcwd(), dict(os.environ))
        with socket.socket(socket.AF_UNIX) as connection:
            with chdir(folder):  # the length of a socket's path is limited
                connection.connect(SOCKET)
            socket.send_fds(connection, [b"\0"], [0, 1, 2])
            connection.sendall(json.dumps(request).encode())
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(1) == TAKEN
    except OSError:
        return False


def receive(connection: socket.socket) -> tuple[Request, list[int]]:
    """Return a request and the standard streams, as the fork server receives them.

    Raises:
        OSError: the connection is lost.
        ValueError: the request is incomplete.
    """
    _, streams, *_ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as stream:
        return Request(*json.load(stream)), streams


if __name__ == "__main__":
    main()
