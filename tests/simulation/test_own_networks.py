"""Runs of networks that the caller built: frozen layers, small minibatches, failing losses."""

import gc
import logging
import weakref

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedtide as ft
from fedtide.report import write_report
from fedtide.simulation.inputs import prepare_cached
from fedtide.spec import PROCESS, session

ROWS = 40


def table(sizes=(5,) * 8):
    x = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32")
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    return frame.assign(y=x.sum(1), user=np.repeat(np.arange(len(sizes)), sizes))


def normalised():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


def simulate(frame, model, batch_size=4, loss="mse", steps=3, epochs=None, **fields):
    problem = ft.problems.Supervised(
        frame, inputs=["a", "b", "c"], target="y", clients="user", model=model, loss=loss
    )
    local = ft.LocalTraining(steps=steps, epochs=epochs, batch_size=batch_size, lr=0.1)
    given = {"participation": "full", "algorithm": "fedavg", "rounds": 2, "trainer": "reference"}
    return ft.simulate(problem=problem, local=local, progress=False, **given | fields)


@pytest.mark.parametrize("trainer", ["reference", "stacked"])
def test_a_frozen_batch_norm_stays_frozen(trainer):
    net = normalised()
    net[1].running_mean += 0.5
    net[1].requires_grad_(False)
    net[1].eval()
    result = simulate(table(), net, trainer=trainer)
    trained, before = result.module(), net.state_dict()
    assert result.buffers is None
    for name, value in trained.state_dict().items():
        assert torch.equal(value, before[name]) == name.startswith("1.")


def test_networks_that_differ_in_their_frozen_layers_do_not_share_a_run():
    frozen = normalised()
    frozen[1].eval()
    assert simulate(table(), normalised()).buffers is not None
    assert simulate(table(), frozen).buffers is None


def test_batch_norm_over_minibatches_of_one_sample_is_refused():
    with pytest.raises(ft.InvalidInputError, match=r"^local\.batch_size: all .* single sample"):
        simulate(table(), normalised(), batch_size=1)


def test_batch_norm_over_some_minibatches_of_one_sample_is_warned_of_once(caplog):
    with caplog.at_level(logging.WARNING, "fedtide"):
        simulate(table(), normalised())
        assert not caplog.messages
        simulate(table((1, 4) + (5,) * 7), normalised())
    (message,) = caplog.messages
    assert message.startswith("local.batch_size: some minibatches have a single sample")


@pytest.mark.parametrize(
    "loss",
    [
        lambda outputs, targets: float(outputs.mean()) * torch.ones(len(targets)),
        lambda outputs, targets: torch.ones(len(targets)),
    ],
)
@pytest.mark.parametrize("trainer", ["auto", "reference", "stacked"])
@pytest.mark.filterwarnings("ignore:Converting a tensor")
def test_a_loss_without_gradient_is_refused_by_every_trainer(loss, trainer):
    with pytest.raises(ft.InvalidInputError, match=r"^problem\.loss: it has no gradient .*; comp"):
        simulate(table(), nn.Linear(3, 1), loss=loss, trainer=trainer)


def test_a_loss_that_fails_on_minibatches_leaves_no_traceback_in_the_log(caplog):
    def of_two_or_all(outputs, targets):
        return (outputs[:, 0] - targets) ** 2 * torch.ones(len(targets) if len(targets) > 9 else 2)

    with pytest.raises(ft.InvalidInputError, match=r"^model: .*size of tensor.*; check"):
        simulate(table(), nn.Linear(3, 1), loss=of_two_or_all, trainer="auto")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_result_gives_its_network_after_the_data_have_changed():
    frame, net = table(), normalised()
    result = simulate(frame, net)
    expected = result.module().state_dict()
    frame["user"] = "nobody"
    nn.init.zeros_(net[0].weight)
    PROCESS.prepared.clear()
    module = result.module()
    assert all(torch.equal(value, expected[name]) for name, value in module.state_dict().items())
    parameters = nn.utils.parameters_to_vector(module.parameters())
    np.testing.assert_array_equal(parameters.detach().numpy(), result.model)
    nn.init.zeros_(module[0].weight)  # a caller's change stays its own
    assert result.module()[0].weight.any()


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_result_gives_the_network_of_another_of_its_models(in_memory):
    if in_memory:
        result = simulate(table(), normalised(), record_iterates=True)
    else:
        result = ft.simulate(
            problem=ft.problems.Classification(
                "digits", ft.problems.Iid(), clients=10, model="mlp"
            ),
            participation="full",
            algorithm="fedavg",
            local=ft.LocalTraining(steps=1, batch_size=8, lr=0.1),
            rounds=2,
            record_iterates=True,
        )
    assert result.iterates is not None
    for model in (*result.iterates, result.model):
        found = nn.utils.parameters_to_vector(result.module(model).parameters())
        np.testing.assert_array_equal(found.detach().numpy(), model)
    with pytest.raises(ft.InvalidInputError, match=r"^model: it has shape \(2,\), "):
        result.module(result.model[:2])


def test_a_network_kept_by_a_result_keeps_no_training_samples_alive():
    with session():
        result = simulate(table(), normalised())
        task = weakref.ref(prepare_cached(result.experiment.problem, 0, "cpu", "float32"))
        assert task() is not None
    network = result.network
    del result
    gc.collect()
    assert task() is None
    assert network is not None


def test_seeds_may_be_any_iterable():
    results = simulate(table(), nn.Linear(3, 1), seeds=(seed for seed in [1, 2]))
    assert results.seeds == [1, 2]
    with pytest.raises(ft.InvalidInputError, match=r"^seeds: \[\] is empty"):
        simulate(table(), nn.Linear(3, 1), seeds=iter(()))


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("test", [None, 0.4])
def test_the_gain_from_fine_tuning_says_on_which_samples_it_is_measured(test, tmp_path):
    problem = ft.problems.Supervised(
        table(), inputs=["a", "b", "c"], target="y", clients="user", loss="mse", test=test
    )
    ft.simulate(
        problem=problem,
        participation="full",
        algorithm="fedavg",
        local={"steps": 1, "lr": 0.1},
        rounds=2,
        evaluation={"personalise": 2},
        trainer="reference",
        out=tmp_path / "run",
    )
    write_report(tmp_path / "page.html", tmp_path / "run")
    page = (tmp_path / "page.html").read_text()
    assert "after each has fine-tuned it" in page
    assert ("the gain includes fitting" in page) == (test is None)


class Changing(nn.Module):
    def forward(self, x):
        x[:, 0] = 0
        return x


@pytest.mark.parametrize("layer", [Changing(), nn.ReLU(inplace=True)])
def test_a_network_that_would_change_the_data_is_refused(layer):
    frame = table()
    before = frame.copy()
    with pytest.raises(ft.InvalidInputError, match=r"^problem\.model: it changes its inputs in"):
        simulate(frame, nn.Sequential(layer, nn.Linear(3, 1)))
    pd.testing.assert_frame_equal(frame, before)


class Noisy(nn.Module):
    """Adds the same noise in every pass, from a generator that is seeded in the pass."""

    def __init__(self, noise):
        super().__init__()
        self.layer, self.noise = nn.Linear(3, 1), noise

    def forward(self, x):
        return self.layer(x + self.noise())


def noise_of_a_generator():
    return torch.randn(3, generator=torch.Generator().manual_seed(0))


def noise_of_a_fork():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.randn(3)


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_loss_that_averages_says_how_to_give_one_number_per_sample():
    with pytest.raises(ft.InvalidInputError, match=r"gives values of shape \(\).*reduction='n"):
        simulate(table(), nn.Linear(3, 1), loss=nn.MSELoss())


class Recurrent(nn.Module):
    """An LSTM, for which PyTorch has other kernels in float32 than in float64."""

    def __init__(self):
        super().__init__()
        self.lstm, self.last = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x):
        return self.last(self.lstm(x.unsqueeze(-1))[0][:, -1])


def test_an_lstm_trains_alike_with_every_trainer_in_float32():
    torch.manual_seed(0)
    net = Recurrent()
    alone, *others = (
        simulate(table(), net, trainer=trainer)
        for trainer in ("reference", "threaded", "stacked", "auto")
    )
    start = nn.utils.parameters_to_vector(net.parameters()).detach().numpy()
    assert np.abs(alone.model - start).max() > 0.01
    for found in others:
        np.testing.assert_allclose(found.model, alone.model, atol=1e-5)
    assert torch.backends.mkldnn.enabled


class OnGraph(nn.Module):
    """A network with a constant sparse matrix, as those on graphs have."""

    def __init__(self, matrix):
        super().__init__()
        self.register_buffer("matrix", matrix)
        self.output = nn.Linear(3, 1)

    def forward(self, x):
        return self.output((self.matrix @ x.T).T)


@pytest.mark.parametrize("trainer", ["reference", "threaded", "auto"])
def test_a_sparse_buffer_gives_the_run_of_a_dense_one_and_is_saved(trainer, tmp_path):
    torch.manual_seed(0)
    dense = OnGraph(torch.tensor([[1.0, 0.0, 0.5], [0.0, 0.0, 0.0], [0.0, 2.0, 0.0]]))
    expected = simulate(table(), dense)
    net = OnGraph(dense.matrix.to_sparse())
    net.output = dense.output
    folder = tmp_path / "run"
    result = simulate(table(), net, trainer=trainer, out=folder)
    assert result.model == pytest.approx(expected.model, rel=1e-5)
    again = simulate(table(), net, trainer=trainer, out=folder, resume=True)
    assert torch.equal(again.module().matrix.to_dense(), dense.matrix)
    other = OnGraph(2 * net.matrix)
    other.output = dense.output
    with pytest.raises(ft.InvalidInputError, match=r"^resume: .*problem\.model \(other content"):
        simulate(table(), other, trainer=trainer, out=folder, resume=True)
