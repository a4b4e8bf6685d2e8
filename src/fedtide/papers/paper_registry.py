"""The files of the published experiments."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from fedtide.errors import InvalidInputError, did_you_mean
from fedtide.papers.paper_spec import PaperExperiment, paper_of
from fedtide.simulation.experiment import read_yaml

_FOLDER = Path(__file__).parent


@cache
def names() -> tuple[str, ...]:
    """Return the names of all published experiments, paper by paper.

    >>> "002/synthetic" in names()
    True
    """
    files = sorted(_FOLDER.glob("[0-9][0-9][0-9]/*.yaml"))
    return tuple(f"{file.parent.name}/{file.stem}" for file in files)


@cache
def load(name: str) -> PaperExperiment:
    """Return a published experiment.

    Raises:
        InvalidInputError: an unknown name.
    """
    if name not in names():
        raise InvalidInputError(f"name: unknown {name!r}; {did_you_mean(name, names())}")
    return paper_of(name, read_yaml(_FOLDER / f"{name}.yaml"))
