"""Non-finite updates, for every algorithm: "stop" names the client, "drop" leaves no trace of it.

Three clients in one dimension; the gradient of client 1 overflows. It participates in rounds 4, 5
and 9.
"""

import numpy as np
import pytest
import torch

import fedtide as ft
from fedtide.algorithms import ALGORITHMS
from fedtide.algorithms.serialization import to_tensors

PARAMETERS = {name: [{}] for name in ALGORITHMS} | {
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
    "clipped": [{"bound": 0.1}, {"bound": 0.1, "quantile": 0.5, "inner": "mifa"}],
    "trimmed-mean": [{"trim": 0.4, "inner": "fedau"}],
}
"""Parameters of the algorithms; those without an entry are tested with their defaults."""

CONFIGURATIONS = [
    {"type": name, **given} for name, all_given in PARAMETERS.items() for given in all_given
]

POOLED = {"central-sgd"}  # trains on the pooled data of all clients


def run(algorithm, rounds=(4, 5, 9), **changes):
    weights = np.ones((12, 3))
    weights[[t for t in range(12) if t not in rounds], 1] = 0
    # The pooled function needs a finite Σ A_n e_n.
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


@pytest.mark.parametrize("algorithm", CONFIGURATIONS, ids=lambda a: " ".join(map(str, a.values())))
def test_a_dropped_client_leaves_no_trace(algorithm):
    """Not in the model, a client memory, a control variate, a moment or an interval."""
    how = {"on_nonfinite": "drop", "max_stack_bytes": 16}  # chunks of two clients
    dropped, absent = run(algorithm, **how), run(algorithm, rounds=(), **how)
    assert dropped.model.tolist() == pytest.approx(absent.model.tolist(), rel=1e-12)
    kept, expected = to_tensors(dropped.state), to_tensors(absent.state)
    assert kept.keys() == expected.keys()
    for name, value in kept.items():
        assert bool(torch.isfinite(value).all()), name
        assert torch.allclose(value, expected[name], rtol=1e-12, atol=0), name
    assert dropped.clients["participation"][1] == 0
    log = dropped.participation.filter(client=1)
    assert log["round"].to_list() == [4, 5, 9]
    assert log["stage"].to_list() == ["reported"] * 3


@pytest.mark.parametrize(
    ("algorithm", "t", "client"),
    [
        ({"type": "fedavg"}, 4, 1),
        ({"type": "wait-for-all", "period": 3}, 2, 1),  # trains all at the end of a period
        ({"type": "fedpbc"}, 0, 1),  # trains all in every round
        ({"type": "central-sgd"}, 0, 0),  # pools the data
    ],
)
def test_stop_names_round_and_client(algorithm, t, client):
    with pytest.raises(ft.InvalidInputError, match=rf"^local.lr: .*round {t}\b.*\b{client}\b"):
        run(algorithm)
