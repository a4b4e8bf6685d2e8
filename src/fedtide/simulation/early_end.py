"""How a run ends before its last round: on a signal, or with an error."""

from __future__ import annotations

import signal
import threading
import traceback
from contextlib import ExitStack
from dataclasses import dataclass
from types import FrameType
from typing import Self

from fedtide.errors import Interrupted, InvalidInputError
from fedtide.simulation.divergence import DivergenceError


class Interruption(ExitStack):
    """A context in which Ctrl-C and SIGTERM only set `requested`; a second Ctrl-C ends at once.

    Only the main thread can handle signals; in other threads the context does nothing.

    Attributes:
        requested: whether the run was asked to end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.requested = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.callback(signal.signal, number, signal.signal(number, self._request))
        return super().__enter__()

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise Interrupted("ended at once", "continue from the last checkpoint with resume=True")
        self.requested = True


@dataclass(frozen=True)
class Failure:
    """Why a run has failed.

    Args:
        sentence: the message of the error.
        permanent: whether another attempt would fail as well, because the run diverged.
        trace: the traceback of an unexpected error.
    """

    sentence: str
    permanent: bool = False
    trace: str = ""

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Return the failure that an error describes."""
        if isinstance(error, InvalidInputError):
            return cls(str(error), permanent=isinstance(error, DivergenceError))
        sentence = " ".join(f"{type(error).__name__}: {error}".split())
        return cls(sentence, trace="".join(traceback.format_exception(error)))
