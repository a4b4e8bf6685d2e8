"""What a ledger says about single updates, the quarantine of a site, and the way back."""

from collections import defaultdict
from functools import partial

import numpy as np
import pytest
from flwr.app import MetricRecord

import fedtide as ft
from fedtide.auditing.output.html_page import render_page
from fedtide.differential_privacy import epsilon_of_loss
from fedtide.errors import InvalidInputError
from fedtide.flower.arrays import vector_to_arrays
from fedtide.flower.ledger.ledger import Ledger, read_ledger, read_metrics, read_rounds, read_sites
from fedtide.flower.ledger.ledger_maintenance import quarantine
from fedtide.flower.server.recovery import roll_back
from fedtide.flower.server.strategy import FedTide
from fedtide.privacy import Gaussian

from .driver import (
    TASK,
    Killed,
    N,
    deploy,
    federation,
    kill_in_call,
    model,
    node_of,
    scripted,
    update_of,
)

A = ft.algorithms


@pytest.mark.parametrize("method", ["FedAvg", "FedAU"])
def test_the_ledger_has_the_weight_and_the_norm_of_each_update(method, url):
    """Both are recomputed here: ω from the rounds in which a site was used, Δ from the model."""
    present = scripted(12, N)
    algorithm = A.FedAvg() if method == "FedAvg" else A.FedAU(cutoff=3)
    strategy = deploy(federation(present=present), algorithm, rounds=12, ledger=url)
    found = {
        (t, int(n)): rest
        for t, n, *rest in read_ledger(url)
        .select("round", "client", "step_weight", "norm")
        .iter_rows()
    }
    x, closed, open_since = TASK.start.numpy(), [[] for _ in range(N)], [0] * N
    for t, there in enumerate(present):
        cohort, direction = np.flatnonzero(there), np.zeros_like(x)
        for n in range(N):  # Algorithm 2 of FedAU: K = 3 closes an interval without an update
            if t - open_since[n] == 3:
                closed[n].append(3)
                open_since[n] = t
        for n in cohort.tolist():
            weight = 1 / len(cohort) if method == "FedAvg" else np.mean(closed[n] or [1.0]) / N
            update = update_of(n, x)
            assert found[t, n] == pytest.approx([weight, np.linalg.norm(update)], rel=1e-12)
            direction += weight * update
        for n in cohort.tolist():
            closed[n].append(t + 1 - open_since[n])
            open_since[n] = t + 1
        x = x + direction
    np.testing.assert_allclose(model(strategy), x, rtol=1e-12)


def test_an_audit_shows_how_far_each_site_moved_the_model(url):
    deploy(federation(present=scripted(12, N)), A.FedAU(cutoff=3), rounds=12, ledger=url)
    audit, used = ft.audit(f"{url}#default"), read_ledger(url).filter(stage="used")
    weights, norms = defaultdict(list), defaultdict(list)
    for name, weight, norm in used.select("client", "step_weight", "norm").iter_rows():
        weights[name].append(weight)
        norms[name].append(norm)
    found = {row["client"]: row for row in audit.clients().to_dicts()}
    assert set(found) == set(weights)
    for name, row in found.items():
        assert row["step_weight"] == pytest.approx(np.mean(weights[name]))
        assert row["norm"] == pytest.approx(np.median(norms[name]))
    own = ft.audit(f"{url}#default", columns={"weight": "step_weight"}, ignore=["weight"])
    total = {name: sum(weights[name]) / sum(map(sum, weights.values())) for name in weights}
    influences = zip(own.log.names, own.objectives.in_force.weights, strict=True)
    assert dict(influences) == pytest.approx(total, rel=1e-6)
    furthest = max(found.values(), key=lambda row: row["step_weight"] * row["norm"])
    rows = render_page(audit).partition("Who moves the model")[2].split("<tr>")[2]
    assert f">{furthest['client']}<" in rows


def test_what_is_measured_is_in_the_ledger(url):
    """By the server after each round; by the clients, the median of what they send."""
    grid, start = federation(), vector_to_arrays(TASK.start, TASK.layout)
    for n in range(N):
        node_of(grid, n).tamper = partial(add_metric, value=float(n == 0))
    strategy = FedTide(A.FedAvg(), clients=N, clock=grid.clock, ledger=url)
    evaluate = lambda ended, arrays: MetricRecord({"loss": 1 / ended if ended else 9.0})  # noqa: E731
    strategy.start(grid, start, 3, evaluate_fn=evaluate)
    server = [(t, "server", "loss", 1 / (t + 1)) for t in range(3)]
    medians = [(t, "training", "odd", 0.0) for t in range(3)]
    found = read_metrics(url, since=0).rows()
    assert found == [*server, *medians]
    assert read_metrics(url, since=2).filter(source="server").rows() == server[2:]


def add_metric(reply, value):
    if reply.has_content() and reply.content.metric_records:
        next(iter(reply.content.metric_records.values()))["odd"] = value
    return reply


def test_a_private_federation_tells_no_norms(url, tmp_path):
    """ε of a client that was in both rounds: both together are a Gaussian with μ² = 2."""
    options = {"privacy": Gaussian(1.0, 1.0, 1e-5), "state": tmp_path, "ledger": url}
    deploy(federation(), A.FedAvg(weights="all"), rounds=2, **options)
    log, measured = read_ledger(url), read_metrics(url, since=0).filter(source="privacy")
    expected = [epsilon_of_loss(1.0, 1e-5), epsilon_of_loss(2.0, 1e-5)]
    np.testing.assert_allclose(measured["value"], expected, rtol=1e-9)
    assert log["norm"].null_count() == len(log) == 2 * N
    assert log["step_weight"].to_list() == [1 / N] * (2 * N)


def test_a_site_in_quarantine_is_not_asked_whatever_happens_until_it_is_released(
    url, tmp_path, monkeypatch
):
    """The quarantine begins while the site computes, and outlasts a kill and a submission."""
    options = {"algorithm": A.FedAvg(), "state": tmp_path / "state", "ledger": url}
    deploy(federation(), rounds=2, **options)
    grid = federation()

    def quarantine_it(reply):
        if reply.metadata.group_id == "3":
            quarantine(url, "1", begins=True)
        return reply

    node_of(grid, 1).tamper = quarantine_it
    with monkeypatch.context() as patch:
        kill_in_call(patch, Ledger, "commit", 4, after=False)
        with pytest.raises(Killed):
            deploy(grid, rounds=9, **options)
    again = federation()
    strategy = deploy(again, rounds=7, **options)
    assert {node.handled for node in again.nodes.values()} == {0, 2}
    assert node_of(again, 1).handled == 0
    quarantine(url, "1", begins=False)
    deploy(federation(), rounds=8, **options)
    own = read_ledger(url).filter(client="1").select("stage", "reason").rows()
    expected = [("used", None)] * 2 + [("reported", "quarantined")]
    assert own == [*expected, *[("available", None)] * 4, ("used", None)]
    x = TASK.start.numpy()
    for t in range(7):
        x = x + np.mean([update_of(n, x) for n in range(N) if t < 2 or n != 1], axis=0)
    np.testing.assert_allclose(model(strategy), x, rtol=1e-12)


def test_a_name_that_is_no_site_is_refused(url):
    deploy(federation(), A.FedAvg(), rounds=1, ledger=url)
    with pytest.raises(InvalidInputError, match=r"^name: .*'11'; did you mean '1'"):
        quarantine(url, "11", begins=True)
    quarantine(url, "3", begins=True)
    sites = read_sites(url)
    assert sites["client"].to_list() == [str(n) for n in range(N)]
    assert sites["quarantined"].is_not_null().to_list() == [n == 3 for n in range(N)]


@pytest.mark.parametrize("killed", [None, "prune"])
def test_a_federation_goes_on_from_a_state_that_was_kept(killed, url, tmp_path, monkeypatch):
    """As if the rounds since then had not been, whoever took part in them."""
    options = {"algorithm": A.MIFA(), "state": tmp_path / "state", "ledger": url, "keep_every": 3}
    deploy(federation(present=scripted(11, N, seed=2)), rounds=11, **options)
    names = sorted(int(file.stem) for file in (tmp_path / "state").glob("*.safetensors"))
    assert names == [3, 6, 9, 10, 11]
    with pytest.raises(InvalidInputError, match=r"^rounds: .* no intact state after 5 rounds"):
        roll_back(tmp_path / "state", url, 5)
    if killed:
        with monkeypatch.context() as patch:
            patch.setattr("fedtide.flower.server.recovery.prune_ledger", kill)
            with pytest.raises(Killed):
                roll_back(tmp_path / "state", url, 6)
        with pytest.raises(InvalidInputError, match=r"^ledger: it has 11 rounds"):
            deploy(federation(), rounds=11, **options)
    roll_back(tmp_path / "state", url, 6)
    assert read_rounds(url)["round"].to_list() == list(range(6))
    present = np.concatenate([scripted(11, N, seed=2)[:6], scripted(11, N, seed=3)[6:]])
    again = deploy(federation(present=present), rounds=11, **options)
    whole = deploy(federation(present=present), A.MIFA(), rounds=11)
    assert (model(again) == model(whole)).all()
    assert read_rounds(url)["round"].to_list() == list(range(11))


def kill(*arguments):
    raise Killed


def test_private_rounds_are_not_undone(url, tmp_path):
    options = {"privacy": Gaussian(1.0, 1.0, 1e-5), "state": tmp_path, "ledger": url}
    deploy(federation(), A.FedAvg(weights="all"), rounds=4, keep_every=1, **options)
    with pytest.raises(InvalidInputError, match=r"^state: .* with privacy"):
        roll_back(tmp_path, url, 2)
    assert len(read_rounds(url)) == 4
