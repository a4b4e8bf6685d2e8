"""Differential privacy on a federation: the noise, replies that go missing, and budgets."""

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm
from tests.algorithms.references import algorithm_2

from fedtide.algorithms import FedAU, FedAvg
from fedtide.differential_privacy import private_sum
from fedtide.differential_privacy.noise_source import standard_normals
from fedtide.errors import InvalidInputError
from fedtide.flower.ledger.ledger import read_ledger
from fedtide.flower.server.session import TrainingSession
from fedtide.privacy import Gaussian, MatrixFactorisation, spent

from .driver import (
    TASK,
    Killed,
    N,
    deploy,
    federation,
    kill_in_call,
    model,
    node_of,
    update_of,
)


@pytest.fixture
def state(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def known_noise(monkeypatch):
    """Let the federation draw the noise of seed 0, which a test can know."""
    monkeypatch.setattr(
        private_sum, "standard_normals", lambda size, t, seed: standard_normals(size, t, 0)
    )


def expected_model(present, mechanism, cutoff=4):
    """Return the model of FedAU over these rounds, written out, with the noise of seed 0.

    With a quantile, also the clipping norm after the last round.
    """
    x, clip = TASK.start.numpy().copy(), mechanism.clip
    z, count_noise, quantile = mechanism.noise_multiplier, 0.0, 0.0
    if mechanism.quantile is not None:
        quantile, count_noise = mechanism.quantile, 5 * z
        z = (z**-2 - count_noise**-2) ** -0.5
    for t, row in enumerate(present):
        total, count = np.zeros_like(x), 0.0
        for n in np.flatnonzero(row):
            delta = update_of(n, x)
            weight, norm = algorithm_2(present[:, n], cutoff)[t], np.linalg.norm(delta)
            total += weight * delta * min(1, clip / norm)
            count += weight * ((norm > clip) - (1 - quantile))
        noise = standard_normals(len(x) + (quantile > 0), t, 0).numpy()
        x = x + (total + z * cutoff * clip * noise[: len(x)]) / N
        if quantile:
            clip *= np.exp(0.2 / N * (count + count_noise * cutoff * noise[-1]))
    return x, clip


@pytest.mark.usefixtures("known_noise")
@pytest.mark.parametrize("quantile", [None, 0.3])
def test_half_of_the_cohort_goes_missing_and_the_noise_stays(url, state, quantile):
    """Their apps fail from round 3 on; the noise is not scaled to those that were asked or came."""
    rounds, mechanism = 8, Gaussian(0.5, 0.7, delta=1e-5, quantile=quantile)
    grid = federation()
    lost = (0, 2, 4)
    for client in lost:
        node_of(grid, client).error = 0
    present = np.ones((rounds, N), dtype=bool)
    present[3:, lost] = False

    def fail_after(node):
        inner = node.app

        def app(message, context):
            if message.metadata.group_id.isdigit() and int(message.metadata.group_id) > 3:
                raise RuntimeError("lost")
            return inner(message, context)

        return app

    for client in lost:
        node = node_of(grid, client)
        node.app = fail_after(node)
    strategy = deploy(grid, FedAU(cutoff=4), rounds, ledger=url, privacy=mechanism, state=state)
    expected, clip = expected_model(present, mechanism)
    np.testing.assert_allclose(model(strategy), expected, rtol=1e-5)
    assert strategy.training.driver.state.clip == pytest.approx(clip)
    assert (clip == 0.5) == (quantile is None)
    # What the ledger says was spent is what the strategy has counted.
    found = spent(url, mechanism, FedAU(cutoff=4), clients=None)
    counted = strategy.training.driver.state.lost.numpy() / 0.7**2
    by_name = dict(found.clients.select("client", "participations").iter_rows())
    assert by_name == {str(n): 3 if n in lost else rounds for n in range(N)}
    np.testing.assert_allclose(sorted(found.losses), sorted(counted), rtol=1e-9)


def epsilon_of(rounds, z, delta):
    """Return ε of a client after Gaussian rounds, from Theorem 8 of Balle and Wang (2018)."""
    mu = rounds**0.5 / z

    def excess(epsilon):
        low = norm.cdf(-mu / 2 - epsilon / mu)
        return norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * low - delta

    return brentq(excess, 0.0, 50.0)


def test_a_second_submission_goes_on_with_what_the_first_has_spent(tmp_path):
    """Three rounds each: 2.34 and then 3.47, not 2.34 again."""
    mechanism = Gaussian(1.0, 3.0, 1e-5)
    options = {"state": tmp_path / "state", "privacy": mechanism}
    for rounds in (3, 6):
        state = deploy(federation(), FedAvg(weights="all"), rounds, **options).training.driver.state
        found = [mechanism.epsilon(float(lost) / 3.0**2) for lost in state.lost]
        assert found == pytest.approx([epsilon_of(rounds, 3.0, 1e-5)] * N, rel=1e-3)


def test_training_ends_when_nobody_may_take_part_any_more(url, state):
    mechanism = MatrixFactorisation(1.0, 1.0, 1e-5, min_separation=2, max_participations=2)
    strategy = deploy(
        federation(), FedAvg(weights="all"), 20, ledger=url, privacy=mechanism, state=state
    )
    assert strategy.training.round == 3
    used = read_ledger(url).filter(stage="used")
    assert used["round"].unique().sort().to_list() == [0, 2]
    assert len(used) == 2 * N


def test_a_federation_resumes_with_its_noise_and_its_budgets(tmp_path):
    mechanism = MatrixFactorisation(1.0, 1.0, 1e-5, min_separation=3, budget=8.0)
    options = {"state": tmp_path / "state", "privacy": mechanism}
    first = deploy(federation(), FedAU(cutoff=4), 5, **options)
    kept = first.training.driver.state
    second = deploy(federation(), FedAU(cutoff=4), 5, **options).training.driver.state
    for name in ("lost", "rounds", "last", "noise"):
        assert (getattr(kept, name) == getattr(second, name)).all()
    assert kept.noise.abs().min() > 0


@pytest.mark.parametrize(
    ("lost", "field"),
    [("states", "state"), ("newest", "state"), ("mark", "state"), ("ledger", "ledger")],
)
def test_private_training_goes_on_only_with_all_that_its_clients_have_lost(lost, field, state, url):
    """Else their budgets would begin anew, or `spent` would not count them."""
    options = {"state": state, "ledger": url, "privacy": Gaussian(1.0, 3.0, 1e-5)}
    deploy(federation(), FedAvg(weights="all"), 3, **options)
    if lost == "states":
        options["state"] = state / "mistyped"
    elif lost == "newest":  # of which the mark tells, without a ledger
        max(state.glob("*.safetensors")).unlink()
        options["ledger"] = None
    elif lost == "mark":
        (state / "published").write_text("3\n4")
    else:
        options["ledger"] = url.replace("ledger.db", "leger.db")
    grid = federation()
    with pytest.raises(InvalidInputError, match=rf"^{field}: "):
        deploy(grid, FedAvg(weights="all"), 4, **options)
    assert not grid.sent


@pytest.mark.parametrize("damage", ["flipped", "deleted"])
def test_a_round_that_may_have_been_published_is_never_repeated(damage, state, url):
    rounds = 3
    options = {"state": state, "ledger": url, "privacy": Gaussian(1.0, 3.0, 1e-5)}
    deploy(federation(), FedAvg(weights="all"), rounds, **options)
    newest, before = max(state.glob("*.safetensors")), read_ledger(url)
    kept = newest.read_bytes()
    if damage == "deleted":
        newest.unlink()
    else:
        newest.write_bytes(kept[:-1] + bytes([kept[-1] ^ 16]))
    grid = federation()
    refused = rf"^state: round {rounds} has ended, .* after round {rounds - 1}; .*restore"
    with pytest.raises(InvalidInputError, match=refused):
        deploy(grid, FedAvg(weights="all"), rounds + 1, **options)
    assert not grid.sent
    assert read_ledger(url).equals(before)
    newest.write_bytes(kept)
    again = deploy(federation(), FedAvg(weights="all"), rounds + 1, **options)
    assert again.training.driver.state.rounds.tolist() == [rounds + 1] * N


def test_a_crash_between_the_state_and_the_mark_of_its_round_is_survived(tmp_path, monkeypatch):
    options = {"state": tmp_path / "state", "privacy": Gaussian(1.0, 3.0, 1e-5)}
    with monkeypatch.context() as patch:
        kill_in_call(patch, TrainingSession, "mark_published", 3, after=False)
        with pytest.raises(Killed):
            deploy(federation(), FedAvg(weights="all"), 4, **options)
    again = deploy(federation(), FedAvg(weights="all"), 4, **options)
    assert again.training.driver.state.rounds.tolist() == [4] * N


def used_by_round(url, rounds):
    used = read_ledger(url).filter(stage="used")["round"].to_list()
    return [used.count(t) for t in range(rounds)]


def test_a_round_waits_for_somebody_who_may_take_part(url, state):
    """The others come half a minute later; until then one client is there, whose budget is spent.

    Rounds with noise alone would move the model away in the meantime.
    """
    grid = federation()
    began = grid.now
    for client in range(1, N):
        node_of(grid, client).online = lambda now: now >= began + 30
    mechanism = Gaussian(0.3, 2.0, 1e-5, budget=2.5)  # of one participation
    options = {"ledger": url, "privacy": mechanism, "state": state}
    strategy = deploy(grid, FedAvg(weights="all"), 500, timeout=3600.0, **options)
    assert used_by_round(url, 2) == [1, N - 1]
    assert strategy.training.round == 2
    assert began + 30 < grid.now < began + 60
