"""The Python of docs/clients.md trains as its text says."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import fedtide as ft
from fedtide.flower import FedTide, client, initial_arrays

from .fake_grid import FakeGrid, Node

A = ft.algorithms
TEXT = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")
SIZES = (32, 7, 20)
LOCAL = ft.LocalTraining(steps=1, lr=0.1)


def run_block(heading: str, **names) -> dict:
    """Run the first block of Python below a heading and return its names."""
    block = re.search(rf"## {heading}\n.*?```python\n(.*?)```", TEXT, re.DOTALL)[1]
    names = {"nn": nn, "torch": torch, "Tensor": torch.Tensor, "Context": Context} | names
    exec(block, names)
    return names


def shard(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    number = int(context.node_config["partition-id"])
    draws = torch.Generator().manual_seed(number)
    x = torch.randn(SIZES[number], 1, 4, 4, generator=draws)
    return x, torch.randint(0, 3, (SIZES[number],), generator=draws)


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3))


def pretrained() -> nn.Module:
    torch.manual_seed(5)
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
    )
    with torch.no_grad():
        net(2 * torch.randn(40, 1, 4, 4) + 1)
    return net


def train(app: ClientApp, algorithm, make=network, rounds: int = 3, **run_config) -> dict:
    """Return the arrays that a federation of three sites with this app learns."""
    nodes = {5 + n: Node(app, {"partition-id": n}) for n in range(len(SIZES))}
    grid = FakeGrid(nodes, run_config=run_config)
    strategy = FedTide(algorithm, clients=[str(n) for n in range(len(SIZES))], clock=grid.clock)
    result = strategy.start(grid, initial_arrays(make()), num_rounds=rounds, timeout=60)
    assert strategy.training.accepted_rounds.tolist() == [rounds - 1] * len(SIZES)
    return {name: array.numpy() for name, array in result.arrays.items()}


def require_close(found: dict, wanted: dict) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-6, err_msg=name)


def trained_by_hand(make, steps: int) -> dict:
    """Return the parameters after steps on the mean loss of all samples of all sites."""
    parts = [shard(Context(1, 1, {"partition-id": n}, RecordDict(), {})) for n in range(len(SIZES))]
    x, y = (torch.cat(part) for part in zip(*parts, strict=True))
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(net(x), y).backward()
        optimizer.step()
    return {name: p.detach().numpy() for name, p in net.named_parameters()}


METHODS = [A.FedProx(mu=0.7), A.Scaffold()]


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_the_training_function_does_what_client_does(method):
    """A site has one sample 70 times, so its three minibatches all have the same gradient."""

    def copies(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = shard(context)
        return x[:1].expand(70, 1, 4, 4), y[:1].expand(70)

    names = run_block(
        "A training function of your own",
        model=network,
        dataset=lambda context: TensorDataset(*copies(context)),
    )
    same = client(network, copies, ft.LocalTraining(steps=3, lr=0.1))
    require_close(train(names["app"], method), train(same, method))


def test_a_pretrained_network_keeps_its_statistics():
    model = run_block("Batch normalisation", pretrained=pretrained)["model"]
    app = client(model, lambda context: shard(context), LOCAL)
    counted = train(app, A.FedAvg(weights="data"), model)
    require_close(counted, trained_by_hand(model, 3))
    own = run_block(
        "A training function of your own",
        model=model,
        dataset=lambda context: TensorDataset(*shard(context)),
    )["app"]
    require_close(train(own, A.FedAvg(weights="data"), model), counted)


def test_sites_count_by_their_samples():
    """One full step of each site is one step on all samples together, whatever the method."""
    names = {"load": shard, "model": network, "client": client, "cross_entropy": cross_entropy}
    block = "Sites that count by their samples"
    names = run_block(block, LocalTraining=lambda **settings: LOCAL, **names)
    mean = {"mean-samples": sum(SIZES) / len(SIZES)}
    wanted = trained_by_hand(network, 3)
    for method in (A.FedAvg(), A.FedAU(cutoff=50), A.MIFA()):
        require_close(train(names["app"], method, **mean), wanted)


def test_an_ordinary_app_returns_what_it_received():
    model = run_block("Batch normalisation", pretrained=pretrained)["model"]
    app = ClientApp()

    @app.train()
    def answer(message, context):
        net, received = model(), message.content["arrays"]
        net.load_state_dict(received.to_torch_state_dict(), strict=False)
        images, labels = shard(context)
        cross_entropy(net(images), labels).backward()
        torch.optim.SGD(net.parameters(), 0.1).step()
        [code] = re.findall(r"`(ArrayRecord\(.*?\))`", TEXT)
        arrays = eval(code, {"ArrayRecord": ArrayRecord, "model": net, "received": received})
        metrics = MetricRecord({"num-examples": len(images)})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    nodes = {5 + n: Node(app, {"partition-id": n}) for n in range(len(SIZES))}
    grid = FakeGrid(nodes)
    strategy = FedTide(A.FedAvg(weights="data"), clients=len(SIZES), clock=grid.clock)
    result = strategy.start(grid, initial_arrays(model()), num_rounds=3, timeout=60)
    found = {name: array.numpy() for name, array in result.arrays.items()}
    require_close(found, trained_by_hand(model, 3))
