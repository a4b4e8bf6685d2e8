"""One published experiment: how it was run, what was printed, and what is claimed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from fedtide.errors import InvalidInputError, did_you_mean, error_prefix
from fedtide.papers.claims import Claim
from fedtide.papers.measures import Measure
from fedtide.simulation.experiment import BUILDER

Scale = Literal["paper", "laptop"]
"""The size of the original, or a stated smaller version of the same question."""

Published = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Numbers by case, method and measure: a number, or a number and its standard deviation."""

Plain = Mapping[str, Any]


@dataclass(frozen=True)
class Laptop:
    """How the smaller version differs.

    Args:
        says: what is smaller, for people.
        seeds, cases, methods: what is run; None: as at full scale.
        experiment: changes to every run.
        by_case, by_method: further changes to the runs of a case, or of a method.
    """

    says: str
    seeds: list[int] | None = None
    cases: list[str] | None = None
    methods: list[str] | None = None
    experiment: dict[str, Any] = field(default_factory=dict)
    by_case: dict[str, Any] = field(default_factory=dict)
    by_method: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PaperExperiment:
    """A published experiment, as its file says it.

    Args:
        name: the paper and the experiment, such as "002/synthetic".
        title: for people.
        reference: where in the paper.
        experiment: the keys of an experiment that all runs share.
        seeds: of the runs.
        methods: what each method changes, by name.
        cases: what each case changes, by name; under `methods` also what it changes in a method.
        measures: what is read off a run, by name.
        published: what the paper prints.
        program: what the authors' program gives where that was found out.
        claims: what the paper says of the methods.
        minutes: how long all runs take on two cores, about, at each scale.
        unknown: what the paper leaves unknown, and what stands in.
        choices: where the paper and its authors' program differ, and how to choose.
        notes: what else a reader must know.
        compute: the computation that takes the place of training, if one does.
        derive: what adds columns to the metrics of a run, if anything does.
        figure: the metric of the figure's curves, and whether it is logarithmic.
        laptop: the smaller version; None: the original is small enough.
    """

    name: str
    title: str
    reference: str
    experiment: Plain
    seeds: Sequence[int]
    methods: Mapping[str, Plain]
    cases: Mapping[str, Plain]
    measures: Mapping[str, Measure]
    published: Published
    program: Published
    claims: Sequence[Claim]
    minutes: Mapping[str, float]
    unknown: Sequence[str] = ()
    choices: Sequence[str] = ()
    notes: Sequence[str] = ()
    compute: str | None = None
    derive: str | None = None
    figure: Mapping[str, Any] = field(default_factory=dict)
    laptop: Laptop | None = None

    @property
    def dataset(self) -> str | None:
        """The data set of all cases, or of the first, if there is one."""
        problems = [self.experiment, *self.cases.values()]
        names = [p.get("problem", {}).get("dataset") for p in problems]
        return next((name for name in names if name is not None), None)


MAIN = "main"
"""The name of the only case of an experiment without cases."""


def paper_of(name: str, plain: Mapping[str, Any]) -> PaperExperiment:
    """Return the experiment that the plain data of its file describe.

    Raises:
        InvalidInputError: an unknown key, or a claim about what is not there.
    """
    known = {f.name for f in fields(PaperExperiment)} - {"name"}
    for key in plain:
        if key not in known:
            raise InvalidInputError(f"{name}: unknown key {key!r}; {did_you_mean(key, known)}")
    plain = expanded(plain)
    with error_prefix(name):
        built = dict(plain) | {
            "cases": plain.get("cases") or {MAIN: {}},
            "measures": _each(Measure, plain["measures"], "measures"),
            "claims": [BUILDER.build(Claim, c, "claims") for c in plain.get("claims", ())],
            "published": plain.get("published", {}),
            "program": plain.get("program", {}),
        }
        if plain.get("laptop") is not None:
            built["laptop"] = BUILDER.build(Laptop, plain["laptop"], "laptop")
        paper = PaperExperiment(name=name, **built)
        _check(paper)
    return paper


def _each(kind: type, plain: Mapping[str, Any], path: str) -> dict[str, Any]:
    return {name: BUILDER.build(kind, p, f"{path}.{name}") for name, p in plain.items()}


def _check(paper: PaperExperiment) -> None:
    """Make sure that all that is named is there."""
    for label, table in (("published", paper.published), ("program", paper.program)):
        for case, rows in table.items():
            _known(f"{label}", case, paper.cases)
            for method, numbers in rows.items():
                _known(f"{label}.{case}", method, paper.methods)
                for measure in numbers:
                    _known(f"{label}.{case}.{method}", measure, paper.measures)
    for i, claim in enumerate(paper.claims):
        for method in claim.methods:
            _known(f"claims.{i}", method, paper.methods)
        for case in claim.cases or ():
            _known(f"claims.{i}", case, paper.cases)
        _known(f"claims.{i}", claim.measure, paper.measures)


def _known(field_name: str, name: str, options: Mapping[str, Any]) -> None:
    if name not in options:
        raise InvalidInputError(f"{field_name}: unknown {name!r}; {did_you_mean(name, options)}")


def expanded(value: Any) -> Any:
    """Return plain data with two abbreviations of long lists written out.

    >>> expanded({"repeat": [[0, 2], [1, 3]]})
    [0, 0, 1, 1, 1]
    >>> expanded({"geometric": {"ratio": 0.5, "count": 3}})
    [1.0, 0.5, 0.25]
    """
    if isinstance(value, Mapping):
        if set(value) == {"repeat"}:
            return [item for item, times in value["repeat"] for _ in range(times)]
        if set(value) == {"geometric"}:
            ratio, count = value["geometric"]["ratio"], value["geometric"]["count"]
            return [float(ratio) ** i for i in range(count)]
        return {key: expanded(inner) for key, inner in value.items()}
    return [expanded(inner) for inner in value] if isinstance(value, list) else value
