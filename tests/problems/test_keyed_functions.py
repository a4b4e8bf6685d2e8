"""Dropout by functions, as in the networks of other libraries: masks that depend on a key alone."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedtide.problems.models import FunctionalModel

KEYS = torch.from_numpy(np.random.default_rng(2).integers(2**62, size=2000))
LAYERS = {
    "dropout": (nn.Dropout, (6, 5)),
    "dropout2d": (nn.Dropout2d, (6, 5, 4, 3)),
    "dropout3d": (nn.Dropout3d, (6, 5, 4, 3, 2)),
}


class Scaled(nn.Module):
    """Twice its input, times one parameter, through a function and then what it is given."""

    def __init__(self, function):
        super().__init__()
        self.factor, self.function = nn.Parameter(torch.tensor(2.0)), function

    def forward(self, x):
        return self.function(self, self.function(self, self.factor * x))


class Attention(nn.Module):
    """Attention as transformers write it, with a parameter for the queries."""

    def __init__(self, dropout, **options):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4))
        self.dropout, self.options = dropout, options

    def forward(self, x, memory):
        return functional.scaled_dot_product_attention(
            x @ self.weight,
            memory,
            memory.cos(),
            dropout_p=self.dropout if self.training else 0.0,
            **self.options,
        )


ATTENTION = {
    "plain": {},
    "causal": {"is_causal": True},
    "numbers": {"attn_mask": torch.linspace(-2, 2, 15).view(3, 5)},
    "scale": {"scale": 0.3},
    "groups": {"enable_gqa": True},
}


def attention_inputs(option="plain"):
    draw = torch.Generator().manual_seed(0)
    heads = 1 if option == "groups" else 2
    return torch.randn(2, 2, 3, 4, generator=draw), torch.randn(2, heads, 5, 4, generator=draw)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_functions_drop_what_the_layers_drop(name, inplace):
    kind, shape = LAYERS[name]
    x, function = torch.rand(shape) + 1, getattr(functional, name)

    def layered(net, x):
        return net.layer(x)

    def by_function(net, x):
        y = x * 1
        z = function(y, 0.3, net.training, inplace)
        return y if inplace else z

    by_layer = Scaled(layered)
    by_layer.layer = kind(0.3)
    models = [FunctionalModel(net, (x,)) for net in (by_layer, Scaled(by_function))]
    assert all(model.draws for model in models)
    for key in KEYS[:3]:
        expected, found = (model(model.params, (x,), key) for model in models)
        assert 0 < (expected == 0).sum() < x.numel()
        assert torch.equal(found, expected)
    assert torch.equal(models[1].evaluate(models[1].params, (x,)), 2 * x)


@pytest.mark.parametrize("option", ATTENTION)
def test_attention_that_hardly_drops_is_that_of_pytorch(option):
    """Weights are dropped with a probability too small for any draw, so all are kept."""
    x, memory = attention_inputs(option)
    model = FunctionalModel(Attention(1e-12, **ATTENTION[option]), (x, memory))
    assert model.draws
    expected = functional.scaled_dot_product_attention(x, memory, memory.cos(), **ATTENTION[option])
    found = model(model.params, (x, memory), KEYS[0])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    x = attention_inputs()
    model = FunctionalModel(Attention(0.5), x)
    first, again, other = (model(model.params, x, key) for key in KEYS[[0, 0, 1]])
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


class Branching(nn.Module):
    """Drops something only in minibatches that are larger than those of a trial."""

    def __init__(self, layer):
        super().__init__()
        self.first, self.layer = nn.Linear(4, 6), layer

    def forward(self, x):
        h = self.first(x)
        if len(x) <= 4:
            return h
        if isinstance(self.layer, nn.MultiheadAttention):
            return self.layer(h, h, h, need_weights=False)[0]
        found = self.layer(h)
        return found if torch.is_tensor(found) else found[0]


@pytest.mark.parametrize(
    "layer",
    [nn.Dropout(0.5), nn.LSTM(6, 6, 2, dropout=0.5), nn.MultiheadAttention(6, 2, dropout=0.5)],
    ids=lambda layer: type(layer).__name__,
)
def test_masks_of_layers_that_a_trial_does_not_reach_are_keyed(layer):
    model = FunctionalModel(Branching(layer), (torch.ones(2, 4),))
    assert model.draws
    first, again, other = (
        model(model.params, (torch.ones(8, 4),), torch.tensor(key)) for key in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
