"""The runs of a published experiment: all its cases, methods and seeds at a scale."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from fedtide.errors import InvalidInputError
from fedtide.papers.paper_spec import LaptopScale, PaperExperiment, Scale
from fedtide.simulation.experiment import HOW, Experiment
from fedtide.simulation.experiment_files import merge
from fedtide.validation import require_choice


class RunKey(NamedTuple):
    """What identifies a run among all runs of all experiments."""

    paper: str
    scale: str
    case: str
    method: str
    seed: int


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """One run of a published experiment.

    Args:
        key: the experiment's name, the scale, and which of its runs.
        settings: the plain data of an `Experiment`, or the parameters of a computation.
        compute: the computation's name; None: the run is trained.
    """

    key: RunKey
    settings: Mapping[str, Any]
    compute: str | None = None

    @property
    def case(self) -> str:
        """The case."""
        return self.key.case

    @property
    def method(self) -> str:
        """The method."""
        return self.key.method

    @property
    def folder(self) -> str:
        """The run folder, relative to that of the experiment and scale."""
        return f"{self.case}/{self.method}/seed-{self.key.seed}"

    @property
    def resolved(self) -> dict[str, Any]:
        """Every hyper-parameter as plain data, defaults written out."""
        if self.compute is not None:
            return {"compute": self.compute, **self.settings}
        return Experiment.from_dict(self.settings).to_dict()

    @property
    def fingerprint(self) -> str:
        """What decides the result: equal for runs that differ in their names or execution only."""
        return fingerprint(self.settings, self.compute)


def fingerprint(settings: Mapping[str, Any], compute: str | None = None) -> str:
    """Return what decides the result of a run with these settings, as canonical text.

    Raises:
        InvalidInputError: they are not the settings of an experiment.
    """
    text = json.dumps(settings)
    return _resolve(text) if compute is None else f"{compute}: {_canonical(text)}"


@cache
def _resolve(settings: str) -> str:
    learnt = _without_execution(json.loads(settings))  # a GPU need not be here
    resolved = Experiment.from_dict(learnt).to_dict()
    return _canonical(json.dumps(_without_execution(resolved)))


def _canonical(text: str) -> str:
    """Return the same text for data that differ in the order of keys, or as 1 from 1.0."""
    return json.dumps(json.loads(text, parse_int=float), sort_keys=True)


def _without_execution(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without the name and those that do not change what is learnt."""
    return {key: value for key, value in settings.items() if key not in ("name", *HOW)}


def plan(
    paper: PaperExperiment,
    scale: Scale = "paper",
    seeds: Iterable[int] | None = None,
    methods: Iterable[str] | None = None,
    cases: Iterable[str] | None = None,
    device: str = "cpu",
) -> list[PlannedRun]:
    """Return the runs at a scale: case by case, seed by seed, method by method.

    Args:
        paper: the published experiment.
        scale: "paper" or "laptop"; they are the same where the experiment has no smaller version.
        seeds, methods, cases: a part of its runs; None: all.
        device: on which they train.

    Raises:
        InvalidInputError: an unknown method or case.
    """
    laptop = (paper.laptop if scale == "laptop" else None) or LaptopScale(description="")
    seeds = list(laptop.seeds or paper.seeds if seeds is None else seeds)
    methods = list(laptop.methods or paper.methods if methods is None else methods)
    cases = list(laptop.cases or paper.cases if cases is None else cases)
    for field, names, known in (("methods", methods, paper.methods), ("cases", cases, paper.cases)):
        for name in names:
            require_choice(field, name, known)
    where = {}
    if paper.compute is None and device != "cpu":
        where = {"device": device, "trainer": "stacked"}  # the trainers of the files are for CPUs
    return [
        PlannedRun(
            RunKey(paper.name, scale, case, method, seed),
            {**_settings(paper, laptop, case, method), **where, "seed": seed},
            paper.compute,
        )
        for case in cases
        for seed in seeds
        for method in methods
        if paper.has_method(case, method)
    ]


def _settings(
    paper: PaperExperiment, laptop: LaptopScale, case: str, method: str
) -> dict[str, Any]:
    """Return the settings of a run without its seed."""
    case_changes = dict(paper.cases[case])
    method_in_case = case_changes.pop("methods", {}).get(method, {})
    settings = deepcopy(dict(paper.experiment))
    for changes in (
        case_changes,
        paper.methods[method],
        method_in_case,
        laptop.experiment,
        laptop.by_case.get(case, {}),
        laptop.by_method.get(method, {}),
    ):
        settings = merge(settings, changes)
    return settings if paper.compute is not None else {"name": method, **settings}


def export_sweep(
    paper: PaperExperiment,
    scale: Scale,
    seeds: Sequence[int] | None = None,
    methods: Sequence[str] | None = None,
    cases: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return one case of a published experiment in the form that `fedtide run` reads.

    Settings that all methods share are at the top, the others under `methods`.

    Args:
        paper: the experiment.
        scale: "paper" or "laptop".
        seeds, methods: a part of its runs; None: all.
        cases: the one case; None: the first.

    Raises:
        InvalidInputError: an unknown name, several cases, or an experiment without training.
    """
    if paper.compute is not None:
        raise InvalidInputError(
            f"export: {paper.name} is computed, not trained; choose another experiment"
        )
    cases = [next(iter(paper.cases))] if cases is None else cases
    if len(cases) != 1:
        raise InvalidInputError(f"cases: a sweep has one case; choose one of {', '.join(cases)}")
    runs = plan(paper, scale, seeds, methods, cases)
    settings = {
        run.method: {k: v for k, v in run.settings.items() if k not in ("name", "seed")}
        for run in runs
    }
    first = next(iter(settings.values()))
    shared = {
        key: value
        for key, value in first.items()
        if all(other.get(key) == value for other in settings.values())
    }
    own = {
        method: {key: value for key, value in plain.items() if key not in shared}
        for method, plain in settings.items()
    }
    seeds = list(dict.fromkeys(run.key.seed for run in runs))
    name = paper.name.replace("/", "-")
    return {"name": name, "seeds": seeds, **shared, "methods": own}
