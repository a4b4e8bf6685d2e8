"""Models: the papers' sizes and initial values, pure functions, and networks that are refused."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from fedtide.errors import InvalidInputError
from fedtide.problems.models import (
    MODELS,
    FunctionalModel,
    Imported,
    Logistic,
    resolve_model,
)
from fedtide.problems.models.keyed_dropout import DropoutMasks, KeyedAttention
from fedtide.problems.models.network_building import build_seeded

PAPER_MODELS = [
    ("logistic", (1, 28, 28), 10, 7_850),
    ("mlp", (1, 8, 8), 10, 64 * 64 + 64 + 64 * 10 + 10),
    ("cnn-000-fashion", (1, 28, 28), 10, 228_586),
    ("cnn-000-cifar10", (3, 32, 32), 10, 2_218_314),
    ("cnn-001-svhn", (3, 32, 32), 10, 273_706),
    ("cnn-001-cifar10", (3, 32, 32), 10, 551_786),
    ("cnn-001-cifar100", (3, 32, 32), 100, 1_216_260),
    ("cnn-001-cinic10", (3, 32, 32), 10, 1_193_130),
    ("cnn-002-cifar10", (3, 32, 32), 10, 168_714),
    ("cnn-003-cifar10", (3, 32, 32), 10, 62_006),
]


def make_functional(name, shape, classes, dtype=torch.float64):
    module = build_seeded(lambda: resolve_model(name).build(shape, classes), 1).to(dtype)
    return FunctionalModel(module, (torch.zeros(2, *shape, dtype=dtype),))


@pytest.mark.parametrize(("name", "shape", "classes", "count"), PAPER_MODELS)
def test_parameter_counts(name, shape, classes, count):
    module = MODELS[name].build(shape, classes)
    assert sum(p.numel() for p in module.parameters()) == count
    assert module(torch.zeros(2, *shape)).shape == (2, classes)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("mlp", (1, 8, 8)), ("cnn-000-fashion", (1, 28, 28)), ("cnn-002-cifar10", (3, 32, 32))],
)
def test_stacked_gradients_equal_autograd(name, shape):
    model = make_functional(name, shape, 10)
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(2, 2, *shape, generator=draw, dtype=torch.float64)
    y, keys = torch.tensor([[0, 3], [9, 1]]), torch.tensor([12345678901234, -7])
    params = {
        n: torch.stack([p, p + 0.01 * torch.randn(p.shape, generator=draw, dtype=p.dtype)])
        for n, p in model.params.items()
    }

    def loss(params, x, y, key):
        return nn.functional.cross_entropy(model(params, (x,), key), y)

    stacked = torch.func.vmap(torch.func.grad(loss))(params, x, y, keys)
    for client in range(2):
        own = {n: p[client].clone().requires_grad_() for n, p in params.items()}
        expected = torch.autograd.grad(
            loss(own, x[client], y[client], keys[client]), list(own.values())
        )
        for (n, _), gradient in zip(own.items(), expected, strict=True):
            assert torch.allclose(stacked[n][client], gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["cnn-000-fashion", "cnn-001-svhn"])
def test_kaiming_initialisation_of_all_but_the_last_layer(name):
    shape = (1, 28, 28) if name == "cnn-000-fashion" else (3, 32, 32)
    module = build_seeded(lambda: MODELS[name].build(shape, 10), 0)
    layers = [layer for layer in module if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer in layers[:-1]:
        fan_in = layer.weight[0].numel()
        assert not layer.bias.any()
        assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / fan_in), rel=0.1)
        assert layer.weight.abs().max().item() > 2.2 * math.sqrt(2 / fan_in)  # not uniform
    last, bound = layers[-1], 1 / math.sqrt(layers[-1].in_features)
    assert last.weight.abs().max().item() <= bound
    assert last.bias.any()


def test_initial_parameters_depend_on_the_seed_and_not_on_the_global_generator():
    before = torch.get_rng_state()
    first = make_functional("mlp", (1, 8, 8), 10).params
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(3)
    again = make_functional("mlp", (1, 8, 8), 10).params
    assert all(torch.equal(first[n], again[n]) for n in first)
    other = build_seeded(lambda: Logistic().build((4,), 2), 5)[1].weight
    assert not torch.equal(other, build_seeded(lambda: Logistic().build((4,), 2), 6)[1].weight)


class Tokens(nn.Module):
    """A network with tied, frozen and normalised layers, for tokens and a number per token."""

    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(7, 4), nn.BatchNorm1d(4)
        self.frozen, self.output = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 7)
        self.output.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, tokens, *, number):
        states = self.frozen(self.embedding(tokens) * number.unsqueeze(-1)).mean(1)
        return self.output(self.norm(states)) * self.scale


def test_the_module_with_trained_values_fits_the_original_network():
    torch.manual_seed(0)
    original, tokens, number = Tokens(), torch.tensor([[1, 2], [3, 0]]), torch.ones(2, 2)
    model = FunctionalModel(original, (tokens, number), (None, "number"))
    assert "output.weight" not in model.params
    assert not any(name.startswith("frozen") for name in model.params)
    params = {name: p + 0.5 for name, p in model.params.items()}
    buffers = {name: b + 2 for name, b in model.buffers.items()}
    trained = model.module(params, buffers)
    restored = Tokens()
    restored.load_state_dict(trained.state_dict(), strict=True)
    assert type(trained) is Tokens
    assert type(trained.norm) is nn.BatchNorm1d
    assert trained.output.weight is trained.embedding.weight
    state, before = restored.state_dict(), original.state_dict()
    assert state["norm.num_batches_tracked"] == 2
    for name, value in state.items():
        shift = 0 if name.startswith("frozen") else 2 if name in buffers else 0.5
        assert torch.equal(value, before[name] + shift)
    with torch.no_grad():
        expected = restored.eval()(tokens, number=number)
    assert torch.equal(model.evaluate(params, (tokens, number), buffers).detach(), expected)


ATTENTION = {
    "plain": ({}, {}),
    "no weights": ({}, {"need_weights": False}),
    "no bias": ({"bias": False}, {}),
    "other widths": ({"kdim": 5, "vdim": 6}, {}),
    "masks": ({"batch_first": True}, {"mask": True, "padding": True}),
    "added mask": ({}, {"mask": "added", "need_weights": False}),
}


@pytest.mark.parametrize(
    ("case", "batched"), [*((case, True) for case in ATTENTION), ("masks", False), ("plain", False)]
)
def test_attention_that_drops_almost_nothing_equals_that_of_torch(case, batched):
    settings, call = (dict(part) for part in ATTENTION[case])
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2, **settings).double()
    query, key = torch.randn(3, 4, 8).double(), torch.randn(3, 5, settings.get("kdim", 8)).double()
    value = torch.randn(3, 5, settings.get("vdim", 8)).double()
    mask, padding = torch.rand(4, 5) < 0.3, torch.rand(3, 5) < 0.3
    mask[:, 0] = padding[:, 0] = False
    kind = call.pop("mask", None)
    if kind:
        call["attn_mask"] = torch.randn(4, 5).double() if kind == "added" else mask
    if call.pop("padding", None):
        call["key_padding_mask"] = padding if batched else padding[0]
    if not batched:
        query, key, value = query[0], key[0], value[0]
    elif not layer.batch_first:
        query, key, value = (part.transpose(0, 1) for part in (query, key, value))
    almost = copy.deepcopy(layer).train()
    almost.dropout = 1e-14
    masks = DropoutMasks()
    net = KeyedAttention(almost, masks)
    masks.start_pass(torch.tensor(1))
    for found, expected in zip(
        net(query, key, value, **call), layer.train()(query, key, value, **call), strict=True
    ):
        assert (found is None) == (expected is None)
        assert found is None or torch.allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_a_query_that_may_attend_to_nothing_gets_nothing():
    layer = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)
    masks = DropoutMasks()
    net = KeyedAttention(copy.deepcopy(layer).train(), masks)
    x = torch.randn(2, 3, 4, requires_grad=True)
    masks.start_pass(torch.tensor(5))
    outputs, weights = net(x, x, x, key_padding_mask=torch.ones(2, 3, dtype=torch.bool))
    outputs.sum().backward()
    assert not weights.any()
    assert x.grad.isfinite().all()


def test_the_mean_over_masks_of_attention_weights_is_attention_without_dropout():
    # outputs are linear in the dropped weights: as above, within 5 standard errors each
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True).double()
    x = torch.randn(2, 3, 4).double()
    masks = DropoutMasks()
    net = KeyedAttention(copy.deepcopy(layer).train(), masks)
    keys = torch.from_numpy(np.random.default_rng(2).integers(2**62, size=2000))

    def attend(key):
        masks.start_pass(key)
        return net(x, x, x)[0]

    drawn = torch.func.vmap(attend)(keys).detach()
    expected = layer.eval()(x, x, x)[0].detach()
    assert ((drawn.mean(0) - expected).abs() < 5 * drawn.std(0) / math.sqrt(len(keys))).all()


def test_transformer_layers_with_dropout_draw_from_their_key():
    layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
    x, memory = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    model = FunctionalModel(layer, (x, memory))
    first, again, other = (model(model.params, (x, memory), torch.tensor(k)) for k in (1, 1, 2))
    assert model.draws
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    evaluated = model.evaluate(model.params, (x, memory))
    assert torch.allclose(evaluated, layer.eval()(x, memory), atol=1e-5)


def test_padding_does_not_enter_batch_norm():
    net = nn.Sequential(nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3)).double()
    x = torch.randn(5, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    model = FunctionalModel(net, (x,))
    real = torch.tensor([True, False, True, True, False])
    outputs, buffers = model(model.params, (x,), sample_mask=real)
    expected, unpadded = model(model.params, (x[real],))
    assert torch.allclose(outputs[real], expected, rtol=1e-12, atol=1e-12)
    for name, value in unpadded.items():
        assert torch.allclose(buffers[name], value, rtol=1e-12, atol=1e-12)


def frozen(layer):
    layer.requires_grad_(False)
    return layer.eval()


def test_layers_in_evaluation_mode_stay_in_it():
    norm = nn.BatchNorm1d(3)
    norm.running_mean += 2
    attention = nn.MultiheadAttention(3, 1, dropout=0.5)
    net = nn.Sequential(
        nn.Linear(3, 3), frozen(norm), frozen(nn.Dropout(0.9)), nn.BatchNorm1d(3), nn.Linear(3, 1)
    )
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    model = FunctionalModel(net, (x,))
    assert not model.draws
    outputs, buffers = model(model.params, (x,))
    assert {name.partition(".")[0] for name in buffers} == {"3"}
    assert torch.allclose(outputs, copy.deepcopy(net)(x), atol=1e-6)  # the modes are kept
    trained = model.module(model.params, buffers)
    assert torch.equal(trained[1].running_mean, norm.running_mean)
    assert not torch.equal(trained[3].running_mean, net[3].running_mean)
    wrapped = nn.TransformerEncoderLayer(3, 1, 4, dropout=0.0)
    wrapped.self_attn = frozen(attention)
    assert not FunctionalModel(wrapped, (torch.ones(2, 2, 3),)).draws


@pytest.mark.parametrize(
    ("module", "fewest"),
    [
        (nn.Sequential(nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(8, 1)), 1),
        (nn.Sequential(nn.Flatten(), nn.BatchNorm1d(8), nn.Linear(8, 1)), 2),
        (nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(2), nn.Linear(2, 1)), 1),
        (nn.Sequential(nn.Flatten(), frozen(nn.BatchNorm1d(8)), nn.Linear(8, 1)), 1),
        (nn.Linear(2, 1), 1),
    ],
)
def test_batch_norm_of_one_value_per_sample_needs_two_samples(module, fewest):
    assert FunctionalModel(module, (torch.rand(2, 4, 2),)).fewest_samples == fewest


USER_MODULE = """
import torch
class Net(torch.nn.Module):
    def __init__(self, width=10):
        super().__init__()
        self.linear = torch.nn.Linear(64, width)
    def forward(self, x):
        return self.linear(x.flatten(1))
def number():
    return 3
"""


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    (tmp_path / "my_networks_for_test.py").write_text(USER_MODULE)
    monkeypatch.chdir(tmp_path)
    return "my_networks_for_test"


def test_invalid_import_paths_are_refused(user_module):
    for path, arguments, complaint in (
        ("no_such_module:Net", {}, "^model: 'no_such_module:Net'.*; give"),
        (f"{user_module}:Nett", {}, "^model: .*Nett.*; give"),
        (f"{user_module}:Net", {"height": 1}, "^model: .*height.*; give"),
        (f"{user_module}:number", {}, "^model: .* int; .*torch.nn.Module"),
        (":Net", {}, "^path: ':Net' .*; give"),
    ):
        with pytest.raises(InvalidInputError, match=complaint):
            Imported(path, arguments).build((1, 8, 8), 10)
