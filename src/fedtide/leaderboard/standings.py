"""The standings by the recorded cells: regrets with intervals, and comparisons with FedAvg."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fedtide.leaderboard.cells import Results, load_results
from fedtide.leaderboard.spec import FULL, REFERENCE, Cell, Leaderboard, Place
from fedtide.student_interval import t_margin

Outcome = Literal["better", "alike", "worse"]
"""A method against another one: the whole interval of the difference is below, around or above
0. If both diverged, there is no interval, and they are alike."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its 95 % interval by Student's t.

    Args:
        mean: infinite if a run diverged; minus infinity if only one of the others did.
        margin: half the length of the interval.
        diverged: how many runs did.
        seeds: how many there are.
    """

    mean: float
    margin: float
    diverged: int
    seeds: int

    @property
    def text(self) -> str:
        """The numbers as tables show them.

        >>> Estimate(1.2345, 0.0678, 0, 5).text, Estimate(float("inf"), 0, 2, 5).text
        ('1.23 ± 0.068', 'diverges (2 of 5)')
        """
        if self.diverged:
            return f"diverges ({self.diverged} of {self.seeds})"
        return f"{_number(self.mean, 3)} ± {_number(self.margin, 2)}"


def _number(value: float, digits: int) -> str:
    """Return a number without an exponent, with about as many significant digits."""
    return f"{value:.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def estimate(figures: Sequence[float | None], others: Sequence[float | None]) -> Estimate:
    """Return the mean of figures minus others, seed by seed; None stands for a diverged run.

    >>> estimate([3.0, 5.0], [1.0, 1.0]).text
    '3 ± 13'
    """
    diverged = sum(figure is None for figure in figures)
    if diverged or None in others:
        return Estimate(np.inf if diverged else -np.inf, 0.0, diverged, len(figures))
    gaps = np.array(figures, dtype=float) - np.array(others, dtype=float)
    return Estimate(float(gaps.mean()), float(t_margin(gaps)), 0, len(gaps))


@dataclass(frozen=True)
class Standings:
    """The leaderboard with its recorded results.

    Args:
        board: what is compared.
        results: of the cells that were run.
    """

    board: Leaderboard
    results: Results

    @property
    def begun(self) -> list[str]:
        """The problems of which cells were run."""
        return [name for name in self.board.problems if any(p == name for p, _, _ in self.results)]

    def missing(self) -> list[Cell]:
        """Return the cells that were not run."""
        return [cell for cell in self.board.cells() if cell.place not in self.results]

    def regret(self, problem: str, pattern: str, method: str) -> Estimate | None:
        """Return the figure of a cell minus that of FedAvg under full participation.

        None if one of the two was not run.
        """
        return self._difference((problem, pattern, method), (problem, FULL, REFERENCE))

    def against_fedavg(self, problem: str, pattern: str, method: str) -> Outcome | None:
        """Return the outcome against FedAvg under the same pattern; None: one was not run.

        A method that diverged is worse than one that did not; two that did are alike.
        """
        place, rival = (problem, pattern, method), (problem, pattern, REFERENCE)
        gap = self._difference(place, rival)
        if gap is None:
            return None
        both_diverged = all(None in self.results[one].figures for one in (place, rival))
        if both_diverged or abs(gap.mean) <= gap.margin:
            return "alike"
        return "worse" if gap.mean > 0 else "better"

    def best(self, problem: str, pattern: str, methods: Iterable[str]) -> str | None:
        """Return which of the methods has the least mean regret.

        None if one that can be used was not run, or all diverged.
        """
        usable = [name for name in methods if not self.board.lacks(pattern, name)]
        found = {name: self.regret(problem, pattern, name) for name in usable}
        means = {name: one.mean for name, one in found.items() if one is not None}
        if len(means) < len(usable) or not np.isfinite(list(means.values())).any():
            return None
        return min(means, key=lambda name: means[name])

    def _difference(self, one: Place, other: Place) -> Estimate | None:
        mine, theirs = self.results.get(one), self.results.get(other)
        return estimate(mine.figures, theirs.figures) if mine and theirs else None


def load_standings(board: Leaderboard, file: Path) -> Standings:
    """Return the leaderboard with the records in a file.

    Raises:
        InvalidInputError: it does not hold records of cells.
    """
    return Standings(board, load_results(board.cells(), file))
