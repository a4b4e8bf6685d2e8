"""Updates that are not finite, under every algorithm: stop says whose, drop is as if it never came.

Three clients in one dimension; client 1 is so steep that its gradient overflows. It comes in
rounds 4, 5 and 9.
"""

import numpy as np
import pytest
import torch

import fedtide as ft
from fedtide.algorithms import ALGORITHMS, ClientUpdates
from fedtide.algorithms.serialization import to_tensors
from fedtide.population import Population

METHODS = {name: [{}] for name in ALGORITHMS} | {
    "fedavg": [{}, {"weights": "all"}, {"weights": "given"}],
    "known-rates": [{"rates": [1.0, 0.25, 1.0]}],
    "fedau": [{"cutoff": 3}, {"cutoff": 2, "average": 0.7}, {"groups": [0, 1, 0]}],
    "fedvarp": [{}, {"empty_rounds": "memory"}],
    "mifa": [{"unseen": "zero"}, {"unseen": "exclude"}, {"unseen": "wait"}],
    "fedprox": [{"mu": 0.1}],
    "scaffold": [{}, {"option": 1}],
    "amplified-scaffold": [{"period": 4, "factor": 1.5}],
    "amplified": [{"period": 4, "factor": 1.5, "inner": {"type": "fedau", "cutoff": 4}}],
    "wait-for-all": [{"period": 3}, {"period": 3, "mode": "gradient"}],
    "weighted-fedavg": [{"rates": [1.0, 0.25, 1.0]}],
    "switch": [{"first": "fedavg", "second": "fedlaavg", "at": 5}],
    "averaged": [{"inner": "scaffold"}],
}
"""Parameters for the methods that need some; any other method is tested with its defaults."""

EACH_METHOD = [
    {"type": name, **given} for name, all_given in METHODS.items() for given in all_given
]

POOLED = {"central-sgd"}  # its one client holds everything


def run(algorithm, comes=(4, 5, 9), **changes):
    weights = np.ones((12, 3))
    weights[[t for t in range(12) if t not in comes], 1] = 0
    # The pooled function exists only while the sum of the A_n e_n does.
    steep, center = (1e200, 1.0) if algorithm["type"] in POOLED else (1e308, -9.0)
    return ft.simulate(
        problem=ft.problems.Quadratic(
            matrices=[[[1.0]], [[steep]], [[2.0]]], centers=[[0.0], [center], [1.0]], start=[3.0]
        ),
        participation=ft.participation.Table(weights=weights),
        algorithm=algorithm,
        local={"steps": 3, "lr": 0.1},
        rounds=12,
        dtype="float64",
        trainer="reference",
        evaluation={"every": 0},
        **changes,
    )


@pytest.mark.parametrize("algorithm", EACH_METHOD, ids=lambda a: " ".join(map(str, a.values())))
@pytest.mark.parametrize("at_once", [2**20, 8], ids=["together", "one by one"])
def test_a_dropped_client_leaves_no_trace(algorithm, at_once):
    """Neither in the model nor in a memory, a control variate, a moment or an interval."""
    how = {"on_nonfinite": "drop", "max_stack_bytes": at_once}
    dropped, never = run(algorithm, **how), run(algorithm, comes=(), **how)
    assert dropped.model.tolist() == pytest.approx(never.model.tolist(), rel=1e-12)
    kept, expected = to_tensors(dropped.state), to_tensors(never.state)
    assert kept.keys() == expected.keys()
    for name, value in kept.items():
        assert bool(torch.isfinite(value).all()), name
        assert torch.allclose(value, expected[name], rtol=1e-12, atol=0), name
    assert dropped.clients["participation"][1] == 0
    log = dropped.participation.filter(client=1)
    assert log["round"].to_list() == [4, 5, 9]
    assert log["stage"].to_list() == ["reported"] * 3


@pytest.mark.parametrize("algorithm", EACH_METHOD, ids=lambda a: " ".join(map(str, a.values())))
def test_stop_says_whose_update_it_was(algorithm):
    # Some ask all clients at the end of a period, or pool the data and meet them all at once.
    waits = algorithm["type"] == "wait-for-all" and "mode" not in algorithm
    t, client = (0, 0) if algorithm["type"] in POOLED else (2, 1) if waits else (4, 1)
    with pytest.raises(ft.InvalidInputError) as error:
        run(algorithm)
    assert str(error.value) == (
        f"local.lr: an update in round {t} is not finite (clients {client}); lower lr, or leave "
        "such updates out with on_nonfinite: drop"
    )


@pytest.mark.parametrize("name", ["scaffold", "wait-for-all", "fedlaavg", "amplified-scaffold"])
def test_a_report_of_no_step_has_no_mean_gradient(name):
    """A deployment may send one; a division by 0 would poison a control variate."""
    given = {"wait-for-all": {"period": 2, "mode": "gradient"}}
    given["amplified-scaffold"] = {"period": 2, "factor": 1.0}
    method = ALGORITHMS[name](**given.get(name, {}))
    state = method.init(torch.zeros(1), Population(2))
    method.instruct(state, torch.tensor([0]))
    reports = ClientUpdates(
        torch.tensor([0]), torch.ones(1), torch.zeros(1, 1), lr=0.1, steps=torch.tensor([0])
    )
    try:
        state, _ = method.step(method.absorb(state, reports), lr=0.1)
    except ft.InvalidInputError as error:
        refusal = str(error)
    else:
        refusal = None
    assert refusal in (None, "steps: a client took no local step; leave its report out")
    assert all(bool(torch.isfinite(value).all()) for value in to_tensors(state).values())
