"""ReLU after maximum pooling instead of before it, against PyTorch's own order."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedtide.training.trainers._graph_capture import capture
from fedtide.training.trainers._pooling_first import PoolingFirst
from fedtide.training.trainers.step_block import stackable_gradient


def outputs_and_gradients(network, x):
    x = x.clone().requires_grad_()
    found = network(x)
    (found.square() / 2 + found).sum().backward()
    return found.detach(), x.grad


def assert_equal(network, x):
    """Check that the context changes neither outputs nor gradients."""
    expected = outputs_and_gradients(network, x)
    with PoolingFirst():
        found = outputs_and_gradients(network, x)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@given(
    window=st.integers(1, 3),
    stride=st.integers(1, 3),
    levels=st.integers(1, 4),
    seed=st.integers(0, 999),
)
@settings(deadline=None, max_examples=40)
def test_numbers_are_those_of_relu_before_pooling(window, stride, levels, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = (2, 3, 6, 7)
    # few levels: many maxima are equal, many windows have nothing positive
    x = torch.randint(-levels, levels + 1, shape, generator=generator).double()
    assert_equal(nn.Sequential(nn.ReLU(), nn.MaxPool2d(window, stride, padding=window // 2)), x)


RELU = {
    "module": nn.ReLU(),
    "function": nn.functional.relu,
    "torch": torch.relu,
    "method": lambda x: x.relu(),
}


def shapes_of_relu(network, x):
    """Return the shapes to which ReLU and its gradient are applied in a captured step."""
    gradient = stackable_gradient(lambda params: (network(params["x"]).square().sum(), {}))
    with PoolingFirst():
        graph = capture(lambda x: (gradient({"x": x})[0]["x"],), [x])
    names = ("aten.relu.default", "aten.threshold_backward.default")
    nodes = [node for node in graph.graph.nodes if str(node.target) in names]
    return [tuple(node.meta["val"].shape) for node in nodes]


@pytest.mark.parametrize("relu", RELU)
def test_every_relu_is_applied_to_the_maxima(relu):
    network = lambda x: nn.functional.max_pool2d(RELU[relu](x), 2)  # noqa: E731
    x = torch.randn(2, 3, 4, 4)
    assert shapes_of_relu(network, x) == [(2, 3, 2, 2)] * 2
    assert_equal(network, x)


KEPT = {
    "in place": lambda x: nn.functional.max_pool2d(nn.functional.relu(x * 1, inplace=True), 2),
    "in place, method": lambda x: nn.functional.max_pool2d((x * 1).relu_(), 2),
    "changed since": lambda x: _changed_since(x * 1),
    "changed elsewhere": lambda x: _changed_elsewhere(x * 1),
    "scaled gradient": lambda x: _scaled_gradient(x),
    "only padding": lambda x: nn.functional.max_pool2d(x.relu(), 2, 1, 1, dilation=5).exp(),
    "only padding, by position": lambda x: nn.functional.max_pool2d(x.relu(), 2, 1, 1, 5).exp(),
    "indices": lambda x: nn.functional.max_pool2d(x.relu(), 2, return_indices=True)[0],
    "indices by position": lambda x: nn.functional.max_pool2d(x.relu(), 2, 2, 0, 1, False, True)[0],
    "all by name": lambda x: nn.functional.max_pool2d(input=torch.relu(input=x), kernel_size=2),
    "means": lambda x: nn.functional.avg_pool2d(x.relu(), 2),
}


def _changed_since(x):
    positive = x.relu()
    x.add_(1)
    return nn.functional.max_pool2d(positive, 2)


def _changed_elsewhere(x):
    positive = x.relu()
    x.data.add_(1)  # which does not count as a new version
    return nn.functional.max_pool2d(positive, 2)


def _scaled_gradient(x):
    positive = x.relu()
    positive.register_hook(lambda gradient: 3 * gradient)
    return nn.functional.max_pool2d(positive, 2)


def _without_gradient(x):
    with torch.no_grad():
        positive = torch.relu(x)
    return nn.functional.max_pool2d(positive, 2) * nn.functional.max_pool2d(x, 2)


def _in_one_gradient(x):
    return nn.functional.max_pool2d(x.relu(), 2) * nn.functional.max_pool2d(x, 2)


def _changed_maxima(x):
    x = x * 1
    positive = x.relu()
    x.add_(1)
    return nn.functional.max_pool2d(positive, 2) + nn.functional.max_pool2d(x, 2)


CAPTURED = {
    "sequence": nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)),
    "without gradient": _without_gradient,
    "in one gradient": _in_one_gradient,
    "changed since": _changed_maxima,
}


@pytest.mark.parametrize("network", CAPTURED)
@pytest.mark.parametrize("stacked", [False, True])
def test_captured_gradients_are_those_of_the_network(network, stacked):
    def loss(params):
        return CAPTURED[network](params["x"]).square().sum(), {}

    def gradient(x):
        return stackable_gradient(loss)({"x": x})[0]["x"]

    x = torch.randn(5, 2, 3, 4, 4, dtype=torch.float64)
    function = torch.func.vmap(gradient) if stacked else gradient
    given = x if stacked else x[0]
    expected = function(given)
    with PoolingFirst():
        graph = capture(lambda x: (function(x),), [given])
    assert isinstance(graph, torch.fx.GraphModule)
    torch.testing.assert_close(graph(given)[0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("network", KEPT)
def test_other_networks_stay_as_they_are(network):
    x = torch.randn(2, 3, 4, 4).double()
    assert_equal(KEPT[network], x)
