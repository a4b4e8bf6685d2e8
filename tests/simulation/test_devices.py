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
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import fedtide as ft
from fedtide.device_copies import to_device_of
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.loop import Run
from fedtide.training import devices, recording
from fedtide.training.trainers import block_runner


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.Linear(5, 3)
        )

    def forward(self, x):
        return self.layers(x)


def run(model=None, **changes):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    table = {
        "x": rng.normal(size=(96, 6)).astype(np.float32),
        "y": rng.integers(0, 3, 96),
        "who": np.repeat(np.arange(12), 8),
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


METHODS = {
    "fedavg": {},
    "fedavg by samples": {"type": "fedavg", "weights": "data"},
    "fedau": {"type": "fedau", "cutoff": 3},
    "fedau in groups": {"type": "fedau", "groups": list("aabbccaabbcc")},
    "fedau, decayed": {"type": "fedau", "average": 0.9},
    "known-rates": {},
    "auto": {},
    "weighted-fedavg": {"type": "weighted-fedavg", "rates": [0.6] * 12},
    "fedprox": {"type": "fedprox", "mu": 0.1},
    "fedvarp": {},
    "mifa": {},
    "fedlaavg": {},
    "scaffold": {},
    "amplified-scaffold": {"type": "amplified-scaffold", "period": 2, "factor": 1.5},
    "amplified": {"type": "amplified", "period": 2, "factor": 1.5},
    "fedadam": {},
    "fedavgm": {},
    "fedyogi": {},
    "averaged": {},
    "fedbuff": {"type": "fedbuff", "buffer_size": 4},
    "wait-for-all": {"type": "wait-for-all", "period": 2},
    "wait-for-all, gradients": {"type": "wait-for-all", "period": 2, "mode": "gradient"},
    "switch": {"type": "switch", "first": "fedavg", "second": "fedlaavg", "at": 2},
    "central-sgd": {},
    "f3ast": {},
    "fedawe": {},
    "fedpbc": {},
    "fedstale": {},
    "focus": {},
}


@pytest.mark.parametrize("trainer", ["reference", "stacked"])
@pytest.mark.parametrize("name", METHODS)
def test_a_round_asks_its_device_once_whatever_the_method(name, trainer, readings):
    found = run(algorithm=METHODS[name] or name, trainer=trainer)
    with BlockingCopies() as copies:
        for _ in range(3):
            found.round()
    assert len(readings) == 3
    assert copies.found == []
    assert found.driver.output.device.type == "meta"


OTHER = {
    "epochs": {"local": {"epochs": 1, "batch_size": 3, "lr": 0.05}},
    "momentum": {"local": {"steps": 2, "batch_size": 3, "lr": 0.05, "momentum": 0.9}},
    "adam": {"local": {"steps": 2, "batch_size": 3, "lr": 0.05, "optimizer": "adam"}},
    "a ball": {"local": ft.LocalTraining(steps=2, lr=0.1, projection=ft.Ball(radius=1.0))},
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
    "a regression": {"problem": {"type": "regression", "clients": 12}},
    "weights of clients": {"objective": list(range(1, 13))},
    "running statistics and dropout": {"model": Network()},
    "bfloat16": {"dtype": "bfloat16"},
    "chunks": {"chunk": 3},
    "a cohort that is padded": {"participation": {"type": "uniform", "size": 9}},
    "a cohort that is padded, with corrections": {
        "participation": {"type": "uniform", "size": 9},
        "algorithm": "scaffold",
        "model": Network(),
    },
    "iterates": {"record_iterates": True},
}


@pytest.mark.parametrize("trainer", ["reference", "stacked"])
@pytest.mark.parametrize("name", OTHER)
def test_a_round_asks_its_device_once_however_clients_train(name, trainer, readings):
    found = run(**{"trainer": trainer} | OTHER[name])
    with BlockingCopies() as copies:
        for _ in range(2):
            found.round()
    assert len(readings) == 2
    assert copies.found == []


@pytest.mark.parametrize(
    "copy",
    {
        "to": lambda here, there: here.to(there),
        "copy_": lambda here, there: there.copy_(here),
        "NumPy": lambda here, there: torch.as_tensor(here.numpy(), device=there.device),
        "numbers": lambda here, there: there.new_tensor([0, 1]),
        "an index": lambda here, there: there[here],
        "a NumPy index": lambda here, there: there[here.numpy()],
    }.items(),
    ids=lambda case: case[0],
)
def test_blocking_copies_are_counted_on_the_stand_in(copy):
    here, there = torch.tensor([0, 1]), torch.zeros(2, dtype=torch.int32, device="meta")
    with BlockingCopies() as copies:
        copy[1](here, there)
        assert len(copies.found) == 1
        here.to(there.device, non_blocking=True)
        here.to(torch.float32)
    assert len(copies.found) == 1


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


@pytest.mark.parametrize("clients", [1, 9, 100, 1000, 10_000])
def test_a_chunk_has_at_most_a_quarter_of_clients_that_only_fill_it(clients):
    size = next(size for size in devices.chunk_sizes() if size >= clients)
    assert size <= 1.25 * clients


def test_sizes_of_chunks_are_few():
    """Steps are captured for each: at most four per doubling of the cohort."""
    sizes = np.array(devices.chunk_sizes())
    assert max(np.sum((sizes > n) & (sizes <= 2 * n)) for n in (1, 7, 64, 1000, 8192)) <= 4


def test_values_are_read_in_one_copy():
    tensors = [torch.tensor([True, False]), torch.tensor(True)]
    values = devices.read(tensors)
    assert [value.tolist() for value in values] == [[True, False], True]


def test_an_unknown_device_is_refused():
    said = r"^device: 'cuda:99' is not available \(.+\); use 'cpu'$"
    with pytest.raises(ft.InvalidInputError, match=said):
        run(device="cuda:99")


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
    "one block": {},
    "two chunks": {"chunk": 5},
    "corrections": {"algorithm": "scaffold"},
    "blocks of steps": {"local": {"steps": 19, "batch_size": 3, "lr": 0.05}},
    "epochs": {"local": {"epochs": 2, "batch_size": 3, "lr": 0.05}},
    "adam": {"local": {"steps": 11, "batch_size": 3, "lr": 0.05, "optimizer": "adam"}},
    "momentum": {"local": {"steps": 11, "batch_size": 3, "lr": 0.05, "momentum": 0.9}},
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


def test_a_recording_is_made_once_for_data_in_one_place(recordings):
    replay = recording.RecordedFunction(lambda x, data: (x + data,), fixed=1)
    data = torch.tensor([1.0, 2.0])
    first, second = replay(torch.zeros(2), data)[0], replay(torch.ones(2), data)[0]
    assert len(recordings) == 1
    torch.testing.assert_close(first, torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(second, torch.tensor([2.0, 3.0]))
    torch.testing.assert_close(
        replay(torch.ones(2), torch.zeros(2))[0], torch.ones(2)
    )  # another task of the family
    assert len(recordings) == 2


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


def test_recordings_that_take_too_much_memory_together_are_dropped(recordings, monkeypatch):
    """Each keeps its inputs and outputs: 2 * 8 bytes for every number."""
    monkeypatch.setattr(recording, "recording_bytes", lambda like: 16 * 12)
    data, calls = torch.zeros(1, dtype=torch.float64), []
    replays = [recording.RecordedFunction(lambda x, data: (x + data,), fixed=1) for _ in range(4)]
    for which in (0, 1, 0, 2, 3, 3, 2, 0):  # of sizes 4, 5, 4, 6, ...: 12 numbers fit
        made = len(recordings)
        x = torch.full((4 + which,), float(which), dtype=torch.float64)
        assert torch.equal(replays[which](x, data)[0], x)
        calls.append(len(recordings) - made)
        assert sum(one.bytes for one in replays) <= max(16 * 12, replays[which].bytes)
    assert calls == [1, 1, 0, 1, 1, 0, 1, 1]


def test_cohorts_of_many_sizes_have_the_bits_of_others_if_recordings_are_dropped(
    recordings, monkeypatch
):
    settings = {
        "device": "cpu",
        "trainer": "stacked",
        "participation": {"type": "bernoulli", "rates": 0.5},
        "local": {"steps": 11, "batch_size": 3, "lr": 0.05, "optimizer": "adam"},
        "rounds": 8,
    }
    ends = []
    for most in (0.0, float("inf")):
        monkeypatch.setattr(recording, "recording_bytes", lambda like, most=most: most)
        monkeypatch.setattr(block_runner, "_SHARED", deque())
        one = run(**settings)
        for _ in range(8):
            one.round()
        ends.append((one.driver.output, len(recordings)))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1] > ends[1][1] - ends[0][1], "some were made more than once"


def test_recordings_that_do_not_fit_together_are_not_made_in_turn_forever(recordings, monkeypatch):
    monkeypatch.setattr(recording, "recording_bytes", lambda like: 16.0)
    data = torch.zeros(1, dtype=torch.float64)
    replays = [recording.RecordedFunction(lambda x, data: (x + data,), fixed=1) for _ in range(3)]
    for k in range(20):
        for which, replay in enumerate(replays):
            x = torch.full((4,), float(k + which), dtype=torch.float64)
            assert torch.equal(replay(x, data)[0], x)
    assert len(recordings) <= 2 * len(replays)
    assert any(replay.bytes for replay in replays), "one stays"


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


def test_a_recording_without_room_leaves_its_memory_to_the_call(recordings, monkeypatch):
    """Recordings keep their memory from other uses; without it the call would fail, too."""
    data = torch.ones(2)
    kept, other = (
        recording.RecordedFunction(lambda x, data: (x + data,), fixed=1) for _ in range(2)
    )
    kept(data, data)
    assert kept.bytes

    def record(function, tensors):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.")

    freed = []
    monkeypatch.setattr(recording, "_record", record)
    monkeypatch.setattr(
        recording._memory_of_graphs, "cache_clear", lambda: freed.append(kept.bytes)
    )
    with pytest.warns(RuntimeWarning, match="not recorded on the GPU .*: CUDA out of memory"):
        assert other(data, data)[0].tolist() == [2.0, 2.0]
    assert freed == [0]
    assert kept._drops == 1, "it is made anew"


@pytest.mark.parametrize(
    ("source", "target", "queued"),
    [("cpu", "cuda:0", True), ("cpu", "mps:0", False), ("cuda:0", "cpu", False)],
)
def test_a_copy_is_queued_only_where_its_source_is_read_at_once(source, target, queued):
    """Others may be read or overwritten too early, without an error."""

    class Fake:
        def __init__(self, name):
            self.device = torch.device(name)

        def to(self, device, non_blocking):
            return device, non_blocking

    assert to_device_of(Fake(source), Fake(target)) == (torch.device(target), queued)
    here = Fake(source)
    assert to_device_of(here, Fake(source)) is here


class FakeStream:
    """A stream that notes which others wait for it."""

    def __init__(self, device):
        self.device, self.waits = device, []

    def wait_stream(self, other):
        assert other.device == self.device
        self.waits.append(other)


@pytest.fixture
def captures(monkeypatch):
    """Stand in for `torch.cuda`; return the captures, by stream and mode, and the streams."""
    current, captured, defaults = [], [], {}

    class Within:
        def __init__(self, what):
            self.what = what

        def __enter__(self):
            current.append(self.what)

        def __exit__(self, *error):
            current.pop()

    class Graph:
        replay, pool = (lambda self: None), (lambda self: (0, 0))

    def capture(graph, pool=None, stream=None, capture_error_mode="global"):
        captured.append((stream, capture_error_mode))
        return Within(stream)

    def current_stream():
        device = current[-1]
        return defaults.setdefault(device, FakeStream(device))

    fakes = {"Stream": FakeStream, "device": Within, "stream": Within, "CUDAGraph": Graph}
    for name, fake in (fakes | {"graph": capture, "current_stream": current_stream}).items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch, "zeros", lambda *size, device: None)
    caches = (recording._stream_of_graphs, recording._memory_of_graphs)
    for cached in caches:
        cached.cache_clear()
    yield captured, defaults
    for cached in caches:
        cached.cache_clear()


def on_device(index):
    device = torch.device("cuda", index)
    return device, type("Tensor", (), {"device": device})()


def test_every_device_captures_on_a_stream_of_its_own(captures):
    """PyTorch's is on the device of the first capture, whatever the device of a later one."""
    captured, _ = captures
    for index in (0, 1):
        device, tensor = on_device(index)
        recording._record(lambda one: one, (tensor,))
        assert [stream.device for stream, _ in captured[-2:]] == [device, device]
        assert captured[-1][0] is captured[-2][0]


def test_captures_let_other_threads_use_the_gpu(captures):
    """In PyTorch's default mode, memory that another thread takes meanwhile ends the capture."""
    captured, _ = captures
    recording._record(lambda one: one, (on_device(0)[1],))
    assert [mode for _, mode in captured] == ["thread_local", "thread_local"]


def test_after_an_error_the_tensors_are_not_written_before_they_have_been_read(captures):
    """What had begun on the stream of captures reads inputs, whose memory is free afterwards."""
    _, defaults = captures

    def fail(one):
        raise RuntimeError("out of memory")

    device, tensor = on_device(0)
    with pytest.raises(RuntimeError, match="out of memory"):
        recording._record(fail, (tensor,))
    assert defaults[device].waits == [recording._stream_of_graphs(device)]
