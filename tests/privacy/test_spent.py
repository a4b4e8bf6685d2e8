"""What a log has cost: against other accountants, a run's own account, and the sampling laws."""

import html
import json
import math
from collections import defaultdict
from functools import cache

import mpmath
import numpy as np
import polars as pl
import pytest
from tests.algorithms.references import algorithm_2
from typer.testing import CliRunner

import fedtide as ft
from fedtide.algorithms import FedAU, FedAvg, KnownRates
from fedtide.auditing import ParticipationLog
from fedtide.auditing.log.client_table import ClientTable
from fedtide.auditing.log.reader import read_participation_log
from fedtide.auditing.privacy import read_privacy_file
from fedtide.cli.main import app
from fedtide.errors import InvalidInputError
from fedtide.flower.ledger.ledger import Entry, Ledger
from fedtide.privacy import (
    FixedSizeSampling,
    Gaussian,
    MatrixFactorisation,
    PoissonSampling,
    epsilon_of_loss,
    loss_of_epsilon,
    spent,
)

from .rounds import banded_root

pytest.importorskip("dp_accounting")


def log_of(present: np.ndarray) -> ParticipationLog:
    """Return the log of (T, N) bools, which begins with round 0."""
    rounds, clients = np.nonzero(present)
    span = (0, len(present))
    names = pl.Series(range(present.shape[1]))
    return ParticipationLog.from_entries(names, rounds, clients.astype(np.int32), span)


def delta_by_definition(epsilon: float, loss: float) -> mpmath.mpf:
    """Return δ(ε) of N(0, 1) against N(μ, 1), with 50 digits (Balle and Wang 2018, Theorem 8)."""
    with mpmath.workdps(50):
        mu, epsilon = mpmath.sqrt(loss), mpmath.mpf(epsilon)
        first = mpmath.ncdf(mu / 2 - epsilon / mu)
        return first - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("delta", [1e-3, 1e-12])
@pytest.mark.parametrize("loss", [1e-4, 1.0, 900.0])
def test_epsilon_is_that_of_the_definition(loss, delta):
    epsilon = epsilon_of_loss(loss, delta)
    assert float(delta_by_definition(epsilon, loss)) <= delta * (1 + 1e-6)
    if epsilon > 0:
        assert float(delta_by_definition(epsilon * (1 - 1e-7) - 1e-9, loss)) > delta * (1 - 1e-6)
        assert loss_of_epsilon(epsilon, delta) == pytest.approx(loss, rel=1e-6)


@cache
def library_accountant(z: float, k: int):
    """Return dp-accounting's account of k rounds, by numerical composition."""
    import dp_accounting
    from dp_accounting import pld

    accountant = pld.PLDAccountant(value_discretization_interval=3e-4)
    return accountant.compose(dp_accounting.GaussianDpEvent(z), k)


@pytest.mark.statistical
def test_a_thousand_random_logs_agree_with_numerical_composition():
    """The privacy loss distributions of dp-accounting, in steps of 3e-4, composed k times."""
    draws = np.random.default_rng(0)
    compared = set()
    for _ in range(1000):
        shape = draws.integers(2, 8), draws.integers(1, 6)
        present = draws.random(shape) < draws.random()
        present[0, 0] = True
        z, delta = 6.0, float(draws.choice([1e-4, 1e-5, 1e-7]))
        mechanism = Gaussian(1.0, z, delta)
        if draws.random() < 0.5:  # far enough apart for two bands: the same account
            present[1::2] = False
            mechanism = MatrixFactorisation(1.0, z, delta, min_separation=2)
        found = spent(log_of(present), mechanism)
        for k, epsilon in found.clients.select("participations", "epsilon").iter_rows():
            if k == 0:
                assert epsilon == 0
                continue
            library = library_accountant(z, k).get_epsilon(delta)
            assert epsilon == pytest.approx(library, abs=1e-6)
            compared.add((k, delta))
    assert len(compared) == 3 * 7


def test_weights_of_a_log_are_those_of_the_method():
    """FedAU's Algorithm 2, client by client; unequal weights add up as squares."""
    present = np.random.default_rng(1).random((40, 6)) < [0.05, 0.1, 0.3, 0.5, 0.9, 1.0]
    present[0, 0] = True
    mechanism = Gaussian(1.0, 0.7, 1e-5)
    found = spent(log_of(present), mechanism, FedAU(cutoff=7))
    for n in range(6):
        *weights, upcoming = np.array(algorithm_2(present[:, n], 7)) / 7
        lost = (np.square(weights) * present[:, n]).sum()
        assert found.losses[n] == pytest.approx(lost / 0.49, rel=1e-9)
        more = found.next_losses[n] - found.losses[n]
        assert more == pytest.approx(upcoming**2 / 0.49, rel=1e-9)
    assert found.epsilon == pytest.approx(epsilon_of_loss(found.losses.max(), 1e-5))


def test_too_close_participations_cost_more_and_are_reported():
    present = np.zeros((10, 3), dtype=bool)
    present[[0, 4, 8], 0] = present[[2, 3], 1] = present[5, 2] = True
    mechanism = MatrixFactorisation(1.0, 2.0, 1e-5, min_separation=4, max_participations=2)
    found = spent(log_of(present), mechanism, horizon=10)
    assert found.violators.tolist() == [0, 1]
    C = banded_root(4, 10)
    true = [(C[:, present[:, n]].sum(axis=1) ** 2).sum() / 4 for n in range(3)]
    np.testing.assert_allclose(found.losses, true, rtol=1e-9)
    assert found.clients["separation"].to_list() == [4, 1, None]
    endless = spent(log_of(present), mechanism)
    assert (endless.losses >= found.losses - 1e-12).all()
    with pytest.raises(InvalidInputError, match=r"^horizon: the log has rounds up to 9; "):
        spent(log_of(present), mechanism, horizon=9)


def test_a_run_and_its_log_agree(tmp_path):
    mechanism = Gaussian(1.0, 1.2, 1e-5, budget=5.0)
    result = ft.simulate(
        problem=ft.problems.Quadratic(matrices=np.ones((5, 1, 1)), centers=np.arange(5.0)[:, None]),
        participation=ft.participation.Bernoulli([0.1, 0.3, 0.5, 0.8, 1.0]),
        algorithm=FedAU(cutoff=6),
        local=ft.LocalTraining(steps=1, lr=0.1),
        rounds=60,
        privacy=mechanism,
        out=tmp_path / "run",
        trainer="reference",
        progress=False,
    )
    found = spent(str(tmp_path / "run"), mechanism, FedAU(cutoff=6))
    lost = result.state.lost.numpy() / 1.2**2
    np.testing.assert_allclose(found.losses, lost, rtol=1e-6)
    assert found.epsilon <= 5.0
    assert (found.clients["epsilon_next"] > 5.0).any()


def test_the_noise_and_the_cutoff_that_meet_a_target_do_meet_it():
    present = np.random.default_rng(2).random((40, 10)) < np.linspace(0.05, 1, 10)
    mechanism = Gaussian(1.0, 0.2, 1e-5)
    found = spent(log_of(present), mechanism, FedAU(cutoff=20), target=3.0)
    assert found.epsilon > 3.0
    enough = Gaussian(1.0, found.noise_needed, 1e-5)
    assert spent(log_of(present), enough, FedAU(cutoff=20)).epsilon == pytest.approx(3.0, rel=1e-6)
    cutoff = found.cutoff_needed
    if cutoff:  # the same noise in the model: z K C
        lower = Gaussian(1.0, 0.2 * 20 / cutoff, 1e-5)
        assert spent(log_of(present), lower, FedAU(cutoff=cutoff)).epsilon <= 3.0
    assert spent(log_of(present), mechanism, target=3.0).cutoff_needed is None


def test_what_failed_has_cost_nothing():
    log = pl.DataFrame(
        {"round": [0, 0, 1], "client": ["ann", "bob", "bob"], "status": ["ok", "timeout", "ok"]}
    )
    mechanism = Gaussian(1.0, 1.0, 1e-5)
    with pytest.raises(InvalidInputError, match="stages"):
        spent(log, mechanism)
    found = spent(log, mechanism, stages={"ok": "used", "timeout": "selected"})
    assert found.clients["participations"].to_list() == [1, 1]


@pytest.mark.parametrize("column", ["weight", "num_examples"])
def test_an_update_that_the_log_gives_no_weight_is_not_taken_to_be_free(column):
    """The method weights it as any other: plain averaging does not look at sample counts."""
    log = pl.DataFrame({"round": [0, 0, 1, 2], "client": ["ann", "bob", "ann", "ann"]})
    counted = log.with_columns(pl.Series(column, [0.0, 1.0, 0.0, 1.0]))
    mechanism = Gaussian(clip=1.0, noise_multiplier=2.0, delta=1e-5)
    with pytest.raises(
        InvalidInputError, match=r"^log: in 2 rows the weight or sample count is 0; "
    ):
        spent(counted, mechanism)
    staged = spent(counted.with_columns(stage=pl.lit("used")), mechanism)
    assert staged.clients["participations"].to_list() == [3, 1]


LAWS = [
    (PoissonSampling(0.2), lambda draws, t, n: draws.random((t, n)) < 0.2),
    (
        FixedSizeSampling(10),
        lambda draws, t, n: np.argsort(draws.random((t, n)), axis=1).argsort(axis=1) < 10,
    ),
]


@pytest.mark.statistical
@pytest.mark.parametrize(("law", "draw"), LAWS)
def test_a_law_that_is_kept_is_rarely_contradicted(law, draw):
    """At a level of 1 %, 13 or more of 400 logs would be with probability below 1e-3."""
    draws = np.random.default_rng(3)
    found = [law.check(log_of(draw(draws, 100, 50))) for _ in range(400)]
    assert sum(bool(check.contradictions) for check in found) < 13


@pytest.mark.parametrize(("law", "draw"), LAWS)
@pytest.mark.parametrize("how", ["correlated rates", "bursts", "everyone once in turn"])
def test_a_law_that_is_not_kept_is_contradicted(law, draw, how):
    draws, t, n = np.random.default_rng(4), 200, 50
    if how == "correlated rates":
        scores = draws.exponential(1 / np.linspace(0.5, 1.5, n), (t, n))
        present = scores.argsort(axis=1).argsort(axis=1) < 10
    elif how == "bursts":
        present = np.repeat(draw(draws, t // 4, n), 4, axis=0)
    else:
        present = np.array([np.arange(n) // 10 == row % 5 for row in range(t)])
    assert law.check(log_of(present)).contradictions


def test_the_declared_poisson_figure_is_that_of_the_library():
    import dp_accounting
    from dp_accounting import rdp

    event = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.0))
    bound = rdp.RdpAccountant().compose(event, 10).get_epsilon(1e-5)
    declared = PoissonSampling(0.1).declared_epsilon(Gaussian(1.0, 1.0, 1e-5), 10)
    assert 0.6 * bound < declared < bound  # Rényi accounting is an upper bound, not a tight one
    mechanism = MatrixFactorisation(1.0, 1.0, 1e-5, min_separation=3)
    assert PoissonSampling(0.1).declared_epsilon(mechanism, 10) is None


FILE = """
privacy:
  - {type: gaussian, clip: 1.0, noise_multiplier: 2.0, delta: 1.0e-5, budget: 3.0}
  - {type: matrix-factorisation, clip: 1.0, noise_multiplier: 2.0, delta: 1.0e-5, min_separation: 2}
algorithm: {type: fedau, cutoff: 4}
law: {type: fixed-size, size: 2}
target: 1.0
"""


def run_audit(tmp_path, text, *options, first=0, first_name="0"):
    log, settings, found = (tmp_path / name for name in ("log.csv", "privacy.yaml", "audit.json"))
    names = [first_name, "1", "2", "3"]
    rows = [(first + t, names[n]) for t in range(12) for n in range(4) if (t + n) % (n + 1) == 0]
    pl.DataFrame(rows, schema=["round", "client"], orient="row").write_csv(log)
    settings.write_text(text)
    arguments = ["audit", str(log), "--privacy", str(settings), "--json", str(found), *options]
    result = CliRunner().invoke(app, arguments)
    return result, found


def test_the_command_says_what_a_log_has_cost(tmp_path):
    result, path = run_audit(tmp_path, FILE)
    assert result.exit_code == 0, result.output
    first, second = json.loads(path.read_text())["privacy"]
    assert "ε = 1 would have needed noise_multiplier" in result.output
    assert "the declared sampling law was not kept" in result.output
    assert "took part too soon or too often" in result.output
    assert second["violations"] == [0]
    of_0 = [one["clients"][0]["epsilon"] for one in (first, second)]
    assert of_0[0] < of_0[1]  # whose participations were too close
    of_3 = [one["clients"][3]["epsilon"] for one in (first, second)]
    assert of_3[0] == pytest.approx(of_3[1])


def test_the_command_warns_of_rounds_that_the_log_lacks_and_of_a_large_delta(tmp_path):
    """Both make a figure say less than it seems to."""
    text = FILE.replace("delta: 1.0e-5", "delta: 0.3")
    warnings = ("rounds 0 to 2 are not in the log", "δ = 0.3 is not below 1 / N = 0.25")
    result, path = run_audit(tmp_path, text, first=3)
    assert json.loads(path.read_text())["privacy"][0]["rounds"] == [3, 14]
    assert all(warning in result.output for warning in warnings)
    result, _ = run_audit(tmp_path, FILE)
    assert not any(warning in result.output for warning in ("not in the log", "not below"))


def test_the_page_says_of_every_mechanism_what_the_terminal_says(tmp_path, monkeypatch):
    drawn = "fedtide.auditing.output.html_page.audit_figures.draw_figures"
    monkeypatch.setattr(drawn, lambda audit: defaultdict(str))  # figures take a second
    page = tmp_path / "audit.html"
    name = "client <&>"
    result, _ = run_audit(tmp_path, FILE, "--html", str(page), first_name=name)
    text = html.unescape(page.read_text())
    printed = result.output[result.output.index("privacy: ") :].splitlines()
    assert [line for line in printed if line not in text] == []
    assert any(name in line for line in printed)
    assert name not in page.read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FILE + "tragte: 2.0", "^tragte: unknown key; did you mean 'target'?"),
        (FILE + "horizon: 3", "^horizon: the log has rounds up to 11"),
        (
            FILE + "problem: lower-bound\nmethods: {b: {}}",
            "^methods: .* several runs, .*; give the",
        ),
        (
            "base: a.yaml\nproblem: lower-bound\nalgorithm: fedau",
            "^base: .* builds on another file",
        ),
        (FILE.replace("{type: fedau, cutoff: 4}", "mifa"), "algorithm: MIFA uses more"),
    ],
)
def test_files_that_cannot_be_used_are_refused(tmp_path, text, message):
    path = tmp_path / "privacy.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=message):
        read_privacy_file(path).spent(log_of(np.ones((12, 2), dtype=bool)))


def test_the_ledger_of_a_live_federation_tells_what_is_left(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = Ledger(url, "default")
    for t in range(3):
        names = ["ann", "bob"] if t else ["ann"]
        ledger.commit(
            t, [Entry(name, "used", 1.0, float(t), None, None) for name in names], t + 1.0
        )
    mechanism = Gaussian(1.0, 2.0, 1e-5, budget=4.0)
    found = spent(url, mechanism, FedAvg(weights="all"))
    assert found.clients["participations"].to_list() == [3, 2]
    after = [epsilon_of_loss(k / 4, 1e-5) for k in (4, 3)]
    assert found.clients["epsilon_next"].to_list() == pytest.approx(after)
    assert math.isclose(found.epsilon, epsilon_of_loss(0.75, 1e-5))


NAMED = pl.DataFrame({"round": [0, 0, 1, 2], "client": ["b", "a", "b", "b"]})


@pytest.mark.parametrize(
    "method", [KnownRates(rates=[0.1, 1.0]), FedAU(cutoff=5, groups=[0, 1])], ids=repr
)
def test_lists_are_refused_where_clients_have_names(method):
    """The order of the names is not that of the federation's clients."""
    mechanism = Gaussian(1.0, 3.0, 1e-5)
    digits = NAMED.with_columns(pl.col("client").replace({"a": "10", "b": "2"}))
    for log in (NAMED, digits):
        with pytest.raises(
            InvalidInputError, match=r"^algorithm\.(rates|groups): a list .*mapping"
        ):
            spent(log, mechanism, method)
    numbered = NAMED.with_columns(pl.col("client").replace_strict({"a": 10, "b": 2}))
    assert spent(numbered, mechanism, method).log.size == 2


def test_the_roster_names_clients_that_never_came():
    mechanism, method = Gaussian(1.0, 3.0, 1e-5), KnownRates(rates={"b": 0.1, "a": 1.0, "c": 0.01})
    with pytest.raises(InvalidInputError, match=r"^algorithm\.rates: 'c' never .*--roster"):
        spent(NAMED, mechanism, method)
    roster = ClientTable.from_frame(pl.DataFrame({"client": ["a", "b", "c"]}))
    found = spent(NAMED, mechanism, method, roster=roster)
    assert dict(zip(found.log.names, found.losses * 9, strict=True)) == pytest.approx(
        {"b": 0.03, "a": 1e-4, "c": 0.0}, rel=1e-5
    )


def test_a_log_whose_rounds_begin_at_a_time_is_refused_at_once():
    """Weights are replayed from round 0 on, which would take days for a Unix time."""
    rows = pl.DataFrame({"round": [10**9, 10**9 + 1], "client": [0, 1]})
    log = read_participation_log(rows, round_step=1)
    with pytest.raises(InvalidInputError, match=r"^round: the log begins in round 1,000,000,000, "):
        spent(log, Gaussian(1.0, 2.0, 1e-5), FedAU(cutoff=5))


def test_weights_that_never_change_need_no_rounds_before_the_log():
    rows = pl.DataFrame({"round": [10**9, 10**9 + 1, 10**9 + 1], "client": [0, 0, 1]})
    log = read_participation_log(rows, round_step=1)
    mechanism = Gaussian(1.0, 2.0, 1e-5)
    assert spent(log, mechanism).losses.tolist() == [2 / 4, 1 / 4]
    rates = KnownRates(rates=[0.5, 1.0])
    assert spent(log, mechanism, rates).losses.tolist() == [2 / 4, 1 / 16]
