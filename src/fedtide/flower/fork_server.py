"""Starts client processes quickly, as forks of a server that has PyTorch and Flower loaded.

Flower's SuperExec starts `flwr-clientapp` by name for every message, and nearly all of that
process's time goes into importing Flower and PyTorch. `python -P -m fedtide.flower.fork_server
COMMAND [ARGUMENT ...]` runs a command, such as `flower-supernode`, with a folder first on its PATH.
In it, a program named `flwr-clientapp` hands its arguments to a server, which forks a process for
them.

Every message still gets its own process. The processes share only imported code, as the server
never runs an app. Only its own user can reach it. If the server is gone, for example killed,
`flwr-clientapp` starts as usual. Linux only: on macOS, system libraries do not survive a fork, and
the command runs as it would without this module.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import shlex
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import chdir
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from fedtide.errors import MissingExtraError
from fedtide.flower import _fork_client

IS_SUPPORTED = sys.platform == "linux"

Program = Callable[[], Any]
"""What a console script calls."""

_SIGNALS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}
"""Signals that end a process, and how Python handles them in a new one."""


def main() -> None:
    """Replace this process by the command in its arguments, with a fork server beside it."""
    command = sys.argv[1:]
    if not command:
        sys.exit("usage: python -P -m fedtide.flower.fork_server COMMAND [ARGUMENT ...]")
    if IS_SUPPORTED:
        folder = Path(tempfile.mkdtemp(prefix="fedtide-"))
        install_programs(folder, ["flwr-clientapp"])
        lifeline, held = os.pipe()
        os.set_inheritable(held, True)  # by the command, but not by the processes that it starts
        if os.fork() == 0:
            os.close(held)
            for ending in _SIGNALS:  # they are for the command; the server ends when it does
                signal.signal(ending, signal.SIG_IGN)
            run = serve(folder, lifeline)
            if run is not None:
                sys.exit(run())
            shutil.rmtree(folder)
            return
        os.close(lifeline)
        os.environ["PATH"] = str(folder) + os.pathsep + os.environ.get("PATH", os.defpath)
    os.execvp(command[0], command)


def install_programs(folder: Path, names: Iterable[str]) -> None:
    """Write programs that take the place of Flower's own into a private, existing folder.

    Args:
        folder: where to write them; it holds nothing else.
        names: of programs that Flower starts by name, such as flwr-clientapp.

    Raises:
        MissingExtraError: Flower is not installed.
    """
    beside = str(Path(sys.executable).parent)
    path = os.pathsep.join([beside, os.environ.get("PATH", os.defpath)])
    for name in names:
        original = shutil.which(name, path=path)
        if original is None:
            raise MissingExtraError("flower", "flower")
        client = [sys.executable, "-IS", _fork_client.__file__, str(folder), original]
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(client)} "$@"\n', encoding="utf-8")
        (folder / name).chmod(0o700)


def serve(folder: Path, lifeline: int, preload: Sequence[str] = ("torch",)) -> Program | None:
    """Fork a process for every request, until `lifeline` is closed at its other end.

    Args:
        folder: that of the programs.
        lifeline: a file descriptor.
        preload: modules to import besides Flower's. None may start a thread that forks would need,
            as using a GPU does.

    Returns:
        In a forked process: the program that it is to run. In the server, at its end: None.
    """
    names = sorted(path.name for path in folder.iterdir())
    with socket.socket(socket.AF_UNIX) as listener:
        with chdir(folder):  # the length of a socket's path is limited
            listener.bind(_fork_client.SOCKET)
        listener.listen(128)
        programs = {name: _load_program(name) for name in names}
        for module in preload:
            importlib.import_module(module)
        gc.collect()
        gc.freeze()  # else a fork that ends would copy all shared memory in order to free it
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a fork
        while lifeline not in select.select([listener.fileno(), lifeline], [], [])[0]:
            connection, _ = listener.accept()
            with connection:
                if _fork() == 0:
                    return programs[_take_over(connection)]
    return None


def _load_program(name: str) -> Program:
    """Import and return the function that one of Flower's programs runs."""
    [program] = entry_points(group="console_scripts", name=name)
    run: Program = program.load()
    return run


def _fork() -> int:
    """Fork; return -1 if that fails, so that the program runs as usual."""
    try:
        return os.fork()
    except OSError:
        return -1


def _take_over(connection: socket.socket) -> str:
    """Give this fork the program's streams, folder, environment and arguments; return its name."""
    import numpy as np

    for ending, handler in _SIGNALS.items():
        signal.signal(ending, handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        request, streams = _fork_client.receive(connection)
        os.chdir(request.folder)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(request.environment)
        sys.argv = [request.name, *request.arguments]
        Path("/proc/self/comm").write_text(request.name)  # the name that `ps` and `top` show
        np.random.seed()  # noqa: NPY002 - apps may use this generator; a new process seeds it
        connection.sendall(_fork_client.TAKEN)
    except (OSError, ValueError):  # the program is gone, or runs as usual
        os._exit(1)
    return request.name


if __name__ == "__main__":
    main()
