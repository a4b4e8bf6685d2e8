"""Who took part in one round, stage by stage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtide.participation.availability.base import Ids


@dataclass(frozen=True)
class Participants:
    """One round: available ⊇ selected ⊇ reported, each sorted.

    Args:
        round: t.
        available: who could have taken part.
        selected: who was asked to.
        reported: who reported back.
        weights: q_t^n of each who reported, the process' own where it gives any, else one over
            their number; shape of `reported`.
    """

    round: int
    available: Ids
    selected: Ids
    reported: Ids
    weights: NDArray[np.float64]
