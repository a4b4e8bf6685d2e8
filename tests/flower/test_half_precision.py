"""Models in float16: they travel in it, and the server computes in float32."""

import numpy as np
import pytest
import torch

import fedtide as ft
from fedtide.errors import InvalidInputError
from fedtide.flower.arrays import params_to_arrays
from fedtide.flower.clients.app import custom_client
from fedtide.flower.protocol import Update
from fedtide.flower.server.strategy import FedTide

from .fake_grid import FakeGrid, Node

A = ft.algorithms


def train(update: float, rounds: int, start: float = 0.0, dtype=torch.float16, lr=1.0, state=None):
    """Train two clients that send the same update, in float32, in every round.

    Returns:
        The state, the arrays of the result, and the models that the first client received.
    """
    received = []

    def step(model, request):
        received.append(model["x"])
        return Update({"x": torch.full((2,), update)}, samples=1, lr=0.1, steps=1)

    app = custom_client(lambda context: step)
    grid = FakeGrid({100 + n: Node(app, {"partition-id": n}) for n in range(2)})
    strategy = FedTide(A.FedAvg(server_lr=lr), clients=2, clock=grid.clock, state=state)
    x = params_to_arrays({"x": torch.full((2,), start, dtype=dtype)})
    [array] = strategy.start(grid, x, rounds, 60.0).arrays.values()
    return strategy.training.model.numpy(), array.numpy(), received[::2]


def test_small_steps_add_up_and_models_travel_in_half_precision():
    """From 1 the next number of float16 is 0.001 away, five times a step here."""
    found, sent, received = train(1e-4, 20, start=1.0, lr=2.0)
    assert {x.dtype for x in received} == {torch.float16}
    # Each client's own model is y = x + Δ in float32, where x is what it received.
    exact = 1.0 + 2e-4 * np.arange(21)
    np.testing.assert_allclose(found, [exact[-1]] * 2, rtol=1e-6)
    seen = [float(x[0]) for x in received]
    np.testing.assert_array_equal(seen, exact[:-1].astype(np.float32).astype(np.float16))
    np.testing.assert_array_equal(sent, np.full(2, exact[-1], np.float16))


def test_numbers_beyond_float16_are_sent_as_its_largest():
    """They would be infinite, and no client could train again."""
    found, _, received = train(5_000.0, 3, start=60_000.0)
    np.testing.assert_array_equal(found, [75_000.0] * 2)
    assert [float(x[0]) for x in received] == [60_000.0, 64_992.0, 65_504.0]


def test_a_training_goes_on_in_the_dtype_in_which_it_began(tmp_path):
    train(0.5, 2, state=tmp_path)
    _, _, received = train(0.5, 3, state=tmp_path)
    assert {model.dtype for model in received} == {torch.float16}
    with pytest.raises(InvalidInputError, match=r"^state: "):
        train(0.5, 3, dtype=torch.float32, state=tmp_path)
