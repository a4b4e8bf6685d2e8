"""One run of a sweep, wherever it is run: its folder alone says what became of it."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedtide.atomic_io import make_folder, write_json, write_yaml
from fedtide.errors import InvalidInputError
from fedtide.simulation.callbacks import ProgressCallback
from fedtide.simulation.divergence import DivergenceError
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.interruption import Interrupted
from fedtide.simulation.run_folder import RunFolder
from fedtide.simulation.runner import execute

Tell = Callable[[int, float | None], None]
"""Takes how many rounds of a run are over, and the last loss."""

OnFinished = Callable[["Job", "Outcome"], None]
"""Is told of every run that has ended."""

TRIES = 3
"""How often a run may lose the process that it runs in before it counts as failed."""


@dataclass(frozen=True)
class Job:
    """A run to be done.

    Args:
        path: its name on the board.
        experiment: what it runs.
        folder: where it lies.
        resume: whether it goes on with what the folder holds.
        lost: how often its process has been lost.
    """

    path: str
    experiment: Experiment
    folder: Path
    resume: bool = True
    lost: int = 0


@dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Args:
        state: done, failed, or interrupted and saved.
        sentence: why it failed, or where it was interrupted.
        trace: where, for what is no bad input.
        permanent: whether it would fail again: it diverged.
    """

    state: Literal["done", "failed", "interrupted"]
    sentence: str = ""
    trace: str = ""
    permanent: bool = False


class ProgressForwarder(ProgressCallback):
    """Hands every round on to a function.

    Args:
        tell: the function.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def update(self, ended: int, rounds: int, loss: float | None) -> None:
        """Hand it on."""
        self._tell(ended, loss)


def perform(job: Job, tell: Tell) -> Outcome:
    """Run the job and return what became of it; nothing but the end of the process gets out."""
    try:
        RunFolder(job.folder).failure.unlink(missing_ok=True)
        execute(job.experiment, job.folder, job.resume, ProgressForwarder(tell))
    except Interrupted as error:
        return Outcome("interrupted", str(error))
    except InvalidInputError as error:
        return Outcome("failed", str(error), permanent=isinstance(error, DivergenceError))
    except Exception as error:  # whatever a model of the user's own raises, the others go on
        sentence = " ".join(f"{type(error).__name__}: {error}".split())
        return Outcome("failed", sentence, traceback.format_exc())
    return Outcome("done")


def note_failure(job: Job, outcome: Outcome) -> None:
    """Write into the folder of a run why it failed, also where it never began."""
    folder = RunFolder(job.folder)
    make_folder(folder.path)
    if not folder.experiment.exists():
        write_yaml(folder.experiment, job.experiment.to_dict())
    note = {"sentence": outcome.sentence, "permanent": outcome.permanent, "trace": outcome.trace}
    write_json(folder.failure, note)


def failure(folder: RunFolder) -> dict[str, Any] | None:
    """Return the note of a run that failed: its `sentence`, `trace`, and whether it is `permanent`.

    A run that diverged would do so again; others are worth another try.
    """
    if folder.finished or not folder.failure.exists():
        return None
    note: dict[str, Any] = json.loads(folder.failure.read_text(encoding="utf-8"))
    return note
