"""Client processes that start at once: forks of a server that has PyTorch and Flower loaded.

Flower's SuperExec starts `flwr-clientapp` by name for every message, and nearly all of that
process's time goes into importing Flower and PyTorch. `python -P -m fedtide.flower.fork_server
COMMAND [ARGUMENT ...]` runs a command, such as `flower-supernode`, with a folder first on its PATH
in which a program of that name hands its arguments to a server, which forks a process for them.

Every message still has a process of its own, and what the processes share is imported code: the
server never runs an app. Only its own user can reach it. Without the server, as after it was
killed, `flwr-clientapp` starts as usual. Linux only: on macOS, system libraries do not survive a
fork, and the command runs as without this module.
"""

from __future__ import annotations

import importlib
import os
import select
import shlex
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import chdir
from importlib.metadata import entry_points
from pathlib import Path

from fedtide.errors import InvalidInputError, MissingExtraError
from fedtide.flower import _fork_client

IS_SUPPORTED = sys.platform == "linux"

PROGRAM = "flwr-clientapp"


def main() -> None:
    """Replace this process by the command in its arguments, with a fork server beside it."""
    command = sys.argv[1:]
    if not command:
        raise InvalidInputError("command: missing; give one, such as flower-supernode")
    if IS_SUPPORTED:
        folder = Path(tempfile.mkdtemp(prefix="fedtide-"))
        install_program(folder)
        lifeline, held = os.pipe()
        os.set_inheritable(held, True)  # by the command, but not by what Flower starts in turn
        if os.fork() == 0:
            os.close(held)
            run = serve(folder, lifeline)
            if run is not None:
                sys.exit(run())
            shutil.rmtree(folder)
            return
        os.close(lifeline)
        os.environ["PATH"] = str(folder) + os.pathsep + os.environ.get("PATH", os.defpath)
    os.execvp(command[0], command)


def install_program(folder: Path) -> None:
    """Write the program that takes the place of `flwr-clientapp` into a private, existing folder.

    Raises:
        MissingExtraError: Flower is not installed.
    """
    beside = str(Path(sys.executable).parent)
    original = shutil.which(PROGRAM, path=beside + os.pathsep + os.environ.get("PATH", os.defpath))
    if original is None:
        raise MissingExtraError("flower", "flower")
    client = [sys.executable, "-IS", _fork_client.__file__, str(folder), original]
    (folder / PROGRAM).write_text(f'#!/bin/sh\nexec {shlex.join(client)} "$@"\n', encoding="utf-8")
    (folder / PROGRAM).chmod(0o700)


def serve(
    folder: Path, lifeline: int, preload: Sequence[str] = ("torch",)
) -> Callable[[], object] | None:
    """Fork a process for every request, until `lifeline` is closed at its other end.

    Args:
        folder: that of the program.
        lifeline: a file descriptor.
        preload: modules to import beside Flower's. They must not start threads that a fork would
            miss: Polars does, and so does a GPU once it is used.

    Returns:
        In a forked process: what it is to run. In the server, at its end: None.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        with chdir(folder):  # the length of a socket's path is limited
            listener.bind(_fork_client.SOCKET)
        listener.listen(128)
        [program] = entry_points(group="console_scripts", name=PROGRAM)
        run: Callable[[], object] = program.load()
        for module in preload:
            importlib.import_module(module)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the command's affair
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a fork
        while lifeline not in select.select([listener, lifeline], [], [])[0]:
            connection, _ = listener.accept()
            with connection:
                if _fork() == 0:
                    _take_over(connection)
                    return run
    return None


def _fork() -> int:
    """Return 0 in a new process; -1 if there can be none, so that the program runs as usual."""
    try:
        return os.fork()
    except OSError:
        return -1


def _take_over(connection: socket.socket) -> None:
    """Give this fork the arguments, environment, folder and streams of the program's process."""
    import numpy as np

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        request, streams = _fork_client.receive(connection)
        os.chdir(request["folder"])
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = [PROGRAM, *request["arguments"]]
        np.random.seed()  # noqa: NPY002 - apps may use this generator, which a new process seeds
        connection.sendall(_fork_client.TAKEN)
    except (OSError, ValueError):  # the program is gone, or runs as usual
        os._exit(1)


if __name__ == "__main__":
    main()
