"""Conversion of plain data to objects and back, for every registered class."""

import inspect
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
import yaml

import fedtide as ft
from fedtide.participation import (
    DROPOUTS,
    PROCESSES,
    RATES,
    SELECTIONS,
    Availability,
    Dropout,
    RateLaw,
    Selection,
)
from fedtide.problems import PARTITIONS, PROBLEMS, Partition, Problem
from fedtide.simulation.experiment import BUILDER
from fedtide.simulation.experiment_files import override
from fedtide.spec import key
from fedtide.sweep import Sweep
from fedtide.training import PROJECTIONS, SCHEDULES
from fedtide.training.lr_schedules import LearningRateSchedule
from fedtide.training.projection import Projection

TABLES = {
    ft.algorithms.Algorithm: ft.algorithms.ALGORITHMS,
    Availability: PROCESSES,
    RateLaw: RATES,
    Selection: SELECTIONS,
    Dropout: DROPOUTS,
    Problem: PROBLEMS,
    Partition: PARTITIONS,
    Projection: PROJECTIONS,
    LearningRateSchedule: SCHEDULES,
}

VALUES = {
    "amplified": {"period": 5, "factor": 2.0},
    "amplified-scaffold": {"period": 5, "factor": 2.0},
    "wait-for-all": {"period": 5},
    "weighted-fedavg": {"rates": [0.5, 1e-4]},
    "fedstale": {"rates": [0.5, 0.25], "beta": 0.1},
    "fedprox": {"mu": 0.1},
    "switch": {"first": "fedavg", "second": {"type": "fedau", "cutoff": 3}, "at": 5},
    "clipped": {"bound": 1.0, "quantile": 0.5, "inner": {"type": "trimmed-mean", "trim": 0.2}},
    "averaged": {"inner": {"type": "amplified", "period": 2, "factor": 3, "inner": "mifa"}},
    "table": {"weights": [[0.5, 0.5], [0.0, 1.0]]},
    "bernoulli": {"rates": {"type": "correlated", "alpha": 0.1}},
    "markov": {"rates": [0.1, 0.9]},
    "cyclic": {"rates": 0.1},
    "group-cycle": {"groups": [0, 1, 0], "rounds": [3, 4]},
    "fluctuating": {"rates": {"type": "uniform-by-class", "second": 0.1}, "gamma": 0.1},
    "day-night": {"rates": 0.9, "night": [0.1, 0.2]},
    "drifting": {"rates": 0.1, "final": 0.2, "rounds": 5},
    "churn": {"rates": 0.1, "stay": 9.0},
    "sessions": {"rates": 0.1, "law": "log-normal", "shape": 1.5},
    "uniform": {"size": 2},
    "permutation": {"size": 2},
    "weighted": {"size": 2, "weights": [1.0, 2.0, 3.0]},
    "subset-law": {"subsets": [[0, 1], [2]], "probabilities": [0.25, 0.75]},
    "trace": {"file": "trace.csv", "round_seconds": 60.0},
    "replay": {"log": "log.csv"},
    "uniform-of": {"size": 3},
    "permutation-of": {"size": 3},
    "longest-absent": {"size": 3},
    "least-served": {"size": 3, "period": 9},
    "least-frequent": {"size": 3},
    "min-separation": {"size": 3, "rounds": 2},
    "random": {"probability": 0.1},
    "stragglers": {"close_after": 2, "times": [1.0, 2.0]},
    "quadratic": {"matrices": [[[1.0]], [[2.0]]], "centers": [[0.0], [1.0]]},
    "classification": {
        "dataset": "digits",
        "partition": {"type": "dirichlet", "alpha": 0.1},
        "clients": 5,
    },
    "supervised": {"train": "rows.parquet", "inputs": ["a", "b"], "clients": "user", "loss": "mse"},
    "dirichlet": {"alpha": 0.1},
    "majority-class": {"similarity": 0.05},
    "shared-pool": {"samples": 20},
    "natural": {"column": "writer"},
    "flwr": {"name": "IidPartitioner", "arguments": {"num_partitions": 5}},
    "ball": {"radius": 1.0, "center": [0.0, 0.5]},
    "box": {"low": -1.0, "high": 1.0},
    "step": {"decay": 0.5, "every": 10},
    "piecewise": {"starts": [2, 5], "factors": [0.1, 0.01]},
}
"""Parameters of the classes that need some; the others are built from their defaults."""

EACH = [(base, name) for base, table in TABLES.items() for name in table]


def build(base, name):
    return BUILDER.build(base, {"type": name, **VALUES.get(name, {})})


def same(one, other):
    """Compare configured things by value, arrays included."""
    if is_dataclass(one):
        return type(one) is type(other) and all(
            same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one)
        )
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    return one == other


@pytest.mark.parametrize(("base", "name"), EACH, ids=[name for _, name in EACH])
def test_plain_data_and_objects_are_two_sides(base, name):
    thing = build(base, name)
    plain = BUILDER.to_plain(thing)
    assert plain["type"] == name
    assert set(plain) == {"type"} | {f.name for f in fields(thing)}
    written = yaml.safe_load(yaml.safe_dump(plain))
    assert written == plain
    assert same(BUILDER.build(base, written), thing)


@pytest.mark.parametrize(("base", "name"), EACH, ids=[name for _, name in EACH])
def test_equal_objects_have_equal_keys(base, name):
    one, other = build(base, name), build(base, name)
    assert key(one) == key(other)
    assert hash(key(one)) == hash(key(other))
    for field, value in vars(one).items():
        if type(value) is float and value:
            assert key(replace(one, **{field: value / 2})) != key(one)


@pytest.mark.parametrize(("base", "name"), EACH, ids=[name for _, name in EACH])
def test_a_name_alone_is_a_type(base, name):
    if name not in VALUES:
        assert same(BUILDER.build(base, name), build(base, name))


@pytest.mark.parametrize("base", TABLES, ids=lambda base: base.__name__)
def test_unknown_types_name_the_nearest(base):
    for name in TABLES[base]:
        with pytest.raises(
            ft.InvalidInputError, match=rf"^here\.type: unknown '{name}x'; did you mean '"
        ):
            BUILDER.build(base, f"{name}x", "here")


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
    text = "{steps: 5, lr: 1e-4, momentum: 5e-1, projection: {type: ball, radius: 1e3}}"
    local = ft.Experiment.from_dict(fields_of(local=yaml.safe_load(text))).local
    assert (local.lr, local.momentum, local.projection.radius) == (1e-4, 0.5, 1000.0)
    rates = BUILDER.build(Availability, yaml.safe_load("{type: bernoulli, rates: 1e-1}")).rates
    assert rates == 0.1
    rates = BUILDER.build(
        Availability, yaml.safe_load("{type: bernoulli, rates: [1e-1, 1e-2]}")
    ).rates
    assert list(rates) == [0.1, 0.01]


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ("30%", "rates: '30%' is not a number; write 0.3"),
        ("2.5 %", "rates: '2.5 %' is not a number; write 0.025"),
        ("0,3", "rates: '0,3' is not a number; write 0.3"),
        ("1,000", "rates: '1,000' is of type str; give a "),
        ("3 in 10", "rates: '3 in 10' is of type str; give a "),
        ("correlatd", "rates.type: unknown 'correlatd'; did you mean 'correlated'?"),
    ],
)
def test_text_that_means_a_number_is_no_type(rates, message):
    with pytest.raises(ft.InvalidInputError) as error:
        BUILDER.build(Availability, {"type": "bernoulli", "rates": rates}, "participation")
    assert str(error.value).startswith(f"participation.{message}")


def test_overrides_reach_everything():
    plain = fields_of(algorithm="fedau")
    changed = override(
        plain,
        [
            "rounds=50",
            "algorithm.cutoff=20",
            "local.schedule.type=step",
            "local.schedule.decay=0.5",
            "problem.samples=200",
            "participation={type: bernoulli, rates: 0.5}",
            "seed=4",
        ],
    )
    experiment = ft.Experiment.from_dict(changed)
    assert experiment.rounds == 50
    assert experiment.algorithm == ft.algorithms.FedAU(cutoff=20)
    assert experiment.local.schedule == ft.StepDecay(decay=0.5)
    assert experiment.problem.samples == 200
    assert experiment.participation == ft.participation.Bernoulli(rates=0.5)
    assert experiment.seed == 4


def test_a_whole_experiment_comes_back_from_its_file(tmp_path):
    experiment = ft.Experiment.from_dict(
        fields_of(
            objective=[0.5] * 100,
            selection={"type": "least-served", "size": 3, "period": 9},
            dropout={"type": "random", "probability": 0.1},
            evaluation={"every": 3},
            dtype="float64",
            checkpoint={"every": 4},
            record_iterates=True,
            log="used",
            on_nonfinite="drop",
            name="x",
            local={"epochs": 2, "batch_size": 8, "schedule": {"type": "inverse", "every": 7}},
        )
    )
    file = tmp_path / "experiment.yaml"
    file.write_text(yaml.safe_dump(experiment.to_dict()))
    assert ft.Experiment.load(file) == experiment
    assert ft.Experiment.load(file, ["rounds=9"]).rounds == 9


@pytest.mark.parametrize("key", ["seeds", "methods", "grid", "list", "strategy", "base"])
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
    required = {name for name, default in named.items() if default is inspect.Parameter.empty}
    assert required == {"problem", "participation", "algorithm", "local", "rounds"}
    given = fields_of() | {name: named[name] for name in set(named) - required}
    assert ft.Experiment.from_dict(given) == ft.Experiment.from_dict(fields_of())


class Foreign:
    """An object of a class that is derived from nothing."""


@pytest.mark.parametrize(
    ("field", "value", "pattern"),
    [
        ("algorithm", ft.algorithms.FedAU, r"FedAU is a class, not an object; write FedAU\(\)"),
        ("participation", Foreign, "Foreign is a class, .*; derive it from .*Availability"),
        ("participation", Foreign(), "the class Foreign is not derived from Availability; derive"),
        ("name", 2024, "2024 is of type int; give a string"),
        ("problem", {"type": "supervised", "train": "x", "normalise": 0.3}, "0.3 is of type float"),
    ],
)
def test_what_is_of_the_wrong_type_is_named_with_what_it_should_be(field, value, pattern):
    given = {
        "problem": {"type": "supervised", "train": "x"},
        "participation": "full",
        "algorithm": "fedavg",
        "local": {"steps": 1, "lr": 0.1},
        "rounds": 1,
    }
    with pytest.raises(ft.InvalidInputError, match=rf"^{field}[.\w]*: {pattern}"):
        ft.simulate(**{**given, field: value})


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("lr", "did you mean 'local.lr'?"),
        ("batch_size", "did you mean 'local.batch_size'?"),
        ("cutoff", "did you mean 'algorithm.cutoff'?"),
        ("dataset", "did you mean 'problem.dataset'?"),
        ("every", "did you mean 'checkpoint.every' or 'evaluation.every'?"),
        ("rouns", "did you mean 'rounds'?"),
    ],
)
def test_a_key_without_its_section_is_found(key, hint):
    plain = {"problem": "quadratic", "algorithm": "fedau", key: 1}
    for load in (ft.Experiment.from_dict, Sweep.from_dict):
        with pytest.raises(ft.InvalidInputError) as error:
            load(plain)
        assert str(error.value) == f"{key}: unknown key; {hint}"
