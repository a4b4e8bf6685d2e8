"""The leaderboard as a whole: what it compares, its records, its standings and its page."""

import json
import os
import platform
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from tests.leaderboard.small_board import plain_board, small_board

from fedtide.algorithms import ALGORITHMS, ClientUpdates, Cohort, FedAvg, RoundDriver
from fedtide.algorithms.serialization import to_tensors
from fedtide.cli.main import main
from fedtide.errors import Interrupted, InvalidInputError, RunFailedError
from fedtide.leaderboard import cell_runner
from fedtide.leaderboard.cell_record import load_results, save_result
from fedtide.leaderboard.cell_runner import estimate_seconds, run_cells
from fedtide.leaderboard.leaderboard_page import render_page
from fedtide.leaderboard.phone_sessions import PhoneSessions
from fedtide.leaderboard.search import CellResult, Origin, tried_settings
from fedtide.leaderboard.spec import load_leaderboard, parse_leaderboard
from fedtide.leaderboard.standings import Standings, estimate, load_standings
from fedtide.population import Population

ROOT = Path(__file__).parents[2]


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


def test_there_are_enough_patterns_problems_and_seeds(whole):
    assert len(whole.patterns) >= 14
    assert len(whole.problems) == 3
    assert len(whole.seeds) == 5
    assert whole.tuning_seed not in whole.seeds


def test_methods_do_not_apply_where_a_pattern_does_not_offer_what_they_need(whole):
    assert whole.lacks("groups", "known-rates") == "unknown rates"
    assert whole.lacks("independent", "amplified") == "no period"
    assert whole.lacks("groups", "wait-for-all") == "clients are missing in some periods"
    assert not whole.lacks("cycles", "wait-for-all")
    assert not any(whole.lacks(pattern, "fedavg") for pattern in whole.patterns)
    planned = {cell.place[1:] for cell in whole.cells()}
    assert ("groups", "known-rates") not in planned


def kept_and_sent(method, pattern, clients, d):
    """Return the numbers that a method keeps once all clients took part, and its messages."""
    algorithm, lr = method.build(pattern, 0.1, method.tuned[1][1])
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
    pattern = replace(whole.patterns["cycles"], period=2)
    for name, method in whole.methods.items():
        few, messages = kept_and_sent(method, pattern, 4, d)
        many, _ = kept_and_sent(method, pattern, 8, d)
        per_client = (many - few) / 4
        found = "d" if per_client == 0 else "N" if per_client < d else "Nd"
        assert (name, found, messages) == (name, method.memory, list(method.messages))


def test_phones_are_the_same_whichever_rounds_are_asked_for():
    one, other = (PhoneSessions().begin(Population(20), seed=3) for _ in range(2))
    rounds = [one.round(t).clients.tolist() for t in range(400)]
    assert other.round(5).clients.tolist() == rounds[5]
    assert other.round(399).clients.tolist() == rounds[399]


def test_phones_have_nights_weekends_and_long_sessions():
    """Over 40 weeks; the bounds are ten standard errors or more away."""
    running = PhoneSessions(drift=1e-9).begin(Population(50), seed=1)
    present = np.zeros((40 * 168, 50), dtype=bool)
    for t, row in enumerate(present):
        row[running.round(t).clients] = True
    hourly = present.sum(axis=1).reshape(40, 7, 24)
    assert hourly[:, :, 23].mean() > 2 * hourly[:, :, 14].mean()
    assert hourly[:, 5:].mean() > 1.1 * hourly[:, :5].mean()
    assert present[:, 0].mean() > 5 * present[:, -1].mean()
    edges = np.flatnonzero(np.diff(present[:, 0].astype(int)))
    lengths = np.diff(edges)[(0 if present[edges[0] + 1, 0] else 1) :: 2]
    assert lengths.max() > 10 * np.median(lengths)


def test_regrets_are_t_intervals_of_paired_differences():
    figures, others = [3.0, 5.0, 4.5, 4.0], [1.0, 2.0, 1.5, 1.0]
    found = estimate(figures, others)
    gaps = np.subtract(figures, others)
    low, high = stats.t.interval(0.95, 3, gaps.mean(), stats.sem(gaps))
    assert (found.mean - found.margin, found.mean + found.margin) == pytest.approx((low, high))


def result_of(cell, figures):
    origin = Origin("version", cell.seeds, cell.tuning_seed, "lockstep", 1)
    return CellResult(cell.fingerprint, (1.0,) * 12, (0.1, 1.0), figures, 2.0, origin)


def test_fedavg_can_win_and_a_diverged_run_loses(small):
    figures = {"fedavg": (1.0, 1.1, 0.9), "amplified": (2.0, 2.2, 1.9)}
    results = {
        (cell := small.cell("quadratic", "turns", method)).place: result_of(cell, figures[method])
        for method in small.methods
    }
    full = small.cell("quadratic", "full", "fedavg")
    results[full.place] = result_of(full, (0.5, 0.5, 0.5))
    standings = Standings(small, results)
    assert standings.against_fedavg("quadratic", "turns", "amplified") == "worse"
    assert standings.best("quadratic", "turns", small.methods) == "fedavg"
    assert standings.regret("quadratic", "turns", "fedavg").mean == pytest.approx(0.5)
    assert standings.regret("quadratic", "even", "fedavg") is None
    wild = small.cell("quadratic", "turns", "amplified")
    diverged = Standings(small, results | {wild.place: result_of(wild, (None, 1.0, 1.0))})
    assert diverged.regret("quadratic", "turns", "amplified").text == "diverges (1 of 3)"
    assert diverged.against_fedavg("quadratic", "turns", "amplified") == "worse"
    assert "| amplified |" in render_page(diverged)
    plain = small.cell("quadratic", "turns", "fedavg")
    lost = Standings(small, results | {plain.place: result_of(plain, (None, 1.0, 1.0))})
    assert lost.against_fedavg("quadratic", "turns", "amplified") == "better"
    none_left = {
        wild.place: result_of(wild, (None, None, None)),
        plain.place: result_of(plain, (1.0, None, 1.0)),
    }
    both = Standings(small, results | none_left)
    assert both.against_fedavg("quadratic", "turns", "amplified") == "alike"
    assert "**Of 1 comparisons with FedAvg, 0 are better, 0 worse.**" in render_page(both)


def test_cells_are_recorded_once_and_an_interruption_loses_nothing(small, tmp_path, monkeypatch):
    cells = small.cells()
    assert [cell.place for cell in cells] == [
        ("quadratic", "full", "fedavg"),
        ("quadratic", "even", "fedavg"),
        ("quadratic", "turns", "fedavg"),
        ("quadratic", "turns", "amplified"),
    ]
    ended = []

    def stop_after_two(cell, result, left):
        ended.append(cell.place)
        if len(ended) == 2:
            raise Interrupted("interrupted")

    with pytest.raises(Interrupted):
        run_cells(cells, tmp_path, on_cell=stop_after_two)
    assert set(load_results(cells, tmp_path)) == set(ended)
    run_cells(cells, tmp_path, on_cell=lambda cell, *_: ended.append(cell.place))
    assert ended == [cell.place for cell in cells]
    files = {file: file.read_bytes() for file in tmp_path.rglob("*.json")}
    monkeypatch.setattr(cell_runner, "run_cell", None)
    run_cells(cells, tmp_path)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.json")} == files
    assert load_standings(small, tmp_path).missing() == []


@pytest.mark.process
def test_several_processes_give_the_same_results(small, tmp_path):
    cells = small.cells()
    for folder, workers in (("one", 1), ("two", 2)):
        run_cells(cells, tmp_path / folder, workers)
    one, two = (load_results(cells, tmp_path / folder) for folder in ("one", "two"))
    assert len(one) == len(cells)
    assert {place: (r.trials, r.best, r.figures) for place, r in one.items()} == {
        place: (r.trials, r.best, r.figures) for place, r in two.items()
    }


def test_a_record_with_other_settings_is_not_counted(small, tmp_path):
    cell = small.cell("quadratic", "even", "fedavg")
    save_result(cell, result_of(cell, (1.0, 2.0, 3.0)), tmp_path)
    reworded = replace(cell, participation=replace(cell.participation, title="other words"))
    longer = replace(cell, rounds=10)
    assert cell.place in load_results([cell], tmp_path)
    assert cell.place in load_results([reworded], tmp_path)
    assert cell.place not in load_results([longer], tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"fedavg": 3}', '{"fedavg": {"trials": ["x"]}}'])
def test_a_damaged_record_is_named(text, small, tmp_path):
    file = tmp_path / "quadratic" / "even.json"
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(InvalidInputError, match=r"even\.json is not a record .* remove it"):
        load_results(small.cells(), tmp_path)


def test_a_record_with_text_for_a_figure_is_damaged(small, tmp_path):
    cell = small.cell("quadratic", "even", "fedavg")
    save_result(cell, result_of(cell, (1.0, 2.0, 3.0)), tmp_path)
    file = tmp_path / "quadratic" / "even.json"
    file.write_text(file.read_text().replace("2.0, 3.0", '"2.0", 3.0'))
    with pytest.raises(InvalidInputError, match="is not a record"):
        load_results([cell], tmp_path)


def test_remaining_time_is_that_of_the_recorded_cells_most_like_them(small):
    one, other = small.cells(patterns=["turns"])[1:]
    assert estimate_seconds([one, other], {}) == 2 * one.task.seconds
    results = {("quadratic", "even", "fedavg"): replace(result_of(one, ()), seconds=7.0)}
    assert estimate_seconds([one, other], results) == 14.0


def test_the_page_says_what_was_not_run(small):
    text = render_page(Standings(small, {}))
    assert "Noisy quadratics: 0 of 4 cells were run; the others would take" in text


def test_the_page_of_a_board_without_its_reference(small):
    """Several processes may be interrupted before the reference, which comes first, has ended."""
    cells = small.cells(patterns=["turns"])[1:]
    results = {cell.place: result_of(cell, (1.0, 2.0, 3.0)) for cell in cells}
    text = render_page(Standings(small, results))
    assert "FedAvg under full participation was not run, so no regret is known." in text
    assert "## Noisy quadratics" in text


def test_the_page_is_that_of_the_records(whole):
    page = (ROOT / "docs" / "leaderboard.md").read_text(encoding="utf-8")
    standings = load_standings(whole, ROOT / "results" / "leaderboard")
    assert page == render_page(standings), "fedtide leaderboard --write docs/leaderboard.md"


def test_records_have_finite_figures_of_all_seeds_and_say_what_they_were_computed_with(whole):
    for folder in ("leaderboard", "held-out", "auto-variants"):
        for file in (ROOT / "results" / folder).rglob("*.json"):
            plain = json.loads(file.read_text(encoding="utf-8"))
            for name, cell in plain["cells"].items():
                entry = plain["common"] | cell
                assert folder != "leaderboard" or name in whole.methods
                assert entry["seeds"] == whole.seeds
                assert entry["tuning_seed"] == whole.tuning_seed
                assert (entry["trainer"], entry["threads"]) == ("lockstep", 1)
                assert "PyTorch" in entry["version"]
                assert len(entry["figures"]) == len(whole.seeds)
                assert len(entry["trials"]) == 12


def test_what_cells_of_a_file_have_in_common_is_written_once(small, tmp_path):
    cells = small.cells(patterns=["turns"])[1:]
    here, there = (result_of(cell, (1.0, 2.0, 3.0)) for cell in cells)
    elsewhere = replace(there.origin, machine="another one", seeds=(1, 2, 4))
    save_result(cells[0], here, tmp_path)
    save_result(cells[1], replace(there, origin=elsewhere), tmp_path)
    plain = json.loads((tmp_path / "quadratic" / "turns.json").read_text(encoding="utf-8"))
    assert plain["common"]["seeds"] == [1, 2, 3]
    assert not {"seeds", "machine", "version"} & plain["cells"]["fedavg"].keys()
    changed = plain["cells"]["amplified"]
    assert (changed["seeds"], changed["machine"]) == ([1, 2, 4], "another one")
    found = load_results(cells, tmp_path)
    assert [found[cell.place].origin for cell in cells] == [here.origin, elsewhere]


def test_a_cell_says_what_it_was_computed_with(small, tmp_path):
    cell = small.cell("quadratic", "even", "fedavg")
    run_cells([cell], tmp_path)
    origin = load_results([cell], tmp_path)[cell.place].origin
    assert (origin.seeds, origin.tuning_seed) == ((1, 2, 3), cell.tuning_seed)
    assert (origin.trainer, origin.threads) == ("lockstep", 1)
    assert f"Python {platform.python_version()}" in origin.version
    assert torch.__version__.split("+")[0] in origin.version
    assert f"{os.cpu_count()} cores" in origin.machine
    assert origin.instructions


def test_the_command_shows_what_is_recorded_and_what_is_missing(fedtide, tmp_path):
    options = ("--records", str(tmp_path), "--show", "--problems", "quadratic")
    status, out, _ = fedtide("leaderboard", *options, "--patterns", "phones")
    assert status == 0
    assert "not run: 24 of 24 cells" in out  # with the reference, without those that need rates


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--methods", "fedua"), "methods: unknown 'fedua'; did you mean 'fedau'?"),
        (("--patterns", "fone"), "patterns: unknown 'fone'; did you mean 'phones'?"),
        (("--problems", "digit"), "problems: unknown 'digit'; did you mean 'digits'?"),
        (("--problems", ","), "problems: no name; choose some of quadratic, digits, fashion"),
    ],
)
def test_unknown_names_are_refused_with_a_hint(option, message, fedtide):
    status, _, err = fedtide("leaderboard", *option)
    assert (status, err) == (2, f"fedtide: {message}\n")


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
    file.write_text("patterns: {../x: {title: x, source: x, participation: {type: full}}}")
    with pytest.raises(InvalidInputError, match=r"patterns: .*x"):
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
        ("methods: {7: {algorithm: fedavg, tune: {}, memory: d}}", "methods: 7 cannot be a name"),
        ("methods: {'a,b': {}}", "methods: 'a,b' cannot be a name"),
        ("patterns: {'a|b': {}}", r"patterns: 'a\|b' cannot be a name"),
        (
            "methods: {x: {algorithm: {type: fedavg}, tune: {lr: [1, 1, 1, 2, 3]}, memory: d}}",
            r"methods.x.tune: \[1.0, 1.0, .* do not rise",
        ),
        (  # only the second stage of the tuning may try the least value
            "methods: {x: {algorithm: {type: fedavg}, tune: {server_lr: [-1, 1, 2, 3, 4]}, "
            "memory: d}}",
            "methods.x.algorithm.server_lr",
        ),
        (
            "problems: {x: {type: imges}}",
            "problems.x.type: unknown 'imges'; did you mean 'images'?",
        ),
    ],
)
def test_additions_that_cannot_be_used_are_refused_before_anything_runs(text, message, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(InvalidInputError, match=message):
        load_leaderboard([file])


def test_a_log_that_ends_before_the_runs_is_refused(tmp_path):
    (tmp_path / "log.csv").write_text("round,client\n0,0\n7,1\n")
    log = {"type": "replay", "log": str(tmp_path / "log.csv")}
    mine = {"title": "", "source": "", "participation": log}
    with pytest.raises(InvalidInputError, match=r"mine\.participation: ends after 8 of 9 rounds"):
        small_board(patterns={"mine": mine})


def test_cells_are_run_again_once_their_log_or_their_class_has_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log, module = tmp_path / "log.csv", tmp_path / "changing_method.py"
    log.write_text("round,client\n0,0\n8,3\n")
    module.write_text("from fedtide.algorithms import FedAvg\nclass Mine(FedAvg): pass\n")
    replay = {"title": "", "source": "", "participation": {"type": "replay", "log": "log.csv"}}
    mine = {"algorithm": {"type": "changing_method:Mine"}, "memory": "d"}
    mine["tune"] = {"server_lr": [0.5, 0.7, 1.0, 1.4, 2.0]}
    plain = plain_board()
    patterns = {"replay": replay, "even": plain["patterns"]["even"]}
    methods = {"mine": mine, "fedavg": plain["methods"]["fedavg"]}
    board = parse_leaderboard(plain | {"patterns": patterns, "methods": methods})
    run_cells(board.cells(), tmp_path)
    assert load_standings(board, tmp_path).missing() == []
    module.write_text(module.read_text() + "# another version\n")
    missing = {cell.place[1:] for cell in load_standings(board, tmp_path).missing()}
    assert missing == {("replay", "mine"), ("even", "mine")}
    log.write_text("round,client\n0,0\n8,4\n")
    missing = {cell.place[1:] for cell in load_standings(board, tmp_path).missing()}
    assert missing == {("replay", "mine"), ("even", "mine"), ("replay", "fedavg")}


@dataclass(frozen=True)
class Failing(FedAvg):
    """Fails unless its server learning rate is small."""

    def step(self, state, lr):
        if self.server_lr > 1:
            raise ValueError("a bug")
        return super().step(state, lr)


@pytest.mark.process
@pytest.mark.parametrize("workers", [1, 2])
def test_a_cell_that_fails_is_named_and_does_not_stop_the_others(workers, tmp_path):
    whole = plain_board()
    failing = whole["methods"]["fedavg"] | {"algorithm": {"type": f"{__name__}:Failing"}}
    board = small_board(methods={"failing": failing} | whole["methods"])
    with pytest.raises(RunFailedError, match=r"failing: ValueError: a bug \(failed: .*turns/fail"):
        run_cells(board.cells(), tmp_path, workers)
    missing = {cell.place[1:] for cell in load_standings(board, tmp_path).missing()}
    assert missing == {("even", "failing"), ("turns", "failing")}


def test_nothing_else_runs_on_a_problem_whose_reference_fails(small, tmp_path, monkeypatch):
    def fail(cell):
        raise InvalidInputError("problems.x: no data")

    ended = []
    monkeypatch.setattr(cell_runner, "run_cell", fail)
    with pytest.raises(InvalidInputError, match="no data"):
        run_cells(small.cells(), tmp_path, on_cell=lambda *_: ended.append(1))
    assert not ended


def test_records_of_commands_that_write_at_the_same_time_are_all_kept(small, tmp_path):
    cell = small.cell("quadratic", "even", "fedavg")
    cells = [replace(cell, method=f"m{i}") for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: save_result(one, result_of(one, (1.0,)), tmp_path), cells))
    assert len(load_results(cells, tmp_path)) == 40


def test_a_page_has_the_chosen_methods_and_the_reference(fedtide, tmp_path):
    page = tmp_path / "page.md"
    chosen = ("--problems", "digits", "--patterns", "phones,churn", "--methods", "auto")
    records = ("--records", str(ROOT / "results" / "leaderboard"))
    assert fedtide("leaderboard", *chosen, *records, "--write", str(page))[0] == 0
    text = page.read_text(encoding="utf-8")
    assert "2 methods under 2 patterns of participation, on\n1 problem " in text
    assert "5 of 5 cells were run" in text
    assert "| method | phones | churn |" in text
    assert "](images/page.png)" in text
    assert (tmp_path / "images" / "page.png").exists()
    assert "mifa" not in text
    assert "## Your own" not in text
    assert "Not compared" not in text


def test_the_trials_of_a_cell_are_shown(fedtide):
    chosen = ("--problems", "digits", "--patterns", "phones", "--methods", "auto", "--trials")
    status, out, _ = fedtide("leaderboard", *chosen, "--records", str(ROOT / "results/leaderboard"))
    assert status == 0
    file = ROOT / "results" / "leaderboard" / "digits" / "phones.json"
    cell = json.loads(file.read_text(encoding="utf-8"))["cells"]["auto"]
    lr, factor = cell["best"]
    marked = [line.split() for line in out.splitlines() if "chosen" in line]
    assert len(marked) == 2  # and the reference
    assert marked[1] == [f"{lr:g}", f"{factor:g}", f"{min(cell['trials']):.3g}", "chosen"]
    assert f"digits/phones/auto: {cell['figures'][0]:.3g} (seed 1), " in out


def test_the_chosen_pair_of_every_record_is_that_of_its_best_trial(whole):
    results = load_results(whole.cells(), ROOT / "results" / "leaderboard")
    for cell in whole.cells():
        result = results[cell.place]
        settings = tried_settings(cell, result)
        assert len(set(settings)) == len(settings) == 12
        assert result.trials[settings.index(result.best)] == min(result.trials)


@pytest.mark.process
def test_the_problem_that_the_page_shows_can_be_run(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "leaderboard.md").read_text(encoding="utf-8")
    code, entry = page.split("# my_problem.py")[1].split("```")[:3:2]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_problem.py").write_text(code)
    (tmp_path / "mine.yaml").write_text(entry.removeprefix("yaml"))
    board = load_leaderboard([tmp_path / "mine.yaml"])
    cells = [board.cell("products", "uniform", method) for method in ("scaffold", "mifa")]
    cell, other = (replace(one, rounds=30, seeds=(1,)) for one in cells)
    run_cells([cell, other], tmp_path, workers=2)
    (value,) = load_results([cell], tmp_path)[cell.place].figures
    tasks = cell.task.draw(board.clients, 1)
    targets = tasks.targets.numpy()
    assert 0 < value < 100  # better than 0 everywhere
    point, everyone = tasks.start[None], torch.tensor([7])
    eps = 1e-6 * torch.eye(len(tasks.start), dtype=torch.float64)

    def objective(weights):
        hidden = np.tanh(tasks.inputs[7].numpy() @ weights[:16].reshape(2, 8).numpy())
        return ((hidden @ weights[16:].numpy() - targets[7]) ** 2).mean()

    slopes = [(objective(point[0] + e) - objective(point[0] - e)) / 2e-6 for e in eps]
    assert np.allclose(tasks.gradients(point, everyone, None)[0], slopes, atol=1e-6)


class SleepingCell:
    """Takes minutes to arrive in the process that shall run it."""

    def __reduce__(self):
        return time.sleep, (300,)


@pytest.mark.process
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers")
def test_an_interruption_does_not_wait_for_the_cells_under_way():
    def interrupt(*_):
        raise Interrupted("interrupted")

    before = signal.signal(signal.SIGALRM, interrupt)
    began = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 5)
        with pytest.raises(Interrupted):
            list(cell_runner._run([SleepingCell(), SleepingCell()], workers=2))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 120
