"""The leaderboard as a whole: what it compares, its records, its standings and its page."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from tests.leaderboard.small_board import small_board

from fedtide.algorithms import ALGORITHMS, Algorithm, ClientUpdates, Cohort, RoundDriver
from fedtide.algorithms.serialization import to_tensors
from fedtide.cli.main import main
from fedtide.errors import InvalidInputError
from fedtide.leaderboard.cells import CellRecord, records_in
from fedtide.leaderboard.leaderboard_page import render_page
from fedtide.leaderboard.spec import Cell, load_leaderboard
from fedtide.leaderboard.standings import Standings, estimate, load_standings
from fedtide.population import Population
from fedtide.simulation.experiment import BUILDER

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "results" / "leaderboard.parquet"


@pytest.fixture
def fedtide(monkeypatch, capsys):
    """Return a function that runs the command line and returns its status, output and errors."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["fedtide", *arguments])
        monkeypatch.setenv("COLUMNS", "200")
        try:
            main()
            status = 0
        except SystemExit as end:
            status = end.code or 0
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def whole():
    return load_leaderboard()


@pytest.fixture(scope="module")
def small():
    return small_board()


def types_in(plain):
    """Return the types of a method and of those inside it."""
    inner = [types_in(value) for value in plain.values() if isinstance(value, dict)]
    return {plain["type"]}.union(*inner)


def test_every_registered_method_is_compared_or_excluded_with_a_reason(whole):
    compared = set().union(*(types_in(one.algorithm) for one in whole.methods.values()))
    assert compared | set(whole.excluded) == set(ALGORITHMS)
    assert not compared & set(whole.excluded)
    assert all(whole.excluded.values())


def test_methods_do_not_apply_where_a_pattern_does_not_offer_what_they_need(whole):
    assert whole.lacks("groups", "known-rates") == "unknown rates"
    assert whole.lacks("independent", "amplified") == "no period"
    assert whole.lacks("groups", "wait-for-all") == "clients are missing in some periods"
    assert not whole.lacks("cycles", "wait-for-all")
    assert not any(whole.lacks(pattern, "fedavg") for pattern in whole.patterns)
    planned = {cell.place[1:] for cell in whole.cells()}
    assert ("groups", "known-rates") not in planned


def kept_and_sent(board, name, clients, d):
    """Return the numbers that a method keeps once all clients took part, and its messages."""
    cell = Cell(board, "quadratic", "cycles", name)
    plain = cell.experiment(0.1, cell.tuned[1][1], seed=0)
    algorithm, lr = BUILDER.build(Algorithm, plain["algorithm"], ""), plain["local"]["lr"]
    population = Population(clients, rates=np.full(clients, 0.5))
    driver = RoundDriver(algorithm, torch.zeros(d), population)
    sent, received = 1, 1
    for _ in range(4):
        cohort = driver.choose_cohort(Cohort.uniform(torch.arange(clients)))
        for orders, part in driver.chunks(cohort):
            received = max(received, 1 + (orders.correction is not None))
            extra = orders.gradients or orders.end_gradients
            sent = max(sent, 1 + extra)
            rows = torch.ones(len(part), d)
            steps = torch.ones(len(part), dtype=torch.int64)
            driver.absorb(
                ClientUpdates(
                    part.clients, part.weights.float(), rows, lr, steps, None, rows * extra
                )
            )
        driver.step(lr)
    tensors = to_tensors(driver.state)
    return sum(tensor.numel() for tensor in tensors.values()), [sent, received]


def test_memory_classes_and_messages_are_those_of_the_methods(whole):
    d = 7
    cycles = replace(whole.patterns["cycles"], period=2)
    board = replace(whole, patterns={"cycles": cycles})
    for name, method in whole.methods.items():
        few, messages = kept_and_sent(board, name, 4, d)
        many, _ = kept_and_sent(board, name, 8, d)
        per_client = (many - few) / 4
        found = "d" if per_client == 0 else "N" if per_client < d else "Nd"
        assert (name, found, messages) == (name, method.memory, list(method.messages))


def test_regrets_are_t_intervals_of_paired_differences():
    figures, others = [3.0, 5.0, 4.5, 4.0], [1.0, 2.0, 1.5, 1.0]
    found = estimate(figures, others)
    gaps = np.subtract(figures, others)
    low, high = stats.t.interval(0.95, 3, gaps.mean(), stats.sem(gaps))
    assert (found.mean - found.margin, found.mean + found.margin) == pytest.approx((low, high))


def result_of(cell, figures):
    return CellRecord(
        *cell.place,
        fingerprint=cell.fingerprint,
        trials=[1.0] * 12,
        best=[0.1, 1.0],
        figures=list(figures),
        seconds=2.0,
        version="version",
        seeds=[1, 2, 3],
        tuning_seed=0,
        trainer="stacked",
        threads=1,
    )


def test_fedavg_can_win_and_a_diverged_run_loses(small):
    figures = {"fedavg": (1.0, 1.1, 0.9), "amplified": (2.0, 2.2, 1.9)}
    results = {
        (cell := Cell(small, "quadratic", "turns", method)).place: result_of(cell, figures[method])
        for method in small.methods
    }
    full = Cell(small, "quadratic", "full", "fedavg")
    results[full.place] = result_of(full, (0.5, 0.5, 0.5))
    standings = Standings(small, results)
    assert standings.against_fedavg("quadratic", "turns", "amplified") == "worse"
    assert standings.best("quadratic", "turns", small.methods) == "fedavg"
    assert standings.regret("quadratic", "turns", "fedavg").mean == pytest.approx(0.5)
    assert standings.regret("quadratic", "even", "fedavg") is None
    wild = Cell(small, "quadratic", "turns", "amplified")
    diverged = Standings(small, results | {wild.place: result_of(wild, (None, 1.0, 1.0))})
    assert diverged.regret("quadratic", "turns", "amplified").text == "diverges (1 of 3)"
    assert diverged.against_fedavg("quadratic", "turns", "amplified") == "worse"
    assert "| amplified |" in render_page(diverged)
    plain = Cell(small, "quadratic", "turns", "fedavg")
    lost = Standings(small, results | {plain.place: result_of(plain, (None, 1.0, 1.0))})
    assert lost.against_fedavg("quadratic", "turns", "amplified") == "better"
    none_left = {
        wild.place: result_of(wild, (None, None, None)),
        plain.place: result_of(plain, (1.0, None, 1.0)),
    }
    both = Standings(small, results | none_left)
    assert both.against_fedavg("quadratic", "turns", "amplified") == "alike"
    assert "**Of 1 comparisons with FedAvg, 0 are better, 0 worse.**" in render_page(both)


def test_the_page_is_that_of_the_records(whole):
    page = (ROOT / "docs" / "leaderboard.md").read_text(encoding="utf-8")
    standings = load_standings(whole, RECORDS)
    assert page == render_page(standings), "fedtide leaderboard --write docs/leaderboard.md"


def test_a_file_adds_methods_and_patterns(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        """
patterns:
  pairs: {title: two, source: mine, participation: {type: uniform, size: 2}}
methods:
  mine:
    algorithm: {type: "fedtide.algorithms.fedavg:FedAvg"}
    tune: {server_lr: [0.5, 0.7, 1.0, 1.4, 2.0]}
    memory: d
"""
    )
    board = load_leaderboard([file])
    places = {cell.place for cell in board.cells(["digits"], ["pairs"], ["mine"])}
    assert places == {("digits", "full", "fedavg"), ("digits", "pairs", "mine")}
    file.write_text("methods: {fedavg: {algorithm: {type: fedavg}, tune: {}, memory: d}}")
    with pytest.raises(InvalidInputError, match="add: 'fedavg' is taken; choose another name"):
        load_leaderboard([file])
    file.write_text("")
    with pytest.raises(
        InvalidInputError, match=r"not a mapping; write `problems:`, `patterns:` or"
    ):
        load_leaderboard([file])
    file.write_text("rounds: 7")
    with pytest.raises(InvalidInputError, match="has 'rounds'; give mappings under problems, pat"):
        load_leaderboard([file])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "methods: {x: {algorithm: {type: fedavg}, tune: {lr: [1, 1, 1, 2, 3]}, memory: d}}",
            r"methods\.x\.tune: \[1.* give 5 rising values",
        ),
        ("methods: {x: {algorithm: {type: fedavg}, tune: {}, memory: d}}", "give one field"),
        ("problems: {x: {title: x, measure: y}}", r"problems\.x"),
    ],
)
def test_additions_that_cannot_be_used_are_refused(text, message, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(InvalidInputError, match=message):
        load_leaderboard([file])


def test_the_trials_of_a_cell_are_shown(fedtide):
    chosen = ("--problems", "digits", "--patterns", "phones", "--methods", "auto", "--trials")
    status, out, _ = fedtide("leaderboard", *chosen, "--records", str(RECORDS))
    assert status == 0
    (cell,) = [r for r in records_in(RECORDS).read() if r.place == ("digits", "phones", "auto")]
    marked = [line.split() for line in out.splitlines() if "chosen" in line]
    assert len(marked) == 2  # and the reference
    lr, factor = cell.best
    assert marked[1] == [f"{lr:g}", f"{factor:g}", f"{min(cell.trials):.3g}", "chosen"]
    assert f"digits/phones/auto: {cell.figures[0]:.3g} (seed 1), " in out
