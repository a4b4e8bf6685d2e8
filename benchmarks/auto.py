"""Auto against the best hand-tuned methods of its memory class, and against variants of itself.

    python benchmarks/auto.py variants [NAME ...]
    python benchmarks/auto.py write

`variants` runs all variants that were tried on the way to Auto, or only those named, on the noisy
quadratics of the leaderboard, and writes records/auto_variants.json, with the software and machine
of each; `write` puts that table into docs/auto-evidence.md, and the tables of Auto against the
goal, from the records of the leaderboard. Patterns held out at first (docs/auto-evidence.md says
what was chosen with them in view) are in held_out_patterns.yaml, and their records were made with

    fedtide leaderboard --add benchmarks/held_out_patterns.yaml \\
        --records results/held-out.parquet --problems quadratic,digits --patterns ... --methods ...

and those of variants on images, with this folder on PYTHONPATH, with

    fedtide leaderboard --add benchmarks/auto_variants.yaml --problems digits,fashion \\
        --records results/auto-variants.parquet --methods plain,long-steps,linear-mean

A variant consists of a rule that turns participation into weights, and of what is done with the
steps, so all variants and all nine γ train at once. γ is chosen with the tuning seed, and figures
are means over the judged seeds, as on the leaderboard, but without its fine second stage.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.algorithms.auto import Auto, AutoState
from fedtide.algorithms.base import RoundInfo
from fedtide.leaderboard.cells import load_results
from fedtide.leaderboard.problems import QuadraticTask
from fedtide.leaderboard.spec import FULL, REFERENCE, Cell, Leaderboard, load_leaderboard
from fedtide.participation import Schedule
from fedtide.provenance import machine, versions
from fedtide.randomness import generator
from fedtide.simulation.experiment import Experiment
from fedtide.spec import spec
from fedtide.student_interval import t_margin

Numbers = NDArray[np.float64]
Figures = dict[tuple[str, str], dict[str, Numbers]]
"""The figures of the judged seeds by problem and pattern, and by method."""
Present = NDArray[np.bool_]
Rule = Callable[[Present], Numbers]
"""Turns participation by round and client, (T, N), into the weights of the updates, (T, N)."""
Periods = NDArray[np.int64]
"""An estimate of the period in each round, (T,)."""

HERE = Path(__file__).parent
WRAPPED = (
    "fedavg-wrapped",
    "fedavg-late-mean",
    "fedadam-late-mean",
    "f3ast-wrapped",
    "fedau-wrapped",
)
"""The leaderboard's methods with Auto's output, or its output and scaling."""

HELD_OUT = HERE / "held_out_patterns.yaml"
RESULTS = HERE.parent / "results"
RECORD = HERE / "records" / "auto_variants.json"
PAGE = HERE.parent / "docs" / "auto-evidence.md"
ON_IMAGES = HERE / "auto_variants.yaml"
AUTO = "auto"
CONTROLLED = "auto-control-variates"
GOLDEN = (5**0.5 - 1) / 2


# ----------------------------------------------------------------------------------------- variants


@spec
class LongSteps(Auto):
    """Auto whose steps may be twice as long as the mean update."""

    def normaliser(self, state: AutoState) -> Tensor:
        return (state.weights.sum() / 2).clamp(min=state.population)


@spec
class LinearMean(Auto):
    """Auto whose output weights the iterates by their round."""

    def step(self, state: AutoState, lr: float) -> tuple[AutoState, RoundInfo]:
        moved, info = super().step(state, lr)
        return replace(moved, mean=state.mean.lerp(moved.model, 2 / (moved.round + 1))), info


def accounts(
    present: Present,
    share: float = GOLDEN,
    bound: float = 1.1,
    own_bound: float = np.inf,
    longest: float = np.inf,
    credit: float = 1 / GOLDEN,
    dispersion: float = 0.0,
    all_rounds: bool = False,
) -> Numbers:
    """Auto's weights, implemented independently, with the choices that could be made differently.

    Args:
        present: who took part.
        share: ρ.
        bound: the largest sum of the weights of a round.
        own_bound: the largest weight of an update.
        longest: the largest debt over N.
        credit: in mean intervals.
        dispersion: k > 0 replaces ρ by (1 + CV²)^-k, with CV² the squared coefficient of variation
            of the intervals between a client's rounds, shrunk to that of all clients.
        all_rounds: whether clients are owed a weight in rounds without updates, too.
    """
    rounds, clients = present.shape
    weights, paid, seen, t = np.zeros((rounds, clients)), np.zeros(clients), 0, 0
    intervals = _Intervals(clients)
    for number in range(rounds):
        came = np.flatnonzero(present[number])
        if not len(came) and not all_rounds:
            continue
        owed = t + 1 + credit * clients * max(t, 1) / max(seen, 1)
        rate = intervals.record(t, came) ** -dispersion if dispersion else share
        debt = np.clip(owed - paid[came], 0, longest * clients)
        own = np.minimum(rate * debt / clients, own_bound)
        weights[number, came] = own * min(1, bound / max(own.sum(), 1e-12))
        paid[came] = owed - debt + clients * weights[number, came]
        seen += len(came)
        t += 1
    return weights


class _Intervals:
    """1 + CV² of the intervals between each client's rounds, with two prior ones of the pool."""

    def __init__(self, clients: int) -> None:
        self._last = np.full(clients, -1)
        self._count, self._sum, self._squares = np.zeros((3, clients))

    def record(self, t: int, came: NDArray[np.int64]) -> Numbers:
        """Return the values of these clients before round t, and record it."""
        ratio = self._squares * self._count / np.maximum(self._sum, 1) ** 2
        informed = np.maximum(self._count - 1, 0)
        pooled = (informed @ ratio + 20) / (informed.sum() + 10)
        own = (self._count * ratio + 2 * pooled) / (self._count + 2)
        length = t - self._last[came]
        self._count[came] += 1
        self._sum[came] += length
        self._squares[came] += length**2
        self._last[came] = t
        return np.maximum(own[came], 1)


def frequencies(present: Present, memory: float, prior: float, normalised: bool) -> Numbers:
    """1/N over the frequency in the last `memory` rounds, shrunk to that of all clients.

    Args:
        present: who took part.
        memory: in rounds.
        prior: the weight of the mean frequency, in rounds.
        normalised: divide by the sum of the weights of a round, not by N.
    """
    rounds, clients = present.shape
    weights, count, length = np.zeros((rounds, clients)), np.zeros(clients), 0.0
    for t in range(rounds):
        count = (1 - 1 / memory) * count + present[t]
        length = (1 - 1 / memory) * length + 1
        rate = (count + prior * count.mean() / length) / (length + prior)
        came = np.flatnonzero(present[t])
        weights[t, came] = 1 / rate[came]
        weights[t] /= max(weights[t].sum(), 1e-12) if normalised else clients
    return weights


def f3ast(present: Present, beta: float) -> Numbers:
    """F3AST with a given β."""
    rounds, clients = present.shape
    weights, rate = np.zeros((rounds, clients)), np.full(clients, 1 / clients)
    for t in range(rounds):
        rate = (1 - beta) * rate + beta * present[t]
        weights[t] = present[t] / rate / clients
    return weights


def fedavg(present: Present) -> Numbers:
    """The mean over the cohort."""
    return np.asarray(present / np.maximum(present.sum(axis=1, keepdims=True), 1))


def equal(present: Present) -> Numbers:
    """1/N for every client that takes part."""
    return np.asarray(present / present.shape[1])


def longest_interval(present: Present) -> Periods:
    """The longest interval between two rounds of a client so far, the present one included."""
    away, longest = np.zeros(present.shape[1], int), 0
    periods = np.zeros(len(present), int)
    for t, now in enumerate(present):
        away += 1
        longest = max(longest, away.max())
        periods[t], away[now] = longest, 0
    return periods


def strongest_lag(present: Present, least: float = 0.1, every: int = 10) -> Periods:
    """The lag with the largest autocorrelation so far, pooled over the clients.

    All rounds so far where it is small, and in the first twenty.

    Args:
        present: who took part.
        least: autocorrelation of a period.
        every: rounds between two estimates.
    """
    periods = np.arange(1, len(present) + 1)
    for t in range(2 * every, len(present), every):
        past = present[:t] - present[:t].mean(axis=0)
        spectrum = np.abs(np.fft.rfft(past, 2 * t, axis=0)) ** 2
        products = np.fft.irfft(spectrum.sum(axis=1))[: t // 2 + 1] / np.arange(
            t, t - t // 2 - 1, -1
        )
        first = np.argmax(products < 0)  # before it, one and the same session
        lag = first + int(np.argmax(products[first:]))
        if first > 0 and products[lag] > least * products[0]:
            periods[t : t + every] = lag
    return periods


def windows(present: Present, period: Callable[[Present], Periods]) -> Numbers:
    """1/N over the frequency in the last P rounds, with P estimated from the rounds so far."""
    counts = np.vstack([np.zeros(present.shape[1]), np.cumsum(present, axis=0)])
    weights, periods = np.zeros(present.shape), period(present)
    for t, now in enumerate(present):
        first = max(t + 1 - periods[t], 0)
        rates = (counts[t + 1] - counts[first]) / (t + 1 - first)
        weights[t, now] = 1 / rates[now] / len(now)
    return weights


LAST = -1.0
"""Stands for the last iterate, in place of an exponent of the weights of the mean."""


@dataclass(frozen=True)
class Variant:
    """A variant of Auto.

    Args:
        rule: who took part, turned into weights.
        exponent: the mean that is the output has weights of about t^exponent.
        floor: of the sizes by which coordinates are divided; infinite: they are left as they are.
        control: what the latest updates h_n correct: "step", innovations Δ_n − h_n enter it with
            the weights, and the mean of all h_n; "scaled step", the same with the mean multiplied
            by the sum of the weights; "local steps", those of clients, as in SCAFFOLD; "", nothing.
        period: estimates the period of amplification.
        factor: of amplification.
    """

    rule: Rule = accounts
    exponent: float = 2
    floor: float = 0.1
    control: Literal["", "step", "scaled step", "local steps"] = ""
    period: Callable[[Present], Periods] | None = None
    factor: float = 1.0

    def amplifies(self, present: Present) -> Present:
        """Return after which rounds a period ends, as estimated at its end, (T,)."""
        ends = np.zeros(len(present), bool)
        if self.period is not None:
            begin, periods = 0, self.period(present)
            for t in range(len(present)):
                if t + 1 - begin >= periods[t]:
                    ends[t], begin = True, t + 1
        return ends


PLAIN = np.inf
"""The floor with which coordinates are left as they are."""

VARIANTS: Mapping[str, Variant] = {
    "Auto": Variant(),
    "no preconditioning": Variant(floor=PLAIN),
    "no preconditioning, a step at most 2 mean updates": Variant(
        partial(accounts, bound=2.0), floor=PLAIN
    ),
    "P = c / (s + 1)": Variant(floor=1.0),
    "P = c / (s + 1/100)": Variant(floor=0.01),
    "a step at most 1 mean update": Variant(partial(accounts, bound=1.0)),
    "at most 1.25": Variant(partial(accounts, bound=1.25)),
    "at most 2": Variant(partial(accounts, bound=2.0)),
    "no bound of a step": Variant(partial(accounts, bound=np.inf)),
    "all rounds are counted": Variant(partial(accounts, all_rounds=True)),
    "output: the last iterate": Variant(exponent=LAST),
    "output: the plain mean": Variant(exponent=0),
    "output: weights t": Variant(exponent=1),
    "output: weights t³": Variant(exponent=3),
    "ρ = 1: the whole debt": Variant(partial(accounts, share=1.0, credit=1.0)),
    "ρ = 0.8": Variant(partial(accounts, share=0.8, credit=1.25)),
    "ρ = 0.4": Variant(partial(accounts, share=0.4, credit=2.5)),
    "ρ = 0.2": Variant(partial(accounts, share=0.2, credit=5.0)),
    "ρ = 1 / √(1 + CV²) of a client's intervals": Variant(partial(accounts, dispersion=0.5)),
    "ρ = 1 / (1 + CV²)": Variant(partial(accounts, dispersion=1.0)),
    "no credit": Variant(partial(accounts, credit=0.0)),
    "a weight at most 1 as well": Variant(partial(accounts, own_bound=1.0)),
    "a debt at most 1.1 N / ρ": Variant(partial(accounts, longest=1.1 / GOLDEN)),
    "F3AST, β = 0.01": Variant(partial(f3ast, beta=0.01), LAST, PLAIN),
    "F3AST, β = 0.01, preconditioned, weights t²": Variant(partial(f3ast, beta=0.01)),
    "F3AST, β = 0.03, preconditioned, weights t²": Variant(partial(f3ast, beta=0.03)),
    "shrunk frequencies of 100 rounds": Variant(
        partial(frequencies, memory=100, prior=2, normalised=False)
    ),
    "the same, normalised in each round": Variant(
        partial(frequencies, memory=100, prior=2, normalised=True)
    ),
    "control variates": Variant(control="step"),
    "control variates, no preconditioning": Variant(control="step", floor=PLAIN),
    "control variates, a step at most 2 mean updates": Variant(
        partial(accounts, bound=2.0), control="step"
    ),
    "control variates, ρ = 1": Variant(partial(accounts, share=1.0, credit=1.0), control="step"),
    "control variates, weights 1, as in MIFA": Variant(equal, control="step"),
    "control variates, weights N / S, as in FedVARP": Variant(fedavg, control="step"),
    "control variates, the mean of h_n times Σ a_n / N": Variant(control="scaled step"),
    "control variates in the local steps, as in SCAFFOLD": Variant(control="local steps"),
    "control variates, output: the last iterate": Variant(exponent=LAST, control="step"),
    "control variates, output: weights t": Variant(exponent=1, control="step"),
    "control variates, output: weights t³": Variant(exponent=3, control="step"),
    "frequencies of the strongest period": Variant(partial(windows, period=strongest_lag)),
    "frequencies of the longest interval": Variant(partial(windows, period=longest_interval)),
    "FedAvg, amplified by 1.5 over the strongest period": Variant(
        fedavg, period=strongest_lag, factor=1.5
    ),
    "FedAvg, amplified by 1.5 over the longest interval": Variant(
        fedavg, period=longest_interval, factor=1.5
    ),
    "FedAvg": Variant(fedavg, LAST, PLAIN),
    "FedAvg, output: weights t²": Variant(fedavg, floor=PLAIN),
    "FedAvg, preconditioned, weights t²": Variant(fedavg),
}

SHOWN = (
    "Auto",
    "no preconditioning",
    "a step at most 1 mean update",
    "at most 2",
    "output: the last iterate",
    "output: the plain mean",
    "output: weights t",
    "ρ = 1: the whole debt",
    "ρ = 0.4",
    "a debt at most 1.1 N / ρ",
    "F3AST, β = 0.01",
    "F3AST, β = 0.03, preconditioned, weights t²",
    "frequencies of the longest interval",
    "FedAvg, amplified by 1.5 over the strongest period",
    "FedAvg",
    "control variates",
    "control variates, weights 1, as in MIFA",
    "control variates, weights N / S, as in FedVARP",
    "control variates in the local steps, as in SCAFFOLD",
)
"""The variants in the table of the page; the record has more."""

ALIKE = ("FedAvg", "FedAvg, output: weights t²", "Auto")
"""The variants that are compared when all clients hold the same data."""


def train(
    variants: Sequence[Variant], board: Leaderboard, pattern: str, seed: int, alike: bool = False
) -> Numbers:
    """Return the figures of variants with all γ, shape (variants, γ).

    Args:
        variants: what is trained.
        board: the leaderboard.
        pattern: of participation.
        seed: of the problem and the participation.
        alike: give all clients the same function, with their own noise.
    """
    plain = Cell(board, "quadratic", pattern, REFERENCE).experiment(0.1, 1.0, seed)
    drawn = Experiment.from_dict(plain)
    task = drawn.problem.prepare(seed, torch.device("cpu"), torch.float64)
    tasks = _one_function(board.clients, seed) if alike else Quadratics(task, seed)
    schedule = Schedule(drawn.participation, drawn.selection)
    rates = schedule.known_rates(task.population, seed)
    stream = schedule.start(replace(task.population, rates=rates), seed)
    present = np.zeros((board.rounds, board.clients), bool)
    for t in range(board.rounds):
        present[t, stream.round(t).reported] = True
    trained = list(dict.fromkeys(replace(one, exponent=0) for one in variants))
    iterates = _iterates(tasks, board.steps, present, trained, board.problems["quadratic"].lr)
    due = [t for t in range(2 * board.rounds // 3, board.rounds) if (t + 1) % board.every == 0]
    due.append(board.rounds - 1)
    found = []
    for one in variants:
        own = iterates[:, trained.index(replace(one, exponent=0))]
        outputs = _mean(own, one.exponent)[due]
        figures = tasks.figures(outputs.reshape(-1, outputs.shape[-1]))
        found.append(figures.reshape(len(due), -1).mean(axis=0))
    return np.array(found)


class Quadratics:
    """The quadratics of the leaderboard, on which many runs take their steps together."""

    def __init__(self, task: QuadraticTask, seed: int) -> None:
        self.task, self.start, self._seed = task, task.start, seed

    def draws(self, t: int, steps: int) -> list[torch.Tensor]:
        """Return the noise of each local step of round t, for all clients."""
        random = generator(self._seed, "auto-noise", t)
        shape = (steps, *self.task.centers.shape)
        return list(torch.from_numpy(random.normal(0, self.task.noise, shape)))

    def descend(
        self,
        starts: torch.Tensor,
        clients: torch.Tensor,
        lr: torch.Tensor,
        corrections: torch.Tensor,
        draws: list[torch.Tensor],
    ) -> torch.Tensor:
        """Return where the steps from these models, (K, d), end."""
        matrices, centers, ends = self.task.matrices[clients], self.task.centers[clients], starts
        for noise in draws:
            slopes = ((ends - centers)[:, None] @ matrices)[:, 0]
            ends = ends - lr * (slopes + noise[clients] + corrections)
        return ends

    def figures(self, models: Numbers) -> Numbers:
        """Return the excess loss of each model, (K, d), in % of that of x_0."""
        found = [self.task.evaluate(torch.from_numpy(model)).metrics["excess"] for model in models]
        return np.array(found)


def _one_function(clients: int, seed: int) -> Quadratics:
    """Return clients with one function ½ (x − e)ᵀ A (x − e), drawn as on the leaderboard."""
    random = np.random.default_rng(seed)
    basis = np.linalg.qr(random.normal(size=(10, 10)))[0]
    values, center = np.exp(random.uniform(np.log(0.1), 0, 10)), random.normal(0.5, 1.0, 10)
    matrix = basis * values @ basis.T
    same = (torch.from_numpy(np.tile(p, (clients, *[1] * p.ndim))) for p in (matrix, center))
    return Quadratics(QuadraticTask(*same, noise=0.5), seed)


def _iterates(
    tasks: Quadratics,
    steps: int,
    present: Present,
    variants: Sequence[Variant],
    rates: Iterable[float],
) -> Numbers:
    """Return the models after each round, (T, variants, γ, d).

    Args:
        tasks: of the clients.
        steps: local steps.
        present: who took part.
        variants: what is trained.
        rates: γ.
    """
    lr = torch.tensor(list(rates), dtype=torch.float64)
    weights = np.stack([one.rule(present) for one in variants])
    ends = np.stack([one.amplifies(present) for one in variants])
    floors, factors, local, fixed, scaled = (
        torch.tensor(values, dtype=torch.float64)[:, None, None]
        for values in (
            [one.floor for one in variants],
            [one.factor for one in variants],
            [one.control == "local steps" for one in variants],
            [one.control == "step" for one in variants],
            [one.control == "scaled step" for one in variants],
        )
    )
    models = tasks.start.expand(len(variants), len(lr), -1)
    squares, begin = torch.zeros_like(models), models
    latest = torch.zeros(*models.shape[:2], len(present[0]), models.shape[2], dtype=models.dtype)
    found = np.zeros((len(present), *models.shape))
    for t, now in enumerate(present):
        came = np.flatnonzero(now)
        if len(came):
            shape = (*models.shape[:2], len(came))
            starts = models[:, :, None].expand(*shape, -1).reshape(-1, models.shape[-1])
            own = lr[None, :, None].expand(shape).reshape(-1, 1)
            clients = torch.from_numpy(np.broadcast_to(came, shape).reshape(-1).copy())
            mean = latest.mean(dim=2)
            missing = latest[:, :, came] - mean[:, :, None]
            push = local[..., None] * missing / (steps * lr[:, None, None])
            corrections = push.reshape(-1, models.shape[-1])
            done = tasks.descend(starts, clients, own, corrections, tasks.draws(t, steps))
            moves = (done - starts).view(*shape, -1)
            news = moves - (fixed + scaled)[..., None] * latest[:, :, came]
            given = torch.from_numpy(weights[:, t, came])
            step = torch.einsum("vgsd,vs->vgd", news, given)
            step = step + (fixed + scaled * given.sum(dim=1)[:, None, None]) * mean
            latest[:, :, came] = moves + local[..., None] * missing
            squares = squares + step**2
            models = models + step * _scales(squares, floors)
        over = torch.from_numpy(ends[:, t])[:, None, None]
        models = torch.where(over, begin + factors * (models - begin), models)
        begin = torch.where(over, models, begin)
        found[t] = models.numpy()
    return found


def _scales(squares: torch.Tensor, floors: torch.Tensor) -> torch.Tensor:
    """Return the factors of the steps, given the sums of their squares."""
    mean = squares.mean(dim=-1, keepdim=True)
    sizes = (squares / mean).sqrt()
    scales = 1 / (sizes + floors)
    scales = scales / (scales * sizes).square().mean(dim=-1, keepdim=True).sqrt()
    scales = scales.clamp(max=10)
    return torch.where((mean > 0) & floors.isfinite(), scales, 1.0)


def _mean(iterates: Numbers, exponent: float) -> Numbers:
    """Return the means up to each round with weights of about t^exponent, (T, γ, d)."""
    if exponent == LAST:
        return iterates
    means, mean = np.zeros_like(iterates), iterates[0]
    for t in range(len(iterates)):
        mean = mean + (exponent + 1) / (t + 1 + exponent) * (iterates[t] - mean)
        means[t] = mean
    return means


def run_variants(names: Sequence[str]) -> None:
    """Train these variants, all if none is named, under all patterns; add them to the record."""
    board, start = load_leaderboard([HELD_OUT]), time.process_time()
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    variants = {name: VARIANTS[name] for name in names or VARIANTS}
    cells = [(pattern, False) for pattern in board.patterns]
    cells += [("uniform", True), ("independent", True)]
    for pattern, alike in cells:
        run = partial(train, list(variants.values()), board, pattern, alike=alike)
        with np.errstate(all="ignore"):
            best = np.nan_to_num(run(board.tuning_seed), nan=np.inf).argmin(axis=1)
            judged = [run(seed) for seed in board.seeds]
        name = f"{pattern}, clients alike" if alike else pattern
        found = {
            variant: [float(f"{one[i, best[i]]:.4g}") for one in judged]
            for i, variant in enumerate(variants)
        }
        known = record.get(name, {}) | found
        record[name] = {variant: known[variant] for variant in VARIANTS if variant in known}
        print(name, flush=True)
    record[ORIGIN] = [
        former | {"variants": others}
        for former in record[ORIGIN]
        if (others := [name for name in former["variants"] if name not in variants])
    ]
    record[ORIGIN].append(origin(board, list(variants), time.process_time() - start))
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


ORIGIN = "computed with"
"""The key of the record, beside the patterns, that says how the figures came about."""


def origin(board: Leaderboard, variants: list[str], seconds: float) -> dict[str, Any]:
    """Return the software and machine behind the variants' figures, as in leaderboard records.

    None stands for what was not recorded.
    """
    return {
        "variants": variants,
        "version": versions(["fedtide", "torch", "numpy", "python"]),
        "seeds": list(board.seeds),
        "tuning_seed": board.tuning_seed,
        "trainer": "benchmarks/auto.py variants",
        "threads": torch.get_num_threads(),
        "machine": machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "seconds": round(seconds, 1),
    }


# --------------------------------------------------------------------------------------------- page


def load_figures(board: Leaderboard, file: Path) -> Figures:
    """Return the figures of the methods by problem and pattern; a diverged run is infinite."""
    found: Figures = {}
    for (problem, pattern, method), result in load_results(board.cells(), file).items():
        figures = np.array([np.inf if one is None else one for one in result.figures])
        found.setdefault((problem, pattern), {})[method] = figures
    return found


def best_rival(
    board: Leaderboard, pattern: str, figures: Mapping[str, Numbers], wrapped: bool = False
) -> str | None:
    """Return the hand-tuned method without a model per client whose mean figure is least.

    None if one that can be used was not run. `wrapped`: also of those with Auto's output.
    """
    rivals = [*rival_names(board, pattern), *(WRAPPED if wrapped else ())]
    if not all(name in figures for name in rivals):
        return None
    return min(rivals, key=lambda name: figures[name].mean())


def rival_names(board: Leaderboard, pattern: str) -> list[str]:
    """Return the hand-tuned methods without a model per client that can be used."""
    return [
        name
        for name, method in board.methods.items()
        if method.memory != "Nd" and name not in (AUTO, *WRAPPED) and not board.lacks(pattern, name)
    ]


def interval(gaps: Numbers) -> tuple[float, float]:
    """Return the mean and half the length of its 95 % interval by Student's t."""
    return float(gaps.mean()), float(t_margin(gaps))


@dataclass(frozen=True)
class Judged:
    """A cell of Auto beside the best method by hand.

    Args:
        pattern: of participation.
        rival: the best by hand.
        best: its mean value.
        auto: Auto's mean value.
        gap: Auto − 1.05 times the best, and half its interval.
        loss: Auto − FedAvg, and half its interval.
    """

    pattern: str
    rival: str
    best: float
    auto: float
    gap: tuple[float, float]
    loss: tuple[float, float]

    @property
    def ratio(self) -> float:
        return self.auto / self.best


def judge(
    board: Leaderboard, figures: Figures, problem: str, wrapped: bool = False
) -> list[Judged]:
    """Return the cells of a problem in which Auto and all rivals were run, see `best_rival`."""
    found = []
    for pattern in board.patterns:
        own = figures.get((problem, pattern), {})
        rival = best_rival(board, pattern, own, wrapped) if AUTO in own else None
        if rival is not None:
            auto, best = own[AUTO], own[rival]
            gaps = interval(auto - 1.05 * best), interval(auto - own[REFERENCE])
            found.append(Judged(pattern, rival, float(best.mean()), float(auto.mean()), *gaps))
    return found


def goal_table(cells: Mapping[str, list[Judged]]) -> list[str]:
    """Return the counts of each problem, and the cells beyond 5 %."""
    counts = [
        "| problem | within 5 % | within 25 % | worst ratio | geometric mean | "
        "intervals say within 5 % | beyond | undecided | worse than FedAvg |",
        "| --- |" + " --- |" * 8,
    ]
    misses = [
        "| problem | pattern | best by hand | its value | Auto | ratio | Auto − 1.05 best |",
        "| --- |" + " --- |" * 6,
    ]
    for problem, judged in cells.items():
        ratios = np.array([one.ratio for one in judged])
        within = sum(gap < -margin for gap, margin in (one.gap for one in judged))
        beyond = sum(gap > margin for gap, margin in (one.gap for one in judged))
        worse = sum(loss > margin for loss, margin in (one.loss for one in judged))
        counts.append(
            f"| {problem} | {(ratios <= 1.05).sum()} of {len(ratios)} | {(ratios <= 1.25).sum()} | "
            f"{ratios.max():.2f} | {_geometric_mean(ratios):.2f} | {within} | {beyond} | "
            f"{len(ratios) - within - beyond} | {worse} |"
        )
        misses += [
            f"| {problem} | {one.pattern} | {one.rival} | {one.best:.3g} | {one.auto:.3g} | "
            f"{one.ratio:.2f} | {one.gap[0]:.2g} ± {one.gap[1]:.2g} |"
            for one in judged
            if one.ratio > 1.05
        ]
    return [*counts, "", "The cells beyond 5 %:", "", *misses]


def wrapped_table(board: Leaderboard, figures: Figures) -> list[str]:
    """Return Auto beside methods that have its output, and its scaling, too."""
    lines = [
        "| problem | within 5 % | within 25 % | worst ratio | geometric mean | best by hand | "
        "Auto / wrapped FedAvg | worse than wrapped FedAvg |",
        "| --- |" + " --- |" * 7,
    ]
    for problem in board.problems:
        if not (judged := judge(board, figures, problem, wrapped=True)):
            continue
        ratios = np.array([one.ratio for one in judged])
        pairs = [figures[problem, one.pattern] for one in judged]
        against = [own[AUTO].mean() / own[WRAPPED[0]].mean() for own in pairs]
        gaps = [interval(own[AUTO] - own[WRAPPED[0]]) for own in pairs]
        best = Counter(one.rival for one in judged).most_common(3)
        lines.append(
            f"| {problem} | {(ratios <= 1.05).sum()} of {len(ratios)} | {(ratios <= 1.25).sum()} | "
            f"{ratios.max():.2f} | {_geometric_mean(ratios):.2f} | "
            f"{', '.join(f'{name} ({count})' for name, count in best)} | "
            f"{_geometric_mean(against):.2f} | {sum(gap > margin for gap, margin in gaps)} |"
        )
    return lines


def count_lines(board: Leaderboard, figures: Figures) -> list[str]:
    """Return how much the number of cells within 5 % depends on the seeds."""
    draws = np.array(list(product(range(len(board.seeds)), repeat=len(board.seeds))))
    within = np.zeros(len(draws), dtype=int)
    cells = [cell for cell in figures if cell[1] != FULL]
    for cell in cells:
        own = figures[cell]
        rivals = np.array([own[name] for name in rival_names(board, cell[1])])
        best = rivals[:, draws].mean(axis=2).min(axis=0)
        within += own[AUTO][draws].mean(axis=1) <= 1.05 * best
    low, high = np.quantile(within, [0.025, 0.975])
    return [
        f"If the seeds are resampled and the best by hand is chosen again, Auto is within 5 % in "
        f"{low:.0f} to {high:.0f} of {len(cells)} cells (95 % of the samples), on average in "
        f"{within.mean():.1f}: noise favours the best of many methods.",
    ]


def control_table(board: Leaderboard, figures: Figures) -> list[str]:
    """Return a line of counts for each problem on Auto with control variates.

    The rivals are the methods that a deployment can run, with or without a model per client.
    """
    lines = [
        "| problem | with / without (geometric mean) | better / worse by the intervals | "
        "with / best by hand | within 5 % of it | worst | worse than FedAvg |",
        "| --- |" + " --- |" * 6,
    ]
    for problem in board.problems:
        ratios, changes, better, worse, losses = [], [], 0, 0, 0
        for pattern in board.patterns:
            own = figures.get((problem, pattern), {})
            if CONTROLLED not in own:
                continue
            plain, mine = own[AUTO], own[CONTROLLED]
            best = min(
                values.mean()
                for name, values in own.items()
                if name not in (AUTO, CONTROLLED, *WRAPPED)
                and not _only_simulated(board, pattern, name)
            )
            gap, margin = interval(mine - plain)
            loss, loss_margin = interval(mine - own[REFERENCE])
            ratios.append(mine.mean() / best)
            changes.append(mine.mean() / plain.mean())
            better += gap < -margin
            worse += gap > margin
            losses += loss > loss_margin
        lines.append(
            f"| {problem} | {_geometric_mean(changes):.2f} | {better} / {worse} | "
            f"{_geometric_mean(ratios):.2f} | {(np.array(ratios) <= 1.05).sum()} | "
            f"{max(ratios):.2f} | {losses} |"
        )
    return lines


def _geometric_mean(values: Sequence[float] | Numbers) -> float:
    return float(np.exp(np.log(values).mean()))


def _only_simulated(board: Leaderboard, pattern: str, name: str) -> bool:
    """Return whether a method runs in simulations only."""
    cell = Cell(board, "quadratic", pattern, name)
    algorithm = Experiment.from_dict(cell.experiment(0.1, cell.tuned[1][1], seed=0)).algorithm
    return bool(algorithm.traits.simulation_only)


def variant_table(
    board: Leaderboard, known: Figures, held_out: Leaderboard, unseen: Figures
) -> list[str]:
    """Return the lines of the variants.

    Args:
        board: the leaderboard.
        known: the figures of its methods.
        held_out: the leaderboard with the patterns held out at first.
        unseen: the figures of its methods under these patterns.
    """
    lines = [
        "| variant | geometric mean | within 5 % | within 25 % | worst | worse than FedAvg | "
        "held out: geometric mean | within 5 % | within 25 % | worst |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    for name in SHOWN:
        cells = []
        for patterns, figures in (
            (list(board.patterns), known),
            ([one for one in held_out.patterns if one not in board.patterns], unseen),
        ):
            mine = {pattern: np.array(record[pattern][name]) for pattern in patterns}
            own = {pattern: figures["quadratic", pattern] for pattern in patterns}
            summary, worse = _summary(held_out, mine, own)
            cells += summary
            if figures is known:
                cells.append(str(worse))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def image_table(board: Leaderboard, known: Figures) -> list[str]:
    """Return the lines of the variants on images."""
    found = load_figures(load_leaderboard([ON_IMAGES]), RESULTS / "auto-variants.parquet")
    lines = [
        "| problem | variant | geometric mean | within 5 % | within 25 % | worst | "
        "worse than FedAvg |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    names = {
        AUTO: "Auto",
        "plain": "no preconditioning",
        "long-steps": "a step at most 2 mean updates",
        "linear-mean": "output: weights t",
    }
    for problem in ("digits", "fashion"):
        for method, name in names.items():
            own = {pattern: known[problem, pattern] for pattern in board.patterns}
            trained = {p: (own[p] if method == AUTO else found[problem, p])[method] for p in own}
            summary, worse = _summary(board, trained, own)
            lines.append(f"| {problem} | {name} | {' | '.join(summary)} | {worse} |")
    return lines


def _summary(
    board: Leaderboard, variant: Mapping[str, Numbers], figures: Mapping[str, dict[str, Numbers]]
) -> tuple[list[str], int]:
    """Compare a variant with the best method by hand and with FedAvg.

    Args:
        board: the leaderboard.
        variant: its figures by pattern.
        figures: those of the methods by pattern.

    Returns:
        The geometric mean of the ratios to the best, how many are within 5 % and 25 %, and the
        worst; and in how many patterns the variant is worse than FedAvg by more than the error.
    """
    ratios, worse = [], 0
    for pattern, mine in variant.items():
        own = figures[pattern]
        rival = best_rival(board, pattern, own)
        assert rival is not None
        ratios.append(mine.mean() / own[rival].mean())
        gap, margin = interval(mine - own[REFERENCE])
        worse += gap > margin
    values = np.array(ratios)
    cells = [
        f"{_geometric_mean(values):.2f}",
        f"{(values <= 1.05).sum()} of {len(values)}",
        f"{(values <= 1.25).sum()}",
        f"{values.max():.2f}",
    ]
    return cells, worse


def alike_table() -> list[str]:
    """Return the lines on the case that all clients hold the same data."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    lines = ["| pattern | " + " | ".join(ALIKE) + " |", "| --- |" + " --- |" * len(ALIKE)]
    for pattern in ("uniform", "independent"):
        found = record[f"{pattern}, clients alike"]
        texts = ("{:.3g} ± {:.2g}".format(*interval(np.array(found[one]))) for one in ALIKE)
        lines.append(f"| {pattern} | " + " | ".join(texts) + " |")
    return lines


def render(page: str) -> str:
    """Return the page with the tables of the records."""
    board, held_out = load_leaderboard(), load_leaderboard([HELD_OUT])
    known = load_figures(board, RESULTS / "leaderboard.parquet")
    unseen = load_figures(held_out, RESULTS / "held-out.parquet")
    cells = {problem: judge(board, known, problem) for problem in board.problems}
    for problem in ("quadratic", "digits"):
        cells[f"{problem}, held out"] = judge(held_out, unseen, problem)
    parts = {
        "goal": goal_table(cells),
        "variants": variant_table(board, known, held_out, unseen),
        "alike": alike_table(),
        "images": image_table(board, known),
        "control variates": control_table(board, known),
        "seeds": count_lines(board, known),
        "wrapped": wrapped_table(board, known),
    }
    for name, lines in parts.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, rest = page.split(begin)
        page = f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{rest.split(end)[1]}"
    return page


def main() -> None:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    variants = commands.add_parser("variants", help="train variants and write the record")
    variants.add_argument("names", nargs="*", metavar="NAME", help="only these; default: all")
    commands.add_parser("write", help="put the tables into docs/auto-evidence.md")
    arguments = parser.parse_args()
    if arguments.command == "variants":
        run_variants(arguments.names)
    else:
        PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
