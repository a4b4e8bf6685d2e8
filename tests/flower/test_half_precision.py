"""Models in float16: they travel in it, and the server computes in float32."""

from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context

import fedtide as ft
from fedtide.errors import InvalidInputError
from fedtide.flower.arrays import params_to_arrays
from fedtide.flower.clients.app import custom_client
from fedtide.flower.protocol import Update
from fedtide.flower.server.strategy import FedTide

from .fake_grid import FakeGrid, Node

A = ft.algorithms


class Federation:
    """Clients that send the same update in every round, in the dtype of the model or another.

    Attributes:
        received: the models that they received.
    """

    def __init__(
        self,
        clients: int,
        update: float,
        samples: int = 1,
        memory: Path | None = None,
        dtype: torch.dtype = torch.float16,
    ) -> None:
        self.received: list[torch.Tensor] = []

        def make(context: Context):
            def train(model, request):
                self.received.append(model["x"])
                delta = torch.full((2,), update, dtype=dtype)
                return Update({"x": delta}, samples, 0.1, 1)

            return train

        folder = None if memory is None else lambda context: memory
        app = custom_client(make, memory=folder)
        nodes = {100 + n: Node(app, {"partition-id": n}) for n in range(clients)}
        self.clients, self.grid = clients, FakeGrid(nodes)

    def train(
        self, algorithm, rounds: int, start: float = 0.0, dtype=torch.float16, **options
    ) -> FedTide:
        x = params_to_arrays({"x": torch.full((2,), start, dtype=dtype)})
        strategy = FedTide(algorithm, clients=self.clients, clock=self.grid.clock, **options)
        self.result = strategy.start(self.grid, x, rounds, 60.0)
        return strategy


def state_of(strategy: FedTide) -> np.ndarray:
    return strategy.training.model.numpy()


def test_small_steps_add_up_and_models_travel_in_half_precision():
    """From 1 the next number of float16 is 0.001 away, five times a step here."""
    federation = Federation(2, 1e-4, dtype=torch.float32)
    strategy = federation.train(A.FedAvg(server_lr=2.0), 20, start=1.0)
    seen = [float(x[0]) for x in federation.received[::2]]
    assert {x.dtype for x in federation.received} == {torch.float16}
    # Each client's own model is y = x + Δ in float32, where x is what it received.
    exact = 1.0 + 2e-4 * np.arange(21)
    np.testing.assert_allclose(state_of(strategy), [exact[-1]] * 2, rtol=1e-6)
    np.testing.assert_array_equal(seen, exact[:-1].astype(np.float32).astype(np.float16))
    [array] = federation.result.arrays.values()
    np.testing.assert_array_equal(array.numpy(), np.full(2, exact[-1], np.float16))


@pytest.mark.parametrize("first", [torch.float16, torch.float64])
@pytest.mark.parametrize("second", [torch.float16, torch.float32])
def test_a_training_goes_on_in_the_dtype_in_which_it_began(first, second, tmp_path):
    """What travels would change, or not be what was asked for."""
    Federation(2, 0.5).train(A.FedAvg(), 2, dtype=first, state=tmp_path)
    again = Federation(2, 0.5)
    if first == second:
        again.train(A.FedAvg(), 3, dtype=second, state=tmp_path)
        assert {model.dtype for model in again.received} == {first}
        return
    with pytest.raises(InvalidInputError, match=r"^state: .* arrays of float\d+, not .*; give"):
        again.train(A.FedAvg(), 3, dtype=second, state=tmp_path)
