"""The specification of a published experiment: its runs, the published numbers and the claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from fedtide.errors import InvalidInputError, did_you_mean, error_prefix
from fedtide.papers.claims import Claim
from fedtide.papers.measures import Measure
from fedtide.simulation.experiment import BUILDER
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
        published: the numbers in the paper.
        program: the numbers of the authors' program, where known.
        claims: the paper's statements about the methods.
        minutes: the approximate time of all runs on two cores, by scale.
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
    published: PublishedNumbers
    program: PublishedNumbers
    claims: Sequence[Claim]
    minutes: Mapping[str, float]
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
        InvalidInputError: an unknown key, or an unknown case, method or measure.
    """
    known = {f.name for f in fields(PaperExperiment)} - {"name"}
    for key in plain:
        if key not in known:
            raise InvalidInputError(f"{name}: unknown key {key!r}; {did_you_mean(key, known)}")
    plain = expand(plain)
    with error_prefix(name):
        built = dict(plain) | {
            "cases": plain.get("cases") or {MAIN: {}},
            "measures": {
                key: BUILDER.build(Measure, value, f"measures.{key}")
                for key, value in plain["measures"].items()
            },
            "claims": [BUILDER.build(Claim, c, "claims") for c in plain.get("claims", ())],
            "published": plain.get("published", {}),
            "program": plain.get("program", {}),
        }
        if plain.get("laptop") is not None:
            built["laptop"] = BUILDER.build(LaptopScale, plain["laptop"], "laptop")
        paper = PaperExperiment(name=name, **built)
        _check_names(paper)
    return paper


def _check_names(paper: PaperExperiment) -> None:
    """Check that all cases, methods and measures that the file names exist."""
    for table_name, table in (("published", paper.published), ("program", paper.program)):
        for case, rows in table.items():
            require_choice(table_name, case, paper.cases)
            for method, numbers in rows.items():
                require_choice(f"{table_name}.{case}", method, paper.methods)
                for measure in numbers:
                    require_choice(f"{table_name}.{case}.{method}", measure, paper.measures)
    for i, claim in enumerate(paper.claims):
        for method in claim.methods:
            require_choice(f"claims.{i}", method, paper.methods)
        for case in (*(claim.cases or ()), *([claim.against] if claim.against else ())):
            require_choice(f"claims.{i}", case, paper.cases)
        for measure in filter(None, (claim.measure, claim.laptop_measure)):
            require_choice(f"claims.{i}", measure, paper.measures)


def expand(value: Any) -> Any:
    """Return plain data with the two abbreviations of long lists written out.

    >>> expand({"repeat": [[0, 2], [1, 3]]})
    [0, 0, 1, 1, 1]
    >>> expand({"geometric": {"ratio": 0.5, "count": 3}})
    [1.0, 0.5, 0.25]
    """
    if isinstance(value, Mapping):
        if set(value) == {"repeat"}:
            return [item for item, times in value["repeat"] for _ in range(times)]
        if set(value) == {"geometric"}:
            ratio, count = value["geometric"]["ratio"], value["geometric"]["count"]
            return [float(ratio) ** i for i in range(count)]
        return {key: expand(inner) for key, inner in value.items()}
    return [expand(inner) for inner in value] if isinstance(value, list) else value
