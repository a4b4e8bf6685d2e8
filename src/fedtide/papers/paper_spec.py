"""The specification of a published experiment: its runs, the published numbers and the claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from fedtide.errors import error_prefix
from fedtide.papers.claims import Claim
from fedtide.papers.measures import Measure
from fedtide.simulation.experiment import BUILDER
from fedtide.simulation.experiment_files import read_yaml
from fedtide.validation import require_choice

Scale = Literal["paper", "laptop"]
"""The published size, or a smaller version of the same question."""

SCALES: tuple[Scale, ...] = ("paper", "laptop")

PublishedNumbers = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Numbers by case, method and measure: a number, or a number and its standard deviation."""

MAIN = "main"
"""The name of the only case of an experiment without cases."""


@dataclass(frozen=True)
class LaptopScale:
    """How the smaller version differs.

    Args:
        description: what is smaller, in words.
        seeds, cases, methods: what is run; None: as at full scale.
        experiment: changes to every run.
        by_case, by_method: further changes to the runs of a case or a method.
    """

    description: str
    seeds: list[int] | None = None
    cases: list[str] | None = None
    methods: list[str] | None = None
    experiment: dict[str, Any] = field(default_factory=dict)
    by_case: dict[str, Any] = field(default_factory=dict)
    by_method: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PaperExperiment:
    """A published experiment as its file specifies it.

    Args:
        name: the paper and the experiment, such as "002/synthetic".
        title: what it studies, in words.
        reference: the place in the paper.
        experiment: the keys of an experiment that all runs share.
        seeds: the seeds of the runs.
        methods: what each method changes, by name.
        cases: what each case changes, by name; under `methods` also what it changes in a method.
        measures: the numbers that are read off a run, by name.
        claims: the paper's statements about the methods.
        minutes: the approximate time of all runs on two cores, by scale.
        published: the numbers in the paper.
        program: the numbers of the authors' program, where known.
        unknown: what the paper leaves unknown, and the substitute.
        choices: where the paper and its authors' program differ, and how to choose.
        notes: further remarks.
        deterministic: whether no number depends on the seed, so that one seed is enough.
        compute: the computation that replaces training, if any.
        derive: the function that adds columns to a run's metrics, if any.
        no_data: the data set's name, such as "CIFAR-100", if the project has no copy of it; until
            there are records, the claims wait for it, and are counted separately.
        figure: the metric of the figure and the options of its axes.
        laptop: the smaller version; None: the published size is small enough.
    """

    name: str
    title: str
    reference: str
    experiment: Mapping[str, Any]
    seeds: Sequence[int]
    methods: Mapping[str, Mapping[str, Any]]
    cases: Mapping[str, Mapping[str, Any]]
    measures: Mapping[str, Measure]
    claims: Sequence[Claim]
    minutes: Mapping[str, float]
    published: PublishedNumbers = field(default_factory=dict)
    program: PublishedNumbers = field(default_factory=dict)
    unknown: Sequence[str] = ()
    choices: Sequence[str] = ()
    notes: Sequence[str] = ()
    deterministic: bool = False
    compute: str | None = None
    derive: str | None = None
    no_data: str | None = None
    figure: Mapping[str, Any] = field(default_factory=dict)
    laptop: LaptopScale | None = None

    @property
    def scales(self) -> tuple[Scale, ...]:
        """The sizes at which it can be run."""
        return SCALES if self.laptop is not None else SCALES[:1]

    @property
    def dataset(self) -> str | None:
        """The first data set that the experiment or one of its cases names."""
        problems = [self.experiment, *self.cases.values()]
        names = [p.get("problem", {}).get("dataset") for p in problems]
        return next((name for name in names if name is not None), None)

    def has_method(self, case: str, method: str) -> bool:
        """Return whether a method is run in a case, which may leave methods out."""
        return self.cases[case].get("methods", {}).get(method, {}) is not None


def parse_paper(name: str, plain: Mapping[str, Any]) -> PaperExperiment:
    """Return the experiment that the plain data of its file describe.

    Raises:
        InvalidInputError: an unknown key of a measure or a claim.
    """
    plain = _expand(plain)
    with error_prefix(name):
        built = dict(plain) | {
            "cases": plain.get("cases") or {MAIN: {}},
            "measures": {
                key: BUILDER.build(Measure, value, f"measures.{key}")
                for key, value in plain["measures"].items()
            },
            "claims": [BUILDER.build(Claim, c, "claims") for c in plain.get("claims", ())],
        }
        if plain.get("laptop") is not None:
            built["laptop"] = BUILDER.build(LaptopScale, plain["laptop"], "laptop")
    return PaperExperiment(name=name, **built)


def _expand(value: Any) -> Any:
    """Return plain data with the two abbreviations of long lists written out.

    >>> _expand({"repeat": [[0, 2], [1, 3]]})
    [0, 0, 1, 1, 1]
    >>> _expand({"geometric": {"ratio": 0.5, "count": 3}})
    [1.0, 0.5, 0.25]
    """
    if isinstance(value, Mapping):
        if set(value) == {"repeat"}:
            return [item for item, times in value["repeat"] for _ in range(times)]
        if set(value) == {"geometric"}:
            ratio, count = value["geometric"]["ratio"], value["geometric"]["count"]
            return [float(ratio) ** i for i in range(count)]
        return {key: _expand(inner) for key, inner in value.items()}
    return [_expand(inner) for inner in value] if isinstance(value, list) else value


_FOLDER = Path(__file__).parent


@cache
def names() -> tuple[str, ...]:
    """Return the names of all published experiments, paper by paper: one YAML file for each.

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
