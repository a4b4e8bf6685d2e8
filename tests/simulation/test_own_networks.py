"""Runs of networks that the caller built: frozen layers, small minibatches, failing losses."""

import logging

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedtide as ft
from fedtide.spec import PROCESS

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


def test_batch_norm_over_some_minibatches_of_one_sample_is_warned_of_once(caplog):
    with caplog.at_level(logging.WARNING, "fedtide"):
        simulate(table(), normalised())
        assert not caplog.messages
        simulate(table((1, 4) + (5,) * 7), normalised())
    (message,) = caplog.messages
    assert message.startswith("local.batch_size: some minibatches have a single sample")


@pytest.mark.parametrize("trainer", ["auto", "stacked"])
@pytest.mark.filterwarnings("ignore:Converting a tensor")
def test_a_loss_without_gradient_is_refused_by_every_trainer(trainer):
    def loss(outputs, targets):
        return float(outputs.mean()) * torch.ones(len(targets))

    with pytest.raises(ft.InvalidInputError, match=r"^problem\.loss: it has no gradient .*; comp"):
        simulate(table(), nn.Linear(3, 1), loss=loss, trainer=trainer)


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


def test_a_result_gives_the_network_of_another_of_its_models():
    result = simulate(table(), normalised(), record_iterates=True)
    for model in (*result.iterates, result.model):
        found = nn.utils.parameters_to_vector(result.module(model).parameters())
        np.testing.assert_array_equal(found.detach().numpy(), model)
    with pytest.raises(ft.InvalidInputError, match=r"^model: "):
        result.module(result.model[:2])


def test_a_network_that_would_change_the_data_is_refused():
    frame = table()
    before = frame.copy()
    with pytest.raises(ft.InvalidInputError, match=r"^problem\.model: it changes its inputs in"):
        simulate(frame, nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 1)))
    pd.testing.assert_frame_equal(frame, before)


class OnGraph(nn.Module):
    """A network with a constant sparse matrix, as those on graphs have."""

    def __init__(self, matrix):
        super().__init__()
        self.register_buffer("matrix", matrix)
        self.output = nn.Linear(3, 1)

    def forward(self, x):
        return self.output((self.matrix @ x.T).T)


@pytest.mark.parametrize("trainer", ["reference", "auto"])
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
