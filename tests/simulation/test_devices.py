"""Rounds on a device that is not the CPU.

The stand-in for a GPU is the device "meta": its tensors have shapes and no values, so whatever
looks at a value and so makes the computer wait for a GPU (`item`, `nonzero`, a mask, a copy to the
CPU) is an error. Copies in the other direction that wait are counted (`BlockingCopies`).
The stand-in for a CUDA graph calls the recorded function again, and writes where it wrote before.
"""

from collections import deque
from threading import Thread

import numpy as np
import pytest
import torch
from tests.algorithms.methods import METHODS
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import fedtide as ft
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.loop import Run
from fedtide.training import devices, recording
from fedtide.training.trainers import block_runner

CLIPPED = ft.algorithms.FedAWE(clip=0.1)
"""Reads the lengths of updates."""


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.Linear(5, 3)
        )

    def forward(self, x):
        return self.layers(x)


def run(model=None, clients=12, **changes):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    table = {
        "x": rng.normal(size=(96, 6)).astype(np.float32),
        "y": rng.integers(0, 3, 96),
        "who": np.repeat(np.arange(clients), 96 // clients),
    }
    fields = {
        "problem": ft.problems.Supervised(
            train=table, inputs="x", target="y", clients="who", model=model or nn.Linear(6, 3)
        ),
        "participation": {"type": "bernoulli", "rates": 0.6},
        "algorithm": "fedavg",
        "local": {"steps": 2, "batch_size": 3, "lr": 0.05},
        "rounds": 10,
        "seed": 4,
        "trainer": "reference",
        "device": "meta",
    }
    return Run(Experiment.from_dict(fields | changes))


@pytest.fixture
def readings(monkeypatch):
    """Answer what a round asks its device, and return the list of what it asked."""
    asked = []

    def read(tensors):
        asked.append(tensors)
        return [np.ones(tensor.shape, dtype=bool) for tensor in tensors]

    monkeypatch.setattr(devices, "read", read)
    return asked


class BlockingCopies(TorchDispatchMode):
    """Counts copies from the CPU to another device that make the computer wait for a GPU.

    "meta" lets them pass. They are `to` and `copy_` without `non_blocking`, tensors made from lists
    or numbers, and indices that lie on the CPU.
    """

    def __init__(self):
        super().__init__()
        self.found = []
        self._made = MadeFromNumbers(self.found)

    def __enter__(self):
        self._made.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._made.__exit__(*error)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = operation(*args, **kwargs)
        name = operation.overloadpacket.__name__
        if name in ("_to_copy", "copy_") and result.device.type != "cpu":
            source = args[0] if name == "_to_copy" else args[1]
            if source.device.type == "cpu" and not kwargs.get("non_blocking"):
                self.found.append(operation)
        elif name.startswith(("index", "_index")) and args[0].device.type != "cpu":
            indices = args[1] if isinstance(args[1], list | tuple) else args[1:]
            if any(isinstance(i, Tensor) and i.device.type == "cpu" for i in indices):
                self.found.append(operation)
        return result


class MadeFromNumbers(TorchFunctionMode):
    """Notes tensors made from lists or numbers elsewhere than on the CPU."""

    def __init__(self, found):
        super().__init__()
        self._found = found

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        makes = function in (torch.tensor, torch.as_tensor, Tensor.new_tensor)
        data = args[-1] if makes else None
        if makes and not isinstance(data, Tensor | np.ndarray) and result.device.type != "cpu":
            self._found.append(function)
        return result


ONE_OF_EACH = {type(m): m for m in reversed(METHODS) if m != CLIPPED}.values()


@pytest.mark.parametrize("method", [*ONE_OF_EACH, ft.algorithms.Auto(control_variates=True)])
def test_a_round_asks_its_device_once_whatever_the_method(method, readings):
    found = run(algorithm=method, trainer="stacked", clients=4)
    with BlockingCopies() as copies:
        for _ in range(3):
            found.round()
    assert len(readings) == 3
    assert copies.found == []
    assert found.driver.output.device.type == "meta"


OTHER = {
    "epochs": {"local": {"epochs": 1, "batch_size": 3, "lr": 0.05}},
    "adam": {"local": {"steps": 2, "batch_size": 3, "lr": 0.05, "optimizer": "adam"}},
    "a ball elsewhere": {
        "local": ft.LocalTraining(
            steps=2, lr=0.1, projection=ft.Ball(radius=1.0, center=[0.1] * 21)
        )
    },
    "all samples": {"local": {"steps": 2, "batch_size": None, "lr": 0.05}},
    "a quadratic": {
        "problem": ft.problems.Quadratic(matrices=[np.eye(2)] * 12, centers=np.ones((12, 2))),
        "local": {"steps": 2, "lr": 0.05},
    },
    "a lower bound": {"problem": "lower-bound-4d", "local": {"steps": 2, "lr": 0.05}},
    "running statistics and dropout": {"model": Network()},
    "bfloat16": {"dtype": "bfloat16"},
    "chunks": {"chunk": 3},
    "a cohort that is padded, with corrections": {
        "participation": {"type": "uniform", "size": 9},
        "algorithm": "scaffold",
        "model": Network(),
    },
    "iterates": {"record_iterates": True},
}


@pytest.mark.parametrize("name", OTHER)
def test_a_round_asks_its_device_once_however_clients_train(name, readings):
    found = run(**{"trainer": "stacked"} | OTHER[name])
    with BlockingCopies() as copies:
        for _ in range(2):
            found.round()
    assert len(readings) == 2
    assert copies.found == []


def test_the_one_reading_finds_the_update_that_is_not_finite(readings, monkeypatch):
    def read(tensors):
        first, *others = [np.ones(tensor.shape, dtype=bool) for tensor in tensors]
        first[2] = False
        return [first, *others]

    monkeypatch.setattr(devices, "read", read)
    found = run(participation="full")
    with pytest.raises(ft.InvalidInputError, match=r"^local.lr: an update in round 0 .*clients 2"):
        found.round()


def test_a_cohort_is_one_chunk_where_memory_allows(readings):
    found = run(trainer="stacked", participation="full")
    calls = []
    runner = found._local.trainer._runner
    original = runner.prepare
    runner.prepare = lambda *how: calls.append(how[0].clients) or original(*how)
    found.round()
    assert calls == [12]
    assert len(readings) == 1


@pytest.fixture
def recordings(monkeypatch):
    """Record on a CPU, too, and return the list of the functions that were recorded."""
    recorded = []

    def record(function, tensors):
        outputs = tuple(output.clone() for output in function(*tensors))
        recorded.append(function)

        def repeat():
            for output, new in zip(outputs, function(*tensors), strict=True):
                output.copy_(new)

        return repeat, outputs

    monkeypatch.setattr(recording, "_record", record)
    monkeypatch.setattr(block_runner, "can_record", lambda like: True)
    monkeypatch.setattr(block_runner, "_SHARED", deque())
    return recorded


RECORDED = {
    "two chunks": {"chunk": 5},
    "corrections": {"algorithm": "scaffold"},
    "epochs": {"local": {"epochs": 2, "batch_size": 3, "lr": 0.05}},
    "adam": {"local": {"steps": 11, "batch_size": 3, "lr": 0.05, "optimizer": "adam"}},
    "running statistics and dropout": {"model": Network()},
}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_rounds_give_the_bits_of_others(name, recordings):
    settings = {"device": "cpu", "trainer": "stacked"} | RECORDED[name]
    recorded = run(**settings)
    for _ in range(4):
        recorded.round()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_runner, "can_record", lambda like: False)
        patch.setattr(block_runner, "_SHARED", deque())
        plain = run(**settings)
        for _ in range(4):
            plain.round()
    assert recordings
    assert torch.equal(recorded.driver.output, plain.driver.output)


def test_what_cannot_be_recorded_is_called_with_a_warning(monkeypatch):
    def record(function, tensors):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(recording, "_record", record)
    replay = recording.RecordedFunction(lambda x, data: (x + data,), fixed=1)
    data = torch.ones(2)
    with pytest.warns(RuntimeWarning, match=r"not recorded on the GPU .*: operation not permitted"):
        found = replay(torch.zeros(2), data)
    torch.testing.assert_close(found[0], data)
    torch.testing.assert_close(replay(data, data)[0], 2 * data)


def test_threads_do_not_write_where_another_has_not_read_yet(monkeypatch):
    """All recordings share one memory."""
    shared, replays, others = torch.zeros(2), [], []

    def record(function, tensors):
        def repeat():
            shared.copy_(function(*tensors)[0])
            if not others:  # another thread comes at the worst moment
                others.append(Thread(target=replays[1], args=(torch.full((2,), 7.0), data)))
                others[0].start()
                others[0].join(timeout=0.3)

        return repeat, (shared,)

    monkeypatch.setattr(recording, "_record", record)
    replays += [recording.RecordedFunction(lambda x, data: (x + data,), fixed=1) for _ in range(2)]
    data = torch.ones(2)
    assert replays[0](torch.ones(2), data)[0].tolist() == [2.0, 2.0]
    others[0].join(timeout=60)
    assert shared.tolist() == [8.0, 8.0]
