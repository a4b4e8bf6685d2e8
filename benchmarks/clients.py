"""Accuracy of the audit's statements on clients: who left, who was selected, who was never seen.

    python benchmarks/clients.py churn [--logs 1000] [--rounds 500] [--only Markov] [--record]
    python benchmarks/clients.py selection [--logs 1000] [--only Markov] [--record]
    python benchmarks/clients.py unseen [--logs 1000]

`churn` draws stationary logs of families of `participation_families` and prints the share of logs
in which any client is called gone or late, and the share of the clients found if a tenth of them
leave half-way. `selection` lets a server take six of the available clients, half of which have
twice the weight in the draw, and prints how often the interval of the change in influence covers
that of the mean over 60 such selections, and 0 if all clients have the same weight. With
`--record`, both also write the shares into records/audit.json. `unseen` prints how often the
interval of the number of unseen clients covers it, and how often its lower end holds.
"""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from audit_record import TABLES, Row, Share, report
from fedtide.auditing import ParticipationLog
from fedtide.auditing.statistics.churn import Churn, find_churn
from fedtide.auditing.statistics.stages import measure_shift
from fedtide.auditing.statistics.unseen import estimate_unseen
from participation_families import FAMILIES

Present = NDArray[np.bool_]
Numbers = NDArray[np.float64]

CHURN_FAMILIES = (
    "Bernoulli, uneven rates",
    "Bernoulli, all 0.2",
    "uniform, a tenth a round",
    "Markov, correlation 0.75, all 0.2",
    "Markov 0.9, server takes 5 at random",
    "Weibull(0.6) sessions",
    "Pareto(1.5) sessions",
    "log-normal sessions",
    "a tenth in sessions of 100 rounds",
    "bad rounds common to all",
    "a fortieth a round, pause of 24 rounds",
    "weeks of phones, redrawn",
    "cycles of 100 rounds",
)
_AVAILABILITIES = (
    "Bernoulli, uneven rates",
    "Markov, correlation up to 0.95, uneven rates",
    "Weibull(0.6) sessions",
    "weeks of phones, redrawn",
)
SELECTIONS = {name: (name, 1) for name in _AVAILABILITIES} | {
    f"{name}; kept for 10 rounds": (name, 10) for name in _AVAILABILITIES
}
"""By row: how clients become available, and for how many rounds the server keeps its order."""
_CLIENTS = 100
_AVAILABLE, _SELECTED, _ROUNDS, _AGAIN = 60, 6, 400, 60
"""Of the logs of selections: clients, clients a round, rounds, and selections behind the truth."""


def build_log(present: Present, known: bool = False) -> ParticipationLog:
    """Return the log of the clients that took part, or if all are `known`, of all clients."""
    rounds, clients = np.nonzero(present)
    names, clients = np.unique(clients, return_inverse=True)
    if known:
        names, clients = np.arange(present.shape[1]), names[clients]
    return ParticipationLog.from_entries(
        pl.Series(names), rounds, clients.astype(np.int32), (0, len(present))
    )


def detect_churn(present: Present) -> Churn:
    """Return the churn of a log, without the intervals of the rates."""
    log = build_log(present)
    ones = np.ones(log.size)
    rates: Any = SimpleNamespace(autocorrelation_time=ones, freedom=ones, intervals=False)
    return find_churn(log, rates)


def churn(logs: int, rounds: int, only: str, record: bool) -> None:
    """Print, and record, how often stationary logs have churn, and how much of it is found."""
    print(TABLES["churn"].head())
    leavers = np.arange(0, _CLIENTS, 10)
    for name in CHURN_FAMILIES:
        if only not in name:
            continue
        family, random = FAMILIES[name](_CLIENTS), np.random.default_rng(0)
        false, found = [], []
        for _ in range(logs):
            present = family.draw(random, 1, rounds)[0]
            result = detect_churn(present)
            false.append(len(result.gone) + len(result.late) > 0)
            present[len(present) // 2 :, leavers] = False
            seen = np.flatnonzero(present.any(axis=0))
            found.append(np.isin(seen[detect_churn(present).gone], leavers).sum() / len(leavers))
        report("churn", name, {"false": Share.count(false), "found": Share.average(found)}, record)


def selection(logs: int, only: str, record: bool) -> None:
    """Print, and record, how often intervals cover the change in influence by a selection."""
    print(TABLES["selection"].head())
    favourites = np.where(np.arange(_AVAILABLE) % 2, 2.0, 1.0)
    for name, (availability, kept) in SELECTIONS.items():
        if only not in name:
            continue
        family, random = FAMILIES[availability](_AVAILABLE), np.random.default_rng(0)
        covered, right = [], []
        for _ in range(logs):
            available = family.draw(random, 1, _ROUNDS)[0]
            before = build_log(available, known=True)
            draws = [select(random, available, favourites, kept) for _ in range(1 + _AGAIN)]
            mean = np.mean([influence(used) for used in draws[1:]], axis=0)
            truth = float(np.abs(mean - influence(available)).sum())
            low, high = measure_shift(before, build_log(draws[0], known=True)).distance.interval
            covered.append(low <= truth <= high)
            uniform = build_log(select(random, available, np.ones(_AVAILABLE), kept), known=True)
            right.append(measure_shift(before, uniform).distance.interval[0] <= 0)
        row: Row = {"favourites": Share.count(covered), "uniform": Share.count(right)}
        report("selection", name, row, record)


def select(random: np.random.Generator, available: Present, weights: Numbers, kept: int) -> Present:
    """Return the clients that are taken, one after another with probabilities ∝ weights.

    The order is drawn afresh after so many rounds as it is kept; meanwhile clients that have left
    are replaced by the next ones.
    """
    rounds, clients = available.shape
    order = random.exponential(size=(-(-rounds // kept), clients)) / weights
    waits = np.where(available, order.repeat(kept, axis=0)[:rounds], np.inf)
    last = np.partition(waits, _SELECTED - 1, axis=1)[:, _SELECTED - 1 : _SELECTED]
    return np.asarray(available & (waits <= last))


def influence(present: Present) -> Numbers:
    """Return the mean of 1[n in S_t] / |S_t| over nonempty rounds, (N,)."""
    sizes = present.sum(axis=1, keepdims=True)
    return np.asarray((present / np.maximum(sizes, 1))[sizes[:, 0] > 0].mean(axis=0))


def unseen(logs: int) -> None:
    """Print the coverage of the number of clients never seen."""
    random = np.random.default_rng(0)
    print("rates".ljust(36), "unseen", "interval covers", "lower end holds", sep="  ")
    for name, rates, rounds in (
        ("1000 clients, all 0.02, 50 rounds", np.full(1000, 0.02), 50),
        ("300 clients, all 0.01, 300 rounds", np.full(300, 0.01), 300),
        ("50 clients, all 0.01, 300 rounds", np.full(50, 0.01), 300),
        ("500 clients, 0.005 to 0.03, 100 rounds", np.linspace(0.005, 0.03, 500), 100),
        ("500 clients, gamma(2), mean 0.02, 100", random.gamma(2, 0.01, 500), 100),
        ("500 clients, exponential, mean 0.02, 100", random.gamma(1, 0.02, 500), 100),
    ):
        truths, covered, held = [], 0, 0
        for _ in range(logs):
            found = estimate_unseen(build_log(random.random((rounds, len(rates))) < rates), 1.0)
            truths.append(len(rates) - found.seen)
            covered += found.interval[0] <= truths[-1] <= found.interval[1]
            held += found.interval[0] <= truths[-1]
        cells = (f"{np.mean(truths):8.1f}", f"{covered / logs:8.3f}", f"{held / logs:8.3f}")
        print(name.ljust(40), *cells, sep="  ", flush=True)


def main() -> None:
    """Run the benchmark named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["churn", "selection", "unseen"])
    parser.add_argument("--logs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--only", default="")
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    if given.what == "churn":
        churn(given.logs, given.rounds, given.only, given.record)
    elif given.what == "selection":
        selection(given.logs, given.only, given.record)
    else:
        unseen(given.logs)


if __name__ == "__main__":
    main()
