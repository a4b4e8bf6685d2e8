"""Influence, targets and grouping of runs, against formulas and the runs' own tables."""

import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from scipy import stats
from typer.testing import CliRunner

import fedtide as ft
from fedtide.cli.main import app
from fedtide.plotting.curves import smooth
from fedtide.report.grouping import arrange
from fedtide.report.loading import load_runs
from fedtide.report.page import make_report, render_page
from fedtide.report.summary import (
    client_influence,
    l1_skew,
    measure_target,
)
from fedtide.report.weight_replay import history

P = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2])


@pytest.fixture(scope="module")
def groups(runs_folder):
    (groups,) = arrange(load_runs([runs_folder])).values()
    return groups


def counts(run):
    """Return how often each client was used in each round, (T, N), from the log alone."""
    log = pl.read_parquet(run.folder.participation).filter(pl.col("stage") == "used")
    there = np.zeros((run.experiment["rounds"], 8))
    there[log["round"].to_numpy(), log["client"].to_numpy()] = 1
    return there


def test_weights_over_time_are_those_of_each_method(groups):
    """Plain averaging gives N / |S_t|, known rates 1 / p_n; both scaled by their means."""
    wanted = {
        "fedavg": lambda there: 8 * there / np.maximum(there.sum(axis=1, keepdims=True), 1),
        "known-rates": lambda there: there / P,
    }
    for method, weigh in wanted.items():
        run = groups[method][0]
        there, found = counts(run), history(run)
        weights = weigh(there)
        expected = weights / weights.mean()
        got = np.zeros_like(expected)
        got[found.rounds, found.clients] = found.weights
        assert np.allclose(got, expected)


def test_weights_over_time_agree_with_the_run(groups):
    """The mean over the rounds of each client is what the run itself wrote down."""
    for group in groups.values():
        run = group[1]
        found, there = history(run), counts(run)
        mean = run.clients["weight"].fill_nan(0.0).to_numpy()
        scale = (there.sum(axis=0) * mean).sum() / there.size
        for client in range(8):
            _, weights = found.select(client)
            assert np.mean(weights) == pytest.approx(mean[client] / scale)


class Undeclared(ft.algorithms.Clipped):
    """Weights that follow the updates, by a method that does not say so."""

    traits = ft.algorithms.Traits()


class NeedsTheModel(ft.algorithms.FedAvg):
    """A method that works with the model of its experiment alone."""

    def init(self, model, population):
        return super().init(model.reshape(3, -1).flatten(), population)


@pytest.mark.usefixtures("undrawn")
def test_weights_over_time_are_known_for_rates_by_name(fields, tmp_path):
    """Known rates give 1 / p_n, whatever the clients are called."""
    rates = {"ann": 0.9, "bob": 0.5, "cem": 0.25}
    frame = pl.DataFrame({"x": np.arange(9.0), "y": np.ones(9), "who": [*rates] * 3})
    problem = ft.problems.Supervised(
        train=frame, inputs=["x"], target="y", clients="who", model="logistic", loss="mse"
    )
    run = fields | {"problem": problem, "participation": {"type": "bernoulli", "rates": rates}}
    ft.simulate(**run, algorithm={"type": "known-rates", "rates": rates}, out=tmp_path / "named")
    (section,) = make_report(load_runs([tmp_path / "named"])).sections
    assert "weights-time" in [one.name for one in section.figures["influence"]]
    (loaded,) = load_runs([tmp_path / "named"])
    found = history(loaded)
    means = [found.select(client)[1].mean() for client in range(3)]
    scaled = np.multiply(means, [rates[name] for name in loaded.clients["client"]])
    assert np.allclose(scaled, scaled[0])


def test_an_error_in_a_method_of_ones_own_is_shown(fields, tmp_path):
    ft.simulate(**fields, algorithm=NeedsTheModel(), name="own", out=tmp_path, progress=False)
    with pytest.raises(RuntimeError, match="shape"):
        make_report(load_runs([tmp_path]))


def test_weights_over_time_of_own_methods_are_those_of_the_run_or_none(fields, tmp_path):
    methods = {
        "undeclared": Undeclared(bound=0.01),  # every update is longer
        "never clips": Undeclared(bound=1e9),
    }
    for name, method in methods.items():
        ft.simulate(**fields, algorithm=method, name=name, out=tmp_path / name, progress=False)
    found = {run.folder.path.name: history(run) for run in load_runs([tmp_path])}
    assert [name for name, one in found.items() if one is not None] == ["never clips"]
    make_report(load_runs([tmp_path]))


@pytest.mark.parametrize(
    "privacy",
    [
        {"type": "gaussian", "budget": 8.0},
        {"type": "matrix-factorisation", "min_separation": 3, "max_participations": 5},
    ],
)
def test_weights_over_time_leave_out_updates_that_a_mechanism_refuses(fields, privacy, tmp_path):
    """Clients that rest, or whose budget is spent, are in the log as reported, but not as used."""
    settings = {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5} | privacy
    method = {"type": "fedavg", "weights": "all"}
    ft.simulate(**fields, algorithm=method, privacy=settings, out=tmp_path, progress=False)
    (run,) = load_runs([tmp_path])
    there, found = counts(run), history(run)
    got = np.zeros_like(there)
    got[found.rounds, found.clients] = found.weights
    assert np.allclose(got, there * there.size / there.sum())


def test_influence_is_the_share_in_what_moved_the_model(groups):
    run = groups["fedavg"][0]
    there = counts(run)
    shares = (there / np.maximum(there.sum(axis=1, keepdims=True), 1)).sum(axis=0)
    assert np.allclose(client_influence(run), shares / shares.sum())
    assert l1_skew(run) == pytest.approx(np.abs(shares / shares.sum() - 1 / 8).sum())
    known = (there / P).sum(axis=0)
    assert np.allclose(client_influence(groups["known-rates"][0]), known / known.sum())


def test_influence_is_where_a_run_ends_and_unknown_where_absent_clients_count(tmp_path):
    """On ½ x² and ½ (x − 1)² runs end at the influence of client 1, who comes one round in four."""
    ends = {"fedavg": 0.25, "mifa": 0.5, "scaffold": 0.5, "central-sgd": 0.5}
    ends |= {"wait-for-all, mode steps": 0.5, "wait-for-all, mode gradient": 0.25}
    problem = ft.problems.Quadratic(matrices=[[[1.0]]] * 2, centers=[[0.0], [1.0]])
    for name, end in ends.items():
        kind, _, mode = name.partition(", mode ")
        settings = {"period": 4, "mode": mode} if kind == "wait-for-all" else {}
        result = ft.simulate(
            problem=problem,
            participation=ft.participation.Table(weights=[[1, 0], [1, 0], [1, 0], [0, 1]] * 100),
            algorithm={"type": kind} | settings,
            local=ft.LocalTraining(steps=1, lr=0.05),
            rounds=400,
            name=name,
            record_iterates=True,
            trainer="reference",
            out=tmp_path / name,
        )
        assert result.iterates[-40:].mean() == pytest.approx(end, abs=0.03)
    (groups,) = arrange(load_runs([tmp_path])).values()
    shares = client_influence(groups["fedavg"][0])
    assert shares.tolist() == pytest.approx([0.75, 0.25])
    for name in set(ends) - {"fedavg"}:
        run = groups[name][0]
        assert (client_influence(run), l1_skew(run), history(run)) == (None, None, None)
    page = render_page(make_report(load_runs([tmp_path])))
    missing = sorted(set(ends) - {"fedavg"})
    assert f"Without influence and L1 skew: {'; '.join(missing)}. Clients count in rounds" in page
    assert page.count(">—<") == len(missing) + 1  # what central-sgd exchanges are its data
    report = make_report([groups["mifa"][0]])
    assert report.sections[0].figures["influence"] == []
    assert "Without influence and L1 skew: mifa." in render_page(report)


def test_the_influence_of_a_class_that_is_not_available_is_unknown(groups):
    run = groups["fedavg"][0]
    gone = replace(run, experiment=run.experiment | {"algorithm": {"type": "gone:Method"}})
    assert (client_influence(gone), history(gone)) == (None, None)
    page = render_page(make_report([gone]))
    assert "Without influence and L1 skew: Method. The class" in page


def test_a_target_is_reached_at_the_first_evaluation_that_meets_it(groups):
    level = 0.5 * groups["fedavg"][0].metrics["loss"][0]
    rows = {row.method: row for row in measure_target(groups, f"loss={level}").rows}
    for method, group in groups.items():
        rounds, updates = [], []
        for run in group:
            table = run.metrics.filter(pl.col("loss") <= level)
            if len(table):
                rounds.append(table["round"][0])
                updates.append(counts(run)[: rounds[-1]].sum())
        row = rows[method]
        assert (row.reached, row.runs) == (len(rounds), 2)
        if rounds:
            assert (row.rounds[0], row.updates[0]) == (np.mean(rounds), np.mean(updates))


def test_what_is_exchanged_for_a_target_are_models_updates_and_corrections(fields, tmp_path):
    """Three coefficients and no constant: FedAvg's clients exchange 2 · 3 numbers, SCAFFOLD's 9."""
    for name in ("fedavg", "scaffold", "central-sgd"):
        ft.simulate(**fields, algorithm=name, out=tmp_path / name)
    runs = load_runs([tmp_path])
    (groups,) = arrange(runs).values()
    rows = {row.method: row for row in measure_target(groups).rows}
    for name, numbers in (("fedavg", 6), ("scaffold", 9)):
        assert rows[name].exchanged == (4 * numbers * rows[name].updates[0], 0)
        assert rows[name].exchanged[0] > 0
    assert rows["central-sgd"].exchanged is None
    page = render_page(make_report(runs))
    shown = {name: re.findall(rf'row">{name}</th>.*>(.*)</td></tr>', page)[0] for name in rows}
    sizes = {name: f"{rows[name].exchanged[0] / 1e3:,.1f}" for name in ("fedavg", "scaffold")}
    assert shown == sizes | {"central-sgd": "—"}
    assert ">kB exchanged</th>" in page


@pytest.mark.parametrize(
    ("wanted", "word"),
    [
        ("lss=1", "'loss'"),
        ("loss", "METRIC=LEVEL"),
    ],
)
def test_a_bad_target_is_refused_with_a_hint(wanted, word, groups):
    with pytest.raises(ft.InvalidInputError, match=r"^target: .*; ") as error:
        measure_target(groups, wanted)
    assert word in str(error.value)


def test_methods_of_one_name_that_differ_in_long_values_stay_apart(groups):
    """Their rates begin alike; the labels show where they differ, and no run is lost."""
    run = groups["fedavg"][0]
    runs = []
    for last in (0.25, 0.75):
        rates = [0.5] * 99 + [last]
        experiment = run.experiment | {"participation": {"type": "bernoulli", "rates": rates}}
        runs.append(replace(run, experiment=experiment))
    (groups,) = arrange(runs).values()
    first, second = groups
    assert first.startswith("fedavg, rates …")
    assert ("0.25" in first, "0.75" in second) == (True, True)


def test_smoothing_is_a_trailing_moving_average():
    values = np.random.default_rng(0).normal(size=50)
    found = smooth(values, 0.1)
    assert np.allclose(found, [values[max(0, i - 4) : i + 1].mean() for i in range(50)])


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_was_repeated_elsewhere_is_named_and_counts_once(fields, tmp_path):
    for name, trainer in (("a", "reference"), ("b", "stacked"), ("c", "reference")):
        run = fields | {"rounds": 2, "trainer": trainer}
        ft.simulate(**run, algorithm="fedavg", out=tmp_path / name)
    folders = [str(tmp_path / name) for name in "abc"]
    said = f"has the experiment and seed of {folders[0]}"
    compared = CliRunner().invoke(app, ["compare", *folders])
    assert f"{folders[1]} {said}, and 1 more likewise" in compared.output
    reported = CliRunner().invoke(app, ["report", *folders])
    assert "not in the figures: 2 repeated" in reported.output
    page = (tmp_path / "a" / "report.html").read_text(encoding="utf-8")
    assert "2 of 3 runs are not in the figures" in page
    assert page.count(said) == 2


def test_hours_to_a_target_have_intervals_over_the_seeds(fields, tmp_path):
    """Those of scipy, of the hours of the evaluations that reach the target first."""
    timing = {
        "policy": {"type": "synchronous", "size": 3},
        "devices": {"seconds_per_sample": 100.0, "jitter": 0.5},
    }
    timed = fields | {"participation": "full", "timing": timing, "algorithm": "fedavg"}
    results = ft.simulate(**timed, seeds=[1, 2, 3], out=tmp_path)
    level = max(result.metrics["loss"][5] for result in results)
    reached = [
        result.metrics.filter(pl.col("loss") <= level).row(0, named=True) for result in results
    ]
    printed = CliRunner().invoke(app, ["compare", str(tmp_path), "--to", f"loss={level!r}"]).output
    shown = []
    for name in ("round", "hours"):
        values = [row[name] for row in reached]
        low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
        shown.append((np.mean(values), (high - low) / 2))
    (rounds, rounds_margin), (hours, hours_margin) = shown
    assert rounds_margin > 0.5
    for text in (f"{rounds:.0f} ± {rounds_margin:.0f}", f"{hours:.2f} ± {hours_margin:.2f}"):
        assert text in printed
    assert "3 of 3" in printed
