"""The registry of the published experiments: one YAML file each, in a folder per paper."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from fedtide.papers.paper_spec import PaperExperiment, parse_paper
from fedtide.simulation.experiment_files import read_yaml
from fedtide.validation import require_choice

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
    require_choice("name", name, names())
    return parse_paper(name, read_yaml(_FOLDER / f"{name}.yaml"))
