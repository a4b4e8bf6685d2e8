"""What is not finite: stop, with the round and the clients named, or leave the update out."""

import numpy as np
import pytest

import fedtide as ft
from fedtide.simulation.checkpoint import load_newest


def experiment(**changes):
    """Client 1 is so steep that its local steps overflow; it comes in rounds 4, 5 and 9."""
    weights = np.ones((12, 3))
    weights[[0, 1, 2, 3, 6, 7, 8, 10, 11], 1] = 0
    return {
        "problem": ft.problems.Quadratic(
            matrices=[[[1.0]], [[1e30]], [[2.0]]], centers=[[0.0], [1.0], [1.0]], start=[3.0]
        ),
        "participation": ft.participation.Table(weights=weights),
        "algorithm": "fedavg",
        "local": {"steps": 3, "lr": 0.1},
        "rounds": 12,
        "trainer": "reference",
        "evaluation": {"every": 0},
        "checkpoint": {"every": 2},
    } | changes


def test_stop_keeps_the_last_good_checkpoint(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(ft.InvalidInputError, match="update in round 4"):
        ft.simulate(**experiment(), out=out)
    kept = load_newest(out / "checkpoints")
    assert kept.round == 4
    assert np.isfinite(kept.tensors["state.model"].numpy()).all()
    assert not (out / "summary.json").exists()
    with pytest.raises(ft.InvalidInputError, match="round 4"):  # it ends in the same way
        ft.simulate(**experiment(), out=out, resume=True)


def test_a_round_of_which_nothing_is_left_is_an_empty_one():
    weights = np.zeros((3, 3))
    weights[:, 1] = 1
    fields = experiment(on_nonfinite="drop", participation=ft.participation.Table(weights=weights))
    result = ft.simulate(**fields | {"rounds": 3, "record_iterates": True})
    assert result.iterates.tolist() == [[3.0]] * 4
    assert result.participation["stage"].to_list() == ["reported"] * 3


def test_large_but_finite_updates_are_used():
    """Their sum overflows in float32, they themselves do not."""
    problem = ft.problems.Quadratic(
        matrices=[[[1.0, 0.0], [0.0, 1.0]]], centers=[[3e38, 3e38]], start=[0.0, 0.0]
    )
    fields = {"algorithm": "fedavg", "participation": "full", "rounds": 1, "trainer": "stacked"}
    result = ft.simulate(
        problem=problem, local={"steps": 1, "lr": 0.9}, on_nonfinite="drop", **fields
    )
    assert result.model.tolist() == pytest.approx([2.7e38, 2.7e38])


@pytest.mark.parametrize("on_nonfinite", ["stop", "drop"])
def test_a_step_that_overflows_stops(on_nonfinite):
    """Every update is finite, their weighted sum is not: there is nothing to leave out."""
    problem = ft.problems.Quadratic(matrices=[[[1.0]]] * 2, centers=[[3e38], [3e38]], start=[0.0])
    with pytest.raises(
        ft.InvalidInputError, match=r"^local.lr: the step of round 0 .* \(clients 0, 1\); "
    ):
        ft.simulate(
            problem=problem,
            participation="full",
            algorithm={"type": "fedavg", "server_lr": 10},
            local={"steps": 1, "lr": 0.9},
            rounds=2,
            on_nonfinite=on_nonfinite,
            evaluation={"every": 0},
            trainer="reference",
        )


def test_a_loss_that_is_not_finite_stops_and_names_the_clients():
    problem = ft.problems.Quadratic(
        matrices=[[[1.0]], [[1e30]], [[1.0]]], centers=[[0.0], [0.0], [0.0]], start=[1e10]
    )
    fields = {"participation": {"type": "table", "weights": [[1, 0, 1]]}, "algorithm": "fedavg"}
    with pytest.raises(ft.InvalidInputError) as error:
        ft.simulate(
            problem=problem, local={"steps": 1, "lr": 0.1}, rounds=1, trainer="reference", **fields
        )
    assert str(error.value) == (
        "problem: the loss is inf before any training (clients 1); check the loss function, the "
        "data and the initial model"
    )
