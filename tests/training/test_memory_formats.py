"""Images of two memory formats that meet in captured steps."""

import pytest
import torch
from torch import nn

from fedtide.training.trainers._graph_capture import capture
from fedtide.training.trainers.step_block import stackable_gradient

LAYERS = {
    "relu": nn.ReLU(),
    "gelu": nn.GELU(),
    "limited": nn.ReLU6(),
}


def mixed(graph):
    """Return the pointwise operations with images of two memory formats."""
    found = []
    for node in graph.graph.nodes:
        if torch.Tag.pointwise in getattr(node.target, "tags", ()):
            images = [n.meta["val"] for n in node.all_input_nodes if n.meta["val"].dim() == 4]
            if len({image.stride() for image in images}) > 1:
                found.append(node.name)
    return found


@pytest.mark.parametrize("layer", LAYERS)
def test_the_gradient_of_flattened_images_takes_their_format(layer):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), LAYERS[layer], nn.Flatten(), nn.Linear(64, 2)).double()
    x = torch.randn(5, 3, 6, 6, dtype=torch.float64).to(memory_format=torch.channels_last)
    names = [name for name, _ in net.named_parameters()]

    def gradients(x, *values):
        params = dict(zip(names, values, strict=True))
        loss = stackable_gradient(
            lambda p: (torch.func.functional_call(net, p, (x,)).square().mean(), {})
        )
        return tuple(loss(params)[0].values())

    values = [p.detach() for p in net.parameters()]
    values[0] = values[0].to(memory_format=torch.channels_last)
    graph = capture(gradients, [x, *values])
    assert isinstance(graph, torch.fx.GraphModule)
    assert mixed(graph) == []
    for found, expected in zip(graph(x, *values), gradients(x, *values), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
