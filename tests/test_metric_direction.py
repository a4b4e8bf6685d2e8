"""Which metrics are better when lower: by declaration, or by name."""

import numpy as np
import pytest

from fedtide.metric_direction import lower_is_better
from fedtide.problems import Evaluation
from fedtide.simulation.metrics import ParticipationTally, metrics_row

DECLARED = {"bits": True, "error_free": False}


@pytest.mark.parametrize(
    ("declared", "lower", "higher"),
    [
        (
            {},
            "loss test_loss client_loss_worst_tenth mse client_mae_p90 error_rate perplexity "
            "client_test_accuracy_std",
            "test_accuracy client_test_accuracy_worst_tenth r2 auc rounds_per_second",
        ),
        (
            DECLARED,
            "bits test_bits client_bits_worst_tenth mse client_error_free_std client_accuracy_std",
            "error_free client_error_free_p10 accuracy",
        ),
    ],
)
def test_a_declaration_or_else_the_name_says_what_is_better(declared, lower, higher):
    for metric in (lower + " " + higher).split():
        assert lower_is_better(metric, declared) is (metric in lower.split()), metric


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
