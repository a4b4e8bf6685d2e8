"""The papers' files: their numbers are the published ones, and their methods and cases run."""

import numpy as np
import polars as pl
import pytest

from fedtide.papers import load, names, plan
from fedtide.papers.computed_experiments import COMPUTATIONS
from fedtide.papers.paper_spec import SCALES

COMPUTED = [name for name in names() if load(name).compute is not None]


@pytest.mark.parametrize("name", names())
def test_every_planned_run_resolves_with_enough_seeds_and_no_two_are_the_same(name):
    """Three seeds, five where a run takes less than a minute, one where nothing depends on them.

    No cutoff, period or other setting makes two methods of a case the same run.
    """
    paper = load(name)
    for scale in SCALES:
        runs = plan(paper, scale)
        short = paper.minutes[scale] / len(runs) < 1
        needed = 1 if paper.deterministic else 5 if short else 3
        assert len({run.key.seed for run in runs}) >= needed, scale
        first = [run for run in runs if run.key.seed == paper.seeds[0]]
        assert all(run.resolved["seed"] == run.key.seed for run in first)
        assert len({(run.case, run.fingerprint) for run in first}) == len(first)


@pytest.mark.parametrize("name", COMPUTED)
def test_every_computation_yields_its_measures(name):
    paper = load(name)
    run = plan(paper)[0]
    short = dict(run.settings) | {"rounds": 50, "estimates": 100, "clients": 20}
    if "problem" in short:
        short["problem"] = {"clients": 100, "samples": 400, "features": 5, "informative": 2}
    metrics = COMPUTATIONS[paper.compute](short)
    assert isinstance(metrics, pl.DataFrame)
    for measure in paper.measures.values():
        assert np.isfinite(measure.read(metrics))


@pytest.mark.parametrize("name", names())
def test_claims_can_be_judged_and_are_not_judged_in_cases_without_their_methods(name):
    paper = load(name)
    exists = {(run.case, run.method) for run in plan(paper, seeds=[0])}
    printed = {(case, method) for case, rows in paper.published.items() for method in rows}
    assert printed <= {(case, method) for case in paper.cases for method in paper.methods}
    for claim in paper.claims:
        assert {claim.measure, claim.laptop_measure or claim.measure} <= set(paper.measures)
        assert len(claim.cases or paper.cases) > 1 or claim.kind != "grows"
        assert set(claim.methods) <= set(paper.methods)
        for case in claim.cases or ():
            for method in claim.methods:
                assert (claim.against or case, method) in exists, claim.statement
        if claim.kind == "printed":
            cases = claim.cases or paper.cases
            numbers = [paper.published.get(c, {}).get(m, {}) for c in cases for m in claim.methods]
            assert all(claim.measure in printed for printed in numbers), claim.statement
