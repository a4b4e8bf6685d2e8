"""The contract of every availability process; a new one needs one line in CASES."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedtide.participation import (
    PROCESSES,
    Availability,
    Bernoulli,
    Churn,
    Correlated,
    Cyclic,
    DayNight,
    Drifting,
    Fluctuating,
    Full,
    GroupCycle,
    Markov,
    Permutation,
    Replay,
    Sessions,
    SubsetLaw,
    Table,
    Trace,
    Uniform,
    UniformByClass,
    Weighted,
)
from fedtide.population import Population
from fedtide.testing import check_process

ROUNDS = 60


def _table(clients: int, folder: Path) -> Availability:
    rng = np.random.default_rng(1)
    table = rng.random((ROUNDS, clients)) * (rng.random((ROUNDS, clients)) < 0.3)
    return Table(table)


def _table_file(clients: int, folder: Path) -> Availability:
    path = folder / "table.csv"
    rounds = list(range(ROUNDS))
    ids = [t % clients for t in rounds]
    pl.DataFrame({"round": rounds, "client": ids, "weight": [0.5] * ROUNDS}).write_csv(path)
    return Table(path)


def _trace(clients: int, folder: Path) -> Availability:
    path = folder / "trace.parquet"
    ids = np.arange(clients)
    pl.DataFrame({"client": ids, "start": 3.0 * ids, "end": 3.0 * ids + 10}).write_parquet(path)
    return Trace(path, round_seconds=1.5, repeat=True)


def _replay(clients: int, folder: Path) -> Availability:
    rounds = np.repeat(np.arange(ROUNDS), clients)
    ids = np.tile(np.arange(clients), ROUNDS)
    available = np.random.default_rng(2).random(len(ids)) < 0.4
    return Replay(pl.DataFrame({"round": rounds[available], "client": ids[available]}))


def _halves(clients: int, folder: Path) -> Availability:
    half = list(range(0, clients, 2))
    rest = list(range(1, clients, 2))
    return SubsetLaw([half, rest, []], [0.5, 0.3, 0.2])


Factory = Callable[[int, Path], Availability]
CASES: list[tuple[str, str, Factory]] = [
    ("full", "", lambda n, d: Full()),
    ("table", "array", _table),
    ("table", "file", _table_file),
    ("bernoulli", "", lambda n, d: Bernoulli(0.2)),
    ("bernoulli", "correlated", lambda n, d: Bernoulli(Correlated(mean=0.4))),
    ("markov", "", lambda n, d: Markov(np.linspace(0.02, 0.9, n))),
    ("cyclic", "", lambda n, d: Cyclic(np.linspace(0.1, 0.9, n), period=13)),
    ("cyclic", "off", lambda n, d: Cyclic(0.3, period=9, start="off")),
    ("group-cycle", "", lambda n, d: GroupCycle(groups=min(n, 3), rounds=4)),
    ("group-cycle", "soft", lambda n, d: GroupCycle(np.arange(n) % 2, [4, 2], 0, 0.7, 0.2)),
    ("fluctuating", "cut", lambda n, d: Fluctuating(UniformByClass(), "interleaved-sine", 7)),
    ("fluctuating", "steps", lambda n, d: Fluctuating(0.5, "staircase", 5, low=0.1)),
    ("day-night", "", lambda n, d: DayNight(np.linspace(0.1, 0.9, n), 0.2, period=9)),
    ("drifting", "", lambda n, d: Drifting(np.linspace(0.1, 0.9, n), 0.4, rounds=10, start=3)),
    ("churn", "", lambda n, d: Churn(np.linspace(0.1, 0.9, n), arrivals=5)),
    ("churn", "leaving", lambda n, d: Churn(0.5, arrivals=20, stay=30.0)),
    ("sessions", "", lambda n, d: Sessions(np.linspace(0.1, 0.9, n), length=4.0)),
    ("uniform", "", lambda n, d: Uniform(size=max(1, n // 4))),
    ("permutation", "", lambda n, d: Permutation(size=max(1, n // 3))),
    ("weighted", "", lambda n, d: Weighted(max(1, n // 4), np.exp(-np.arange(n) / 3))),
    ("subset-law", "", _halves),
    ("trace", "", _trace),
    ("replay", "", _replay),
]
RANDOM = {"bernoulli", "markov", "cyclic", "uniform", "permutation", "weighted", "subset-law"} | {
    "fluctuating",
    "day-night",
    "drifting",
    "churn",
    "sessions",
}
every_process = pytest.mark.parametrize(
    ("name", "factory"), [pytest.param(c[0], c[2], id="-".join(c[:2])) for c in CASES]
)


def _population(clients: int) -> Population:
    shares = np.random.default_rng(3).dirichlet(np.ones(4), size=clients)
    return Population(clients=clients, class_shares=shares)


def test_every_registered_process_has_a_case() -> None:
    assert {case[0] for case in CASES} == set(PROCESSES)


@every_process
@pytest.mark.parametrize("clients", [1, 25])
def test_a_process_keeps_its_contract(
    name: str, factory: Factory, clients: int, tmp_path: Path
) -> None:
    process = factory(clients, tmp_path)
    assert isinstance(process, PROCESSES[name])
    check_process(process, _population(clients))


@every_process
def test_the_seed_changes_random_processes_and_only_records_have_a_length(
    name: str, factory: Factory, tmp_path: Path
) -> None:
    process, population = factory(25, tmp_path), _population(25)
    runs = [process.begin(population, seed) for seed in (0, 1)]
    alike = all(
        np.array_equal(runs[0].round(t).clients, runs[1].round(t).clients) for t in range(ROUNDS)
    )
    assert alike or name in RANDOM | {"group-cycle"}
    assert not alike or name not in RANDOM
    assert runs[0].length == (ROUNDS if name in {"table", "replay"} else None)
    if runs[0].length is not None:
        assert len(runs[0].round(ROUNDS).clients) == 0


@pytest.mark.statistical
@every_process
def test_known_rates_match_the_frequencies(name: str, factory: Factory, tmp_path: Path) -> None:
    """Over 2000 rounds; 6 standard errors of the slowest case, about 1e-8 for each client."""
    process, population = factory(25, tmp_path), _population(25)
    running = process.begin(population, seed=5)
    rounds = running.length or 2000
    counts = np.zeros(25)
    for t in range(rounds):
        counts[running.round(t).clients] += 1
    rates = process.known_rates(population, seed=5)
    if name == "trace":
        # The trace is 82 s long, which is no multiple of 1.5 s.
        assert rates is None
        return
    if isinstance(process, Churn) and process.stay is not None:
        assert rates is None
        return
    assert rates is not None
    correlation = 20 if name in {"markov", "sessions"} else 1
    error = np.sqrt(rates * (1 - rates) * 2 * correlation / rounds)
    assert (np.abs(counts / rounds - rates) <= 6 * error + 1e-12 + 13 / 2000).all()


def test_asking_for_an_earlier_round_raises() -> None:
    running = Markov(0.5).begin(Population(clients=4), seed=0)
    running.round(3)
    with pytest.raises(ValueError, match="round 3 asked after round 3"):
        running.round(3)
