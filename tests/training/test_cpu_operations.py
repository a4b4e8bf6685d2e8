"""Operations written for the compiler, against PyTorch's own in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedtide.training import devices
from fedtide.training.trainers import _cpu_operations, _graph_capture
from fedtide.training.trainers._cpu_operations import cpu_operations
from fedtide.training.trainers.step_block import stackable_gradient

PRODUCT = torch.library.custom_op(
    "fedtide_tests::product",
    lambda a, b: a @ b.t(),
    mutates_args=(),
    schema="(Tensor a, Tensor b) -> Tensor",
)
PRODUCT.register_fake(lambda a, b: a.new_empty(len(a), len(b)))


def captured(function, examples, clients=0):
    """Return the graph for the compiler, and which of PyTorch's operations are left in it."""
    graph = _graph_capture.capture(function, examples, cpu_operations(clients))
    return graph, [str(node.target) for node in graph.graph.nodes]


def gradients(loss, examples):
    """Return the value of a loss and its gradients, as one function of tensors."""

    def value_twice(named):
        value = loss(*named.values())
        return value, value

    def function(*tensors):
        named = {str(k): tensor for k, tensor in enumerate(tensors)}
        slopes, value = stackable_gradient(value_twice)(named)
        return value, *slopes.values()

    return function


def assert_same(function, examples, left_out):
    """Check that an operation is left out of the graph, whose values are those of PyTorch."""
    graph, operations = captured(function, examples)
    assert not [name for name in operations if left_out in name]
    for found, expected in zip(graph(*examples), function(*examples), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10, equal_nan=True)


@pytest.mark.parametrize(
    ("clients", "rows", "terms", "columns", "products"),
    [
        (4, 5, 3, 100, 0),  # few terms in each number
        (4, 5, 17, 64, 0),  # 320 numbers, each a sum along two rows
        (4, 16, 17, 100, 0),  # few rows
        (4, 100, 17, 16, 0),  # few columns
        (4, 10, 300, 10, 0),  # few of both, with long sums
        (4, 17, 17, 100, 1),
        (4, 1, 17, 1000, 1),
        (2, 5, 3, 7, 1),  # not one product per client
        (0, 5, 50, 7, 1),
    ],
)
@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_clients_that_are_small_become_sums(
    clients, rows, terms, columns, products, transposed
):
    a, b = torch.randn(4, rows, terms).double(), torch.randn(4, terms, columns).double()
    if transposed:  # as weights are, and the gradient with respect to outputs
        b = b.transpose(1, 2).contiguous().transpose(1, 2)
    graph, operations = captured(lambda a, b: (a @ b,), [a, b], clients)
    assert sum("bmm" in name for name in operations) == products
    expected = np.einsum("smk,skn->smn", a.numpy(), b.numpy())
    found = graph(a, b)[0]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-10)
    assert found.is_contiguous()


@pytest.mark.parametrize(
    ("dtype", "terms", "products"),
    [(torch.float64, 16, 0), (torch.float64, 200, 1), (torch.bfloat16, 16, 1)],
)
def test_gradients_of_a_layer_of_one_client_become_sums(dtype, terms, products):
    a, b = torch.randn(terms, 30).to(dtype), torch.randn(terms, 40).to(dtype)
    graph, operations = captured(lambda a, b: (a.T @ b,), [a, b])
    assert sum("mm" in name for name in operations) == products
    torch.testing.assert_close(graph(a, b)[0], a.T @ b)


def layers(kind, rows, terms, columns):
    """Return one of the products of a layer's step, and its matrices in float32."""
    x, weights = torch.randn(rows, terms), torch.randn(columns, terms)
    gradient, bias = torch.randn(rows, columns), torch.randn(columns)
    return {
        "outputs": (lambda x, w: (x @ w.T,), [x, weights]),
        "outputs of one client": (lambda x, w: (x[None] @ w.T[None],), [x, weights]),
        "outputs and bias": (lambda b, x, w: (torch.addmm(b, x, w.T),), [bias, x, weights]),
        "outputs and bias twice": (
            lambda b, x, w: (torch.addmm(b, x, w.T, beta=2),),
            [bias, x, weights],
        ),
        "inputs": (lambda g, w: (g.sin() @ w,), [gradient, weights]),
        "weights": (lambda g, x: (g.T @ (2 * x),), [gradient, x]),
    }[kind]


@pytest.mark.parametrize(
    ("kind", "sizes", "avx512", "replaced"),
    [
        ("outputs", (128, 128, 130), True, True),
        ("outputs", (128, 128, 130), False, False),  # MKL is as fast
        ("outputs", (128, 128, 127), True, False),  # fewer than 2 ** 21 multiplications
        ("outputs of one client", (128, 128, 130), True, True),
        ("outputs and bias", (128, 128, 130), True, True),
        ("outputs and bias twice", (128, 128, 130), True, False),
        ("inputs", (128, 128, 130), True, True),
        ("inputs", (32, 1000, 100), True, False),  # the weights would be copied for few rows
        ("weights", (128, 128, 130), True, True),
        ("weights", (1024, 32, 100), True, False),  # the gradient would be copied for few columns
    ],
)
def test_larger_products_take_onednn_where_mkl_lacks_avx512(
    kind, sizes, avx512, replaced, monkeypatch
):
    monkeypatch.setattr(devices, "mkl_lacks_avx512", lambda: avx512)
    monkeypatch.setattr(_cpu_operations, "onednn_product", lambda: lambda a, b: PRODUCT(a, b))
    function, examples = layers(kind, *sizes)
    graph, operations = captured(function, examples, clients=1)
    assert any("fedtide" in name for name in operations) == replaced
    torch.testing.assert_close(graph(*examples), function(*examples), rtol=1e-3, atol=1e-3)


@pytest.mark.compile
@pytest.mark.parametrize("kind", ["outputs", "outputs and bias", "inputs", "weights"])
def test_products_by_onednn_are_compiled(kind, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(devices, "mkl_lacks_avx512", lambda: True)
    function, examples = layers(kind, 128, 128, 130)
    graph, operations = captured(function, examples)
    compiled = _graph_capture.compile_graph(graph, examples)
    assert any("fedtide" in name for name in operations)
    assert any("linear_pointwise" in path.read_text() for path in tmp_path.rglob("*.main.cpp"))
    expected = [value.double() for value in function(*(each.double() for each in examples))]
    for found, value in zip(compiled(*examples), expected, strict=True):
        torch.testing.assert_close(found.double(), value, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("terms", [3, 30])
def test_products_of_whole_numbers_stay_whole_numbers_of_their_size(terms):
    a = torch.ones(2, terms, terms, dtype=torch.int32)
    graph, _ = captured(lambda a: (a @ a,), [a], clients=2)
    assert graph(a)[0].dtype == torch.int32


@settings(max_examples=25)
@given(
    window=st.tuples(st.integers(1, 4), st.integers(2, 4)),
    tiles=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    levels=st.sampled_from([2, 1000]),
    seed=st.integers(0, 2**30),
)
def test_the_first_largest_pixel_of_each_window_takes_its_gradient(window, tiles, levels, seed):
    """With two levels most windows have several largest pixels."""
    generator = torch.Generator().manual_seed(seed)
    height, width = (size * count for size, count in zip(window, tiles, strict=True))
    shape = (2, 3, height, width)
    images = torch.randint(levels, shape, generator=generator).double()
    upstream = torch.randn(2, 3, *tiles, generator=generator).double()

    def loss(images):
        return (nn.functional.max_pool2d(images, window) * upstream).sum()

    assert_same(gradients(loss, [images]), [images], "max_pool2d_with_indices_backward")


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(3, stride=2),
        nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d(2, dilation=2),
        nn.MaxPool2d(2, ceil_mode=True),
    ],
    ids=str,
)
def test_other_windows_are_left_to_the_compiler(pool):
    images = torch.randn(2, 3, 7, 7).double()
    function = gradients(lambda images: (pool(images) ** 2).sum(), [images])
    graph, operations = captured(function, [images])
    assert any("max_pool2d_with_indices_backward" in name for name in operations)
    for found, expected in zip(graph(images), function(images), strict=True):
        torch.testing.assert_close(found, expected)


@settings(max_examples=10)
@given(
    groups=st.integers(1, 4),
    each=st.integers(1, 3),
    pixels=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    learnt=st.booleans(),
    seed=st.integers(0, 2**30),
)
def test_groups_are_normalised_as_by_pytorch(groups, each, pixels, learnt, seed):
    generator = torch.Generator().manual_seed(seed)
    channels = groups * each

    def draw(*shape):
        return torch.randn(shape, generator=generator).double()

    x, upstream = 3 * draw(2, channels, *pixels) + 5, draw(2, channels, *pixels)
    parameters = [draw(channels), draw(channels)] if learnt else []

    def loss(x, *parameters):
        return (nn.functional.group_norm(x, groups, *parameters) * upstream).sum()

    examples = [x, *parameters]
    assert_same(gradients(loss, examples), examples, "native_group_norm")


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 0)])
def test_features_without_pixels_are_left_to_the_compiler(shape):
    x = torch.randn(shape).double()
    _, operations = captured(lambda x: (nn.functional.group_norm(x, 2),), [x])
    assert any("native_group_norm" in name for name in operations)


def test_sums_of_short_numbers_are_precise():
    """The groups' variance is 1 and their mean 100, of which bfloat16 holds two to three digits."""
    generator = torch.Generator().manual_seed(0)
    x = (100 + torch.randn(2, 8, 16, 16, generator=generator)).bfloat16()
    graph, _ = captured(lambda x: (nn.functional.group_norm(x, 2),), [x])
    expected = nn.functional.group_norm(x.double(), 2)
    torch.testing.assert_close(graph(x)[0].double(), expected, rtol=2**-7, atol=2**-7)


@pytest.mark.compile
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiled_gradients_of_a_network_are_those_of_pytorch(dtype):
    """Pools and group normalisation after convolutions, in the memory format of images."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.GroupNorm(4, 8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 4 * 4, 5),
    )
    images = torch.randn(6, 3, 8, 8).to(memory_format=torch.channels_last)
    names = [name for name, _ in network.named_parameters()]

    def loss(*parameters):
        named = dict(zip(names, parameters, strict=True))
        logits = torch.func.functional_call(network, named, (images.to(parameters[0].dtype),))
        return (logits.float() ** 2).mean()

    examples = [tensor.detach().to(dtype) for tensor in network.parameters()]
    with torch.no_grad():
        function = gradients(loss, examples)
        graph, _ = captured(function, examples)
        compiled = _graph_capture.compile_graph(graph, examples)
        exact = function(*(tensor.double() for tensor in examples))
        precision = 1e-4 if dtype == torch.float32 else 0.05
        for found, expected in zip(compiled(*examples), exact, strict=True):
            error = (found.double() - expected.double()).norm()
            assert error <= precision * expected.double().norm()


@pytest.mark.compile
@pytest.mark.parametrize("terms", [10, 40])
def test_compiled_products_of_views_are_those_of_pytorch(terms):
    """A view may begin anywhere in the memory of its base, and leave some of it out."""
    clients, generator = 4, torch.Generator().manual_seed(0)

    def products(a, b):
        shifted = torch.cat([a, a + 1])[:clients], torch.cat([b, b * 2])[clients:]
        swapped = torch.relu(a.transpose(1, 2)).transpose(1, 2), torch.relu(b.transpose(1, 2))
        pairs = [
            (torch.relu(a)[:, :, 5:], torch.relu(b)[:, 5:]),
            (a[:, :, 5:], b[:, 5:]),
            ((a + 1).chunk(2, -1)[1], (b * 2).chunk(2, 1)[1]),
            (torch.relu(a)[:, :, :3], (b - 1)[:, :3]),
            ((a * 2)[:, :, ::2], (b * 3)[:, ::2]),
            (a[:1].expand(clients, -1, -1), b.flip(1)),
            (torch.stack([a, a + 1], 1)[:, 1], b),
            (swapped[0], swapped[1].transpose(1, 2)),
            shifted,
        ]
        return tuple(left @ right for left, right in pairs)

    examples = [
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((clients, 6, terms), (clients, terms, 7))
    ]
    graph, operations = captured(products, examples, clients)
    assert not [name for name in operations if "bmm" in name]
    compiled = _graph_capture.compile_graph(graph, examples)
    for found, expected in zip(compiled(*examples), products(*examples), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
