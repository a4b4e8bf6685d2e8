"""Which metrics are better when lower: by declaration, or by name."""

import numpy as np
import pytest

from fedtide.metric_direction import lower_is_better
from fedtide.problems import Evaluation
from fedtide.simulation.metrics import ParticipationTally, metrics_row

LOWER = (
    "loss",
    "test_loss",
    "participation_loss",
    "client_loss_worst_tenth",
    "mse",
    "test_mse",
    "client_mae_p90",
    "rmse",
    "error_rate",
    "perplexity",
    "client_test_accuracy_std",
)
HIGHER = ("test_accuracy", "client_test_accuracy_worst_tenth", "r2", "auc", "rounds_per_second")
DECLARED = {"bits": True, "error_free": False}


@pytest.mark.parametrize("metric", LOWER)
def test_a_loss_an_error_or_a_spread_is_better_when_lower(metric):
    assert lower_is_better(metric)


@pytest.mark.parametrize("metric", HIGHER)
def test_any_other_metric_is_better_when_higher(metric):
    assert not lower_is_better(metric)


@pytest.mark.parametrize(
    "metric",
    ["bits", "test_bits", "train_bits", "client_bits_worst_tenth", "client_test_bits_p90", "mse"],
)
def test_a_declaration_holds_for_everything_derived_from_the_metric(metric):
    assert lower_is_better(metric, DECLARED)


@pytest.mark.parametrize("metric", ["error_free", "client_error_free_p10", "accuracy"])
def test_a_declaration_comes_before_the_name(metric):
    assert not lower_is_better(metric, DECLARED)


@pytest.mark.parametrize("metric", ["client_error_free_std", "client_accuracy_std"])
def test_a_spread_over_clients_is_always_better_when_lower(metric):
    assert lower_is_better(metric, DECLARED)


@pytest.mark.parametrize(
    ("metric", "declared", "worst"),
    [
        ("mse", (), 18.5),
        ("accuracy", (), 0.5),
        ("bits", ("bits", "loss"), 18.5),
        ("test_bits", ("bits", "loss"), 18.5),
        ("error_free", ("bits", "loss"), 0.5),
    ],
)
def test_the_worst_tenth_has_the_highest_values_of_what_should_be_low(metric, declared, worst):
    """A problem that declares anything declares all of its metrics."""
    evaluation = Evaluation({}, {metric: np.arange(20.0)}, frozenset(declared))
    row = metrics_row(0, evaluation, ParticipationTally(20))
    assert row[f"client_{metric}_worst_tenth"] == worst
