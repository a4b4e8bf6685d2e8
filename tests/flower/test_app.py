"""The client app trains as PyTorch does by hand, and follows the instructions."""

import importlib
import pkgutil
import re

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, MetricRecord
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


def test_the_runs_learning_rate_overrides_the_clients():
    config = ConfigRecord({"lr": 0.3})
    strategy, _ = trained(A.FedAvg(), ft.LocalTraining(steps=2, lr=99.0), train_config=config)
    np.testing.assert_allclose(strategy.training.output, by_hand(3, 2, 0.3), rtol=1e-10)


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


@pytest.mark.parametrize("how", [{"steps": 4}, {"epochs": 1}])
def test_minibatches_learn_and_repeat(how):
    local = ft.LocalTraining(lr=0.2, batch_size=8, **how)
    first, _ = trained(A.FedAU(), local, rounds=8)
    second, _ = trained(A.FedAU(), local, rounds=8)
    np.testing.assert_array_equal(first.training.output, second.training.output)
    taken = first.training.steps_taken.tolist()
    assert taken == [32] * 4 if "steps" in how else taken == [8 * -(-size // 8) for size in SIZES]


def test_clients_evaluate():
    federation = grid(ft.LocalTraining(steps=1, lr=0.1))
    strategy = FedTide(A.FedAvg(), clients=4, fraction_evaluate=1.0, clock=federation.clock)
    initial = initial_arrays(network())
    result = strategy.start(federation, initial, num_rounds=2, timeout=60)
    found = result.evaluate_metrics_clientapp[2]
    model = network()
    _load(model, [torch.from_numpy(a.numpy()) for a in result.arrays.values()])
    x, y = (torch.cat(parts) for parts in zip(*map(shard, range(4)), strict=True))
    assert found["loss"] == pytest.approx(nn.functional.cross_entropy(model(x), y).item())
    assert found["accuracy"] == pytest.approx(float((model(x).argmax(1) == y).double().mean()))
    assert found["clients"] == 4


def test_clients_decline_evaluations_as_they_decline_rounds():
    asked = []

    def available(t, context):
        asked.append(t)
        return int(context.node_config["partition-id"]) < 3 or t == 0

    federation = grid(ft.LocalTraining(steps=1, lr=0.1), available=available)
    strategy = FedTide(A.FedAvg(), clients=4, fraction_evaluate=1.0, clock=federation.clock)
    result = strategy.start(federation, initial_arrays(network()), num_rounds=2, timeout=60)
    found = {t: metrics["clients"] for t, metrics in result.evaluate_metrics_clientapp.items()}
    assert found == {1: 4, 2: 3}
    assert sorted(asked) == [0] * 8 + [1] * 8


def test_clients_evaluate_on_their_own_test_part():
    def test(context):
        x, y = shard(context.node_config["partition-id"])
        return x[:1], y[:1]

    federation = grid(ft.LocalTraining(steps=1, lr=0.1), test=test)
    strategy = FedTide(A.FedAvg(), clients=4, fraction_evaluate=1.0, clock=federation.clock)
    result = strategy.start(federation, initial_arrays(network()), num_rounds=1, timeout=60)
    model = network()
    _load(model, [torch.from_numpy(a.numpy()) for a in result.arrays.values()])
    x, y = (
        torch.cat([part[:1] for part in parts]) for parts in zip(*map(shard, range(4)), strict=True)
    )
    found = result.evaluate_metrics_clientapp[1]
    assert found["loss"] == pytest.approx(nn.functional.cross_entropy(model(x), y).item())
    assert found["accuracy"] == pytest.approx(float((model(x).argmax(1) == y).double().mean()))


def test_a_loss_that_is_nan_is_missing_in_the_mean_and_named(caplog):
    """The mean of the other clients stood beside the number of all, without a word."""

    def test(context):
        x, y = shard(context.node_config["partition-id"])
        return (x * torch.nan if context.node_config["partition-id"] == 0 else x), y

    federation = grid(ft.LocalTraining(steps=1, lr=0.1), test=test)
    strategy = FedTide(A.FedAvg(), clients=4, fraction_evaluate=1.0, clock=federation.clock)
    with caplog.at_level("INFO"):
        result = strategy.start(federation, initial_arrays(network()), num_rounds=1, timeout=60)
    model = network()
    _load(model, [torch.from_numpy(a.numpy()) for a in result.arrays.values()])
    x, y = (torch.cat(parts) for parts in zip(*map(shard, range(1, 4)), strict=True))
    found = result.evaluate_metrics_clientapp[1]["loss"]
    assert found == pytest.approx(nn.functional.cross_entropy(model(x), y).item())
    assert caplog.text.count("Metrics that not all of the 4 clients gave: loss (3)\n") == 1


def test_a_client_without_test_samples_trains_and_does_not_evaluate(caplog):
    """Told to decline its rounds, as a client without data is, it would be lost for training."""

    def test(context):
        x, y = shard(context.node_config["partition-id"])
        return x[1:], y[1:]  # none of the last client's single sample

    federation = grid(ft.LocalTraining(steps=1, lr=0.1), test=test)
    strategy = FedTide(A.FedAvg(), clients=4, fraction_evaluate=1.0, clock=federation.clock)
    result = strategy.start(federation, initial_arrays(network()), num_rounds=1, timeout=60)
    assert result.train_metrics_clientapp[1]["clients"] == 4
    assert result.evaluate_metrics_clientapp[1]["clients"] == 3
    assert "not used" not in caplog.text


class Counting(nn.Linear):
    """Notes how many samples each forward pass has, in a list that copies share."""

    def __init__(self, passes: list[int]) -> None:
        super().__init__(4, 3, dtype=torch.float64)
        self.note = passes.append

    def forward(self, x):
        self.note(len(x))
        return super().forward(x)


def large_shard() -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(5000, 4, generator=draws, dtype=torch.float64)
    return x, torch.randint(0, 3, (5000,), generator=draws)


def test_a_large_set_is_evaluated_in_parts():
    """All 5,000 images at once took gigabytes in a convolutional network."""
    passes, (x, y) = [], large_shard()
    net = Counting(passes)
    task = ClientTask(net, x, y, cross_entropies)
    passes.clear()
    found = task.evaluate(task.start).metrics
    assert max(passes) < 1000
    wanted = nn.functional.cross_entropy(net(x), y).item()
    assert found["loss"] == pytest.approx(wanted, rel=1e-12)
    assert found["accuracy"] == pytest.approx(float((net(x).argmax(1) == y).double().mean()))


def count_loss(outputs, targets):
    rates = outputs.squeeze(-1)
    return nn.functional.poisson_nll_loss(rates, targets.double(), reduction="none")


def token_loss(outputs, targets):
    return nn.functional.cross_entropy(outputs.mT, targets, reduction="none").mean(1)


@pytest.mark.parametrize(
    ("last", "targets", "loss"),
    [
        (nn.Linear(3, 1), torch.arange(9) % 3, count_loss),
        (nn.Linear(3, 10), torch.arange(18).view(9, 2) % 5, token_loss),
    ],
)
def test_whole_numbers_that_are_no_classes_have_no_accuracy(last, targets, loss):
    shape = nn.Unflatten(1, (2, 5)) if targets.dim() == 2 else nn.Identity()
    net = nn.Sequential(nn.Linear(4, 3), last, shape).double()
    task = ClientTask(net, shard(0)[0][:9], targets, loss)
    found = task.evaluate(task.start).metrics
    wanted = loss(net(shard(0)[0][:9]), targets).mean().item()
    assert found["loss"] == pytest.approx(wanted, rel=1e-9)
    assert "accuracy" not in found


def test_a_network_may_return_several_outputs():
    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.classes, self.scale = nn.Linear(4, 3), nn.Linear(4, 1)

        def forward(self, x):
            return self.classes(x), self.scale(x).squeeze(1)

    def loss(outputs, y):
        return cross_entropies(outputs[0], y) + outputs[1].square()

    net, (x, y) = TwoHeads().double(), shard(0)
    task = ClientTask(net, x, y, loss)
    found = task.evaluate(task.start).metrics
    assert found == {"loss": pytest.approx(loss(net(x), y).mean().item(), rel=1e-9)}


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


def test_the_training_loss_is_the_mean_over_local_steps_and_samples():
    """With full gradients each sample counts once in each of the steps."""
    _, result = trained(A.FedAvg(), ft.LocalTraining(steps=2, lr=0.3), rounds=2)
    start = network()
    for t in range(2):
        total = 0.0
        for number in range(4):
            model, (x, y) = network(), shard(number)
            model.load_state_dict(start.state_dict())
            for _ in range(2):
                total += nn.functional.cross_entropy(model(x), y, reduction="sum").item() / 2
                slopes = gradient(model, number)
                _load(model, [p - 0.3 * g for p, g in zip(model.parameters(), slopes, strict=True)])
        found = result.train_metrics_clientapp[t + 1]
        assert found["train_loss"] == pytest.approx(total / sum(SIZES), rel=1e-12)
        assert found["clients"] == 4
        nn.utils.vector_to_parameters(by_hand(t + 1, 2, 0.3), start.parameters())


def test_the_training_loss_of_an_epoch_counts_every_sample_once():
    """So small a step changes nothing: the loss is that of the start, also in a short batch."""
    local = ft.LocalTraining(epochs=1, batch_size=8, lr=1e-12)
    _, result = trained(A.FedAvg(), local, rounds=1)
    x, y = (torch.cat(parts) for parts in zip(*map(shard, range(4)), strict=True))
    wanted = nn.functional.cross_entropy(network()(x), y).item()
    assert result.train_metrics_clientapp[1]["train_loss"] == pytest.approx(wanted, rel=1e-9)


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
    _, plain = trained(A.FedAvg(), ft.LocalTraining(steps=1, lr=0.1), rounds=1)
    wanted = plain.train_metrics_clientapp[1]["train_loss"]
    assert dict(result.train_metrics_clientapp[1]) == {"train_loss": pytest.approx(wanted)}
    model = network()
    _load(model, [torch.from_numpy(a.numpy()) for a in result.arrays.values()])
    losses = [nn.functional.cross_entropy(model(x), y).item() for x, y in map(shard, range(4))]
    found = dict(result.evaluate_metrics_clientapp[1])
    assert found == {"worst": pytest.approx(max(losses))}


def test_the_server_evaluates_the_initial_model_and_every_new_one():
    seen = []
    trained(
        A.FedAvg(),
        ft.LocalTraining(steps=1, lr=0.1),
        evaluate_fn=lambda server_round, arrays: seen.append(server_round),
    )
    assert seen == [0, 1, 2, 3]


@pytest.mark.parametrize("algorithm", [A.FedProx(mu=0.5), A.Scaffold(option=1)])
def test_a_client_trains_and_evaluates_on_its_device(algorithm, monkeypatch):
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
    strategy = FedTide(algorithm, clients=4, fraction_evaluate=1.0, clock=federation.clock)
    result = strategy.start(federation, initial_arrays(network()), num_rounds=2, timeout=60)
    assert result.train_metrics_clientapp[2]["clients"] == 4
    assert result.evaluate_metrics_clientapp[2]["clients"] == 4
    assert read.count((15,)) >= 8  # an update of each client and round


def test_a_device_that_is_not_there(caplog):
    federation = grid(ft.LocalTraining(steps=1, lr=0.1), device="cuda:99")
    strategy = FedTide(A.FedAvg(), clients=4, clock=federation.clock)
    strategy.start(federation, initial_arrays(network()), num_rounds=1, timeout=60)
    assert "device: 'cuda:99' is not available (" in caplog.text


def test_momentum_is_refused_if_gradients_are_derived_from_updates():
    strategy, _ = trained(A.Scaffold(), ft.LocalTraining(steps=2, lr=0.1, momentum=0.9))
    start = torch.cat([p.detach().flatten() for p in network().parameters()])
    np.testing.assert_array_equal(strategy.training.output, start)


def test_public_names_are_not_shadowed_by_submodules():
    for module in pkgutil.walk_packages(fedtide.flower.__path__, "fedtide.flower."):
        importlib.import_module(module.name)
    for name in fedtide.flower.__all__:
        assert callable(getattr(fedtide.flower, name)), name


def test_a_client_without_samples_says_so(caplog):
    app = client(network, lambda context: (torch.zeros(0, 4), torch.zeros(0)), ft.LocalTraining(1))
    federation = FakeGrid({1: Node(app, {"name": "c0"})})
    strategy = FedTide(A.FedAvg(), clients=1, fraction_evaluate=1.0, clock=federation.clock)
    strategy.start(federation, initial_arrays(network()), num_rounds=1, timeout=60)
    lines = [r.getMessage() for r in caplog.records if "not used" in r.getMessage()]
    assert [line.partition(" not used")[0] for line in lines] == [
        "reply of c0",
        "evaluation by node 1",
    ]
    assert all("data: no samples; let this client decline" in line for line in lines)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (torch.utils.data.TensorDataset(*shard(0)), "TensorDataset; return (features, targets)"),
        (torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*shard(0))), "DataLoader; "),
        (tuple(part.numpy() for part in shard(0)), "ndarray and ndarray; return"),
        (shard(0)[0], "Tensor; return"),
        (shard(0) * 2, "Tensor and Tensor and Tensor and Tensor; return"),
        (None, "NoneType; return"),
        ((shard(0)[0], shard(1)[1]), "30 features and 17 targets; return"),
        ((shard(0)[0], torch.tensor(1)), "Tensor and Tensor; return"),
    ],
)
@pytest.mark.parametrize("part", ["data", "test"])
def test_data_that_are_not_two_tensors_are_refused_in_one_sentence(part, found, message, caplog):
    local, parts = ft.LocalTraining(steps=1, lr=0.1), {"data": lambda context: shard(0)}
    parts[part] = lambda context: found
    federation = FakeGrid({1: Node(client(network, local=local, **parts), {})})
    strategy = FedTide(A.FedAvg(), clients=1, fraction_evaluate=1.0, clock=federation.clock)
    strategy.start(federation, initial_arrays(network()), num_rounds=1, timeout=60)
    lines = [r.getMessage() for r in caplog.records if " not used: " in r.getMessage()]
    assert len(lines) == (2 if part == "data" else 1)
    assert all(f"{part}: returned {message}" in line for line in lines)


def test_data_may_be_a_list_of_two_tensors_as_torch_load_gives():
    federation = FakeGrid(
        {1: Node(client(network, lambda context: [*shard(0)], ft.LocalTraining(1, lr=0.1)), {})}
    )
    strategy = FedTide(A.FedAvg(), clients=1, clock=federation.clock)
    strategy.start(federation, initial_arrays(network()), num_rounds=1, timeout=60)
    assert strategy.training.accepted_rounds.tolist() == [0]


def test_a_parameter_without_dimensions_keeps_its_shape():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

        def forward(self, x):
            return self.scale * x

    local = ft.LocalTraining(steps=1, lr=0.1)
    x, y = shard(0)
    app = client(Scaled, lambda context: (x, y), local)
    federation = FakeGrid({1: Node(app, {})})
    strategy = FedTide(A.FedAvg(), clients=1, clock=federation.clock)
    result = strategy.start(federation, initial_arrays(Scaled()), num_rounds=1, timeout=60)
    module = Scaled()
    nn.functional.cross_entropy(module(x), y).backward()
    found = result.arrays["scale"].numpy()
    assert found.shape == ()
    assert found == pytest.approx(0.5 - 0.1 * module.scale.grad.item())


def normalised(kind: type[nn.Module] = nn.BatchNorm1d) -> nn.Sequential:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 4), kind(4), nn.Linear(4, 3)).double()
    with torch.no_grad():
        net(2 * torch.randn(50, 4, dtype=torch.float64) + 1)  # statistics as after pretraining
    return net


def frozen() -> nn.Sequential:
    net = normalised()
    net[1].eval()
    return net


@pytest.mark.parametrize(
    "net", [normalised(), normalised().eval()], ids=["training", "left in evaluation as a whole"]
)
def test_running_statistics_are_refused_because_clients_do_not_send_them(net):
    for refuse in (initial_arrays, lambda net: ClientTask(net, *shard(0), cross_entropies)):
        with pytest.raises(
            ft.InvalidInputError, match=r"^model: layer '1' keeps .*; use GroupNorm.*layer\.eval"
        ):
            refuse(net)


def test_statistics_that_stay_are_none_that_clients_would_have_to_send():
    class Frozen(nn.Module):
        """As torchvision's FrozenBatchNorm2d, which has no mode."""

        def __init__(self):
            super().__init__()
            self.register_buffer("running_mean", torch.ones(4))
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            return self.linear(x - self.running_mean)

    assert list(initial_arrays(Frozen())) == ["linear.weight", "linear.bias"]
    assert "1.weight" in initial_arrays(frozen())
    assert "1.weight" in initial_arrays(nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4)))


def test_batch_normalisation_in_evaluation_trains_with_the_statistics_that_it_has():
    """The usual way to fine-tune a pretrained ResNet; two steps with full gradients by hand."""
    app = client(frozen, lambda context: shard(0), ft.LocalTraining(steps=2, lr=0.3))
    federation = FakeGrid({1: Node(app, {})})
    strategy = FedTide(A.FedAvg(), clients=1, fraction_evaluate=1.0, clock=federation.clock)
    result = strategy.start(federation, initial_arrays(frozen()), num_rounds=1, timeout=60)
    x, y = shard(0)
    net = frozen()
    optimizer = torch.optim.SGD(net.parameters(), 0.3)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    found = frozen()
    found.load_state_dict(result.arrays.to_torch_state_dict(), strict=False)
    for name, tensor in net.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], tensor)
    loss = nn.functional.cross_entropy(net(x), y).item()
    assert result.evaluate_metrics_clientapp[1]["loss"] == pytest.approx(loss)


def scalar_model(*shape):
    return nn.Sequential(nn.Linear(4, 1), nn.Unflatten(1, shape)).double()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda z, y: (z - y).square(), "(2, 2); it must give one number per sample, shape (2,)"),
        (lambda z, y: (z.squeeze(-1) - y).square().mean(), "it must give one number per sample"),
        (lambda z, y: z.nonsense(), "it fails on outputs of shape (2, 1) and targets of shape"),
    ],
)
def test_losses_that_would_train_another_model_are_refused(loss, message):
    """As in simulations; a client alone would send updates that no one can tell from good ones."""
    x, y = shard(0)
    with pytest.raises(ft.InvalidInputError, match=rf"^loss: .*{re.escape(message)}"):
        ClientTask(scalar_model(1), x, y.double(), loss)


@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_class_without_an_output_is_refused_at_once(wrong):
    """On a GPU it would end in an assertion of the device, after which its process is unusable."""
    x, y = shard(0)
    y = y.clone()
    y[20] = wrong
    with pytest.raises(ft.InvalidInputError, match=rf"^data: .*class {wrong}, .* 3 outputs"):
        ClientTask(network(), x, y, cross_entropies)


def test_class_weights_of_a_loss_take_the_dtype_of_the_model():
    x, y = shard(0)
    loss = nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 3.0]), reduction="none")
    task = ClientTask(nn.Linear(4, 3).double(), x, y, loss)
    params = task.layout.unflatten(task.start)
    weights = torch.ones(len(x), dtype=torch.float64)
    found = task.loss(params, x, y, weights, torch.zeros((), dtype=torch.int64))
    logits = x @ params["weight"].T + params["bias"]
    expected = torch.stack(
        [(1 + k) * -row.log_softmax(0)[k] for row, k in zip(logits, y, strict=True)]
    )
    torch.testing.assert_close(found, expected.mean())
    assert loss.weight.dtype == torch.float32
