"""Warnings about runs that reached their last round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fedtide.algorithms import Algorithm, Amplification
from fedtide.errors import quantify

RISE = 5.0
"""A run diverged if its last loss exceeds the initial model's by more than this factor."""

AMPLIFIED_RISE = 2.0
"""Amplification steps are harmful if they typically multiply the loss by more than this factor."""


def find_warnings(
    algorithm: Algorithm[Any],
    metrics: Sequence[Mapping[str, Any]],
    start_loss: float,
    reports: int,
    moved: bool,
    entered: bool = False,
) -> list[str]:
    """Return a sentence on everything about a run that its user should be warned of.

    Args:
        algorithm: the method of the run.
        metrics: one row per evaluation.
        start_loss: the loss of the initial model.
        reports: the number of rounds in which at least one client reported.
        moved: whether the model differs from the initial one.
        entered: whether any update entered a step with a weight other than 0.
    """
    rounds, loss = metrics[-1]["round"], metrics[-1].get("loss", 0.0)
    if not moved and reports == 0:
        return [
            "participation: no client took part in any round, so the model is the "
            "initial one; choose higher rates or more rounds"
        ]
    if not moved and entered:
        return [
            f"problem: the model is the initial one after {quantify(rounds, 'round')}, because all "
            "updates are 0 or too small to change it; check whether the loss can fall, and if it "
            "can, raise lr"
        ]
    if not moved:
        return [
            f"algorithm: the model is the initial one after {quantify(rounds, 'round')}, although "
            f"clients took part in {reports:,} of them; if the method waits for the end of a "
            "period or for all clients, let it wait for less or run more rounds"
        ]
    amplified = algorithm.traits.amplification
    found = []
    if amplified is not None and (rise := _typical_rise(amplified, metrics)) > AMPLIFIED_RISE:
        found.append(
            f"algorithm.{amplified.field}: amplification steps raise the loss to {rise:.3g} times "
            "its value before them (median); lower factor or local.lr"
        )
    if not np.isfinite(loss):
        found.append(
            f"local.lr: the loss ended at {loss}, from {start_loss:.3g} of the initial model: the "
            f"run diverged; lower {list_step_sizes(algorithm)}"
        )
    elif 0 < RISE * start_loss < loss:
        rise = loss / start_loss
        found.append(
            f"local.lr: the loss ended at {loss:.3g}, {rise:,.3g} times the {start_loss:.3g} of "
            f"the initial model: the run diverged; lower {list_step_sizes(algorithm)}"
        )
    else:
        found += _find_undefined(metrics[-1])
    return found


def _find_undefined(last: Mapping[str, Any]) -> list[str]:
    """Return a sentence on metrics that are not finite although the loss is."""
    undefined = [
        name
        for name, value in last.items()
        if name.startswith(("train_", "test_")) and not np.isfinite(value)
    ]
    if not undefined:
        return []
    return [
        f"problem: {', '.join(undefined)} ended as NaN or infinity, although the loss is finite; a "
        "metric must give a finite number for every sample, and a class needs test samples"
    ]


def list_step_sizes(algorithm: Algorithm[Any]) -> str:
    """Return the fields to lower when a run with this method diverges, for a message."""
    amplified = algorithm.traits.amplification
    return "lr" if amplified is None else f"lr or algorithm.{amplified.field}"


def _typical_rise(amplified: Amplification, metrics: Sequence[Mapping[str, Any]]) -> float:
    """Return the median of loss after / loss before over the evaluated amplification steps.

    A step counts as evaluated if there is an evaluation right after it and another one earlier in
    its period. Return 0 if there is no such step.
    """
    rises = []
    for before, after in pairwise(metrics):
        ended, since = after["round"] - amplified.start, after["round"] - before["round"]
        is_step = ended > 0 and ended % amplified.period == 0 and since < amplified.period
        if is_step and before.get("loss", 0.0) > 0:
            rises.append(after["loss"] / before["loss"])
    return float(np.median(rises)) if rises else 0.0
