"""The local training of a client in a round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from fedtide.errors import InvalidInputError
from fedtide.spec import AtLeast, Positive, Within, spec
from fedtide.training.lr_schedules import LearningRateSchedule
from fedtide.training.projection import Projection

Optimizer = Literal["sgd", "adam", "adamw"]
"""How a local step uses the gradient."""


@spec
class LocalTraining:
    """I local steps of SGD, Adam or AdamW from y = x; afterwards Δ_n = y - x.

    Step k = 1, ..., I computes the gradient with everything that is added to it,

        g = g(y) + λ y + correction_n + μ (y - x)

    where correction_n and μ come from the algorithm, and then, with `optimizer` "sgd",

        m ← β m + g,  y ← Π( y - γ_t m )

    with "adam",

        m ← β₁ m + (1 - β₁) g,  v ← β₂ v + (1 - β₂) g²
        y ← Π( y - γ_t [m / (1 - β₁^k)] / [√(v / (1 - β₂^k)) + ε] )

    and with "adamw" the same without λ y in g: γ_t λ y is subtracted from y instead. m, v and k
    start at 0 in every round.

    Args:
        steps: I >= 1, the local steps of a round; None if `epochs` is given.
        lr: γ > 0.
        batch_size: samples per step; None uses all of a client's samples in every step. Minibatches
            run through shuffled epochs that continue from round to round; with `steps`, an
            incomplete last batch of an epoch is dropped (a client with fewer samples than a batch
            uses all of them).
        epochs: passes over the client's samples in a round, instead of `steps`; incomplete last
            batches are used, so clients may take different numbers of steps.
        schedule: how γ changes over the rounds; None: constant.
        projection: Π, a feasible set; None: no projection.
        momentum: β in [0, 1), for "sgd" only.
        weight_decay: λ >= 0.
        optimizer: "sgd", "adam" or "adamw", as in PyTorch.
        betas: β₁ and β₂ in [0, 1), for Adam and AdamW.
        eps: ε > 0, for Adam and AdamW.

    Raises:
        InvalidInputError: a value outside its range, not exactly one of steps and epochs, or
            momentum with an optimizer other than "sgd".

    >>> LocalTraining(steps=5, lr=0.1, batch_size=16).rate(0)
    0.1
    """

    steps: Annotated[int, AtLeast(1)] | None = None
    lr: Annotated[float, Positive] = 0.1
    batch_size: Annotated[int, AtLeast(1)] | None = None
    epochs: Annotated[int, AtLeast(1)] | None = None
    schedule: LearningRateSchedule | None = None
    projection: Projection | None = None
    momentum: Annotated[float, Within(0, 1, "[)")] = 0.0
    weight_decay: Annotated[float, AtLeast(0)] = 0.0
    optimizer: Optimizer = "sgd"
    betas: Sequence[float] = (0.9, 0.999)
    eps: Annotated[float, Positive] = 1e-8

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise InvalidInputError("steps: give exactly one of steps and epochs")
        if self.momentum and self.optimizer != "sgd":
            raise InvalidInputError(
                f"momentum: it belongs to sgd; remove it, or give betas for {self.optimizer}"
            )
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise InvalidInputError(
                f"betas: {self.betas!r:.60} are not two numbers within [0, 1); give (0.9, 0.999)"
            )
        object.__setattr__(self, "betas", tuple(self.betas))  # part of the blocks' cache key

    @property
    def is_plain_sgd(self) -> bool:
        """Whether y moves by -γ_t g in every step: no momentum, no Adam, no projection."""
        return self.optimizer == "sgd" and not self.momentum and self.projection is None

    def rate(self, t: int) -> float:
        """Return γ_t, the local learning rate of round t.

        Raises:
            InvalidInputError: the schedule returns a factor that is negative or not finite.
        """
        if self.schedule is None:
            return self.lr
        factor = float(self.schedule.factor(t))
        if not 0 <= factor < math.inf:
            raise InvalidInputError(
                f"schedule: its factor in round {t} is {factor:g}; return a finite number of at "
                "least 0"
            )
        return self.lr * factor
