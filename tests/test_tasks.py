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
from fedtide.examples.tasks import plays
from fedtide.problems import Supervised
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


def test_only_adapters_move_and_the_loss_falls():
    table, path = plays.next_characters(), "fedtide.examples.tasks.lora:adapted_transformer"
    problem = Supervised(
        train={"x": table["x"][:32], "client": table["client"][:32]},
        target=None,
        model={"type": path, "rank": 2, "steps": 0},
        loss="next_token",
    )
    result = ft.simulate(
        problem=problem,
        participation=ft.participation.Full(),
        algorithm=ft.algorithms.FedAvg(),
        local=ft.LocalTraining(steps=3, batch_size=8, lr=0.02, optimizer="adam"),
        rounds=4,
        trainer="reference",
    )
    task = problem.prepare(seed=0, device=torch.device("cpu"), dtype=torch.float32)
    before, after = task.module(task.start), task.module(torch.from_numpy(result.model))
    assert frozen(before).keys() == frozen(after).keys() != set()
    assert all(torch.equal(tensor, frozen(after)[name]) for name, tensor in frozen(before).items())
    assert task.layout.size < sum(p.numel() for p in plays.CharacterTransformer().parameters()) / 5
    assert result.metrics["loss"][-1] < result.metrics["loss"][0] - 0.05


def frozen(module: nn.Module) -> dict[str, torch.Tensor]:
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    return {name: tensor for name, tensor in module.state_dict().items() if name not in trained}
