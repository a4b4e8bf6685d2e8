"""The client app trains as PyTorch does by hand, and follows the instructions."""

import numpy as np
import pytest
import torch
from flwr.app import MetricRecord
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from torch import nn

import fedtide as ft
import fedtide.flower
from fedtide.flower import client, initial_arrays
from fedtide.flower.clients.task import ClientTask, cross_entropies
from fedtide.flower.server.strategy import FedTide
from fedtide.training.minibatches import MinibatchPlanner

from .fake_grid import FakeGrid, Node

A = ft.algorithms
SIZES = (30, 17, 24, 1)


def network() -> nn.Module:
    torch.manual_seed(11)
    return nn.Linear(4, 3).double()


def shard(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(number)
    x = torch.randn(SIZES[number], 4, generator=draws, dtype=torch.float64)
    return x, torch.randint(0, 3, (SIZES[number],), generator=draws)


def grid(local: ft.LocalTraining, **options) -> FakeGrid:
    def data(context):
        return shard(context.node_config["partition-id"])

    app = client(network, data, local, **options)
    return FakeGrid({50 + n: Node(app, {"name": f"c{n}", "partition-id": n}) for n in range(4)})


def trained(algorithm, local, rounds=3, **start) -> tuple[FedTide, object]:
    federation = grid(local)
    strategy = FedTide(algorithm, clients=[f"c{n}" for n in range(4)], clock=federation.clock)
    initial = initial_arrays(network())
    result = strategy.start(federation, initial, num_rounds=rounds, timeout=60, **start)
    return strategy, result


def gradient(module: nn.Module, number: int) -> list[torch.Tensor]:
    x, y = shard(number)
    module.zero_grad()
    nn.functional.cross_entropy(module(x), y).backward()
    return [p.grad.clone() for p in module.parameters()]


def by_hand(rounds: int, steps: int, lr: float, mu: float = 0.0) -> torch.Tensor:
    """Return FedAvg's or FedProx's model with full gradients, as PyTorch trains it."""
    model = network()
    for _ in range(rounds):
        start = [p.detach().clone() for p in model.parameters()]
        ends = []
        for number in range(4):
            own = network()
            own.load_state_dict(model.state_dict())
            for _ in range(steps):
                slopes = gradient(own, number)
                with torch.no_grad():
                    for p, g, x in zip(own.parameters(), slopes, start, strict=True):
                        p -= lr * (g + mu * (p - x))
            ends.append([p.detach().clone() for p in own.parameters()])
        with torch.no_grad():
            for p, *those in zip(model.parameters(), *ends, strict=True):
                p.copy_(torch.stack(those).mean(dim=0))
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_full_gradients_give_what_pytorch_gives(mu):
    algorithm = A.FedProx(mu=mu) if mu else A.FedAvg()
    strategy, result = trained(algorithm, ft.LocalTraining(steps=2, lr=0.3))
    wanted = by_hand(rounds=3, steps=2, lr=0.3, mu=mu)
    np.testing.assert_allclose(strategy.training.output, wanted, rtol=1e-10)
    assert list(result.arrays) == ["weight", "bias"]
    assert result.arrays["weight"].shape == (3, 4)


@pytest.mark.parametrize("option", [1, 2])
def test_scaffold_follows_its_listing(option):
    strategy, _ = trained(A.Scaffold(option=option), ft.LocalTraining(steps=2, lr=0.3))
    x, c = [p.detach() for p in network().parameters()], [0.0, 0.0]
    own = [[torch.zeros_like(p) for p in x] for _ in range(4)]
    for _ in range(3):
        ends, news = [], []
        for n in range(4):
            model = network()
            _load(model, x)
            at_start = gradient(model, n)
            for _ in range(2):
                slopes = gradient(model, n)
                y = [p.detach() for p in model.parameters()]
                step = [
                    p - 0.3 * (g - old + mean)
                    for p, g, old, mean in zip(y, slopes, own[n], c, strict=True)
                ]
                _load(model, step)
            ends.append(step)
            second = [
                old - mean + (a - b) / (2 * 0.3)
                for old, mean, a, b in zip(own[n], c, x, step, strict=True)
            ]
            news.append(at_start if option == 1 else second)
        x = [torch.stack(parts).mean(dim=0) for parts in zip(*ends, strict=True)]
        own = news
        c = [torch.stack(parts).mean(dim=0) for parts in zip(*own, strict=True)]
    wanted = torch.cat([p.flatten() for p in x])
    np.testing.assert_allclose(strategy.training.output, wanted, rtol=1e-9)


def _load(model: nn.Module, values) -> None:
    with torch.no_grad():
        for p, value in zip(model.parameters(), values, strict=True):
            p.copy_(value)


def evaluated(result, part, clients=range(4)) -> dict[str, float]:
    """Return the median loss and accuracy of the trained model on these clients' parts."""
    model = network()
    _load(model, [torch.from_numpy(a.numpy()) for a in result.arrays.values()])
    losses = [nn.functional.cross_entropy(model(x), y).item() for x, y in map(part, clients)]
    hits = [(model(x).argmax(1) == y).double().mean() for x, y in map(part, clients)]
    return {"loss": np.median(losses), "accuracy": np.median(hits)}


def test_clients_evaluate_on_their_own_test_part(caplog):
    """One of them has none, and trains all the same; the loss of another is NaN."""

    def part(number):
        x, y = shard(number)
        return x[1:] * (torch.nan if number == 0 else 1), y[1:]

    def test(context):
        return part(context.node_config["partition-id"])

    federation = grid(ft.LocalTraining(steps=1, lr=0.1), test=test)
    strategy = FedTide(A.FedAvg(), clients=4, fraction_evaluate=1.0, clock=federation.clock)
    with caplog.at_level("INFO"):
        result = strategy.start(federation, initial_arrays(network()), num_rounds=1, timeout=60)
    found = result.evaluate_metrics_clientapp[1]
    assert result.train_metrics_clientapp[1]["clients"] == 4
    assert found["clients"] == 3
    assert found["loss"] == pytest.approx(evaluated(result, part, [1, 2])["loss"])
    assert "Metrics that not all of the 3 clients gave: loss (2)\n" in caplog.text
    assert "not used" not in caplog.text


def large_shard() -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(5000, 4, generator=draws, dtype=torch.float64)
    return x, torch.randint(0, 3, (5000,), generator=draws)


def test_only_minibatches_are_copied_to_the_device():
    """The data may be larger than the memory of a GPU that several clients share."""

    class Watched(torch.Tensor):
        moved: list[int] = []  # noqa: RUF012

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            if function is torch.Tensor.to:
                cls.moved.append(args[0].shape.numel())
            return super().__torch_function__(function, types, args, kwargs or {})

    x, y = large_shard()
    task = ClientTask(network(), x.as_subclass(Watched), y, cross_entropies, "meta")
    local = ft.LocalTraining(steps=3, batch_size=16, lr=0.1)
    plan = MinibatchPlanner(task.population, local, seed=0).plan(np.zeros(1, dtype=np.int64))
    for features, *_ in task.batches(plan):
        assert features.device.type == "meta"
        assert features.shape == (1, 16, 4)
    assert max(Watched.moved) < 1000


def test_the_training_loss_is_the_median_of_means_over_local_steps():
    """With full gradients each sample counts once in each of the steps."""
    _, result = trained(A.FedAvg(), ft.LocalTraining(steps=2, lr=0.3), rounds=2)
    start = network()
    for t in range(2):
        losses = []
        for number in range(4):
            model, (x, y) = network(), shard(number)
            model.load_state_dict(start.state_dict())
            steps = []
            for _ in range(2):
                steps.append(nn.functional.cross_entropy(model(x), y).item())
                slopes = gradient(model, number)
                _load(model, [p - 0.3 * g for p, g in zip(model.parameters(), slopes, strict=True)])
            losses.append(np.mean(steps))
        found = result.train_metrics_clientapp[t + 1]
        assert found["train_loss"] == pytest.approx(np.median(losses), rel=1e-12)
        assert found["clients"] == 4
        nn.utils.vector_to_parameters(by_hand(t + 1, 2, 0.3), start.parameters())


def test_metrics_are_aggregated_by_functions_made_for_flower():
    """One of Flower's own, and one of a user's."""
    federation = grid(ft.LocalTraining(steps=1, lr=0.1))

    def worst(records, weighted_by):
        samples = [int(record["metrics"][weighted_by]) for record in records]
        assert sorted(samples) == sorted(SIZES)
        return MetricRecord({"worst": max(r["metrics"]["loss"] for r in records)})

    strategy = FedTide(
        A.FedAvg(),
        clients=4,
        fraction_evaluate=1.0,
        train_metrics_aggr_fn=aggregate_metricrecords,
        evaluate_metrics_aggr_fn=worst,
        clock=federation.clock,
    )
    result = strategy.start(federation, initial_arrays(network()), num_rounds=1, timeout=60)
    x, y = (torch.cat(parts) for parts in zip(*map(shard, range(4)), strict=True))
    wanted = nn.functional.cross_entropy(network()(x), y).item()
    assert dict(result.train_metrics_clientapp[1]) == {"train_loss": pytest.approx(wanted)}
    model = network()
    _load(model, [torch.from_numpy(a.numpy()) for a in result.arrays.values()])
    losses = [nn.functional.cross_entropy(model(x), y).item() for x, y in map(shard, range(4))]
    found = dict(result.evaluate_metrics_clientapp[1])
    assert found == {"worst": pytest.approx(max(losses))}


def test_a_client_trains_and_evaluates_on_its_device(monkeypatch):
    """The device "meta" refuses to mix its tensors with others; what is read from it is 1 here."""
    read = []

    def read_ones(values):
        if values.device.type == "meta":
            read.append(values.shape)
            return torch.ones(values.shape, dtype=values.dtype)
        return values

    for name in ("__bool__", "__float__"):
        original = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda values, original=original: original(read_ones(values))
        )
    monkeypatch.setattr(torch.Tensor, "cpu", read_ones)
    federation = grid(ft.LocalTraining(steps=2, batch_size=8, lr=0.1), device="meta")
    strategy = FedTide(
        A.Scaffold(option=1), clients=4, fraction_evaluate=1.0, clock=federation.clock
    )
    result = strategy.start(federation, initial_arrays(network()), num_rounds=2, timeout=60)
    assert result.train_metrics_clientapp[2]["clients"] == 4
    assert result.evaluate_metrics_clientapp[2]["clients"] == 4
    assert read.count((15,)) >= 8  # an update of each client and round


@pytest.mark.parametrize(
    ("field", "parts"),
    [
        ("data", {"data": lambda context: (torch.zeros(0, 4), torch.zeros(0))}),
        ("data", {"data": lambda context: torch.utils.data.TensorDataset(*shard(0))}),
        ("data", {"data": lambda context: (shard(0)[0], shard(1)[1])}),
        ("data", {"data": lambda context: (shard(0)[0], shard(0)[1] + 1)}),
        ("test", {"test": lambda context: None}),
        ("device", {"device": "cuda:99"}),
        ("loss", {"loss": lambda outputs, targets: outputs.mean()}),
        ("local", {"local": ft.LocalTraining(steps=2, lr=0.1, momentum=0.9)}),
    ],
)
def test_what_a_client_cannot_use_is_named_in_the_servers_log(field, parts, caplog):
    parts = {"data": lambda c: shard(0), "local": ft.LocalTraining(steps=1, lr=0.1)} | parts
    federation = FakeGrid({1: Node(client(network, **parts), {})})
    method = A.Scaffold() if field == "local" else A.FedAvg()
    strategy = FedTide(method, clients=1, fraction_evaluate=1.0, clock=federation.clock)
    strategy.start(federation, initial_arrays(network()), num_rounds=1, timeout=60)
    lines = [r.getMessage() for r in caplog.records if " not used: " in r.getMessage()]
    assert lines
    assert all(f"{field}: " in line for line in lines)


def normalised(kind: type[nn.Module] = nn.BatchNorm1d) -> nn.Sequential:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 4), kind(4), nn.Linear(4, 3)).double()
    with torch.no_grad():
        net(2 * torch.randn(50, 4, dtype=torch.float64) + 1)  # statistics as after pretraining
    return net


def test_running_statistics_are_refused_because_clients_do_not_send_them():
    for refuse in (initial_arrays, lambda net: ClientTask(net, *shard(0), cross_entropies)):
        for net in (normalised(), normalised().eval()):  # as a whole, before it is trained
            with pytest.raises(ft.InvalidInputError, match=r"^model: layer '1' "):
                refuse(net)
