"""Local steps that add their gradients in place, against the same steps as they are written."""

import pytest
import torch

from fedtide.training.trainers import _graph_capture

CLIENTS, ROWS, COLUMNS, SAMPLES, STEPS = 3, 7, 5, 20, 3


def gradient(y, samples):
    """Return the gradient of log cosh of a linear layer's outputs, for each client."""
    outputs = samples @ y.expand(CLIENTS, ROWS, COLUMNS).transpose(1, 2)
    return torch.tanh(outputs).transpose(1, 2) @ samples


def plain(x, samples, minus_lr):
    y = x
    for k in range(STEPS):
        y = torch.addcmul(y, gradient(y, samples[k]), minus_lr)
    return (y - x,)


def with_corrections(x, samples, minus_lr):
    y, correction = x, torch.sin(samples[0, :, :ROWS])
    for k in range(STEPS):
        y = torch.addcmul(y, gradient(y, samples[k]) + correction + 0.1 * (y - x), minus_lr)
    return (y - x,)


def that_returns_every_step(x, samples, minus_lr):
    ys = [x]
    for k in range(STEPS):
        ys.append(torch.addcmul(ys[-1], gradient(ys[-1], samples[k]), minus_lr))
    return tuple(ys[1:])


def that_returns_a_view(x, samples, minus_lr):
    first = torch.addcmul(x, gradient(x, samples[0]), minus_lr)
    second = torch.addcmul(first, gradient(first, samples[1]), minus_lr)
    return first.transpose(1, 2)[0], second


def that_looks_back(x, samples, minus_lr):
    first = torch.addcmul(x, gradient(x, samples[0]), minus_lr)
    row = first[:, 0].unsqueeze(1)
    second = torch.addcmul(first, gradient(first, samples[1]), minus_lr)
    return (second * row,)


def with_momentum(x, samples, minus_lr):
    y, moment = x, torch.zeros_like(x)
    for k in range(STEPS):
        moment = gradient(y, samples[k]) + 0.9 * moment
        y = torch.addcmul(y, moment, minus_lr)
    return y - x, moment


def by_column(x, samples, minus_lr):
    """Return an addcmul of somebody else's: every column has a factor of its own."""
    factors = torch.linspace(-0.2, -0.1, COLUMNS, dtype=x.dtype)
    return (torch.addcmul(x, gradient(x, samples[0]), factors),)


def with_a_value(x, samples, minus_lr):
    return (torch.addcmul(x, gradient(x, samples[0]), minus_lr, value=3.0),)


def with_a_number(x, samples, minus_lr):
    return (torch.addcmul(x, gradient(x, samples[0]) + 1.0, minus_lr),)


def with_a_row(x, samples, minus_lr):
    return (
        torch.addcmul(
            x, gradient(x, samples[0])[:, :1].sin() @ samples[0, :, :COLUMNS, :], minus_lr
        ),
    )


def onto_a_row(x, samples, minus_lr):
    row = x.reshape(-1, ROWS, COLUMNS)[:1, :1].sin()
    return (torch.addcmul(row, gradient(x, samples[0]), minus_lr),)


def onto_a_row_of_its_own(x, samples, minus_lr):
    row = torch.addcmul(x.reshape(-1, ROWS, COLUMNS)[:1, :1], x[..., :1, :1], minus_lr)
    outputs = (samples[0] @ x.expand(CLIENTS, ROWS, COLUMNS).transpose(1, 2)).transpose(1, 2)
    return (torch.baddbmm(row, outputs, samples[0]),)


FUNCTIONS = {
    by_column: (0, 0),
    with_a_value: (0, 0),
    with_a_number: (0, 0),
    with_a_row: (0, 0),
    onto_a_row: (1, 0),
    onto_a_row_of_its_own: (1, 0),
    plain: (1, 2),  # operations into other memory, and in place
    with_corrections: (0, 3),
    that_returns_every_step: (3, 0),
    that_returns_a_view: (2, 0),
    that_looks_back: (2, 0),
    with_momentum: (0, 0),
}


def tensors(stacked):
    generator = torch.Generator().manual_seed(1)
    shape = (CLIENTS, ROWS, COLUMNS) if stacked else (ROWS, COLUMNS)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    samples = torch.randn(
        (STEPS, CLIENTS, SAMPLES, COLUMNS), generator=generator, dtype=torch.float64
    )
    return [x, samples, torch.tensor(-0.1, dtype=torch.float64)]


def assert_same(function, found, given):
    """Check values against those of the function, and that it still finds what it was given."""
    before = [tensor.clone() for tensor in given]
    for _ in range(2):
        values = found(*given)
        assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))
        for value, expected in zip(values, function(*before), strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("stacked", [False, True], ids=["from one model", "from many"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_steps_in_place_change_nothing_but_their_own_memory(function, stacked):
    given = tensors(stacked)
    graph = _graph_capture.capture(function, given)
    names = [str(node.target) for node in graph.graph.nodes]
    found = names.count("aten.baddbmm.default"), names.count("aten.baddbmm_.default")
    assert found == FUNCTIONS[function]
    assert_same(function, graph, given)
