"""What a report computes beyond the metrics, against the formulas and the runs' own tables."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import fedtide as ft
from fedtide.report.loading import group_by_method, load_runs, find_runs
from fedtide.report.summary import influence, lower_is_better, skew, smoothed, target
from fedtide.report.weight_replay import history

P = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2])


@pytest.fixture(scope="module")
def groups(runs_folder):
    return group_by_method(load_runs([runs_folder]))


def counts(run):
    """Return how often each client was used in each round, (T, N), from the log alone."""
    log = pl.read_parquet(run.folder.participation).filter(pl.col("stage") == "used")
    there = np.zeros((run.experiment["rounds"], 8))
    there[log["round"].to_numpy(), log["client"].to_numpy()] = 1
    return there


def test_weights_over_time_are_those_of_each_method(groups):
    """Plain averaging gives N / |S_t|, known rates 1 / p_n; both scaled by their means."""
    wanted = {
        "plain": lambda there: 8 * there / np.maximum(there.sum(axis=1, keepdims=True), 1),
        "known": lambda there: there / P,
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
            _, weights = found.of(client)
            assert np.mean(weights) == pytest.approx(mean[client] / scale)


def test_influence_is_what_moved_the_model(groups):
    run = groups["plain"][0]
    there = counts(run)
    shares = (there / np.maximum(there.sum(axis=1, keepdims=True), 1)).sum(axis=0)
    assert np.allclose(client_influence(run), shares / shares.sum())
    assert skew(run) == pytest.approx(np.abs(shares / shares.sum() - 1 / 8).sum())
    known = (there / P).sum(axis=0)
    assert np.allclose(client_influence(groups["known"][0]), known / known.sum())


def test_a_target_is_reached_at_the_first_evaluation_that_is_there(groups):
    level = 0.5 * groups["plain"][0].metrics["loss"][0]
    rows = {row[0]: row for row in target(groups, f"loss={level}").rows}
    for method, group in groups.items():
        rounds, updates = [], []
        for run in group:
            table = run.metrics.filter(pl.col("loss") <= level)
            if len(table):
                rounds.append(table["round"][0])
                updates.append(counts(run)[: rounds[-1]].sum())
        _, reached, of, (mean, _), (mean_updates, _) = rows[method]
        assert (reached, of) == (len(rounds), 2)
        if rounds:
            assert (mean, mean_updates) == (np.mean(rounds), np.mean(updates))


def test_by_default_every_method_gets_there(groups):
    found = target(groups)
    ends = [np.mean([run.metrics["loss"][-1] for run in group]) for group in groups.values()]
    assert found.level == pytest.approx(max(ends))
    assert all(reached > 0 for _, reached, *_ in found.rows)


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ("lss=1", "has no metric 'lss'; did you mean 'loss'?"),
        ("loss=low", "target: 'loss=low' is not METRIC=LEVEL; write loss=0.9"),
        ("loss", "target: 'loss' is not METRIC=LEVEL"),
    ],
)
def test_bad_targets(wanted, sentence, groups):
    with pytest.raises(ft.InvalidInputError) as error:
        target(groups, wanted)
    assert sentence in str(error.value)


def test_smoothing_is_the_mean_of_the_last_entries():
    values = np.random.default_rng(0).normal(size=50)
    found = smoothed(values, 0.1)
    assert np.allclose(found, [values[max(0, i - 4) : i + 1].mean() for i in range(50)])


def test_one_name_for_two_experiments_is_two_methods(runs_folder, fields, tmp_path):
    for steps in (2, 3):
        for seed in (1, 2):
            local = fields["local"] | {"steps": steps}
            ft.simulate(
                **(fields | {"local": local, "rounds": 2}),
                algorithm="fedavg",
                name="one",
                seed=seed,
                out=tmp_path / f"{steps}-{seed}",
            )
    found = group_by_method(load_runs([tmp_path]))
    assert {name: len(group) for name, group in found.items()} == {
        "one (local.steps=2)": 2,
        "one (local.steps=3)": 2,
    }


def test_a_run_that_is_named_twice_counts_once(runs_folder):
    finished, _ = find_runs([runs_folder, runs_folder / "plain", runs_folder / "plain" / "seed-1"])
    assert len(finished) == 6


LOWER = (
    "loss",
    "test_loss",
    "participation_loss",
    "client_loss_worst_tenth",
    "mse",
    "test_mse",
    "client_mae_p90",
    "rmse",
    "error_rate",
    "perplexity",
    "client_test_accuracy_std",
)
HIGHER = ("test_accuracy", "client_test_accuracy_worst_tenth", "r2", "auc", "rounds_per_second")


@pytest.mark.parametrize("metric", LOWER)
def test_a_loss_an_error_or_a_spread_is_better_when_lower(metric):
    assert lower_is_better(metric)


@pytest.mark.parametrize("metric", HIGHER)
def test_any_other_metric_is_better_when_higher(metric):
    assert not lower_is_better(metric)


def test_the_target_of_an_error_is_reached_from_above(groups):
    """The loss under the name of an error gives the same table."""
    renamed = {
        method: [replace(run, metrics=run.metrics.rename({"loss": "rmse"})) for run in group]
        for method, group in groups.items()
    }
    level = 0.5 * groups["plain"][0].metrics["loss"][0]
    assert target(renamed, f"rmse={level}").rows == target(groups, f"loss={level}").rows
