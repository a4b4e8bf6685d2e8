"""The papers' files: their numbers are the published ones, and their methods and cases run."""

import json
from collections import defaultdict
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.papers.small_runs import ROUNDS, shrink

import fedtide as ft
from fedtide.papers import load, load_records, names, plan
from fedtide.papers.computed_experiments import COMPUTATIONS
from fedtide.papers.paper_spec import SCALES

RESULTS = Path(__file__).parents[2] / "results"
TRAINED = [name for name in names() if load(name).compute is None]
COMPUTED = [name for name in names() if load(name).compute is not None]


@cache
def records_of(name):
    """Return the committed records of an experiment."""
    return load_records(RESULTS, name)


def representative_runs(paper):
    """Return all methods in the first case, and the first method in the others, for one seed."""
    runs = plan(paper, seeds=paper.seeds[:1])
    first_of_case = {run.case: run for run in reversed(runs)}
    return [run for run in runs if run.case == runs[0].case or run is first_of_case[run.case]]


@pytest.fixture(scope="module")
def small_metrics():
    """Return a function that runs shrunk settings, each different ones only once."""
    done = {}

    def run(settings):
        small = shrink(settings)
        key = json.dumps({k: v for k, v in small.items() if k != "name"}, sort_keys=True)
        if key not in done:
            done[key] = ft.simulate(**small).metrics
        return done[key]

    return run


@pytest.mark.statistical  # whole runs, though small ones
@pytest.mark.parametrize("name", TRAINED)
def test_every_method_and_case_runs(name, small_metrics):
    paper = load(name)
    for run in representative_runs(paper):
        metrics = small_metrics(run.settings)
        assert metrics["round"][-1] == ROUNDS, run.folder
        for measure in paper.measures.values():
            assert measure.metric in metrics.columns or paper.derive, run.folder
            if not measure.take.startswith("first") and not paper.derive:
                assert np.isfinite(measure.read(metrics)), run.folder


@pytest.mark.parametrize("name", names())
def test_every_planned_run_resolves(name):
    """At both scales, in all cases and with all methods, for one seed."""
    paper = load(name)
    for scale in SCALES:
        for run in plan(paper, scale, seeds=paper.seeds[:1]):
            assert run.resolved["seed"] == run.key.seed


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
def test_every_plan_has_the_seeds_that_a_verdict_needs(name):
    """Three, five where a run takes less than a minute, one where nothing depends on the seed."""
    paper = load(name)
    for scale in SCALES:
        runs = plan(paper, scale)
        short = paper.minutes[scale] / len(runs) < 1
        needed = 1 if paper.deterministic else 5 if short else 3
        assert len({run.key.seed for run in runs}) >= needed, scale


@pytest.mark.parametrize("name", ["000/cifar10", "000/fashion-mnist", "000/periods"])
def test_runs_of_a_seed_share_the_warm_up_of_paper_000(name):
    """With other rounding, as of another trainer, the loss at its end differs by a tenth."""
    found = defaultdict(set)
    for record in records_of(name):
        end = record.curve["round"].index(400)
        found[record.seed].add(record.curve["train_loss"][end])
    assert {seed: len(losses) for seed, losses in found.items()} == {1: 1, 2: 1, 3: 1}


@pytest.mark.parametrize("name", names())
def test_methods_of_a_case_are_different_runs(name):
    """No cutoff, period or other setting makes two methods of a case the same run."""
    paper = load(name)
    for scale in SCALES:
        runs = plan(paper, scale, seeds=paper.seeds[:1])
        assert len({(run.case, run.fingerprint) for run in runs}) == len(runs)


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


@pytest.mark.parametrize(
    ("name", "statement"),
    [
        ("001/weights", "At p = 0.02"),
        ("002/cifar10", "nearly overlap"),
        ("002/more-baselines", "FedAdam"),
        ("003/example-1", "four clients"),
        ("003/example-1", "nearer to the optimum"),
        ("003/mnist-logistic", "FedProx"),
        ("003/mnist-logistic", "FedLaAvg ends"),
        ("004/mnist", "as printed"),
        ("004/regression", "as printed"),
    ],
)
def test_statements_that_are_no_evidence_on_a_paper_are_checks(name, statement):
    checks = [claim for claim in load(name).claims if statement in claim.statement]
    assert checks
    assert all(claim.check for claim in checks)


@pytest.mark.parametrize(
    ("name", "statement", "printed"),
    [
        ("001/rare-participation", "Weighting by known", 45.9 - 10.0),
        ("001/rare-participation", "collapse", 45.9 - 12.7),
        ("001/rare-participation", "leads averaging", 71.5 - 60.2),
        ("001/cifar10", "MIFA falls behind", 84.8 - 73.0),
        ("001/svhn", "MIFA falls behind", 89.9 - 78.6),
    ],
)
def test_claimed_sizes_are_judged_and_not_larger_than_the_printed_ones(name, statement, printed):
    (claim,) = [c for c in load(name).claims if statement in c.statement]
    assert 0.8 * printed < claim.by < printed
    assert claim.needs_full_scale


@pytest.mark.parametrize(
    ("statement", "printed"),
    [("intermittent availability by", 60.98 - 56.75), ("full availability by", 64.70 - 59.25)],
)
def test_claimed_differences_are_the_printed_ones(statement, printed):
    (claim,) = [c for c in load("003/cifar10").claims if statement in c.statement]
    assert claim.value == pytest.approx(printed)
    assert claim.needs_full_scale


@pytest.mark.parametrize(
    ("name", "case", "method", "measure", "number"),
    [
        ("001/svhn", "bernoulli", "fedau-50", "train", [90.6, 0.4]),
        ("001/svhn", "cyclic", "mifa", "test", [77.4, 1.1]),
        ("001/cifar10", "bernoulli", "fedvarp", "test", [77.9, 0.2]),
        ("001/cifar10", "cyclic", "mifa", "train", [73.0, 1.3]),
        ("001/cifar100", "markov", "known", "test", [50.3, 0.5]),
        ("001/cinic10", "cyclic", "average-all", "train", [62.9, 1.7]),
        ("001/correlation", "alpha-0.01", "average-all", "train", [76.9, 2.7]),
        ("001/correlation", "alpha-1.0", "known", "test", [77.9, 0.7]),
        ("001/client-spread", "main", "fedau-50", "train", 9.5),
        ("001/rare-participation", "mean-0.001", "fedau-50", "train", [45.9, 1.2]),
        ("001/rare-participation", "mean-0.1", "fedvarp", "test", [59.5, 24.8]),
        ("002/synthetic", "noisy", "amplified-scaffold", "rounds", 800),
        ("002/synthetic", "noisy", "scaffold", "rounds", 1900),
        ("002/similarity", "similarity-100", "amplified-scaffold", "test", 84.6),
        ("003/cifar10", "full", "fedlaavg", "best", 64.70),
        ("003/cifar10", "intermittent", "fedavg", "best", 56.75),
        ("003/cifar10-rounds", "n-200", "fedlaavg", "rounds", 33550),
        ("003/cifar10-rounds", "beta-8", "fedlaavg", "rounds", 9400),
        ("003/example-1", "four-clients", "fedavg", "x", 8.36),
    ],
)
def test_published_numbers(name, case, method, measure, number):
    assert load(name).published[case][method][measure] == number


@pytest.mark.parametrize("dataset", ["svhn", "cifar10", "cifar100", "cinic10"])
def test_table_1_of_paper_001_is_complete(dataset):
    table = load(f"001/{dataset}").published
    assert set(table) == {"bernoulli", "markov", "cyclic"}
    for rows in table.values():
        assert len(rows) == 7
        assert all(len(row["train"]) == len(row["test"]) == 2 for row in rows.values())


@pytest.mark.parametrize(
    ("name", "method", "rounds"),
    [
        ("000/fashion-mnist", "amplified", 300_000),
        ("000/cifar10", "wait-full", 600_000),
        ("001/svhn", "fedau-50", 2000),
        ("001/cifar100", "mifa", 20_000),
        ("002/fashion-mnist", "scaffold", 2000),
        ("002/cifar10", "scaffold", 12_000),
        ("003/mnist-logistic", "fedlaavg", 10_000),
        ("004/mnist", "agnostic", 2000),
    ],
)
def test_published_numbers_of_rounds(name, method, rounds):
    (run,) = plan(load(name), seeds=[1], methods=[method], cases=[next(iter(load(name).cases))])
    assert run.resolved["rounds"] == rounds


def test_learning_rates_after_the_warm_up_of_paper_000():
    """γ = 1e-5 for FedAvg and with amplification on Fashion-MNIST; 5e-5 and 5e-6 on CIFAR-10."""
    for name, method, start, rate in [
        ("000/fashion-mnist", "fedavg", 2000, 1e-5),
        ("000/fashion-mnist", "amplified", 2000, 1e-5),
        ("000/cifar10", "fedavg", 4000, 5e-5),
        ("000/cifar10", "amplified", 4000, 5e-6),
    ]:
        (run,) = plan(load(name), seeds=[1], methods=[method])
        local = ft.Experiment.from_dict(run.settings).local
        assert local.rate(start - 1) == pytest.approx(local.lr)
        assert local.rate(start) == pytest.approx(rate, rel=1e-9)


def test_selection_weights_of_paper_004():
    (run,) = plan(load("004/mnist"), seeds=[0], methods=["agnostic"], cases=["skewed"])
    weights = np.array(run.settings["participation"]["weights"])
    np.testing.assert_allclose(weights, np.exp(-np.arange(100) / 10), rtol=1e-12)
