"""The local training of a client in a round."""

from __future__ import annotations

from fedtide.configurable import configurable
from fedtide.errors import InvalidInputError
from fedtide.training.lr_schedules import LearningRateSchedule
from fedtide.training.projection import Projection
from fedtide.validation import require_at_least, require_positive


@configurable
class LocalTraining:
    """Local stochastic gradient descent, I steps from y = x:

        y ← Π( y - γ_t m ),  m ← β m + g(y) + λ y + correction_n + μ (y - x),  Δ_n = y - x

    where correction_n and μ come from the algorithm, and m = 0 at the beginning of every round.

    Args:
        steps: I >= 1, the local steps of a round; None if `epochs` is given.
        lr: γ > 0.
        batch_size: samples per step; None uses all of a client's samples in every step. Minibatches
            run through shuffled epochs that continue from round to round; with `steps`, the last
            batch of an epoch is dropped if incomplete (a client with fewer samples than a batch
            uses all of them).
        epochs: passes over the client's samples in a round, instead of `steps`; incomplete last
            batches are used, so clients may take different numbers of steps.
        schedule: how γ changes over the rounds; None: constant.
        projection: Π, a feasible set; None: no projection.
        momentum: β in [0, 1).
        weight_decay: λ >= 0.

    Raises:
        InvalidInputError: a value outside its range, or not exactly one of steps and epochs.

    >>> LocalTraining(steps=5, lr=0.1, batch_size=16).rate(0)
    0.1
    """

    steps: int | None = None
    lr: float = 0.1
    batch_size: int | None = None
    epochs: int | None = None
    schedule: LearningRateSchedule | None = None
    projection: Projection | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise InvalidInputError("steps: give exactly one of steps and epochs")
        for name in ("steps", "epochs", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInputError(f"{name}: {value} is not at least 1")
        require_positive("lr", self.lr)
        if not 0 <= self.momentum < 1:
            raise InvalidInputError(f"momentum: {self.momentum} is not within [0, 1)")
        require_at_least("weight_decay", self.weight_decay, 0)

    def rate(self, t: int) -> float:
        """Return γ_t, the local learning rate of round t."""
        return self.lr * (1.0 if self.schedule is None else self.schedule.factor(t))
