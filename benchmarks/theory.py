"""The papers' bounds beside measured runs.

    python benchmarks/theory.py

It writes docs/images/theory.png and the table of docs/theory.md, in some minutes. Clients have
F_n(x) = ½ ‖x − e_n‖² in two dimensions, with e_n drawn once; every run takes exact gradients, and
is repeated with three seeds for who takes part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import fedtide as ft
from fedtide import theory
from fedtide.plotting.saving import save_figure
from fedtide.plotting.style import COLOURS, new_figure

Numbers = NDArray[np.float64]

DOCS = Path(__file__).parent.parent / "docs"
BEGIN, END = "<!-- bounds: begin -->", "<!-- bounds: end -->"
N, SEEDS = 20, range(3)
E = np.random.default_rng(0).normal(size=(N, 2)) + np.where(np.arange(N) < N // 2, 1, -1)[:, None]
START = np.array([4.0, -3.0])
MEAN = E.mean(axis=0)
GAP = float(((START - MEAN) ** 2).sum() / 2)
DIVERGENCE_SQ = float(((E - MEAN) ** 2).sum(axis=1).max())
RATES = np.linspace(0.05, 0.6, N)
GROUPS = ft.participation.GroupCycle(groups=2, rounds=5)
"""Halves of the clients in turn, five rounds each: the clients of a half are alike."""


def run(
    algorithm: Any,
    participation: Any,
    seed: int,
    rounds: int,
    lr: float,
    steps: int = 1,
    **more: Any,
) -> Any:
    """Return the result of a run on the quadratics, with its iterates."""
    return ft.simulate(
        problem=ft.problems.Quadratic(np.tile(np.eye(2), (N, 1, 1)), E, START),
        participation=participation,
        algorithm=algorithm,
        local=ft.LocalTraining(steps=steps, lr=lr, projection=more.pop("projection", None)),
        rounds=rounds,
        seed=seed,
        dtype="float64",
        record_iterates=True,
        evaluation={"every": 0},
        trainer="reference",
        progress=False,
        **more,
    )


def squares(iterates: Any, center: Numbers = MEAN) -> Numbers:
    """Return ‖∇f(x_t)‖² for f(x) = ½ ‖x − center‖² + constant."""
    return np.asarray(((np.asarray(iterates) - center) ** 2).sum(axis=1))


def amplified(period: int) -> list[tuple[float, float]]:
    """Paper 000, Theorem 3.1 at Corollary 3.2's rates: min_t ‖∇f‖² against (8), over P."""
    rounds, steps, found = 1000, 2, []
    rates = theory.generalized_fedavg_learning_rates(1.0, 0.0, GAP, steps, period, rounds, 1.0)
    for seed in SEEDS:
        algorithm = ft.algorithms.Amplified(period, rates.server, ft.algorithms.FedAvg())
        result = run(algorithm, GROUPS, seed, rounds, rates.local, steps)
        q = np.zeros((rounds, N))
        log = result.participation
        q[log["round"], log["client"]] = 1
        q /= q.sum(axis=1, keepdims=True)
        c = theory.divergence_constants(-E, q, period)
        bound = theory.generalized_fedavg_bound(
            GAP, 1.0, 0.0, rates.local, rates.server, steps, period, rounds,
            c.weight_norm_sq, c.within_sq, c.between_sq, c.irregularity_sq,
        )  # fmt: skip
        found.append((float(squares(result.iterates)[:-1].min()), bound))
    return found


def weights(cutoff: int) -> list[tuple[float, float]]:
    """Paper 001, Theorem 3: the error of FedAU's weights over K, for clients at rate 0.02."""
    rate, rounds, clients = 0.02, 2000, 200
    found = []
    for seed in SEEDS:
        there = np.random.default_rng(seed).random((rounds, clients)) < rate
        omega, ended, waited = np.ones(clients), np.zeros(clients), np.zeros(clients)
        error = 0.0
        for row in there:
            error += ((rate * omega - 1) ** 2).mean() / rounds
            waited += 1
            closes = row | (waited == cutoff)
            omega = np.where(
                closes, np.where(ended > 0, (omega * ended + waited) / (ended + 1), waited), omega
            )
            ended, waited = ended + closes, np.where(closes, 0, waited)
        found.append((float(error), theory.weight_error_bound([rate], cutoff, rounds)))
    return found


def scaffold(rounds: int) -> list[tuple[float, float]]:
    """Paper 002, Theorem 1: ‖∇f‖² at the starts of windows over R, all clients in each window."""
    period, steps = 10, 2
    limit = theory.amplified_scaffold_learning_rate_limit(1.0, steps, period, 1.0)
    bound = theory.amplified_scaffold_bound(
        GAP, 1.0, 0.0, limit.local, limit.server, steps, period, rounds, 1 / 10, 1.0
    )
    algorithm = ft.algorithms.AmplifiedScaffold(period=period, factor=limit.server)
    result = run(algorithm, GROUPS, 0, rounds, limit.local, steps)
    return [(float(squares(result.iterates)[:-1:period].mean()), bound)]


def latest(rounds: int) -> list[tuple[float, float]]:
    """Paper 003: the mean of ‖∇f‖² over the rounds with FedLaAvg, 4 of 20 clients, over T."""
    cohort = 4
    lr = theory.fedlaavg_learning_rate(1.0, N, cohort / N, 1, rounds)
    absence = theory.fedlaavg_absence(N, cohort, 1)
    found = []
    for seed in SEEDS:
        selection = ft.participation.LongestAbsent(cohort, ties="id")
        algorithm = ft.algorithms.FedLaAvg()
        result = run(algorithm, ft.participation.Full(), seed, rounds, lr, selection=selection)
        iterates = np.asarray(result.iterates)
        largest = max(float(((x - E) ** 2).sum(axis=1).max()) for x in iterates)
        bound = theory.fedlaavg_bound(GAP, 1.0, largest, lr, rounds, absence)
        found.append((float(squares(iterates)[:-1].mean()), bound))
    return found


def agnostic(rounds: int) -> list[tuple[float, float]]:
    """Paper 004, (9) at the best η: the mean iterate's excess over T, on a ball of radius 6."""
    steps, radius = 4, 6.0
    p = theory.bernoulli_agnostic_weights(RATES)
    p /= p.sum()
    center = p @ E
    lipschitz = float(np.linalg.norm(E, axis=1).max() + radius)
    distance = float(np.linalg.norm(START - center))
    lr = theory.agnostic_best_learning_rate(distance, 0, lipschitz, lipschitz, steps, rounds)
    bound = theory.agnostic_bound(distance, 0, lipschitz, lipschitz, lr, steps, rounds)
    found = []
    for seed in SEEDS:
        result = run(
            ft.algorithms.FedAvg(), ft.participation.Bernoulli(RATES), seed, rounds, lr, steps,
            projection=ft.Ball(radius),
        )  # fmt: skip
        mean = np.asarray(result.iterates)[1:].mean(axis=0)
        found.append((float(((mean - center) ** 2).sum() / 2), bound))
    return found


Panel = tuple[str, str, str, Callable[[int], list[tuple[float, float]]], Sequence[int]]
TIMES = (100, 300, 1000, 3000)
PANELS: list[Panel] = [
    ("000: amplified FedAvg", "min ‖∇f‖²", "P", amplified, (1, 2, 5, 10, 20, 50, 100)),
    ("001: FedAU's weights", "error of p ω", "K", weights, (1, 3, 10, 30, 100, 300, 1000)),
    ("002: Amplified SCAFFOLD", "mean ‖∇f‖²", "R", scaffold, TIMES),
    ("003: FedLaAvg", "mean ‖∇f‖²", "T", latest, TIMES),
    ("004: agnostic FedAvg", "excess of f", "T", agnostic, TIMES),
]


def main() -> None:
    torch.set_num_threads(1)
    figure, panels = new_figure(2.5, len(PANELS), width=13, width_ratios=[1] * len(PANELS))
    lines = ["| paper, measured | over | measured | bound |", "|---|---|---|---|"]
    for panel, (title, measure, over, measured, values) in zip(panels, PANELS, strict=True):
        found = [np.array(measured(value)) for value in values]
        truth = np.array([one[:, 0].mean() for one in found])
        bound = np.array([one[:, 1].mean() for one in found])
        panel.plot(values, bound, "--", color=COLOURS[4], label="bound")
        panel.plot(values, truth, "o-", ms=4, color=COLOURS[0], label="measured")
        for value, one in zip(values, found, strict=True):
            panel.plot([value] * 2, [one[:, 0].min(), one[:, 0].max()], color=COLOURS[0])
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_title(title)
        panel.set_xlabel(over)
        panel.set_ylabel(measure)
        for value, a, b in list(zip(values, truth, bound, strict=True))[::2]:
            lines.append(f"| {title}, {measure} | {over} = {value:,} | {a:.2g} | {b:.2g} |")
    panels[0].legend()
    save_figure(figure, DOCS / "images" / "theory.png")
    page = DOCS / "theory.md"
    head, rest = page.read_text(encoding="utf-8").split(BEGIN)
    table = "\n".join(lines)
    page.write_text(f"{head}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
