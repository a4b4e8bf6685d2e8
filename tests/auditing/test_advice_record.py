"""The tables of trained advice in docs/audit-methods.md, the record, and the training."""

import importlib
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import polars as pl
import pytest

import fedtide as ft

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def advice() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        return importlib.import_module("advice")


@pytest.fixture(params=["KNOWN", "UNSEEN"])
def laws(advice, request):
    return getattr(advice, request.param)


def test_the_table_of_the_docs_is_that_of_the_stored_verdicts(advice, laws):
    page = (ROOT / "docs" / "audit-methods.md").read_text(encoding="utf-8")
    assert advice.render(advice.load_verdicts(laws.verdicts)) in page


def test_every_law_has_verdicts_on_every_problem(advice, laws):
    verdicts = advice.load_verdicts(laws.verdicts)
    judged = [(one.problem, one.law, one.memory) for one in verdicts]
    assert judged == [
        (problem, law, memory)
        for problem in advice.PROBLEMS
        for law in laws.laws
        for memory in (True, False)
    ]
    assert not set(advice.LAWS) & set(advice.HELD_OUT)


def test_the_stored_verdicts_follow_from_the_record(laws):
    rows = pl.read_parquet(laws.record)
    for verdict in json.loads(laws.verdicts.read_text(encoding="utf-8")):
        found = {}
        for name, settings in (
            ("advised", verdict["advised"]),
            ("best", verdict["best"]),
            ("fedavg", '{"type": "fedavg"}'),
        ):
            runs = rows.filter(problem=verdict["problem"], law=verdict["law"], settings=settings)
            tuning = runs.filter(seed=0)
            rate = tuning["lr"][int(np.argmin(tuning["figure"].to_numpy()))]
            judged = runs.filter(pl.col("seed") > 0, lr=rate).sort("seed")
            assert judged["seed"].to_list() == [1, 2, 3, 4, 5]
            found[name] = judged["figure"].to_numpy()
        for name, value in (("advised", "value"), ("best", "best_value"), ("fedavg", "fedavg")):
            assert verdict[value] == pytest.approx(found[name].mean())
        assert verdict["first"] == (verdict["value"] <= 1.1 * verdict["best_value"] + 0.005)
        gap = found["advised"] - found["fedavg"]
        assert verdict["worse"] == (gap.mean() > max(0.005, 2 * gap.std(ddof=1) / 5**0.5))


def test_the_audit_advises_what_was_judged(advice):
    """One law of each kind, whose verdicts were stored: the code has not changed since."""
    verdicts = advice.load_verdicts(advice.KNOWN.verdicts)
    for law in ("uniform cohorts", "bursts", "longest absent first"):
        result = advice.audit_law(law, advice.Digits.rounds, advice.LOGS[0])
        stored = next(v for v in verdicts if (v.law, v.problem, v.memory) == (law, "digits", True))
        assert advice.key(result.advice[0].experiment["algorithm"]) == stored.advised


@pytest.mark.parametrize(
    "settings",
    [
        {"type": "scaffold"},
        {"type": "amplified", "period": 6, "factor": 1.5, "inner": {"type": "fedau", "cutoff": 9}},
    ],
)
def test_a_run_is_that_of_simulate(advice, monkeypatch, settings):
    """Whose loss is that of its iterates."""
    monkeypatch.setattr(advice.Quadratic, "rounds", 24)
    law, lr = "five groups in turn", 0.3
    problem, present = advice.Quadratic(3), advice.draw(law, 24, 3)
    result = ft.simulate(
        problem=ft.problems.Quadratic(matrices=problem.matrices, centers=problem.centers),
        participation=ft.participation.Table(weights=present / 5),
        algorithm=settings,
        local={"steps": advice.STEPS, "lr": lr},
        rounds=24,
        dtype="float64",
        trainer="reference",
        record_iterates=True,
        progress=False,
    )
    mean = problem.matrices.mean(axis=0)
    slope = np.einsum("nij,nj->i", problem.matrices, problem.centers) / advice.CLIENTS
    best = np.linalg.solve(mean, slope)
    excess = [(x - best) @ mean @ (x - best) for x in result.iterates]
    found = advice.train("quadratic", law, settings, 3, lr)
    assert found == pytest.approx(excess[24] / excess[0], rel=1e-9)


@pytest.mark.parametrize(("problem", "method"), [("quadratic", "scaffold"), ("digits", "auto")])
def test_a_run_of_the_record_is_repeated(advice, problem, method):
    run = {"problem": problem, "law": "three time zones", "settings": f'{{"type": "{method}"}}'}
    row = pl.read_parquet(advice.KNOWN.record).filter(seed=1, lr=0.3, **run)
    found = advice.train(problem, run["law"], {"type": method}, 1, 0.3)
    assert found == pytest.approx(row["figure"].item(), rel=0.02)


def test_laws_do_what_they_say(advice):
    rounds = 300
    drawn = {law: advice.draw(law, rounds, 1) for law in advice.ALL_LAWS}
    assert all(table.shape == (rounds, 50) and table.any() for table in drawn.values())
    for law in ("bursts, 5 of the available", "longest absent first"):
        assert drawn[law].sum(axis=1).max() == 5
    rests = [np.diff(np.flatnonzero(column)) for column in drawn["cool-down of 24 rounds"].T]
    assert min(gaps.min() for gaps in rests if len(gaps)) >= 25
    turns = drawn["five groups in turn"].reshape(rounds, 5, 10).sum(axis=2)
    assert (np.sort(turns, axis=1) == [0, 0, 0, 0, 5]).all()
    np.testing.assert_array_equal(turns[100:], turns[:-100])
    assert drawn["churn"][-30:, :16].sum() == 0
    used = drawn["separated, by day"]
    assert used.sum(axis=1).max() == 5
    assert min(np.diff(np.flatnonzero(column)).min() for column in used.T) > 12
    down = ~drawn["outages of groups"].reshape(rounds, 5, 10).any(axis=2)
    assert 0.2 < down.mean() < 0.6
