"""Which of the methods that may be recommended train with a privacy mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from fedtide.algorithms import Algorithm
from fedtide.auditing.privacy.spending import find_sum
from fedtide.auditing.recommend.advice import Advice
from fedtide.auditing.recommend.cohort_size import Settings
from fedtide.differential_privacy import Mechanism, make_private
from fedtide.differential_privacy.mechanisms import require_mechanism
from fedtide.errors import InvalidInputError, MissingExtraError
from fedtide.population import Population
from fedtide.simulation.experiment import BUILDER


def keep_private(
    advice: Sequence[Advice], mechanism: Mechanism, clients: int
) -> tuple[list[Advice], list[Advice]]:
    """Return the methods that a run with a mechanism accepts, and those that it refuses.

    Args:
        advice: the methods.
        mechanism: clipping and noise.
        clients: N.

    Returns:
        The accepted methods, as advice to train with the mechanism; and the others.

    Raises:
        InvalidInputError: not a mechanism, or one that refuses all of these methods.
        MissingExtraError: the mechanism has a budget, and dp-accounting is not installed.
    """
    require_mechanism(mechanism)
    adapted = [_adapt(one, mechanism, clients) for one in advice]
    kept = [one for one in adapted if one is not None]
    if not kept:
        # Every mechanism accepts it unless it leaves no room for noise or budget, and says so.
        _bound_weights({"type": "fedavg", "weights": "all"}, mechanism, clients)
    return kept, [one for one, left in zip(advice, adapted, strict=True) if left is None]


def _adapt(advice: Advice, mechanism: Mechanism, clients: int) -> Advice | None:
    """Return the advice with the mechanism; None if a run with it is refused."""
    try:
        bound = _bound_weights(advice.settings, mechanism, clients)
    except MissingExtraError:
        raise
    except InvalidInputError:
        return None
    reason = f"with privacy, its noise is that for updates of weights up to A = {bound:,.4g}"
    settings = BUILDER.to_plain(mechanism)
    plain = {name: value for name, value in settings.items() if value is not None}
    return replace(advice, reasons=[*advice.reasons, reason], privacy=plain)


def _bound_weights(settings: Settings, mechanism: Mechanism, clients: int) -> float:
    """Return A, the largest weight that a private method can give to an update.

    Raises:
        InvalidInputError: a run of this method with this mechanism is refused.
    """
    private = make_private(BUILDER.build(Algorithm, settings, "algorithm"), mechanism, seed=0)
    model, population = torch.zeros(1, dtype=torch.float64), Population(clients)
    private.init(model, population)
    inner = find_sum(private).inner
    bound = inner.weight_bound(inner.init(model, population))
    assert bound is not None  # `private.init` refuses methods without one
    return bound
