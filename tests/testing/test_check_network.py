"""Networks of all kinds: ordinary ones follow their parameters as in plain PyTorch, and the check
finds those that would silently compute something else."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import linear
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import fedtide as ft
from fedtide.problems.base import loss_gradient
from fedtide.problems.models import MODELS
from fedtide.testing import check_network

COUNT = 12
RNG = np.random.default_rng(0)
DATA = {
    "x": RNG.normal(size=(COUNT, 4)),
    "y": RNG.normal(size=(COUNT, 2)),
    "client": np.repeat([0, 1, 2], [3, 4, 5]),
}


class Net(nn.Module):
    """Two linear layers, what `setup` adds, and the given `forward`."""

    def __init__(self, compute, setup=lambda net: None):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)
        setup(self)
        self.compute = compute

    def forward(self, x):
        return self.compute(self, x)


def squares(outputs, target):
    return (outputs - target).square().mean(1)


def prepare(network, loss=squares, dtype=torch.float64):
    problem = ft.problems.Supervised(DATA, model=network, loss=loss)
    return problem.prepare(0, torch.device("cpu"), dtype)


def tie(net):
    net.c = nn.Linear(4, 4)
    net.c.weight = net.a.weight


def add_lora(net):
    net.requires_grad_(False)
    net.down, net.up = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.zeros(4, 2))


def add_lists(net):
    net.layers, net.by_name = nn.ModuleList([net.a]), nn.ModuleDict({"out": net.b})
    net.scales = nn.ParameterList([nn.Parameter(torch.ones(4))])


def cache_constant(net, x):
    if net.positions is None:
        net.positions = torch.arange(4, dtype=x.dtype)
    return net.b(net.a(x) + net.positions)


def forces(net, x):
    x = x.clone().requires_grad_()
    with torch.enable_grad():
        energy = net.b(net.a(x).tanh())
        (gradient,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
    return energy + gradient[:, :2]


def with_statistics(net):
    net.norm = nn.BatchNorm1d(4)


ORDINARY = {
    "plain": lambda: Net(lambda net, x: net.b(net.a(x).tanh())),
    "tied": lambda: Net(lambda net, x: net.b(net.c(net.a(x).tanh())), tie),
    "a layer with two names": lambda: Net(
        lambda net, x: net.b(net.again(net.a(x).tanh())), lambda net: setattr(net, "again", net.a)
    ),
    "weight norm": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 2))),
    "spectral norm in evaluation mode": lambda: nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(4, 4)).eval(), nn.Linear(4, 2)
    ),
    "lists": lambda: Net(
        lambda net, x: net.by_name["out"](net.layers[0](x) * net.scales[0]), add_lists
    ),
    "low-rank adapter": lambda: Net(
        lambda net, x: net.b(net.a(x) + linear(linear(x, net.down), net.up)), add_lora
    ),
    "cached constant": lambda: Net(cache_constant, lambda net: setattr(net, "positions", None)),
    "gradient with respect to inputs": lambda: Net(forces),
    "batch norm": lambda: Net(lambda net, x: net.b(net.norm(net.a(x))), with_statistics),
    "graph": lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore:.*is deprecated", "ignore:The .grad")
@pytest.mark.parametrize("kind", ORDINARY)
def test_gradients_and_losses_of_ordinary_networks_are_those_of_autograd(kind):
    torch.manual_seed(0)
    network = ORDINARY[kind]()
    check_network(network.double(), torch.tensor(DATA["x"][:5]))
    task = prepare(network)
    draw = torch.Generator().manual_seed(1)
    x = task.start + 0.1 * torch.randn(len(task.start), generator=draw, dtype=torch.float64)
    params = task.layout.unflatten(x)
    plain = copy.deepcopy(network).double()
    own = {name: p for name, p in plain.named_parameters() if p.requires_grad}
    assert list(own) == list(params)
    with torch.no_grad():
        for name, value in params.items():
            own[name].copy_(value)
    inputs, target = torch.tensor(DATA["x"][:5]), torch.tensor(DATA["y"][:5])
    loss = squares(plain(inputs), target).mean()
    expected = torch.autograd.grad(loss, list(own.values()))
    found, _ = loss_gradient(task.loss_and_buffers)(params, {}, inputs, target)
    for gradient, other in zip(found.values(), expected, strict=True):
        assert torch.allclose(gradient, other, rtol=1e-10, atol=1e-12)
    plain = task.module(x, task.start_buffers)
    with torch.no_grad():
        losses = squares(plain(torch.tensor(DATA["x"])), torch.tensor(DATA["y"]))
    means = [part.mean() for part in losses.split([3, 4, 5])]
    np.testing.assert_allclose(task.evaluate(x).clients["loss"], means, rtol=1e-10)


def test_a_network_may_return_a_learnable_parameter():
    def add_scale(net):
        net.scale = nn.Parameter(torch.zeros(2))

    def likelihood(outputs, target):
        mean, log_scale = outputs
        return ((mean - target).square() / log_scale.exp() + log_scale).mean(1)

    task = prepare(Net(lambda net, x: (net.b(net.a(x)), net.scale), add_scale), likelihood)
    inputs, target = torch.tensor(DATA["x"]), torch.tensor(DATA["y"])
    params = task.layout.unflatten(task.start)
    gradient, _ = loss_gradient(task.loss_and_buffers)(params, {}, inputs, target)
    outputs = task.module(task.start)(inputs)[0]
    expected = (1 - (outputs - target).square()).mean(0) / 2
    assert torch.allclose(gradient["scale"], expected)


def test_a_copy_of_a_network_keeps_the_parameters_of_a_layer_with_two_names():
    network = ORDINARY["a layer with two names"]()
    task = prepare(network)
    task.evaluate(task.start)
    module = task.module(task.start)
    assert module.again is module.a
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in module.parameters())


def add_weights_in_list(net):
    net.weights = [net.a.weight, net.a.bias]


def add_count(net):
    net.calls = 0


def recompute(net, x):
    return net.b(checkpoint(lambda z: net.a(z).tanh(), x, use_reentrant=False))


class Scaled(torch.autograd.Function):
    """The identity with a scaled gradient, as adversarial training has."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.factor * gradient, None


def anneal(net, x):
    net.calls += 1
    return net.b(Scaled.apply(net.a(x), -0.1 * net.calls))


def keep_weight(net, x):
    if not hasattr(net, "kept"):
        net.kept = 2 * net.a.weight.detach()
    return net.b(net.a(x) + linear(x, net.kept))


RANDOM = "draws from a global random generator, .*; use nn.Dropout"
OTHERS = "depend on the other samples of the minibatch"
UNREACHED = "depend on a parameter of shape .* that training does not reach.*; make it"
UNLIKE = "with other parameters the outputs or their gradients are not those of a copy.*; compute"
COUNTS = "every forward pass in training changes .*; compute"


class Merging(nn.Linear):
    """A low-rank adapter that adds its product to the weight when it is not trained."""

    def __init__(self):
        super().__init__(4, 2)
        self.weight.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, 4))
        self.up = nn.Parameter(torch.zeros(2, 2))
        self.is_merged = False

    def train(self, mode=True):
        super().train(mode)
        if mode == self.is_merged:
            self.weight.data += (-1 if mode else 1) * (self.up @ self.down)
            self.is_merged = not mode
        return self

    def forward(self, x):
        y = super().forward(x)
        return y if self.is_merged else y + x @ self.down.T @ self.up.T


REFUSED = {
    "checkpointing": (partial(Net, recompute), UNLIKE),
    "parameters in a list": (
        partial(Net, lambda net, x: net.b(linear(x, *net.weights).tanh()), add_weights_in_list),
        UNREACHED,
    ),
    "schedule of gradients": (partial(Net, anneal, add_count), COUNTS),
    "kept weight": (partial(Net, keep_weight), UNLIKE),
    "weight merged for evaluation": (Merging, UNLIKE),
    "noise": (partial(Net, lambda net, x: net.b(net.a(x + torch.randn_like(x)))), RANDOM),
    "statistics of instances": (
        lambda: nn.Sequential(
            nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten()
        ),
        None,
    ),
    "inputs changed": (partial(Net, lambda net, x: net.b(net.a(x.mul_(2)))), "changes its inputs"),
    "parameters clamped": (
        partial(Net, lambda net, x: (net.a.weight.data.mul_(0.9), net.b(net.a(x)))[1]),
        "every forward pass in training changes 'a.weight'",
    ),
    "detached": (partial(Net, lambda net, x: net.b(net.a(x)).detach()), "have no gradient"),
    "mean of the minibatch": (partial(Net, lambda net, x: net.b(net.a(x - x.mean(0)))), OTHERS),
    "batch norm without statistics": (
        lambda: nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2, track_running_stats=False)),
        OTHERS,
    ),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore:.*is deprecated")
@pytest.mark.parametrize("case", REFUSED)
def test_what_would_silently_compute_something_else_is_found(case):
    network, sentence = REFUSED[case]
    torch.manual_seed(0)
    before = torch.get_rng_state()
    with pytest.raises(AssertionError, match=sentence):
        check_network(network().double(), torch.randn(5, 4, dtype=torch.float64))
    torch.manual_seed(0)
    assert torch.equal(before, torch.get_rng_state())


def test_arguments_have_names_and_dropout_is_no_noise():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))

        def forward(self, x, *, scale):
            return self.layers(x) * scale

    check_network(Two(), {"scale": torch.rand(4, 1), "x": torch.rand(4, 3)})


@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn-001-cifar100"])
def test_the_networks_of_the_papers_keep_the_contract(name):
    check_network(MODELS[name].build((3, 32, 32), 10), torch.rand(2, 3, 32, 32))
