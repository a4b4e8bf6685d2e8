"""Replaying a log on quadratics: the loss with which each method ends.

Client n has F_n(x) = ½ h (x − e_n)² in every coordinate and takes one step per round. All methods
are linear in the coordinates then, so one pass over the log replays many step sizes and many
coordinates of all methods at once, in NumPy. What a method does to a coordinate depends on the
product φ of step size and curvature alone, and so one grid of φ holds the losses for problems of
any curvatures. A test compares the replay with the algorithms that train elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
        omegas: the FedAU weight ω of each entry, by cutoff, (E,) each.
        owed: Auto's weight of each entry, (E,).
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
    omegas: dict[int, Floats]
    owed: Floats
    rates: Floats
    samples: Floats | None = None


def replay(script: Script, methods: Sequence[Settings], blocks: int) -> Floats:
    """Return the mean square of each method's iterates over the last third of the rounds.

    Auto is judged by its iterates like all others, although its output is their mean: any method
    may be averaged. Its coordinates are left as they are: those of a replay have no common scale.

    Args:
        script: what happens.
        methods: what is replayed.
        blocks: the number of consecutive parts of the last third, averaged separately.

    Returns:
        Squares of shape (methods, blocks, G, K); infinite where a method diverges.
    """
    rounds = len(script.starts) - 1
    runners, places = _make_runners(script, methods)
    first = rounds - max(1, rounds // 3)
    edges = np.unique(np.linspace(first, rounds, blocks + 1).astype(np.int64))
    sums = [np.zeros((len(edges) - 1, *runner.models.shape)) for runner in runners]
    with np.errstate(over="ignore", invalid="ignore"):
        for t in range(rounds):
            low, high = int(script.starts[t]), int(script.starts[t + 1])
            for runner in runners:
                runner.advance(t, script.clients[low:high], script.targets[low:high])
            if t >= first:
                block = int(np.searchsorted(edges, t, side="right")) - 1
                for total, runner in zip(sums, runners, strict=True):
                    total[block] += runner.models**2
    lengths = np.diff(edges)[:, None, None]
    found = [sums[place][:, row] / lengths for place, row in places]
    return np.nan_to_num(np.stack(found), nan=np.inf, posinf=np.inf)


class _Averages:
    """Methods whose step is a weighted sum of updates, some of them amplified.

    x ← x + φ Σ_n ω_n (e_n − x), and x ← x_{t0} + factor (x − x_{t0}) at the end of a period.

    Args:
        script: what happens.
        methods: one row each.
    """

    def __init__(self, script: Script, methods: Sequence[Settings]) -> None:
        shape = (len(methods), len(script.steps), len(script.start))
        self.models = np.broadcast_to(script.start, shape).copy()
        self._steps = script.steps[:, None]
        inner = [_inner(settings) for settings in methods]
        weights = np.stack([_entry_weights(script, settings) for settings in inner], axis=1)
        rounds = np.repeat(np.arange(len(script.starts) - 1), np.diff(script.starts))
        count = len(script.starts) - 1
        self._sums = np.zeros((count, len(methods), 1, 1), dtype=np.float32)
        self._pulls = np.zeros((count, len(methods), 1, len(script.start)), dtype=np.float32)
        for row, column in enumerate(weights.T):
            self._sums[:, row, 0, 0] = np.bincount(rounds, column, minlength=count)
            filled = script.starts[:-1] < script.starts[1:]
            terms = column[:, None].astype(np.float32) * script.targets
            if filled.any():
                self._pulls[filled, row, 0] = np.add.reduceat(terms, script.starts[:-1][filled])
        self._amplified = [
            (row, int(settings["period"]), float(settings["factor"]))
            for row, settings in enumerate(methods)
            if settings["type"] == "amplified"
        ]
        self._anchors = {row: self.models[row].copy() for row, *_ in self._amplified}

    def advance(self, t: int, clients: NDArray[np.int32], targets: Singles) -> None:
        """Run round t."""
        self.models += self._steps * (self._pulls[t] - self._sums[t] * self.models)
        for row, period, factor in self._amplified:
            if (t + 1) % period == 0:
                anchor = self._anchors[row]
                self.models[row] = anchor + factor * (self.models[row] - anchor)
                self._anchors[row] = self.models[row].copy()


class _LatestUpdates:
    """MIFA and FedLaAvg, which agree if γ is constant: x ← x + φ / N Σ_n y_n.

    Args:
        script: what happens.
    """

    def __init__(self, script: Script) -> None:
        shape = (1, len(script.steps), len(script.start))
        self.models = np.broadcast_to(script.start, shape).copy()
        self._factors = script.factors.astype(np.float32)[:, None, None]
        self._steps = script.steps[:, None] / script.size
        self._memory = np.zeros((script.size, *shape[1:]), dtype=np.float32)
        self._total = np.zeros(shape[1:], dtype=np.float32)

    def advance(self, t: int, clients: NDArray[np.int32], targets: Singles) -> None:
        """Run round t."""
        new = self._factors[clients] * (targets[:, None] - self.models[0])
        self._total += (new - self._memory[clients]).sum(axis=0)
        self._memory[clients] = new
        self.models[0] += self._steps * self._total


class _VarianceReduced:
    """FedVARP, and SCAFFOLD, which agrees with it for one local step.

    x ← x + φ [1/N Σ_n y_n + 1/|S_t| Σ_{n in S_t} (Δ_n − y_n)]

    Args:
        script: what happens.
    """

    def __init__(self, script: Script) -> None:
        shape = (1, len(script.steps), len(script.start))
        self.models = np.broadcast_to(script.start, shape).copy()
        self._size = script.size
        self._factors = script.factors.astype(np.float32)[:, None, None]
        self._steps = script.steps[:, None]
        self._memory = np.zeros((script.size, *shape[1:]), dtype=np.float32)
        self._total = np.zeros(shape[1:], dtype=np.float32)

    def advance(self, t: int, clients: NDArray[np.int32], targets: Singles) -> None:
        """Run round t."""
        if len(clients) == 0:
            return
        new = self._factors[clients] * (targets[:, None] - self.models[0])
        change = (new - self._memory[clients]).sum(axis=0)
        self.models[0] += self._steps * (self._total / self._size + change / len(clients))
        self._memory[clients] = new
        self._total += change


class _AmplifiedScaffold:
    """Amplified SCAFFOLD: as SCAFFOLD, with control variates that change once a period.

    Args:
        script: what happens.
        period: P.
        factor: of the amplification.
    """

    def __init__(self, script: Script, period: int, factor: float) -> None:
        shape = (1, len(script.steps), len(script.start))
        self.models = np.broadcast_to(script.start, shape).copy()
        self._size, self._period, self._factor = script.size, period, factor
        self._factors = script.factors.astype(np.float32)[:, None, None]
        self._steps = script.steps[:, None]
        self._anchor = self.models[0].copy()
        self._control = np.zeros((script.size, *shape[1:]), dtype=np.float32)
        self._mean_control = np.zeros(shape[1:], dtype=np.float32)
        self._window = np.zeros_like(self._control)
        self._weight = np.zeros((script.size, 1, 1), dtype=np.float32)

    def advance(self, t: int, clients: NDArray[np.int32], targets: Singles) -> None:
        """Run round t."""
        if len(clients):
            new = self._factors[clients] * (targets[:, None] - self.models[0])
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


Runner = _Averages | _LatestUpdates | _VarianceReduced | _AmplifiedScaffold


def _make_runners(
    script: Script, methods: Sequence[Settings]
) -> tuple[list[Runner], list[tuple[int, int]]]:
    """Return the runners, and the runner and row of each method."""
    averages = [m for m in methods if m["type"] in _AVERAGES]
    runners: list[Runner] = [_Averages(script, averages)] if averages else []
    places: list[tuple[int, int]] = []
    known: dict[str, int] = {}
    row = 0
    for settings in methods:
        name = settings["type"]
        if name in _AVERAGES:
            places.append((0, row))
            row += 1
            continue
        name = _SAME.get(name, name)
        if name == "amplified-scaffold":
            name += f" {settings['period']} {settings['factor']}"
        if name not in known:
            known[name] = len(runners)
            runners.append(_make_runner(script, settings))
        places.append((known[name], 0))
    return runners, places


def _make_runner(script: Script, settings: Settings) -> Runner:
    name = settings["type"]
    if name == "amplified-scaffold":
        return _AmplifiedScaffold(script, settings["period"], settings["factor"])
    return _LatestUpdates(script) if name in ("mifa", "fedlaavg") else _VarianceReduced(script)


_AVERAGES = ("fedavg", "auto", "fedau", "known-rates", "amplified")
_SAME = {"fedlaavg": "mifa", "scaffold": "fedvarp"}
"""Methods that agree in the replay with another one."""


def _inner(settings: Settings) -> Settings:
    inner: Settings = settings.get("inner", {"type": "fedavg"})
    return inner if settings["type"] == "amplified" else settings


def _entry_weights(script: Script, settings: Settings) -> Floats:
    """Return the factor of each entry's update in the step, (E,)."""
    name, weights = settings["type"], settings.get("weights", "mean")
    factors = script.factors[script.clients]
    if name == "fedau":
        return script.omegas[settings["cutoff"]] * factors / script.size
    if name == "auto":
        return script.owed * factors / script.size
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
