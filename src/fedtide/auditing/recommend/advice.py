"""A recommended method, and how to run it."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fedtide.auditing.recommend.cohort_size import CohortSize
from fedtide.auditing.recommend.log_replay import Settings
from fedtide.auditing.recommend.strategy_source import write_strategy

Memory = Literal["light", "heavy"]

_SHORT = reprlib.Repr()
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 8
_SHORT.maxstring = _SHORT.maxother = 1000


@dataclass(frozen=True)
class Advice:
    """A recommended method.

    The JSON of an audit calls `remaining` remaining_l1_skew and `equivalent` equivalent_to_first,
    gives the parts of `simulated` as loss and error, and has `experiment` and `strategy` instead of
    the fields that they are made from.

    Args:
        algorithm: its `type` in an experiment file.
        parameters: its parameters there.
        reasons: for its rank, in sentences.
        memory: "light", O(N + d), or "heavy", O(N d).
        memory_floats: numbers stored by the server beyond the model.
        message_floats: numbers sent to and from a participant per round, together.
        remaining: the L1 skew expected to remain.
        simulated: the loss with which it ends in the replay, as a share of the loss at the start,
            and the standard error of its difference from the best; NaN before the replay.
        equivalent: whether its loss is equivalent to that of the best method.
        tied: whether the replay cannot tell it from the best method, so that the simpler of them
            comes first.
        objective: `objective` of an experiment that trains for the wanted weights.
        clients: the clients' names in the order of `parameters`, or N if they are 0..N − 1.
        privacy: the mechanism with which it trains, as in an experiment file; None: none.
        cohort: how many clients the log asks to train in each round.
    """

    algorithm: str
    parameters: dict[str, Any]
    reasons: list[str]
    memory: Memory
    memory_floats: int
    message_floats: int
    remaining: float
    simulated: tuple[float, float] = (math.nan, math.nan)
    equivalent: bool = False
    tied: bool = False
    objective: str | tuple[float, ...] = "uniform"
    clients: int | tuple[str, ...] = 0
    privacy: Settings | None = None
    cohort: CohortSize = field(default_factory=CohortSize)

    def __repr__(self) -> str:
        """Return the fields; of rates, weights and names, the first few."""
        fields = (f"{name}={_SHORT.repr(value)}" for name, value in vars(self).items())
        return f"Advice({', '.join(fields)})"

    @property
    def settings(self) -> Settings:
        """The method as `algorithm:` of an experiment file."""
        return {"type": self.algorithm, **self.parameters}

    @property
    def experiment(self) -> dict[str, Any]:
        """Arguments of `ft.simulate`, or lines of an experiment file.

        These are `algorithm` and, unless they are the defaults, `objective` and `privacy`.
        Values for each client are by name where clients have names, since an experiment may number
        them in another order.
        """
        experiment: dict[str, Any] = {"algorithm": self._with_named_rates(self.settings)}
        if self.objective != "uniform":
            given = self.objective
            experiment["objective"] = given if isinstance(given, str) else self._by_name(given)
        if self.privacy is not None:
            experiment["privacy"] = self.privacy
        return experiment

    @property
    def strategy(self) -> str:
        """Python source that makes the `FedTide` strategy of this method for Flower."""
        return write_strategy(
            self.settings, self.clients, self.objective, self.privacy, self.cohort
        )

    def _with_named_rates(self, settings: Settings) -> Settings:
        """Return the settings of a method, and of those within it, with rates by name."""
        named = dict(settings)
        for key, value in settings.items():
            if key == "rates":
                named[key] = self._by_name(value)
            elif isinstance(value, dict):
                named[key] = self._with_named_rates(value)
        return named

    def _by_name(self, values: Sequence[float]) -> list[float] | dict[str, float]:
        """Return a value for each client, by name if clients have names."""
        if isinstance(self.clients, int):
            return list(values)
        return dict(zip(self.clients, values, strict=True))
