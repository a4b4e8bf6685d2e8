"""Models: the papers' sizes and initial values, pure functions, and networks that are refused."""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from fedtide.errors import InvalidInputError
from fedtide.problems.models import (
    CNN,
    MLP,
    MODELS,
    FunctionalModel,
    Imported,
    Logistic,
    resolve_model,
)
from fedtide.problems.models.initialisation import build_seeded
from fedtide.simulation.experiment import BUILDER

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


def test_every_registered_model_is_tested():
    assert sorted(MODELS) == sorted(name for name, *_ in PAPER_MODELS)


@pytest.mark.parametrize(("name", "shape", "classes", "count"), PAPER_MODELS)
def test_parameter_counts(name, shape, classes, count):
    module = MODELS[name].build(shape, classes)
    assert sum(p.numel() for p in module.parameters()) == count
    assert module(torch.zeros(2, *shape)).shape == (2, classes)


@pytest.mark.parametrize(("name", "shape", "classes", "count"), PAPER_MODELS)
def test_stacked_gradients_equal_autograd(name, shape, classes, count):
    model = make_functional(name, shape, classes)
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


@pytest.mark.parametrize("name", ["cnn-001-cifar100", "cnn-001-cinic10"])
def test_dropout_sits_before_each_of_the_three_linear_layers(name):
    module = MODELS[name].build((3, 32, 32), 10)
    kinds = [type(layer) for layer in module]
    linear = [i for i, kind in enumerate(kinds) if kind is nn.Linear]
    assert [kinds[i - 1] for i in linear] == [nn.Dropout] * 3
    assert [layer.p for layer in module if isinstance(layer, nn.Dropout)] == [0.2] * 3


def test_dropout_is_active_only_in_training():
    model = make_functional("cnn-001-cinic10", (3, 32, 32), 10)
    assert model.draws
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    first, other = (model(model.params, (x,), torch.tensor(key)) for key in (1, 2))
    assert not torch.equal(first, other)
    evaluated = model.evaluate(model.params, (x,))
    assert torch.equal(evaluated, model.evaluate(model.params, (x,)))
    without = CNN(channels=(32, 32), kernel=3, padding=1, hidden=(512, 256)).build((3, 32, 32), 10)
    names = dict(
        zip((n for n, _ in without.named_parameters()), model.params.values(), strict=True)
    )
    assert torch.allclose(
        evaluated, torch.func.functional_call(without.double(), names, (x,)), atol=1e-12
    )


def test_the_mean_over_masks_equals_the_layer_without_dropout():
    # a linear model: E[mask·x/(1-p)]·w = x·w; 4000 keys, 8 outputs within 5 standard errors each:
    # a fixed seed, and a false alarm in 5 of a million seeds
    module = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(9, 4)).double()
    x = torch.randn(2, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    model = FunctionalModel(module, (x,))
    keys = torch.from_numpy(np.random.default_rng(2).integers(2**62, size=4000))
    drawn = torch.func.vmap(lambda key: model(model.params, (x,), key))(keys)
    error = drawn.std(0) / math.sqrt(len(keys))
    assert ((drawn.mean(0) - model.evaluate(model.params, (x,))).abs() < 5 * error).all()


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


@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn-002-cifar10", "cnn-003-cifar10"])
def test_default_initialisation_of_the_other_models(name):
    module = build_seeded(lambda: MODELS[name].build((3, 32, 32), 10), 0)
    for layer in module:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            bound = 1 / math.sqrt(layer.weight[0].numel())
            assert 0.8 * bound < layer.weight.abs().max().item() <= bound
            assert layer.bias.any()


def test_initial_parameters_depend_on_the_seed_and_not_on_the_global_generator():
    before = torch.get_rng_state()
    first = make_functional("mlp", (1, 8, 8), 10).params
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(3)
    again = make_functional("mlp", (1, 8, 8), 10).params
    assert all(torch.equal(first[n], again[n]) for n in first)
    other = build_seeded(lambda: Logistic().build((4,), 2), 5)[1].weight
    assert not torch.equal(other, build_seeded(lambda: Logistic().build((4,), 2), 6)[1].weight)


def test_threads_can_share_a_model():
    model = make_functional("cnn-001-cinic10", (3, 32, 32), 10)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)

    def logits(n):
        params = {name: p * (1 + n / 10) for name, p in model.params.items()}
        return model(params, (x,), torch.tensor(n))

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(logits, range(12)))
    assert all(torch.equal(together[n], logits(n)) for n in range(12))


def test_frozen_parameters_are_not_trainable():
    module = nn.Sequential(nn.Flatten(), nn.Linear(9, 4), nn.Linear(4, 3))
    module[1].requires_grad_(False)
    model = FunctionalModel(module, (torch.zeros(2, 9),))
    assert list(model.params) == ["2.weight", "2.bias"]


class FunctionalDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(9, 3)

    def forward(self, x):
        return self.linear(nn.functional.dropout(x, 0.5, self.training))


def tracking_instance_norm():
    return nn.InstanceNorm1d(3, track_running_stats=True)


@pytest.mark.parametrize(
    ("module", "complaint"),
    [
        (nn.Linear(8, 3), r"features of shape \(9,\) \(mat1 and mat2.*; choose"),
        (
            nn.Sequential(
                nn.Unflatten(1, (3, 3)), tracking_instance_norm(), nn.Flatten(), nn.Linear(9, 3)
            ),
            "layer '1' .*GroupNorm",
        ),
        (  # wide: RReLU draws only for negative inputs, of which there must be some
            nn.Sequential(nn.Linear(9, 64), nn.RReLU(), nn.Linear(64, 3)),
            "global generator.*; use nn.Dropout",
        ),
        (FunctionalDropout(), "global generator.*; use nn.Dropout"),
        (nn.Flatten(), "no parameters.*; set requires_grad"),
    ],
)
def test_networks_that_are_not_pure_functions_are_refused(module, complaint):
    before = torch.get_rng_state()
    with pytest.raises(InvalidInputError, match=rf"^model: .*{complaint}"):
        FunctionalModel(module, (torch.ones(2, 9),))
    assert torch.equal(before, torch.get_rng_state())


def test_batch_norm_without_running_statistics_is_accepted():
    norm = nn.BatchNorm1d(3, track_running_stats=False)
    FunctionalModel(nn.Sequential(nn.Linear(9, 3), norm), (torch.ones(2, 9),))


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


def test_modules_in_the_working_directory_are_found(user_module):
    net = resolve_model(f"{user_module}:Net").build((1, 8, 8), 10)
    assert net(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    given = {"type": f"{user_module}:Net", "arguments": {"width": 7}}
    assert resolve_model(given).build((1, 8, 8), 7).linear.out_features == 7


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


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("mlp", MLP()),
        ({"type": "mlp", "hidden": [200, 200]}, MLP([200, 200])),
        ({"type": "cnn-003-cifar10"}, MODELS["cnn-003-cifar10"]),
        ({"type": "cnn", "channels": [8]}, CNN([8])),
        (Logistic(), Logistic()),
    ],
)
def test_a_model_by_name_mapping_or_object(given, expected):
    assert resolve_model(given) == expected


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("logistics", "^model: .*'logistics'; did you mean 'logistic'"),
        ({"type": "mpl"}, "^model.type: .*'mpl'; did you mean 'mlp'"),
        ({"hidden": [3]}, "^model.type: .*''; "),
        ({"type": "mlp", "hiden": [3]}, "^model.hiden: .*; did you mean 'hidden'"),
        ({"type": "mlp", "hidden": [0]}, "^model.hidden: 0 .*; give"),
        ({"type": "mlp", "hidden": 3}, "^model.hidden: 3 .*; give"),
        ({"type": "cnn"}, "^model: .*channels"),
        ({"type": "cnn", "channels": [3], "dropout": 1}, "^model.dropout: 1 .*; give"),
        (
            {"type": "cnn", "channels": [3], "padding": -1},
            "^model.padding: -1 .*; give",
        ),
        ({"type": "cnn", "channels": [3], "kernel": 0}, "^model.kernel: 0 .*; give"),
        (
            {"type": "cnn", "channels": [3], "initialisation": "he"},
            "^model.initialisation: .*; ",
        ),
    ],
)
def test_invalid_models_are_refused(given, complaint):
    with pytest.raises(InvalidInputError, match=complaint):
        resolve_model(given)


@pytest.mark.parametrize(
    ("shape", "complaint"),
    [((64,), "^model: .*needs images.*; use"), ((1, 4, 4), "^model: .*too small.*; use")],
)
def test_a_cnn_needs_images_that_are_large_enough(shape, complaint):
    with pytest.raises(InvalidInputError, match=complaint):
        MODELS["cnn-003-cifar10"].build(shape, 10)


@pytest.mark.parametrize(
    "given",
    [
        Imported("torch.nn:Linear", {"in_features": 64, "out_features": 10}),
        {"type": "torch.nn:Linear", "arguments": {"in_features": 64, "out_features": 10}},
        "torch.nn:Flatten",
    ],
)
def test_imported_models_survive_serialisation(given):
    plain = BUILDER.to_dict(given)
    assert json.loads(json.dumps(plain)) == plain
    assert resolve_model(plain) == resolve_model(given)
