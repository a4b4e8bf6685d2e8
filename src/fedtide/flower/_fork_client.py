"""The program in place of `flwr-clientapp`: it hands itself over to the fork server.

Needs only Python's standard library, and starts in some 20 ms.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import chdir
from typing import Any

SOCKET = "socket"
TAKEN = b"1"
_INSTALLS = "--allow-runtime-dependency-installation"
"""An option of `flwr-clientapp`: it imports other versions of what the fork server has loaded."""


def main() -> None:
    """Have the fork server run this process, or run the original program if it cannot."""
    folder, program, *arguments = sys.argv[1:]
    if _INSTALLS in arguments or not _hand_over(folder, arguments):
        os.execv(program, [program, *arguments])


def _hand_over(folder: str, arguments: list[str]) -> bool:
    """Return whether the fork server has started a process with these arguments."""
    try:
        request = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
        with socket.socket(socket.AF_UNIX) as connection:
            with chdir(folder):  # the length of a socket's path is limited
                connection.connect(SOCKET)
            socket.send_fds(connection, [b"\0"], [0, 1, 2])
            connection.sendall(json.dumps(request).encode())
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(1) == TAKEN
    except OSError:
        return False


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return a request and its standard streams, as the fork server receives them.

    Raises:
        OSError: the connection is lost.
        ValueError: the request is incomplete.
    """
    _, streams, *_ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as stream:
        return json.load(stream), streams


if __name__ == "__main__":
    main()
