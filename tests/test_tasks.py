"""The data and networks of the bundled examples: each trains, on samples that are what they say."""

import io
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image
from torch import nn

import fedtide as ft
from fedtide.examples import find_example
from fedtide.examples.tasks import diabetes, plays
from fedtide.problems import Supervised
from fedtide.problems.supervised_task import SupervisedTask
from fedtide.simulation.runner import execute
from fedtide.sweep import Sweep


@pytest.fixture
def cifar10(tmp_path, monkeypatch):
    """A data set of random images in place of CIFAR-10, in FEDTIDE_DATA."""
    rng = np.random.default_rng(0)
    (tmp_path / "cifar10").mkdir()
    for split, size in (("train", 2000), ("test", 50)):
        pixels = [rng.integers(0, 256, (32, 32, 3), dtype=np.uint8) for _ in range(20)]
        frame = {"img": [png(pixels[i % 20]) for i in range(size)], "label": np.arange(size) % 10}
        pl.DataFrame(frame).write_parquet(tmp_path / "cifar10" / f"{split}.parquet")
    monkeypatch.setenv("FEDTIDE_DATA", str(tmp_path))


def png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["diabetes", "who-speaks", "next-character", "batchnorm"])
def test_every_method_of_an_example_runs(name, cifar10):
    runs = Sweep.load(find_example(Path(name))).runs
    for experiment in [run.experiment for run in runs if run.experiment.seed == 1]:
        local = replace(experiment.local, steps=1)
        result = execute(replace(experiment, rounds=2, local=local, trainer="reference"))
        assert np.isfinite(result.metrics["loss"].to_numpy()).all()


def test_every_speech_belongs_to_its_speaker_and_scene():
    spoken = list(plays.read_play("macbeth"))
    tomorrow = [speech for speech in spoken if "To-morrow, and to-morrow" in speech.text]
    assert [(s.scene, s.speaker) for s in tomorrow] == [("macbeth, ACT V, SCENE V", "MACBETH")]
    assert len({speech.scene for speech in spoken}) == 26
    assert not any("[" in speech.text or speech.text.isupper() for speech in spoken)
    lines = (Path(plays.__file__).parent / "macbeth.txt").read_text().splitlines()
    assert Counter(s.speaker for s in spoken)["BANQUO"] == lines.count("BANQUO.")


def test_pieces_of_text_are_what_their_client_says():
    table = plays.next_characters("twelfth_night")
    said = {}
    for speech in plays.read_play("twelfth_night"):
        said[speech.speaker] = said.get(speech.speaker, "") + speech.text + "\n"
    first = table["client"].index("VIOLA")
    for row in (first, first + 1):
        text = "".join(plays.ALPHABET[i] for i in table["x"][row])
        assert text in said["VIOLA"]


def test_the_patients_of_a_client_have_its_age():
    table = diabetes.by_age()
    assert len(set(table["age"])) == 58
    assert np.allclose(table["x"].std(axis=0), 1)
    assert np.corrcoef(table["x"][:, 0], table["age"])[0, 1] > 0.999  # the first column is the age


def adapters(steps: int) -> Supervised:
    """The problem of the example lora, with 64 samples and `steps` of training beforehand."""
    table, path = plays.next_characters(), "fedtide.examples.tasks.lora:adapted_transformer"
    return Supervised(
        train={"x": table["x"][:64], "client": table["client"][:64]},
        target=None,
        model={"type": path, "rank": 2, "steps": steps},
        loss="next_token",
    )


def prepare(problem: Supervised) -> SupervisedTask:
    return problem.prepare(seed=0, device=torch.device("cpu"), dtype=torch.float32)


def test_adapters_start_as_the_network_that_they_adapt():
    task = prepare(adapters(steps=0))
    module = task.module(task.start)
    plain = plays.CharacterTransformer()
    trained = [name for name, p in module.named_parameters() if p.requires_grad]
    assert trained
    assert all(".parametrizations.weight.0." in name for name in trained)
    assert task.layout.size == sum(module.get_parameter(name).numel() for name in trained)
    assert task.layout.size < sum(p.numel() for p in plain.parameters()) / 5
    original = {
        name.replace("parametrizations.weight.original", "weight"): tensor
        for name, tensor in module.state_dict().items()
        if ".parametrizations.weight.0." not in name
    }
    plain.load_state_dict(original)
    x = torch.arange(64)[None] % 60
    assert torch.allclose(plain.eval()(x), module.eval()(x), atol=1e-6)


def test_only_adapters_move_and_the_loss_falls():
    problem = adapters(steps=30)
    result = ft.simulate(
        problem=problem,
        participation=ft.participation.Full(),
        algorithm=ft.algorithms.FedAvg(),
        local=ft.LocalTraining(steps=5, batch_size=8, lr=0.02, optimizer="adam"),
        rounds=10,
        trainer="reference",
    )
    task = prepare(problem)
    before, after = task.module(task.start), task.module(torch.from_numpy(result.model))
    assert frozen(before).keys() == frozen(after).keys() != set()
    assert all(torch.equal(tensor, frozen(after)[name]) for name, tensor in frozen(before).items())
    assert not np.allclose(task.start.numpy(), result.model)
    losses = result.metrics["loss"]
    assert losses[-1] < losses[0] - 0.05


def frozen(module: nn.Module) -> dict[str, torch.Tensor]:
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    return {name: tensor for name, tensor in module.state_dict().items() if name not in trained}
