"""The tables of docs/methods.md: complete, and the stored numbers as counted."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedtide import algorithms as a
from fedtide.algorithms.serialization import to_tensors

from .driver import Quadratics, drive

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"
N, D, SEEN = 7, 5, 3

METHODS = {
    "fedavg": a.FedAvg(),
    "known-rates": a.KnownRates(rates=[0.5] * N),
    "fedau": a.FedAU(),
    "f3ast": a.F3AST(),
    "auto": a.Auto(),
    "fedvarp": a.FedVARP(),
    "fedstale": a.FedStale(),
    "mifa": a.MIFA(),
    "fedlaavg": a.FedLaAvg(),
    "focus": a.FOCUS(),
    "fedawe": a.FedAWE(),
    "fedpbc": a.FedPBC(),
    "fedprox": a.FedProx(mu=0.1),
    "scaffold": a.Scaffold(),
    "amplified-scaffold": a.AmplifiedScaffold(period=4, factor=1.5),
    "amplified": a.Amplified(period=4, factor=1.5),
    "fedadam": a.FedAdam(),
    "fedyogi": a.FedYogi(),
    "fedavgm": a.FedAvgM(),
    "fedbuff": a.FedBuff(),
    "wait-for-all": a.WaitForAll(period=4),
    "weighted-fedavg": a.WeightedFedAvg(rates=[0.5] * N),
    "switch": a.Switch(first=a.FedAvg(), second=a.FedAvg(), at=1),
    "averaged": a.Averaged(),
    "scaled": a.Scaled(),
    "clipped": a.Clipped(bound=1.0),
    "trimmed-mean": a.TrimmedMean(),
    "median": a.Median(),
    "central-sgd": a.CentralSGD(),
}


def rows(heading):
    """The cells of the table under a heading by method; a row may be of several."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {name.strip("`| "): cell[1:] for cell in cells for name in cell[0].split(", ")}


def value(formula):
    """What a formula such as `2d + N` comes to; `inner` is FedAvg's."""
    formula = re.sub(r"(\d)([a-zN])", r"\1*\2", formula.strip("`").replace(" each", ""))
    names = {"d": D, "N": N, "inner": 2 * D, "first": 2 * D, "second": 2 * D}
    return eval(formula, {"__builtins__": {}}, names)


@pytest.mark.parametrize("heading", ["Update rules", "State and communication", "Guarantees"])
def test_every_method_has_a_row_in_every_table(heading):
    assert set(rows(heading)) == set(a.ALGORITHMS)


def numbers_in(method):
    """Return how many floats and integers are stored after two rounds of three clients."""
    problem = Quadratics.random(np.random.default_rng(0), N, D)
    came = np.zeros((2, N))
    came[:, :SEEN] = 1 / SEEN
    state = drive(method, problem, came).state
    arrays = [tensor for tensor in to_tensors(state).values() if tensor.ndim]
    floats = sum(tensor.numel() for tensor in arrays if tensor.is_floating_point())
    return floats, sum(tensor.numel() for tensor in arrays) - floats


@pytest.mark.parametrize("name", a.ALGORITHMS)
def test_the_stored_numbers_are_those_that_the_page_says(name):
    server, client, integers = rows("State and communication")[name][:3]
    expected = value(server) + SEEN * value(client), value(integers)
    assert numbers_in(METHODS[name]) == expected
    assert type(METHODS[name]) is a.ALGORITHMS[name]
