"""How many clients a log asks to train in each round, as settings of `FedTide`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedtide.auditing.log.participation_log import ParticipationLog

Settings = dict[str, Any]
"""An algorithm, or arguments, as in an experiment file."""

_USUAL = 0.99
"""The quantile of the cohort sizes that is the number asked: a few rounds may be larger."""
_OFTEN = 0.5
"""A number is fixed if this share of the rounds comes within a standard deviation of it, that of
cohorts of independent clients, a tenth of which come so near to their quantile (of a handful of
clients, whose number is lumpy, up to half)."""
_NEARLY_ALL = 0.9
"""The share of the rounds that have the same number of updates if that number closes a round."""
_MISFIT = 0.25
"""The mean error, relative to the mean cohort, up to which a rule describes the cohorts."""


@dataclass(frozen=True)
class CohortSize:
    """How many of the clients that are online are asked to train.

    Args:
        arguments: of `FedTide`; empty: all are asked.
        description: in a sentence.
    """

    arguments: Settings = field(default_factory=dict)
    description: str = (
        "all clients that are online are asked to train; fraction_train asks a share of them"
    )


def find_cohort_size(log: ParticipationLog) -> CohortSize:
    """Return how many clients are asked, and with how many updates a round closes, if it does."""
    found, closing = _find_asked(log), _find_closing(log)
    if closing is None:
        return found
    return CohortSize(
        found.arguments | {"close_after": closing},
        f"{found.description}; a round closes with {closing:,} updates",
    )


def _find_closing(log: ParticipationLog) -> int | None:
    """Return the number of updates that nearly all rounds have, if most asked more clients.

    More clients in all must have been left out than in any one round: if they are always the same,
    they fail for reasons of their own, and would be left out for good if they came back.
    """
    if log.selected is None:
        return None
    busy = log.selected.cohorts > 0
    asked, used = log.selected.cohorts[busy], log.cohorts[busy]
    closing = int(np.median(used))
    closes = (used == closing).mean() >= _NEARLY_ALL and (asked > used).mean() > 1 / 2
    left_out = int((log.counts < log.selected.counts).sum())
    return closing if closing and closes and left_out > (asked - used).max() else None


def _find_asked(log: ParticipationLog) -> CohortSize:
    """Return a fixed number, or a share of the available clients, if the log's cohorts have one.

    A fixed number c means min(c, all that are online). If the log does not say who was available,
    many more rounds must come near to c than if all were asked. Otherwise the rule that best
    describes the cohorts is taken. The clients asked are those selected, or, where the log does not
    distinguish them, those used.
    """
    asked = log if log.selected is None else log.selected
    busy = asked.cohorts > 0
    sizes = asked.cohorts[busy]
    number = int(np.quantile(sizes, _USUAL, method="lower"))
    fixed = CohortSize(
        {"fraction_train": 0.0, "min_train_nodes": number},
        f"up to {number:,} of the clients that are online are asked to train, as in the log",
    )
    if log.available is None:
        rates = asked.counts / asked.length
        deviation = np.sqrt((rates * (1 - rates)).sum())
        near = (sizes >= number - deviation).mean() >= _OFTEN
        return fixed if near and number < (asked.counts > 0).sum() else CohortSize()
    available = log.available.cohorts[busy]
    share = min(1.0, float(f"{(sizes + 0.5).sum() / available.sum():.3g}"))  # FedTide rounds down
    rules = [
        (CohortSize(), available),
        (fixed, np.minimum(available, number)),
        (
            CohortSize(
                {"fraction_train": share},
                f"{share:.3g} of the clients that are online are asked to train, as in the log",
            ),
            np.maximum(np.floor(share * available), 1),
        ),
    ]
    errors = [float(np.abs(sizes - predicted).mean()) for _, predicted in rules]
    best = int(np.argmin(errors))
    return rules[best][0] if errors[best] <= _MISFIT * sizes.mean() else CohortSize()
