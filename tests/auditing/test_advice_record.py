"""The tables of trained advice in docs/audit-methods.md, the record, and the training."""

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
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
