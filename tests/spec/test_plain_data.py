"""Conversion of plain data to objects and back, for every registered class."""

import inspect
from dataclasses import fields

import numpy as np
import pytest
import yaml

import fedtide as ft
from fedtide.participation import (
    Availability,
)
from fedtide.simulation.experiment import BUILDER
from fedtide.simulation.experiment_files import override

# Single rules


def fields_of(**changes):
    return {
        "problem": {"type": "regression"},
        "participation": "full",
        "algorithm": "fedavg",
        "local": {"steps": 1},
        "rounds": 3,
    } | changes


def test_numbers_that_yaml_reads_as_words():
    """YAML 1.1 takes 1e-4 for a string: it wants 1.0e-4."""
    text = "{steps: 5, lr: 1e-4, projection: {type: ball, radius: 1e3}}"
    local = ft.Experiment.from_dict(fields_of(local=yaml.safe_load(text))).local
    assert (local.lr, local.projection.radius) == (1e-4, 1000.0)
    for rates in ("1e-1", ["1e-1"]):
        process = BUILDER.build(Availability, {"type": "bernoulli", "rates": rates})
        assert np.all(np.asarray(process.rates) == 0.1)


def test_overrides_reach_everything():
    changes = [
        "rounds=50",
        "algorithm.cutoff=20",
        "local.schedule.type=step",
        "local.schedule.decay=0.5",
        "participation={type: bernoulli, rates: 0.5}",
    ]
    experiment = ft.Experiment.from_dict(override(fields_of(algorithm="fedau"), changes))
    assert experiment.rounds == 50
    assert experiment.algorithm == ft.algorithms.FedAU(cutoff=20)
    assert experiment.local.schedule == ft.StepDecay(decay=0.5)
    assert experiment.participation == ft.participation.Bernoulli(rates=0.5)


def test_a_whole_experiment_comes_back_from_its_file(tmp_path):
    experiment = ft.Experiment.from_dict(
        fields_of(
            objective=[0.5] * 100,
            selection={"type": "least-served", "size": 3, "period": 9},
            evaluation={"every": 3},
            name="x",
            local={"epochs": 2, "batch_size": 8, "schedule": {"type": "inverse", "every": 7}},
        )
    )
    file = tmp_path / "experiment.yaml"
    file.write_text(yaml.safe_dump(experiment.to_dict()))
    assert ft.Experiment.load(file) == experiment
    assert ft.Experiment.load(file, ["rounds=9"]).rounds == 9


@pytest.mark.parametrize("key", ["seeds", "grid", "base"])
def test_a_file_of_several_runs_is_no_experiment_and_the_error_says_how_to_run_it(key, tmp_path):
    """It said that `seeds` was unknown, and asked whether `seed` was meant."""
    file = tmp_path / "several.yaml"
    file.write_text(yaml.safe_dump({**ft.Experiment.from_dict(fields_of()).to_dict(), key: None}))
    with pytest.raises(ft.InvalidInputError, match=rf"^{key}: a file with this key .*run_sweep\("):
        ft.run(file)


def test_simulate_spells_out_the_fields_of_an_experiment_with_their_defaults():
    parameters = inspect.signature(ft.simulate).parameters
    others = ("out", "resume", "seeds", "progress", "callbacks", "cluster", "workers")
    named = {name: p.default for name, p in parameters.items() if name not in others}
    assert set(named) == {field.name for field in fields(ft.Experiment)}
    given = {name: value for name, value in named.items() if value is not inspect.Parameter.empty}
    assert ft.Experiment.from_dict(fields_of() | given) == ft.Experiment.from_dict(fields_of())
