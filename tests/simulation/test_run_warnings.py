"""Runs that end regularly but should not pass in silence: nobody took part, or the loss rose."""

import json

import numpy as np
import pytest

import fedtide as ft

QUADRATIC = {"type": "quadratic", "matrices": [[[1.0]], [[2.0]]], "centers": [[0.0], [1.0]]}


def simulate(tmp_path, **changes):
    """Run on two quadratics and return the warnings in the summary, and the result."""
    fields = {
        "problem": QUADRATIC | {"start": [3.0]},
        "participation": "full",
        "algorithm": "fedavg",
        "local": {"steps": 1, "lr": 0.1},
        "rounds": 12,
        "evaluation": {"every": 1},
        "dtype": "float64",
    }
    result = ft.simulate(**(fields | changes), out=tmp_path / "run")
    return json.loads((tmp_path / "run" / "summary.json").read_text())["warnings"], result


def messages(caplog):
    return [r.getMessage() for r in caplog.records if r.name.startswith("fedtide")]


@pytest.mark.parametrize("every", [1, 0])
def test_a_loss_that_ends_far_above_the_initial_one_is_warned_of(every, tmp_path, caplog):
    """x <- x - 1.8 (1.5 x - 1) grows by 1.7 per round without becoming infinite."""
    found, _ = simulate(tmp_path, local={"steps": 1, "lr": 1.8}, evaluation={"every": every})
    assert len(found) == 1
    assert found[0].startswith("local.lr: the loss ended at ")
    assert found[0].endswith("; lower lr")
    assert [f"run, seed 0: {found[0]}"] == messages(caplog)


def test_a_run_that_learns_warns_of_nothing(tmp_path, caplog):
    assert simulate(tmp_path)[0] == []
    assert messages(caplog) == []


def test_a_run_in_which_nobody_took_part_says_so(tmp_path):
    found, result = simulate(tmp_path, participation={"type": "bernoulli", "rates": 1e-12})
    assert len(found) == 1
    assert found[0].startswith("participation: no client took part in any round")
    assert np.array_equal(result.model, [3.0])


WAITING = [
    {"type": "wait-for-all", "period": 100},
    {"type": "averaged", "inner": {"type": "wait-for-all", "period": 13}},
    {"type": "mifa", "unseen": "wait"},
]


@pytest.mark.parametrize("algorithm", WAITING, ids=str)
def test_a_method_that_waits_to_the_end_says_so(algorithm, tmp_path):
    """Not that nobody took part: client 1 does, in all rounds."""
    participation = {"type": "bernoulli", "rates": [0.0, 1.0]}
    found, result = simulate(tmp_path, algorithm=algorithm, participation=participation)
    assert np.array_equal(result.model, [3.0])
    assert len(found) == 1
    assert found[0].startswith("algorithm: the model is the initial one after 12 rounds, ")
    assert "took part in 12 of them" in found[0]


@pytest.mark.parametrize(
    "participation",
    [{"type": "bernoulli", "rates": 0}, {"type": "table", "weights": [[0, 0]] * 12}],
)
def test_participation_that_is_known_to_be_empty_is_refused(participation, tmp_path):
    with pytest.raises(
        ft.InvalidInputError, match=r"^participation: the rates at which .* are all 0; give"
    ):
        simulate(tmp_path, participation=participation)
    assert not (tmp_path / "run").exists()
