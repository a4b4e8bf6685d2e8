"""Figures of the reference: each method with three clients, and rasters of the processes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import polars as pl
import torch
from matplotlib.figure import Figure

from fedtide.algorithms import (
    ALGORITHMS,
    Algorithm,
    ClientUpdates,
    Cohort,
    FedAvg,
    Instructions,
    RoundDriver,
)
from fedtide.participation import PROCESSES
from fedtide.plotting.saving import figure_svg
from fedtide.plotting.style import COLOURS, GREY, STYLE, Floats
from fedtide.population import Population

RATES = np.array([0.9, 0.3, 0.1])
OPTIMA = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
ROUNDS, LR, STEPS = 250, 0.03, 2

REMEMBERS = {
    "amplified-scaffold",
    "fedbuff",
    "fedlaavg",
    "fedpbc",
    "fedstale",
    "fedvarp",
    "focus",
    "mifa",
    "scaffold",
    "switch",
}
"""Methods that add stored updates or gradients, so the weights of arriving updates mean little."""

METHODS: dict[str, dict[str, Any]] = {
    "known-rates": {"rates": RATES},
    "amplified": {"period": 20, "factor": 1.5},
    "amplified-scaffold": {"period": 20, "factor": 1.5},
    "wait-for-all": {"period": 20},
    "weighted-fedavg": {"rates": RATES},
    "fedprox": {"mu": 0.1},
    "switch": {"first": FedAvg(), "second": ALGORITHMS["fedlaavg"](), "at": 100},
    "averaged": {"inner": FedAvg()},
    "clipped": {"bound": 0.02, "inner": FedAvg()},
    "fedadam": {"server_lr": 0.02},
    "fedyogi": {"server_lr": 0.02},
}
"""The arguments with which a method is drawn; others are drawn with their defaults."""

PARTICIPATION: dict[str, dict[str, Any]] = {
    "table": {"weights": np.tril(np.ones((30, 30)))},
    "bernoulli": {"rates": np.linspace(0.9, 0.05, 30)},
    "markov": {"rates": np.linspace(0.9, 0.05, 30)},
    "cyclic": {"rates": np.linspace(0.9, 0.05, 30), "period": 50},
    "group-cycle": {"groups": 3, "rounds": 20},
    "fluctuating": {"rates": np.linspace(0.9, 0.05, 30), "period": 40},
    "drifting": {"rates": np.linspace(0.9, 0.05, 30), "final": 0.5, "rounds": 100},
    "day-night": {"rates": 0.1, "night": 0.8, "spread": 0.5},
    "churn": {"rates": 0.5, "arrivals": 60, "stay": 40},
    "sessions": {"rates": np.linspace(0.9, 0.05, 30)},
    "uniform": {"size": 6},
    "permutation": {"size": 6},
    "weighted": {"size": 6, "weights": np.linspace(1, 0.05, 30)},
    "subset-law": {
        "subsets": [list(range(20)), list(range(15, 30)), []],
        "probabilities": [0.6, 0.3, 0.1],
    },
    "trace": {"round_seconds": 60.0, "repeat": 3600},
    "replay": {},
}
"""The arguments with which a process is drawn, for 30 clients."""


def inline_svg(figure: Figure, title: str, prefix: str) -> str:
    """Return a figure for a page, whose black and dark grey become the colour of the text.

    The search does not see it: its words are numbers at axes and the metadata of Matplotlib.
    """
    svg = figure_svg(figure, title, prefix)
    svg = re.sub("#(?:000000|333333|555555)", "currentColor", svg)
    svg = svg.replace("#ffffff", "none").replace("<svg ", '<svg fill="currentColor" ', 1)
    return f'<figure class="drawn" data-search-exclude>{" ".join(svg.split())}</figure>'


def draw_method(name: str) -> str:
    """Return what a method makes of three clients: their shares, and the path of the model."""
    _, weights, path = follow(ALGORITHMS[name](**METHODS.get(name, {})))
    total = weights.cumsum(0)
    shares = total / np.maximum(total.sum(1, keepdims=True), 1e-12)
    with mpl.rc_context(STYLE):
        figure = _new_figure(2.7)
        *rest, right = figure.subplots(1, 1 if name in REMEMBERS else 2, squeeze=False)[0]
        for left in rest:
            for n, rate in enumerate(RATES):
                left.plot(shares[:, n], color=COLOURS[n], label=f"in {rate:.0%} of the rounds")
            left.axhline(1 / 3, color=GREY, ls="--", lw=1)
            left.set(ylim=(0, 1), xlabel="round", title="share of all weights so far")
            left.legend(frameon=False)
        right.plot(path, color=COLOURS[3])
        optima = OPTIMA[:, 0].numpy()
        levels = (
            (optima.mean(), "--", "best for all"),
            (optima @ RATES / RATES.sum(), ":", "best for who comes"),
        )
        for level, line, label in levels:
            right.axhline(level, color=GREY, ls=line, lw=1)
            right.annotate(label, (ROUNDS, level), ha="right", va="bottom")
        right.set(ylim=(-0.1, 1.7), xlabel="round", title="the model")
    return inline_svg(figure, f"Weights and model of {name}", name)


def draw_process(name: str, folder: Path) -> str:
    """Return the raster of a process, of 30 clients and 120 rounds; `folder` gets its records."""
    arguments = PARTICIPATION.get(name, {}) | _recorded(name, folder)
    stream = PROCESSES[name](**arguments).begin(Population(clients=30), seed=1)
    present = np.zeros((30, 120))
    for t in range(120):
        present[stream.round(t).clients, t] = 1
    with mpl.rc_context(STYLE):
        figure = _new_figure(2.6)
        panel = figure.subplots()
        clients, rounds = np.nonzero(present)
        panel.scatter(rounds, clients, s=6, marker="s", color=COLOURS[0], linewidths=0)
        panel.set(xlim=(-1, 120), ylim=(30, -1), xlabel="round", ylabel="client")
    return inline_svg(figure, f"Who is available under {name}", name)


def _new_figure(height: float) -> Figure:
    """Return an empty figure with fixed margins, which take no time to find."""
    figure = Figure(figsize=(9, height))
    figure.subplots_adjust(left=0.06, right=0.99, bottom=0.19, top=0.89, wspace=0.12)
    return figure


def _recorded(name: str, folder: Path) -> dict[str, Any]:
    """Return the records of the processes that read some: clients that come later and later."""
    if name == "trace":
        minutes = [{"client": n, "start": 60 * n, "end": 60 * n + 1500} for n in range(30)]
        pl.DataFrame(minutes).write_csv(folder / "trace.csv")
        return {"file": folder / "trace.csv"}
    if name == "replay":
        rows = [(t, n) for t in range(120) for n in range(30) if (t // 5 + n) % 7 < 2]
        return {"log": pl.DataFrame(rows, schema=["round", "client"], orient="row")}
    return {}


def follow(
    algorithm: Algorithm[Any], optima: torch.Tensor = OPTIMA, rounds: int = ROUNDS
) -> tuple[Floats, Floats, Floats]:
    """Return who comes, the weights of the updates, (T, 3), and the model, (T, d), by round.

    Client n has F_n(x) = ½ ‖x - optimum_n‖², so a local step adds γ (optimum_n - y) to y.
    """
    population = Population(clients=3, rates=RATES, samples=np.full(3, 100))
    driver = RoundDriver(algorithm, torch.zeros_like(optima[0]), population)
    presence = np.random.default_rng(0).random((rounds, 3)) < RATES

    def train(instructions: Instructions, cohort: Cohort) -> ClientUpdates:
        own = optima[cohort.clients]
        start = instructions.model.expand(own.shape)
        model = start.clone()
        for _ in range(STEPS):
            gradient = (start if instructions.gradients_at_start else model) - own
            if instructions.correction is not None:
                gradient = gradient + instructions.correction
            model = model - LR * (gradient + instructions.mu * (model - start))
        steps, samples = (torch.full((len(cohort),), number) for number in (STEPS, 100))
        return ClientUpdates(
            cohort.clients, cohort.weights, model - start, LR, steps, samples, start - own
        )

    weights, path = np.zeros((rounds, 3)), np.zeros((rounds, optima.shape[1]))
    for t in range(rounds):
        present = torch.from_numpy(np.flatnonzero(presence[t]))
        info = driver.run(Cohort.uniform(present), LR, train)
        np.add.at(weights[t], info.clients.numpy(), info.weights.double().numpy())
        path[t] = driver.output.numpy()
    return presence, weights, path
