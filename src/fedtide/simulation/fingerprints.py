"""Fingerprints of all that a run reads and imports, so that a resumed run notices changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedtide.errors import error_prefix
from fedtide.simulation.experiment import Experiment
from fedtide.spec import Session, hash_code, hash_files, key

Fingerprints = Mapping[str, Any]
"""SHA-256 hashes. `data`: of the problem's data, or None; `files`: of the files that the
participation names; `code`: of the modules of imported classes and functions, and of the user's
own modules that these import."""


def fingerprint_experiment(experiment: Experiment) -> Fingerprints:
    """Return the SHA-256 of the data, files and code that an experiment uses.

    Raises:
        InvalidInputError: the data cannot be read.
    """
    problem = experiment.problem
    with error_prefix("problem"):
        data = Session.current().once(("data", key(problem)), problem.fingerprint)
    names = ("participation", "selection", "dropout")
    reading = {name: getattr(experiment, name) for name in names}
    code = hash_code((*reading.values(), problem, experiment.algorithm, experiment.local))
    return {"data": data, "files": hash_files(reading), "code": code}


def list_changes(before: Fingerprints, now: Fingerprints) -> list[str]:
    """Return what differs between two fingerprints of the same experiment, in words.

    >>> list_changes({"data": "a", "code": {"m": "b"}}, {"data": "a", "code": {"m": "c"}})
    ['the code of m']
    """
    changes = ["the data of the problem"] if before.get("data") != now.get("data") else []
    for kind, words in (("files", "the file of"), ("code", "the code of")):
        old, new = before.get(kind, {}), now.get(kind, {})
        names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
        changes += [f"{words} {name}" for name in names]
    return changes
