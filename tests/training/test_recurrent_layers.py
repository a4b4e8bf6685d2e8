"""Recurrent layers in operations that stack, against PyTorch's own."""

import pytest
import torch
from torch import nn

from fedtide.training import LocalTraining
from fedtide.training.trainers._recurrent_layers import StackableRecurrence
from fedtide.training.trainers.select import choose_trainer

from .networks import network_task

KINDS = [
    nn.LSTM,
    nn.GRU,
    nn.RNN,
    lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
    lambda *sizes, **options: nn.LSTM(*sizes, proj_size=2, **options),
]
SWITCHES = ("bias", "batch_first", "bidirectional")


def build(kind, layers=1, **options):
    torch.manual_seed(0)
    return kind(3, 4, layers, **options).double()


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def outputs_and_gradients(layer, *given):
    """Return what the layer returns, and the gradients of the sum of its squares."""
    outputs, states = layer(*given)
    states = (states,) if isinstance(states, torch.Tensor) else states
    sum(part.square().sum() for part in (outputs, *states)).backward()
    gradients = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    return outputs, *states, *gradients


@pytest.mark.parametrize("kind", KINDS, ids=["lstm", "gru", "tanh", "relu", "projected"])
@pytest.mark.parametrize(
    "switches", ["", "bias bidirectional", "bias batch_first", "batch_first bidirectional"]
)
def test_outputs_states_and_gradients_are_pytorchs(kind, switches):
    layer = build(kind, 2, **{name: name in switches for name in SWITCHES})
    x = draw(5, 5, 3)
    expected = outputs_and_gradients(layer, x)
    with StackableRecurrence():
        found = outputs_and_gradients(layer, x)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS[:3])
def test_layers_stack_over_clients(kind):
    layer, x = build(kind), draw(6, 5, 2, 3)
    weights = {name: draw(6, *p.shape) for name, p in layer.named_parameters()}
    apply = lambda own, x: torch.func.functional_call(layer, own, (x,))[0]  # noqa: E731
    with StackableRecurrence():
        found = torch.func.vmap(apply)(weights, x)
    for s in range(6):
        own = {name: tensor[s] for name, tensor in weights.items()}
        torch.testing.assert_close(found[s], apply(own, x[s]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells_stack_where_they_are_differentiated(kind):
    cell, x = kind(3, 4).double(), draw(6, 5, 2, 3)
    weights = {name: draw(6, *p.shape) for name, p in cell.named_parameters()}

    def gradient(own, x):
        def loss(own):
            states = None
            for position in x:
                states = torch.func.functional_call(cell, own, (position, states))
            return (states[0] if isinstance(states, tuple) else states).square().sum()

        return torch.func.grad(loss)(own)

    found = torch.func.vmap(gradient)(weights, x)
    for s in range(6):
        own = gradient({name: tensor[s] for name, tensor in weights.items()}, x[s])
        for name, expected in own.items():
            torch.testing.assert_close(found[name][s], expected, rtol=1e-12, atol=1e-12)


def test_what_is_random_or_packed_is_pytorchs():
    layer, packed = build(nn.GRU), nn.utils.rnn.pack_sequence([draw(4, 3), draw(2, 3)])
    dropping = build(nn.LSTM, 2, dropout=0.5)

    def run():
        torch.manual_seed(2)
        return layer(packed)[0].data, layer(packed)[1], dropping(draw(4, 2, 3))[0]

    expected = run()
    with StackableRecurrence():
        found = run()
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("wanted", ["compiled", "threaded-compiled", "auto"])
def test_recurrent_networks_are_not_compiled(wanted):
    task, local = network_task("gru"), LocalTraining(steps=2, batch_size=2, lr=0.1)
    trainer, _ = choose_trainer(wanted, task, local, clients=1e9)
    assert not trainer.name.endswith("compiled")
