"""The console script: handles Ctrl-C before importing anything slow."""

from __future__ import annotations

import os
import signal
from types import FrameType


def main() -> None:
    """Run the command line."""
    end_at_once_on_signals()
    from fedtide.cli.main import main as run_command_line

    run_command_line()


def end_at_once_on_signals() -> None:
    """End the process on Ctrl-C and SIGTERM, with a message and exit status 130.

    Meant for the time of the imports: an exception raised during an import may be swallowed, and
    there is nothing to save yet.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"fedtide: interrupted; repeat the command\n")
    os._exit(130)
