"""Differential privacy on a federation: the noise, replies that go missing, and budgets."""

import numpy as np
import pytest
from tests.algorithms.references import algorithm_2

from fedtide.algorithms import FedAU, FedAvg
from fedtide.differential_privacy import private_sum
from fedtide.differential_privacy.noise_source import standard_normals
from fedtide.errors import InvalidInputError
from fedtide.flower.server.strategy import FedTide
from fedtide.participation.log.ledger import read_ledger
from fedtide.privacy import Gaussian, MatrixFactorisation, spent

from .driver import LOCAL, TASK, N, deploy, federation, model, node_of, update_of


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
def test_half_of_the_cohort_goes_missing_and_the_noise_stays(url, quantile):
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
    strategy = deploy(grid, FedAU(cutoff=4), rounds, ledger=url, privacy=mechanism)
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


def test_training_ends_when_nobody_may_take_part_any_more(url):
    mechanism = MatrixFactorisation(1.0, 1.0, 1e-5, min_separation=2, max_participations=2)
    strategy = deploy(federation(), FedAvg(weights="all"), 20, ledger=url, privacy=mechanism)
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


def test_two_federations_never_have_the_same_noise():
    mechanism = Gaussian(1.0, 1.0, 1e-5)
    models = [
        model(deploy(federation(), FedAvg(weights="all"), 1, privacy=mechanism, seed=3))
        for _ in range(2)
    ]
    assert not np.isclose(*models).any()


def test_the_mechanism_is_part_of_what_a_state_was_begun_with(tmp_path):
    options = {"state": tmp_path / "state"}
    deploy(federation(), FedAvg(weights="all"), 1, privacy=Gaussian(1.0, 1.0, 1e-5), **options)
    with pytest.raises(ValueError, match=r"^state: .* was begun with algorithm "):
        deploy(federation(), FedAvg(weights="all"), 2, privacy=Gaussian(1.0, 0.5, 1e-5), **options)


def test_the_strategy_refuses_what_cannot_be_private():
    with pytest.raises(ValueError, match=r"^algorithm: .*any weight"):
        deploy(federation(), FedAvg(), 1, privacy=Gaussian(1.0, 1.0, 1e-5))
    assert FedTide(FedAvg(), clients=2).algorithm == FedAvg()
    assert LOCAL.steps == 3


@pytest.mark.parametrize("damage", ["flipped", "deleted"])
@pytest.mark.parametrize("rounds", [1, 3])
def test_a_round_that_may_have_been_published_is_never_repeated(damage, rounds, tmp_path, url):
    state = tmp_path / "state"
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
