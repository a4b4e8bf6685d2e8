"""Replaying a log on quadratics: the loss with which each method ends.

Client n has F_n(x) = ½ h (x − e_n)² in every coordinate and takes one step per round. All methods
are linear in the coordinates then, so one pass over the log replays many step sizes and many
coordinates of all methods at once, in NumPy. What a method does to a coordinate depends only on
the product φ of step size and curvature, so one grid of φ holds the losses for problems of any
curvature. A test compares the replay with the algorithms of `fedtide.algorithms`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtide.auditing.log.participation_log import Floats, Ints

Singles = NDArray[np.float32]
Settings = dict[str, Any]
"""An algorithm as in an experiment file: its `type` and its parameters."""


@dataclass(frozen=True, eq=False)
class Script:
    """What happens in a replay: R rounds with E entries of N clients, on K coordinates.

    Args:
        starts: the entries of round t are starts[t]..starts[t + 1], shape (R + 1,).
        clients: the client of each entry, (E,).
        size: N.
        targets: e_n plus the gradient noise of the entry, (E, K).
        start: x_0, (K,).
        steps: φ = γ h, (G,).
        factors: N a_n, by which the losses of clients are multiplied, (N,).
        fedau_weights: FedAU's weight ω of each entry, for the cutoff of all methods, (E,).
        auto_weights: Auto's weight of each entry, (E,).
        rates: p_n for known rates, (N,); positive.
        samples: of each client, (N,); None if not declared.
    """

    starts: Ints
    clients: NDArray[np.int32]
    size: int
    targets: Singles
    start: Singles
    steps: Singles
    factors: Floats
    fedau_weights: Floats
    auto_weights: Floats
    rates: Floats
    samples: Floats | None = None


def replay(script: Script, methods: Sequence[Settings], blocks: int) -> Floats:
    """Return the mean square of each method's iterates over the last third of the rounds.

    Auto is judged by its iterates like all others, although its output is their mean: any method
    may be averaged. Its scaling of coordinates is left out: here they have no common scale.

    Args:
        script: what happens.
        methods: what is replayed.
        blocks: the number of consecutive parts of the last third, averaged separately.

    Returns:
        Squares of shape (methods, blocks, G, K); infinite where a method diverges.
    """
    rounds = len(script.starts) - 1
    places = _place_methods(script, methods)
    first = rounds - max(1, rounds // 3)
    edges = np.unique(np.linspace(first, rounds, blocks + 1).astype(np.int64))
    sums = {runner: np.zeros((len(edges) - 1, *runner.models.shape)) for runner, _ in places}
    with np.errstate(over="ignore", invalid="ignore"):
        for t in range(rounds):
            low, high = int(script.starts[t]), int(script.starts[t + 1])
            for runner in sums:
                runner.advance(t, script.clients[low:high], script.targets[low:high])
            if t >= first:
                block = int(np.searchsorted(edges, t, side="right")) - 1
                for runner, total in sums.items():
                    total[block] += runner.models**2
    lengths = np.diff(edges)[:, None, None]
    found = [sums[runner][:, row] / lengths for runner, row in places]
    return np.nan_to_num(np.stack(found), nan=np.inf, posinf=np.inf)


class _Runner(ABC):
    """Methods that are replayed together, one row each.

    Args:
        script: what happens.
        rows: the number of methods.
    """

    def __init__(self, script: Script, rows: int = 1) -> None:
        self._shape = (len(script.steps), len(script.start))
        self.models = np.broadcast_to(script.start, (rows, *self._shape)).copy()
        self._size, self._steps = script.size, script.steps[:, None]
        self._factors = script.factors.astype(np.float32)[:, None, None]

    @abstractmethod
    def advance(self, t: int, clients: NDArray[np.int32], targets: Singles) -> None:
        """Run round t."""

    def _updates(self, clients: NDArray[np.int32], targets: Singles) -> Singles:
        """Return the clients' updates of the first row over φ, shape (clients, G, K)."""
        updates: Singles = self._factors[clients] * (targets[:, None] - self.models[0])
        return updates

    def _table(self) -> Singles:
        """Return zeros for every client, shape (N, G, K)."""
        return np.zeros((self._size, *self._shape), dtype=np.float32)


class _Averages(_Runner):
    """Methods whose step is a weighted sum of updates, some of them amplified.

    x ← x + φ Σ_n ω_n (e_n − x), and x ← x_{t0} + factor (x − x_{t0}) at the end of a period.
    """

    def __init__(self, script: Script, methods: Sequence[Settings]) -> None:
        super().__init__(script, len(methods))
        count = len(script.starts) - 1
        rounds = np.repeat(np.arange(count), np.diff(script.starts))
        self._sums = np.zeros((count, len(methods), 1, 1), dtype=np.float32)
        self._pulls = np.zeros((count, len(methods), 1, len(script.start)), dtype=np.float32)
        filled = script.starts[:-1] < script.starts[1:]
        for row, settings in enumerate(methods):
            weights = _entry_weights(script, _inner(settings))
            self._sums[:, row, 0, 0] = np.bincount(rounds, weights, minlength=count)
            terms = weights[:, None].astype(np.float32) * script.targets
            self._pulls[filled, row, 0] = np.add.reduceat(terms, script.starts[:-1][filled])
        self._amplified = [
            (row, int(settings["period"]), float(settings["factor"]))
            for row, settings in enumerate(methods)
            if settings["type"] == "amplified"
        ]
        self._anchors = {row: self.models[row].copy() for row, *_ in self._amplified}

    def advance(self, t: int, clients: NDArray[np.int32], targets: Singles) -> None:
        self.models += self._steps * (self._pulls[t] - self._sums[t] * self.models)
        for row, period, factor in self._amplified:
            if (t + 1) % period == 0:
                anchor = self._anchors[row]
                self.models[row] = anchor + factor * (self.models[row] - anchor)
                self._anchors[row] = self.models[row].copy()


class _LatestUpdates(_Runner):
    """MIFA and FedLaAvg, which agree if γ is constant: x ← x + φ / N Σ_n y_n."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self._memory = self._table()
        self._total = np.zeros(self._shape, dtype=np.float32)

    def advance(self, t: int, clients: NDArray[np.int32], targets: Singles) -> None:
        self._replace(clients, self._updates(clients, targets))
        self.models[0] += self._steps / self._size * self._total

    def _replace(self, clients: NDArray[np.int32], new: Singles) -> Singles:
        """Store the clients' updates, and return by how much their sum changes."""
        change: Singles = (new - self._memory[clients]).sum(axis=0)
        self._memory[clients] = new
        self._total += change
        return change


class _VarianceReduced(_LatestUpdates):
    """FedVARP, and SCAFFOLD, which agrees with it for one local step.

    x ← x + φ [1/N Σ_n y_n + 1/|S_t| Σ_{n in S_t} (Δ_n − y_n)]
    """

    def advance(self, t: int, clients: NDArray[np.int32], targets: Singles) -> None:
        if len(clients):
            before = self._total / self._size
            change = self._replace(clients, self._updates(clients, targets))
            self.models[0] += self._steps * (before + change / len(clients))


class _AmplifiedScaffold(_Runner):
    """Amplified SCAFFOLD: as SCAFFOLD, with control variates that change once a period."""

    def __init__(self, script: Script, period: int, factor: float) -> None:
        super().__init__(script)
        self._period, self._factor = period, factor
        self._anchor = self.models[0].copy()
        self._control, self._window = self._table(), self._table()
        self._mean_control = np.zeros(self._shape, dtype=np.float32)
        self._weight = np.zeros((script.size, 1, 1), dtype=np.float32)

    def advance(self, t: int, clients: NDArray[np.int32], targets: Singles) -> None:
        if len(clients):
            new = self._updates(clients, targets)
            change = (new - self._control[clients]).mean(axis=0)
            self.models[0] += self._steps * (change + self._mean_control)
            self._window[clients] += new / len(clients)
            self._weight[clients] += 1 / len(clients)
        if (t + 1) % self._period == 0:
            self._end_period()

    def _end_period(self) -> None:
        self.models[0] = self._anchor + self._factor * (self.models[0] - self._anchor)
        self._anchor = self.models[0].copy()
        seen = np.flatnonzero(self._weight)
        new = self._window[seen] / self._weight[seen]
        self._mean_control += (new - self._control[seen]).sum(axis=0) / self._size
        self._control[seen] = new
        self._window[seen], self._weight[seen] = 0, 0


_AVERAGES = ("fedavg", "auto", "fedau", "known-rates", "amplified")


def _place_methods(script: Script, methods: Sequence[Settings]) -> list[tuple[_Runner, int]]:
    """Return the runner of each method, and its row there; equal methods share a runner."""
    averages = [settings for settings in methods if settings["type"] in _AVERAGES]
    of_averages, rows = _Averages(script, averages), count()
    others: dict[tuple[Any, ...], _Runner] = {}
    places: list[tuple[_Runner, int]] = []
    for settings in methods:
        if settings["type"] in _AVERAGES:
            places.append((of_averages, next(rows)))
            continue
        kind, arguments = key = _find_runner(settings)
        if key not in others:
            others[key] = kind(script, *arguments)
        places.append((others[key], 0))
    return places


def _find_runner(settings: Settings) -> tuple[type[Any], tuple[Any, ...]]:
    """Return the class that replays a method that is not an average, and its arguments."""
    name = settings["type"]
    if name == "amplified-scaffold":
        return _AmplifiedScaffold, (settings["period"], settings["factor"])
    return _LatestUpdates if name in ("mifa", "fedlaavg") else _VarianceReduced, ()


def _inner(settings: Settings) -> Settings:
    inner: Settings = settings.get("inner", {"type": "fedavg"})
    return inner if settings["type"] == "amplified" else settings


def _entry_weights(script: Script, settings: Settings) -> Floats:
    """Return the factor of each entry's update in the step, (E,)."""
    name, weights = settings["type"], settings.get("weights", "mean")
    factors = script.factors[script.clients]
    if name == "fedau":
        return script.fedau_weights * factors / script.size
    if name == "auto":
        return script.auto_weights * factors / script.size
    if name == "known-rates":
        return factors / (script.rates[script.clients] * script.size)
    if weights == "all":
        return factors / script.size
    rounds = np.repeat(np.arange(len(script.starts) - 1), np.diff(script.starts))
    if weights == "data":  # the sample counts are the weights: losses are not multiplied
        assert script.samples is not None
        factors, shares = np.ones(len(factors)), script.samples[script.clients]
    else:
        shares = np.ones(len(factors))
    sums = np.bincount(rounds, shares, minlength=len(script.starts) - 1)[rounds]
    return np.divide(factors * shares, sums, out=np.zeros(len(shares)), where=sums > 0)
