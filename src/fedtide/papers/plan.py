"""Which runs an experiment asks for: all cases, methods and seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from fedtide.errors import InvalidInputError, did_you_mean
from fedtide.papers.paper_spec import Laptop, PaperExperiment, Scale
from fedtide.simulation.experiment import Experiment
from fedtide.sweep.grid import merged

_NOTHING = Laptop(says="")


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """One run of a published experiment.

    Args:
        paper: the experiment's name.
        scale: "paper" or "laptop".
        case, method, seed: which of its runs.
        settings: the plain data of an `Experiment`, or the parameters of a computation.
        compute: the computation's name; None: it is trained.
    """

    paper: str
    scale: Scale
    case: str
    method: str
    seed: int
    settings: Mapping[str, Any]
    compute: str | None = None

    @property
    def folder(self) -> str:
        """Where it lies among the runs of its experiment and scale."""
        return f"{self.case}/{self.method}/seed-{self.seed}"

    @property
    def resolved(self) -> dict[str, Any]:
        """Every hyper-parameter as plain data, defaults written out."""
        if self.compute is not None:
            return {"compute": self.compute, **self.settings}
        return Experiment.from_dict(self.settings).to_dict()


def plan(
    paper: PaperExperiment,
    scale: Scale = "paper",
    seeds: Iterable[int] | None = None,
    methods: Iterable[str] | None = None,
    cases: Iterable[str] | None = None,
) -> list[PlannedRun]:
    """Return the runs at a scale: all methods of a case and a seed before the next seed.

    Args:
        paper: the published experiment.
        scale: "paper" or "laptop"; they are the same where the experiment has no smaller version.
        seeds, methods, cases: what is run of it; None: all.

    Raises:
        InvalidInputError: an unknown method or case.
    """
    small = (paper.laptop or _NOTHING) if scale == "laptop" else _NOTHING
    chosen_seeds = _chosen("seeds", seeds, small.seeds or paper.seeds, None)
    return [
        PlannedRun(paper.name, scale, case, method, seed, settings | {"seed": seed}, paper.compute)
        for case in _chosen("cases", cases, small.cases or list(paper.cases), paper.cases)
        for seed in chosen_seeds
        for method in _chosen(
            "methods", methods, small.methods or list(paper.methods), paper.methods
        )
        if (settings := _settings(paper, small, case, method)) is not None
    ]


def _chosen(
    field: str,
    asked: Iterable[Any] | None,
    default: Sequence[Any],
    options: Mapping[str, Any] | None,
) -> list[Any]:
    if asked is None:
        return list(default)
    asked = list(asked)
    for name in asked:
        if options is not None and name not in options:
            raise InvalidInputError(f"{field}: unknown {name!r}; {did_you_mean(name, options)}")
    return asked


def _settings(
    paper: PaperExperiment, small: Laptop, case: str, method: str
) -> dict[str, Any] | None:
    """Return the settings of a run without its seed; None: the case goes without the method."""
    of_case = dict(paper.cases[case])
    in_case = of_case.pop("methods", {})
    own = in_case.get(method, {})
    if own is None:
        return None
    settings = deepcopy(dict(paper.experiment))
    for changes in (
        of_case,
        paper.methods[method],
        own,
        small.experiment,
        small.by_case.get(case, {}),
        small.by_method.get(method, {}),
    ):
        settings = merged(settings, changes)
    return settings if paper.compute is not None else {"name": method, **settings}
