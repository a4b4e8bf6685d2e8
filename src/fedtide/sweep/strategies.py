"""Strategies: what a sweep runs next, by what its earlier runs have shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedtide.errors import InvalidInputError, did_you_mean
from fedtide.simulation.config import Builder
from fedtide.sweep.configurations import Configuration
from fedtide.sweep.grid import Point

Scores = Callable[[Sequence[Configuration]], Sequence[float]]
"""Runs settings with all seeds and returns the mean training loss of each; inf where one failed."""

_Rates = list[tuple[float, float]]
_Won = tuple[float, float, float]  # the loss, γ and η

_UNSCALED = 1.0  # the server learning rate of the first stage


def _quarter_powers(first: int, last: int) -> tuple[float, ...]:
    return tuple(float(f"{10 ** (k / 4):.4g}") for k in range(first, last + 1))


@dataclass(frozen=True)
class Choice:
    """What a search found for one setting.

    Args:
        setting: the one that was searched.
        best: the same with the rates that won; None where every run failed.
        score: its training loss.
    """

    setting: Configuration
    best: Configuration | None
    score: float


@dataclass(frozen=True)
class TwoStage:
    """The search of the papers: first γ with η = 1, then η with that γ.

    The least training loss after the last round wins, as the mean over the seeds of the sweep; a
    run that fails counts as infinite. A method without a server learning rate skips the second
    stage. (Paper 001, appendix D: the training loss after 500 rounds.)

    Args:
        lr: candidates for γ; by default the paper's, 10^-2, 10^-1.75, ..., 10^-0.5 to four digits.
        server_lr: candidates for η; by default 10^0, 10^0.25, ..., 10^1.5.
        lr_field: where γ stands in the experiment.
        server_lr_field: where η stands, such as algorithm.inner.server_lr inside another method.

    Raises:
        InvalidInputError: a list that is empty, or a rate that is not positive.
    """

    lr: tuple[float, ...] = _quarter_powers(-8, -2)
    server_lr: tuple[float, ...] = _quarter_powers(0, 6)
    lr_field: str = "local.lr"
    server_lr_field: str = "algorithm.server_lr"

    def __post_init__(self) -> None:
        for name in ("lr", "server_lr"):
            values = getattr(self, name)
            if not values or not all(value > 0 for value in values):
                raise InvalidInputError(
                    f"{name}: {list(values)} are not positive numbers; give some"
                )

    def check(self, settings: Iterable[Configuration]) -> None:
        """Make sure that the two fields are there and nobody else sets them.

        Raises:
            InvalidInputError: a grid varies one of them, or no method has a server learning rate there.
        """
        settings = list(settings)
        swept = {field for s in settings for point in s.chosen for field in point.changes}
        for field in {self.lr_field, self.server_lr_field} & swept:
            raise InvalidInputError(f"grid.{field}: the strategy varies it, too; keep one of them")
        if any(self._has_server_lr(setting) for setting in settings):
            return
        known = _fields(self._any(settings[0]))
        raise InvalidInputError(
            f"strategy.server_lr_field: no method has {self.server_lr_field!r}; "
            f"{did_you_mean(self.server_lr_field, known)}"
        )

    def first(self, settings: Iterable[Configuration]) -> list[Configuration]:
        """Return what the first stage runs: every γ, with η = 1."""
        return [
            variant
            for setting in settings
            for variant in self._variants(setting, [(lr, _UNSCALED) for lr in self.lr])
        ]

    def search(self, settings: Sequence[Configuration], scores: Scores) -> list[Choice]:
        """Run both stages and return what won for each setting."""
        rates = {s.label: [(lr, _UNSCALED) for lr in self.lr] for s in settings}
        won = self._best(settings, rates, scores)
        scaled = [s for s in settings if s.label in won and self._has_server_lr(s)]
        rates = {s.label: [(won[s.label][1], eta) for eta in self.server_lr] for s in scaled}
        won |= self._best(scaled, rates, scores)
        return [self._choice(setting, won.get(setting.label)) for setting in settings]

    def _choice(self, setting: Configuration, won: _Won | None) -> Choice:
        if won is None:
            return Choice(setting, None, float("inf"))
        score, lr, server_lr = won
        return Choice(setting, self._variants(setting, [(lr, server_lr)])[0], score)

    def _best(
        self, settings: Sequence[Configuration], rates: Mapping[str, _Rates], scores: Scores
    ) -> dict[str, _Won]:
        """Return the rates with the least finite loss for each setting that has one."""
        tried = [(s, *pair) for s in settings for pair in rates[s.label]]
        found = scores([v for s in settings for v in self._variants(s, rates[s.label])])
        best: dict[str, _Won] = {}
        for (setting, lr, server_lr), score in zip(tried, found, strict=True):
            if score < best.get(setting.label, (float("inf"), 0.0, 0.0))[0]:
                best[setting.label] = (score, lr, server_lr)
        return best

    def _variants(self, setting: Configuration, rates: _Rates) -> list[Configuration]:
        """Return the setting with each pair of rates."""
        scaled = self._has_server_lr(setting)
        slow = [setting.at(_point(self.lr_field, lr)) for lr, _ in rates]
        if not scaled:
            return slow
        etas = [_point(self.server_lr_field, server_lr) for _, server_lr in rates]
        return [variant.at(eta) for variant, eta in zip(slow, etas, strict=True)]

    def _has_server_lr(self, setting: Configuration) -> bool:
        return self.server_lr_field in _fields(self._any(setting))

    def _any(self, setting: Configuration) -> Configuration:
        return setting.at(_point(self.lr_field, self.lr[0]))


def _point(field: str, value: float) -> Point:
    return Point(f"{field}={value:g}", {field: value}, {field: value}, "strategy")


def _fields(setting: Configuration) -> set[str]:
    """Return the dotted names of all fields of an experiment, defaults included."""
    return set(_dotted(setting.member(0, "search").experiment.to_dict()))


def _dotted(plain: Mapping[str, Any], path: str = "") -> Iterable[str]:
    for key, value in plain.items():
        yield f"{path}{key}"
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{path}{key}.")


_BUILDER = Builder({TwoStage: {"two-stage": TwoStage}})


def strategy_of(plain: Any) -> TwoStage | None:
    """Return the strategy that plain data describe.

    Raises:
        InvalidInputError: an unknown strategy, or a value that it cannot use.
    """
    if plain is None:
        return None
    strategy: TwoStage = _BUILDER.build(TwoStage, plain, "strategy")
    return strategy
