"""Strategies: which configurations a sweep runs next, given the results so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

from fedtide.errors import InvalidInputError, did_you_mean
from fedtide.simulation.experiment_files import flatten
from fedtide.spec import Builder, Positive, spec
from fedtide.sweep.grid import Configuration, Point

ScoreFunction = Callable[[Sequence[Configuration]], Sequence[float]]
"""Runs configurations with all seeds; returns the mean training loss of each (inf: failed)."""

Found = Sequence[tuple[Configuration, Configuration]]
"""Pairs of a configuration and the same with its best rates, unless all of its runs failed."""

_Rates = list[tuple[float, float]]
_Best = tuple[float, float, float]  # the loss, γ and η

_UNSCALED = 1.0  # the server learning rate of the first stage


def _quarter_powers(first: int, last: int) -> tuple[float, ...]:
    return tuple(float(f"{10 ** (k / 4):.4g}") for k in range(first, last + 1))


@spec
class TwoStage:
    """The papers' search for learning rates: first γ with η = 1, then η with the best γ.

    The score is the training loss after the last round, averaged over the seeds; a failed run
    counts as infinite. A method without a server learning rate skips the second stage. (Wang & Ji
    2024, appendix D: the training loss after 500 rounds.)

    Args:
        lr: candidates for γ; by default the paper's: 10^-2, 10^-1.75, ..., 10^-0.5 to four digits.
        server_lr: candidates for η; by default 10^0, 10^0.25, ..., 10^1.5.
        lr_field: the field of γ in the experiment.
        server_lr_field: the field of η, such as algorithm.inner.server_lr inside another method.

    Raises:
        InvalidInputError: an empty list, or a rate that is not positive.
    """

    lr: Annotated[tuple[float, ...], Positive] = _quarter_powers(-8, -2)
    server_lr: Annotated[tuple[float, ...], Positive] = _quarter_powers(0, 6)
    lr_field: str = "local.lr"
    server_lr_field: str = "algorithm.server_lr"

    def __post_init__(self) -> None:
        for name in ("lr", "server_lr"):
            if len(getattr(self, name)) == 0:
                raise InvalidInputError(f"{name}: an empty list; give at least one number")

    def check(self, configurations: Iterable[Configuration]) -> None:
        """Check that the two fields exist and that nothing else varies them.

        Raises:
            InvalidInputError: a grid or list varies one of them, or no method has
                `server_lr_field`.
        """
        configurations = list(configurations)
        swept = {field for c in configurations for point in c.points for field in point.changes}
        for field in {self.lr_field, self.server_lr_field} & swept:
            raise InvalidInputError(f"grid.{field}: the strategy varies it as well; keep one")
        if not any(map(self._has_server_lr, configurations)):
            known = self._fields(configurations[0])
            raise InvalidInputError(
                f"strategy.server_lr_field: no method has {self.server_lr_field!r}; "
                f"{did_you_mean(self.server_lr_field, known)}"
            )

    def first_stage(self, configurations: Iterable[Configuration]) -> list[Configuration]:
        """Return what the first stage runs: every γ, with η = 1."""
        rates = [(lr, _UNSCALED) for lr in self.lr]
        return [v for configuration in configurations for v in self._variants(configuration, rates)]

    def search(self, configurations: Sequence[Configuration], scores: ScoreFunction) -> Found:
        """Run both stages and return the best rates of each configuration."""
        rates = {c.label: [(lr, _UNSCALED) for lr in self.lr] for c in configurations}
        best = self._find_best(configurations, rates, scores)
        scaled = [c for c in configurations if c.label in best and self._has_server_lr(c)]
        rates = {c.label: [(best[c.label][1], eta) for eta in self.server_lr] for c in scaled}
        for label, found in self._find_best(scaled, rates, scores).items():
            best[label] = min(best[label], found)
        return [
            (c, self._variants(c, [best[c.label][1:]])[0])
            for c in configurations
            if c.label in best
        ]

    def _find_best(
        self,
        configurations: Sequence[Configuration],
        rates: Mapping[str, _Rates],
        scores: ScoreFunction,
    ) -> dict[str, _Best]:
        """Return the rates with the least loss for each configuration with any finite loss."""
        tried = [(c.label, *pair) for c in configurations for pair in rates[c.label]]
        found = scores([v for c in configurations for v in self._variants(c, rates[c.label])])
        best: dict[str, _Best] = {}
        for (label, lr, server_lr), score in zip(tried, found, strict=True):
            if score < best.get(label, (float("inf"),))[0]:
                best[label] = (score, lr, server_lr)
        return best

    def _variants(self, configuration: Configuration, rates: _Rates) -> list[Configuration]:
        """Return the configuration with each pair (γ, η); without η if it has no such field."""
        variants = [configuration.with_point(_point(self.lr_field, lr)) for lr, _ in rates]
        if not self._has_server_lr(configuration):
            return variants
        etas = [_point(self.server_lr_field, server_lr) for _, server_lr in rates]
        return [variant.with_point(eta) for variant, eta in zip(variants, etas, strict=True)]

    def _has_server_lr(self, configuration: Configuration) -> bool:
        return self.server_lr_field in self._fields(configuration)

    def _fields(self, configuration: Configuration) -> set[str]:
        """Return the dotted names of all fields of the experiment, defaults included."""
        complete = configuration.with_point(_point(self.lr_field, self.lr[0]))
        return {name for name, _ in flatten(complete.run(0, "search").experiment.to_dict())}


def _point(field: str, value: float) -> Point:
    short = f"{value:g}"
    label = short if float(short) == value else repr(value)  # others share their first digits
    return Point(f"{field}={label}", {field: value}, {field: value}, "strategy")


_BUILDER = Builder({TwoStage: {"two-stage": TwoStage}})


def build_strategy(plain: Any) -> TwoStage | None:
    """Return the strategy described by plain data; None for None.

    Raises:
        InvalidInputError: an unknown strategy, or an invalid value.
    """
    if plain is None:
        return None
    strategy: TwoStage = _BUILDER.build(TwoStage, plain, "strategy")
    return strategy
