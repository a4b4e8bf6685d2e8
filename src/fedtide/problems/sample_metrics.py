"""Metrics: one number for each sample, averaged over samples, or one for the whole test set."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedtide.errors import InvalidInputError
from fedtide.import_paths import is_import_path
from fedtide.metric_direction import lower_is_better
from fedtide.problems.losses import (
    LOSSES,
    average_positions,
    bce,
    huber,
    mae,
    match_target,
    mse,
    resolve_function,
)
from fedtide.spec import spec

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_UNEVEN = 1.5  # the ratio of the largest class to the smallest, above which classes are uneven

MetricFunction = Callable[..., Tensor]
"""Takes the arguments of a loss and returns one number per sample, (B,)."""


@spec
class Metric:
    """A metric with one value per sample.

    Args:
        function: takes outputs (B, ...), targets (B, ...) and, for sequences, a mask (B, L);
            returns shape (B,).
        lower_is_better: whether a smaller value is better, as for errors.
    """

    function: MetricFunction
    lower_is_better: bool


@spec
class SetMetric:
    """A metric of all test samples at once, such as AUC, F1 or R²; only `test_NAME` is measured.

    Args:
        function: takes the outputs (n, ...) and targets (n, ...) of all n test samples and, for
            sequences, a mask (n, L), as tensors in main memory; returns one number. Outputs (n, 1)
            for targets (n,) have the shape (n,).
        lower_is_better: whether a smaller value is better; None: the metric's name decides, which
            is true of losses and errors and of nothing else.

    >>> from sklearn.metrics import roc_auc_score
    >>> auc = SetMetric(lambda outputs, targets: roc_auc_score(targets, outputs))
    """

    function: Callable[..., Any]
    lower_is_better: bool | None = None


def accuracy(outputs: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return 1 where the class of the largest logit is the target, else 0.

    Targets in [0, 1] are compared with the sign of one logit each.

    >>> import torch
    >>> accuracy(torch.tensor([[2.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0])).tolist()
    [1.0, 0.0]
    """
    if target.is_floating_point():
        correct = (match_target(outputs, target) > 0) == (target > 0.5)
    else:
        correct = outputs.argmax(-1) == target
    return average_positions(correct.double(), mask)


def next_token_accuracy(outputs: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the share of tokens predicted by the logits before them."""
    return accuracy(outputs[:, :-1], target[:, 1:], None if mask is None else mask[:, 1:])


METRICS: dict[str, Metric] = {
    "accuracy": Metric(accuracy, lower_is_better=False),
    "next_token_accuracy": Metric(next_token_accuracy, lower_is_better=False),
    "mse": Metric(mse, lower_is_better=True),
    "mae": Metric(mae, lower_is_better=True),
    "huber": Metric(huber, lower_is_better=True),
    "bce": Metric(bce, lower_is_better=True),
}
"""The metrics by name."""

_SHIFTED = METRICS | {"accuracy": METRICS["next_token_accuracy"]}
"""The metrics by name, where outputs predict the next token."""

_BUILT_IN = {*LOSSES.values(), *(metric.function for metric in METRICS.values())}

_RESERVED = ("loss", "client", "round", "samples", "rate", "participation", "weight")
_PREFIXES = ("train_", "test_", "client_", "personalised_", "class_weighted_")
"""Names that other columns of the results already have."""

DEFAULT_METRICS: dict[str, tuple[str, ...]] = {
    "cross_entropy": ("accuracy",),
    "bce": ("accuracy",),
    "next_token": ("accuracy",),
}
"""The metrics of each loss where the user names none."""


def resolve_metrics(
    given: Sequence[str] | Mapping[str, object] | None, loss: object
) -> dict[str, Metric | SetMetric]:
    """Return the metrics by name.

    Args:
        given: names in `METRICS`, or by name a `Metric` or `SetMetric` (in a file a mapping with
            its fields, and `type: set`), a function, a name in `METRICS`, or an import path; None:
            those that suit the loss.
        loss: its name, if it has one; "accuracy" with "next_token" is that of the next token.

    Raises:
        InvalidInputError: an unknown name, or something that is not a function.
    """
    if given is None:
        given = DEFAULT_METRICS.get(loss, ()) if isinstance(loss, str) else ()
    if isinstance(given, str):
        given = (given,)
    named = given if isinstance(given, Mapping) else {_short(name): name for name in given}
    known = _SHIFTED if loss == "next_token" else METRICS
    return {str(name): _resolve(str(name), metric, known) for name, metric in named.items()}


def _resolve(name: str, given: object, known: Mapping[str, Metric]) -> Metric | SetMetric:
    """Return one metric, whose direction is known."""
    if name in _RESERVED or name.startswith(_PREFIXES):
        raise InvalidInputError(
            f"metrics: {name!r} is the name of another column of the results; choose another"
        )
    in_file: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {"function": given}
    is_set = in_file.pop("type", None) == "set"
    required = {"function"} if is_set else {"function", "lower_is_better"}
    found: Any = resolve_function("metrics", in_file.get("function"), known)
    if isinstance(given, Mapping) and not (
        required <= in_file.keys() <= {"function", "lower_is_better"}
    ):
        raise InvalidInputError(
            f"metrics: {name!r} needs the keys function and lower_is_better, or function and "
            "`type: set`"
        )
    if not callable(found) and not isinstance(found, Metric | SetMetric):
        raise InvalidInputError(
            f"metrics: {name!r} is {found!r:.60}; give a function, its import path, a Metric, or "
            f"one of {', '.join(METRICS)}"
        )
    lower = in_file.get("lower_is_better", getattr(found, "lower_is_better", None))
    lower = lower_is_better(name) if lower is None else lower
    if isinstance(found, Metric | SetMetric):
        return replace(found, lower_is_better=lower)
    return SetMetric(found, lower) if is_set else Metric(found, lower)


def _short(name: str) -> str:
    """Return the name of a metric that is given by an import path alone."""
    return re.split(r"[:.]", name)[-1] if is_import_path(name) else name


def count_all(function: MetricFunction) -> MetricFunction:
    """Return a loss or metric for several targets per sample that ignores the inputs' padding.

    Built-in ones take the mean over all targets, whatever the mask; a user-defined function still
    gets the mask.
    """
    return partial(_without_mask, function) if function in _BUILT_IN else function


def _without_mask(function: MetricFunction, outputs: Tensor, target: Tensor, _: Tensor) -> Tensor:
    return function(outputs, target)


def class_recalls(correct: Floats, target: Ints, classes: int) -> Floats:
    """Return the mean of `correct` over the samples of each class, (C,); NaN without any.

    >>> class_recalls(np.array([1.0, 0.0, 1.0]), np.array([0, 0, 1]), 2).tolist()
    [0.5, 1.0]
    """
    with np.errstate(invalid="ignore"):
        count = np.bincount(target, minlength=classes)
        recalls: Floats = np.bincount(target, correct, minlength=classes) / count
    return recalls


def weigh_classes(recalls: Floats, shares: Floats) -> Floats:
    """Return the mean of the recalls of tested classes, weighted by the class shares of clients.

    Args:
        recalls: of each class, (C,).
        shares: of each class in the samples of a client, (N, C).

    Returns:
        Shape (N,); NaN for a client that only holds untested classes.
    """
    present = np.isfinite(recalls)
    with np.errstate(invalid="ignore"):
        weights = shares[:, present] / shares[:, present].sum(1, keepdims=True)
    mean: Floats = weights @ recalls[present]
    return mean


def are_uneven(target: Ints) -> bool:
    """Return whether the largest class has many more samples than the smallest one that occurs.

    >>> are_uneven(np.array([0, 0, 2, 2, 2])), are_uneven(np.array([0, 2, 2]))
    (False, True)
    """
    counts = np.bincount(target)
    return bool(counts.max() > _UNEVEN * counts[counts > 0].min())
