"""The adapter of PyTorch's private interfaces: whatever fails in them, training goes on."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.fx.experimental import proxy_tensor

from fedtide.algorithms import Instructions
from fedtide.problems import Quadratic
from fedtide.training import LocalTraining
from fedtide.training.minibatches import MinibatchPlanner
from fedtide.training.trainers import _graph_capture
from fedtide.training.trainers.reference import ReferenceTrainer
from fedtide.training.trainers.stacked import StackedTrainer

FAILURES = [
    AttributeError("module has no attribute"),
    RuntimeError("g++: internal error"),
]
"""How an upgrade of PyTorch breaks a private interface."""

every_failure = pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)


@pytest.fixture(autouse=True)
def _warn_again():
    _graph_capture._warn.cache_clear()


def updates(trainer):
    """Return the updates of two rounds of a trainer on quadratics, (2, 3, 2)."""
    matrices = [np.diag([1.0, 2.0]), np.diag([3.0, 0.5]), np.eye(2)]
    centers = np.array([[0.0, 1.0], [1.0, 1.0], [-1.0, 2.0]])
    task = Quadratic(matrices, centers).prepare(0, torch.device("cpu"), torch.float64)
    local = LocalTraining(steps=3, momentum=0.5)
    planner = MinibatchPlanner(task.population, local, seed=0)
    made = trainer(task, local)
    plans = [planner.plan(np.arange(3)) for _ in range(2)]
    return torch.stack([made.train(Instructions(task.start), plan, 0.1).deltas for plan in plans])


def raising(error):
    def fail(*_, **__):
        raise error

    return fail


@every_failure
def test_plain_vmap_replaces_graphs_that_cannot_be_captured(error, monkeypatch):
    monkeypatch.setattr(proxy_tensor, "make_fx", raising(error))
    with pytest.warns(RuntimeWarning, match="not captured") as warned:
        found = updates(StackedTrainer)
    assert len(warned) == 1
    assert torch.allclose(found, updates(ReferenceTrainer), rtol=1e-12, atol=1e-12)


@every_failure
def test_graphs_that_cannot_be_compiled_run_uncompiled(error, monkeypatch):
    monkeypatch.setattr("torch._inductor.compile", raising(error))
    with pytest.warns(RuntimeWarning, match="not compiled") as warned:
        found = updates(lambda task, local: StackedTrainer(task, local, compiled=True))
    assert len(warned) == 1
    assert torch.allclose(found, updates(ReferenceTrainer), rtol=1e-12, atol=1e-12)


@every_failure
def test_mkl_multiplies_where_onednn_cannot_be_called(error, monkeypatch):
    monkeypatch.setattr(torch.library, "custom_op", raising(error))
    with pytest.warns(RuntimeWarning, match="oneDNN is not used"):
        assert _graph_capture.onednn_product.__wrapped__() is None  # not that in the cache


def test_an_error_of_the_function_itself_is_raised():
    def fail(x):
        raise ZeroDivisionError("the model's fault")

    with pytest.raises(ZeroDivisionError, match="the model's fault"):
        _graph_capture.capture(fail, [torch.zeros(1)])


@pytest.fixture
def graph(monkeypatch):
    """Return a captured graph, and forget where compiled graphs are kept."""
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    return _graph_capture.capture(lambda x: (x + x,), [torch.zeros(2)])


def test_what_is_compiled_is_kept_in_the_cache_folder(cache, graph, monkeypatch):
    seen = []

    def compile(given, *_):
        seen.append(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        return given

    monkeypatch.setattr("torch._inductor.compile", compile)
    _graph_capture.compile_graph(graph, [torch.zeros(2)])
    assert seen == [str(Path(os.environ["FEDTIDE_CACHE"], "compiled-2"))]


def test_without_a_folder_that_can_be_written_compiling_goes_on(monkeypatch, tmp_path):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDTIDE_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr("torch._inductor.compile", lambda given, *_: given)
    graph = _graph_capture.capture(lambda x: (x + x,), [torch.zeros(2)])
    compiled = _graph_capture.compile_graph(graph, [torch.zeros(2)])
    assert torch.equal(compiled(torch.ones(2))[0], torch.full((2,), 2.0))


def test_a_factor_of_one_stays_where_it_makes_whole_numbers_floating():
    def function(x):
        return (torch.ops.aten.mul.Scalar(x, 1.0),)

    for given in (torch.arange(3), torch.arange(3.0)):
        found, expected = _graph_capture.capture(function, [given])(given), function(given)
        assert found[0].dtype == expected[0].dtype
        assert torch.equal(found[0], expected[0])
