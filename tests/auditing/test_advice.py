"""The advice: what it rests on, and that it can be run."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from tests.auditing.logs import draw_chains, to_frame

import fedtide as ft
from fedtide.algorithms import Algorithm, ClientUpdates, RoundDriver
from fedtide.algorithms._client_memory import ClientMemory
from fedtide.auditing import Advice, Audit
from fedtide.auditing.recommend.table import TABLE
from fedtide.population import Population
from fedtide.simulation.experiment import BUILDER

Present = np.ndarray
Law = Callable[[np.random.Generator], Present]


def uniform(random: np.random.Generator) -> Present:
    draws = random.random((600, 50))
    return draws <= np.sort(draws, axis=1)[:, 9:10]


def uneven(random: np.random.Generator) -> Present:
    return random.random((800, 50)) < np.geomspace(0.6, 0.03, 50)


def groups_in_turn(random: np.random.Generator) -> Present:
    """Five groups of 50 clients take turns of 100 rounds, ten of the group in each (paper 002)."""
    group = (np.arange(2000) + random.integers(500)) // 100 % 5
    draws = np.where(np.arange(250) // 50 == group[:, None], random.random((2000, 250)), 2)
    return draws <= np.sort(draws, axis=1)[:, 9:10]


def time_zones(random: np.random.Generator) -> Present:
    zone = (np.arange(1200) + random.integers(24)) // 8 % 3
    day = np.arange(48) // 16 == zone[:, None]
    return random.random(day.shape) < np.where(day, 0.3, 0.01)


def rise_and_fade(random: np.random.Generator) -> Present:
    rising = np.linspace(0.02, 0.4, 1000)[:, None]
    return random.random((1000, 50)) < np.where(np.arange(50) < 25, rising, rising[::-1])


def bursts(random: np.random.Generator) -> Present:
    return draw_chains(random, np.geomspace(0.6, 0.03, 50), 1000, 0.1)


@cache
def run_audit(law: Law, seed: int = 0) -> Audit:
    present = law(np.random.default_rng(seed))
    return ft.audit(to_frame(present), clients=present.shape[1])


def is_plain(advice: Advice) -> bool:
    return advice.algorithm == "fedavg" and not advice.parameters


def turns(random: np.random.Generator) -> Present:
    """Each client is drawn once before any is drawn twice."""
    order = np.concatenate([random.permutation(50) for _ in range(80)]).reshape(-1, 10)
    present = np.zeros((len(order), 50), dtype=bool)
    np.put_along_axis(present, order, True, axis=1)
    return present


def always(random: np.random.Generator) -> Present:
    return np.ones((60, 8), dtype=bool)


@pytest.mark.parametrize(
    ("law", "first", "light"),
    [
        (always, "fedavg", "fedavg"),
        (uniform, "fedavg", "fedavg"),
        (groups_in_turn, "amplified-scaffold", "auto"),
        (time_zones, "amplified-scaffold", "auto"),
        (bursts, "amplified-scaffold", "auto"),
        (turns, "scaffold", "auto"),
        (uneven, "scaffold", "auto"),
    ],
)
def test_the_first_method_by_law(law: Law, first: str, light: str) -> None:
    advice = run_audit(law).advice
    assert advice[0].algorithm == first
    assert next(one for one in advice if one.memory == "light").algorithm == light
    rows = [row for row in TABLE if row.method == first]
    assert advice[0].reasons[0] in [row.reason for row in rows]


def test_the_table_of_the_docs_is_the_table_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
    shown = [line for line in page.splitlines() if line.startswith("| ") and line.count("|") == 4]
    rows = [f"| {row.condition} | `{row.method}` | {row.reason} |" for row in TABLE]
    start = shown.index(rows[0])
    assert shown[start : start + len(rows)] == rows


def test_clients_whose_rates_swap_are_seen_in_the_last_rounds() -> None:
    assert "recent skew" in run_audit(rise_and_fade).objections
    assert run_audit(rise_and_fade).advice[0].algorithm != "fedavg"


def test_a_memory_that_does_not_fit_or_is_used_once_is_not_advised() -> None:
    present = uneven(np.random.default_rng(0))
    assert ft.audit(to_frame(present), dimension=10**6).advice[0].memory == "heavy"
    assert ft.audit(to_frame(present), dimension=10**9).advice[0].algorithm == "auto"
    rates = np.where(np.arange(3000) < 20, 0.1, 0.001)  # most of the updates are first ones
    rare = np.random.default_rng(0).random((300, 3000)) < rates
    first = ft.audit(to_frame(rare), clients=3000, dimension=10).advice[0]
    assert first.algorithm == "auto"


def test_a_log_too_short_to_tell_is_not_called_fair() -> None:
    audit = ft.audit(to_frame(uneven(np.random.default_rng(0))[:10]), clients=50)
    assert audit.favours_clients is None
    assert audit.objections == ["unknown skew"]
    assert audit.advice[0].algorithm == "scaffold"


def test_periods_are_whole_cycles_or_span_slow_swings() -> None:
    assert run_audit(groups_in_turn).period == 500
    assert run_audit(time_zones).period == 24
    random = np.random.default_rng(1)  # a third of the clients leaves and another joins, once
    present = random.random((400, 48)) < 0.2
    present[200:, :16] = present[:200, 16:32] = False
    assert ft.audit(to_frame(present), clients=48).period == 50


def test_advice_depends_neither_on_the_order_of_rows_nor_on_names() -> None:
    random = np.random.default_rng(0)
    log = to_frame(random.random((60, 12)) < np.geomspace(0.05, 0.7, 12))
    names = pl.Series("client", random.permutation(12)).cast(pl.String)
    shuffled = log.sample(fraction=1.0, shuffle=True, seed=1)
    renamed = log.with_columns(client=names[log["client"]])
    first, *others = [
        [(one.algorithm, one.reasons) for one in ft.audit(frame).advice]
        for frame in (log, shuffled, renamed)
    ]
    assert others == [first, first]


def test_the_cutoff_has_the_smallest_error_at_the_rates() -> None:
    """FedAU's weights over many independent logs, by its definition, have the smallest error there.

    Clients of rate 0.1 in 400 rounds; a weight is the mean of the intervals cut off at K.
    """
    random, errors = np.random.default_rng(0), dict[int, float]()
    chosen = ft.audit(to_frame(random.random((400, 60)) < 0.1), clients=60).cutoff
    for cutoff in (5, chosen, 400):
        weights = []
        for _ in range(200):
            gaps = random.geometric(0.1, 400)
            gaps = gaps[np.cumsum(gaps) <= 400]
            cut = np.concatenate(
                [[cutoff] * ((g - 1) // cutoff) + [(g - 1) % cutoff + 1] for g in gaps]
            )
            weights.append(cut.mean())
        errors[cutoff] = float(np.mean((0.1 * np.array(weights) - 1) ** 2))
    assert min(errors, key=errors.__getitem__) == chosen or errors[chosen] < 1.1 * errors[400]
    assert errors[chosen] < errors[5]


def test_rates_of_clients_that_never_came_are_positive_and_plausible() -> None:
    """The upper end of a 95% interval after T empty rounds is about 3.7 / T."""
    present = uneven(np.random.default_rng(3))[:200]
    present[:, 44:] = False
    audit = ft.audit(to_frame(present), clients=50)
    known = next(one for one in audit.advice if one.algorithm == "known-rates")
    rates = np.array(known.experiment["algorithm"]["rates"])
    np.testing.assert_allclose(rates[:40], present.mean(axis=0)[:40], rtol=1e-5)
    assert np.all((rates[44:] > 2 / 200) & (rates[44:] < 6 / 200))
    assert any("clients that never took part (6)" in reason for reason in known.reasons)


def quadratic(clients: int) -> dict[str, Any]:
    return {
        "problem": ft.problems.Quadratic(
            matrices=np.tile(np.eye(2), (clients, 1, 1)),
            centers=np.random.default_rng(0).normal(size=(clients, 2)),
        ),
        "local": {"steps": 1, "lr": 0.01},
        "dtype": "float64",
        "trainer": "reference",
        "progress": False,
    }


def test_every_advice_is_runnable_although_new_clients_appear() -> None:
    present = time_zones(np.random.default_rng(3))[:300]
    absent = present.copy()
    absent[:, 40:] = False
    document = json.loads(json.dumps(ft.audit(to_frame(absent), clients=48).to_dict()))
    assert len(document["advice"]) >= 5
    for advice in document["advice"]:
        result = ft.simulate(
            **quadratic(48),
            participation=ft.participation.Replay(to_frame(present[:20])),
            rounds=20,
            **advice["experiment"],
        )
        assert np.isfinite(result.model).all()


def test_with_a_mechanism_only_methods_that_it_accepts_are_advised() -> None:
    """The judge is a simulation: advised methods train with it, the others are refused."""
    present = uneven(np.random.default_rng(3))[:300]
    mechanism = ft.privacy.Gaussian(clip=1.0, noise_multiplier=1.0, delta=1e-5)
    audit = ft.audit(to_frame(present), clients=50, privacy=mechanism)

    def train(advice: Advice) -> Any:
        settings = {"privacy": mechanism} | advice.experiment
        replayed = ft.participation.Replay(to_frame(present[:5]))
        return ft.simulate(**quadratic(50), participation=replayed, rounds=5, **settings)

    assert {one.algorithm for one in audit.advice} >= {"fedau", "known-rates"}
    for advice in audit.advice:
        assert advice.experiment["privacy"]["noise_multiplier"] == 1.0
        result = train(advice)
        assert result.experiment.privacy == mechanism
        assert np.isfinite(result.model).all()
    assert {one.algorithm for one in audit.left_out} >= {"auto", "scaffold", "fedvarp"}
    for advice in audit.left_out:
        with pytest.raises(ft.InvalidInputError, match="algorithm: "):
            train(advice)
    assert audit.advice[0].algorithm == "fedau"
    rates = present.mean(axis=0)
    assert audit.advice[0].parameters["cutoff"] == round(2 / rates[rates > 0].mean())
    document = audit.to_dict()
    assert [one["algorithm"] for one in document["left_out"]] == [
        one.algorithm for one in audit.left_out
    ]


def test_declared_samples_are_the_wanted_weights_and_data_weighting_is_right() -> None:
    """Uniform cohorts: weighting by samples minimises Σ a_n F_n with a_n the declared shares.

    The expected weight of a client differs from its share by what a cohort of ten draws from
    unequal counts: less than 0.05 in total here.
    """
    random = np.random.default_rng(2)
    frame = to_frame(uniform(random))
    counts = np.rint(np.geomspace(20, 400, 50)).astype(int)
    frame = frame.with_columns(samples=counts[frame["client"].to_numpy()])
    audit = ft.audit(frame, clients=50)
    assert audit.wanted_source == "samples"
    np.testing.assert_allclose(audit.objectives.wanted, counts / counts.sum())
    assert audit.objectives.given is not None
    assert audit.objectives.given.skew.corrected < 0.1
    assert audit.objectives.plain.skew.corrected > 0.3
    assert audit.objectives.now.skew.corrected < 0.15
    first = audit.advice[0]
    assert first.experiment == {"algorithm": {"type": "fedavg", "weights": "data"}}
    others = [one.experiment.get("objective") for one in audit.advice[1:]]
    assert set(others) == {"samples"}

    equal = ft.audit(frame, clients=50, wanted="equal")
    assert equal.wanted_source == "equal"
    assert equal.objectives.plain.skew.corrected < 0.1
    assert is_plain(equal.advice[0])
    with pytest.raises(ft.InvalidInputError, match="wanted"):
        ft.audit(frame, clients=50, wanted="samples")  # type: ignore[arg-type]


def execute(source: str) -> Any:
    """Return the algorithm that the source passes to the strategy, without Flower."""
    source = source.replace("from fedtide.flower import FedTide", "FedTide = record")
    namespace: dict[str, Any] = {"record": lambda algorithm, **options: (algorithm, options)}
    exec(source, namespace)
    return namespace["strategy"]


SIZES: dict[str, Callable[[int], int]] = {
    "number": lambda online: min(20, online),
    "share": lambda online: max(1, int(0.3 * online)),
    "all": lambda online: online,
}


def draw_available(random: np.random.Generator, rounds: int) -> Present:
    """120 clients of uneven rates, three in four of which sleep in half of each day."""
    awake = (np.arange(rounds)[:, None] % 24 < 12) | (np.arange(120) % 4 == 0)
    return awake & (random.random((rounds, 120)) < np.geomspace(0.9, 0.2, 120))


def ask(random: np.random.Generator, online: Present, size: Callable[[int], int]) -> Present:
    """Choose uniformly among the clients that are online, in each round."""
    asked = np.zeros_like(online)
    for t, there in enumerate(online):
        clients = np.flatnonzero(there)
        asked[t, random.choice(clients, size(len(clients)), replace=False)] = True
    return asked


def to_stages(**stages: Present) -> pl.DataFrame:
    frames = [to_frame(rows).with_columns(stage=pl.lit(name)) for name, rows in stages.items()]
    return pl.concat(frames)


def list_logs(rule: str) -> dict[str, pl.DataFrame]:
    """Return logs of what a server asked by a rule: with everything, and with less."""
    random = np.random.default_rng(5)
    online = draw_available(random, 480)
    asked = ask(random, online, SIZES[rule])
    used = asked & (random.random(asked.shape) < 0.8)
    logs = {
        "available": to_stages(available=online & ~asked, used=asked),
        "all stages": to_stages(available=online & ~asked, selected=asked & ~used, used=used),
    }
    if rule != "share":  # without knowing who was available, no log shows a share of them
        logs |= {"used": to_frame(asked), "selected": to_stages(selected=asked & ~used, used=used)}
    return logs


@pytest.mark.parametrize("rule", SIZES)
def test_the_strategy_asks_as_many_clients_as_the_log(rule: str) -> None:
    """FedTide asks min(online, max(int(online * fraction_train), min_train_nodes))."""
    online = draw_available(np.random.default_rng(6), 4800).sum(axis=1)
    expected = np.mean([SIZES[rule](n) for n in online])
    for name, log in list_logs(rule).items():
        advice = ft.audit(log, clients=120).advice
        known = next(one for one in advice if one.algorithm == "known-rates")
        for one in (advice[0], known):
            _, options = execute(one.strategy)
            share = options.get("fraction_train", 1.0)
            least = options.get("min_train_nodes", 1)
            sizes = np.minimum(online, np.maximum((online * share).astype(int), least))
            assert sizes.mean() == pytest.approx(expected, rel=0.03), name
            shown = "as in the log" if rule != "all" else "All clients that are online are asked"
            assert shown in " ".join(one.strategy.replace("\n# ", " ").split())


@pytest.mark.parametrize("rule", SIZES)
def test_weights_of_known_rates_sum_to_one_with_the_advised_cohort(rule: str) -> None:
    """Σ 1 / (N p_n) over the cohort is 1 on average, where all clients of the log are asked."""
    random = np.random.default_rng(7)
    log = list_logs(rule)["available"]
    advice = ft.audit(log, clients=120).advice
    algorithm, options = execute(
        next(one for one in advice if one.algorithm == "known-rates").strategy
    )
    share, least = options.get("fraction_train", 1.0), options.get("min_train_nodes", 1)
    cohorts = ask(
        random,
        draw_available(random, 2400),
        lambda online: min(online, max(int(online * share), least)),
    )
    rates = np.array([algorithm.rates[name] for name in options["clients"]])
    assert (cohorts / rates).sum(axis=1).mean() / 120 == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("loses", [False, True])
def test_the_strategy_closes_rounds_as_the_log(loses: bool) -> None:
    """12 are asked and 9 used; or each of the 12 fails in a quarter of the rounds."""
    random = np.random.default_rng(8)
    asked = ask(random, draw_available(random, 480), lambda online: min(online, 12))
    first = np.argsort(random.random(asked.shape) + 2 * ~asked, axis=1).argsort(axis=1) < 9
    used = asked & (random.random(asked.shape) < 0.75 if loses else first)
    log = to_stages(selected=asked & ~used, used=used)
    found = ft.audit(log, clients=120).advice[0].strategy
    options = execute(found)[1]
    assert options["min_train_nodes"] == 12
    assert options.get("close_after") == (None if loses else 9)
    assert ("a round closes with 9 updates" in found.replace("\n# ", " ")) is not loses


@pytest.mark.flower
def test_strategy_runs_where_flower_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for advice in run_audit(uneven).advice:
        namespace: dict[str, Any] = {}
        exec(advice.strategy, namespace)
        algorithm, population = namespace["strategy"].algorithm, Population(50)
        if isinstance(namespace["strategy"]._clients, list):  # a value for each needs the names
            population = Population(50, names=np.array(namespace["strategy"]._clients))
        assert isinstance(algorithm, BUILDER.build(Algorithm, advice.settings).__class__)
        algorithm.init(torch.zeros(1), population)
        names = {str(n) for n in range(50)}
        assert population.names is None or set(population.names) == names
        assert (population.names is None) == ("rates" not in str(advice.settings))


def test_strategy_and_experiment_keep_the_mechanism() -> None:
    present = uneven(np.random.default_rng(3))[:300]
    frame = to_frame(present).with_columns(client="site " + pl.col("client").cast(pl.String))
    mechanism = ft.privacy.MatrixFactorisation(0.3, 1.0, 1e-5, min_separation=2, budget=4.0)
    audit = ft.audit(frame, privacy=mechanism)
    for advice in audit.advice:
        algorithm, options = execute(advice.strategy)
        assert algorithm == BUILDER.build(Algorithm, advice.experiment["algorithm"])
        assert options["privacy"] == mechanism
        assert (
            options["clients"] == [f"site {n}" for n in range(50)] or len(options["clients"]) == 50
        )
        assert BUILDER.build(ft.privacy.Mechanism, advice.experiment["privacy"]) == mechanism


def test_memory_that_is_counted_is_what_the_method_keeps() -> None:
    """Groups in turn; the rows that a method keeps for clients are counted as it trains."""
    cohorts = [range(10 * (t // 5 % 3), 10 * (t // 5 % 3 + 1)) for t in range(60)]
    present = np.zeros((60, 30), dtype=bool)
    for t, cohort in enumerate(cohorts):
        present[t, list(cohort)] = True
    dimension, counted = 7, dict[str, Advice]()
    for advice in ft.audit(to_frame(present), clients=30, dimension=dimension).advice:
        if advice.memory == "heavy":
            counted.setdefault(advice.algorithm, advice)
    assert {"scaffold", "amplified-scaffold", "fedvarp"} == set(counted)
    for advice in counted.values():
        method = BUILDER.build(Algorithm, advice.experiment["algorithm"])
        driver = RoundDriver(method, torch.zeros(dimension), Population(30))
        most = 0
        for cohort in cohorts:
            ids = torch.tensor(cohort)
            ones = torch.ones(len(ids))
            rows = ones[:, None].repeat(1, dimension)
            driver.absorb(ClientUpdates(ids, ones / 10, rows, 0.1, ones))
            driver.step(0.1)
            tables = [v for v in vars(driver.state).values() if isinstance(v, ClientMemory)]
            most = max(most, sum(table.seen for table in tables) * dimension)
        assert most <= advice.memory_floats <= most + 4 * dimension, advice.algorithm
        corrected = method.instruct(driver.state, torch.arange(3)).correction is not None
        assert advice.message_floats == (2 + corrected) * dimension


NAMES = ["zed", "10", "bob", "9"]  # sorted by a run: 10, 9, bob, zed


def named_federation() -> tuple[Audit, dict[str, Any]]:
    """Four clients whose roster is in an order of its own, and a simulation of the same clients.

    Client n holds y = n at x = 1, so the model without a constant is the mean of the n.
    """
    present = np.random.default_rng(0).random((300, 4)) < [0.9, 0.2, 0.5, 0.3]
    rounds, clients = np.nonzero(present)
    log = pl.DataFrame({"round": rounds, "client": [NAMES[n] for n in clients]})
    roster = pl.DataFrame({"client": NAMES, "weight": [9.0, 1.0, 1.0, 1.0]})
    data = pl.DataFrame({"who": NAMES, "x": [1.0] * 4, "y": [0.0, 1.0, 2.0, 3.0]})
    run: dict[str, Any] = {
        "problem": ft.problems.Supervised(
            data, inputs=["x"], target="y", clients="who", loss="mse"
        ),
        "local": ft.LocalTraining(steps=1, lr=0.1),
        "rounds": 300,
        "trainer": "reference",
    }
    return ft.audit(log, roster=roster), run | {"log": log}


def test_advised_objective_weights_the_clients_that_the_roster_names() -> None:
    audit, run = named_federation()
    del run["log"]
    objective = audit.advice[0].experiment["objective"]
    result = ft.simulate(**run, participation="full", algorithm="fedavg", objective=objective)
    predicted = result.module()(torch.ones(1, 1)).item()
    assert predicted == pytest.approx((9 * 0 + 1 + 2 + 3) / 12, abs=1e-3)
