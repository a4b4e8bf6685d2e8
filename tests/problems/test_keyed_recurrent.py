"""Dropout between recurrent layers, against layers and masks put together by hand."""

from functools import partial

import pytest
import torch
from torch import nn

from fedtide.problems.models import FunctionalModel
from fedtide.problems.models.keyed_dropout import DropoutMasks, KeyedFunctions

KINDS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": partial(nn.RNN, nonlinearity="relu"),
    "projected": partial(nn.LSTM, proj_size=2),
}
LAYERS, P = 3, 0.4


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def by_hand(layer, single, x, states, key):
    """Return outputs and states of single layers with the weights of `layer`, masks between."""
    masks, ends = DropoutMasks(), []
    masks.start_pass(key)
    for k in range(LAYERS):
        of_layer = single(3 if k == 0 else x.shape[-1])
        for name, p in of_layer.named_parameters():
            p.data = getattr(layer, name.replace("_l0", f"_l{k}")).data
        runs = 2 if layer.bidirectional else 1
        own = tuple(state[k * runs : (k + 1) * runs] for state in states)
        x, end = of_layer(x, own if len(own) > 1 else own[0])
        ends.append(end if isinstance(end, tuple) else (end,))
        if k < LAYERS - 1:
            x = x * masks.draw(tuple(x.shape), P) / (1 - P)
    return x, [torch.cat(parts) for parts in zip(*ends, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"bidirectional": True, "batch_first": True}, {"bias": False}])
def test_masks_of_a_key_lie_between_the_layers(kind, options):
    build = KINDS[kind]
    layer = build(3, 4, LAYERS, dropout=P, **options).double()
    single = lambda inputs: build(inputs, 4, 1, **options).double()  # noqa: E731
    x, key = draw(5, 2, 3), torch.tensor(7)
    batch = 5 if options.get("batch_first") else 2
    runs = LAYERS * (2 if options.get("bidirectional") else 1)
    sizes = {"projected": [2, 4], "lstm": [4, 4]}.get(kind, [4])
    states = [draw(runs, batch, size) for size in sizes]
    masks = DropoutMasks()
    masks.start_pass(key)
    with KeyedFunctions(masks):
        found, ends = layer(x, tuple(states) if len(states) > 1 else states[0])
    expected, expected_ends = by_hand(layer, single, x, states, key)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for end, other in zip(ends if len(states) > 1 else [ends], expected_ends, strict=True):
        torch.testing.assert_close(end, other, rtol=1e-12, atol=1e-12)


def test_a_network_keeps_its_names_and_evaluates_without_dropout():
    network = nn.LSTM(3, 4, 2, dropout=0.5).double()
    model = FunctionalModel(network, (draw(2, 2, 3),))
    assert list(model.params) == [name for name, _ in network.named_parameters()]
    assert model.draws
    x = draw(2, 2, 3)
    one, again, other = (model(model.params, (x,), torch.tensor(key))[0] for key in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.allclose(one, other)
    expected = network.eval()(x)[0]
    assert torch.allclose(model.evaluate(model.params, (x,))[0], expected)
    assert not torch.allclose(one, expected)
