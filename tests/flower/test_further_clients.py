"""A federation that is submitted again with further clients."""

import logging

import numpy as np
import pytest

import fedtide as ft
from fedtide.errors import InvalidInputError
from fedtide.flower.ledger.ledger import read_ledger

from .driver import Killed, deploy, federation, kill_in_call, model, prepare, quadratic

A, P = ft.algorithms, ft.participation
FEW, ALL, JOINED, ROUNDS = 5, 7, 6, 14
PROBLEM = quadratic(ALL)
TASK = prepare(PROBLEM)
PRESENT = np.random.default_rng(3).random((ROUNDS, ALL)) < 0.6
PRESENT[JOINED : JOINED + 2, FEW:] = False  # rounds in which they tell their names
NAMES = [str(n) for n in range(ALL)]


def grow(algorithm, state, clients=(NAMES[:FEW], NAMES), rounds=(JOINED, ROUNDS), **options):
    """Run the first rounds with few clients, though all knock, and the others with all."""
    for number, until in zip(clients, rounds, strict=True):
        grid = federation(TASK, present=PRESENT)
        found = deploy(grid, algorithm, until, task=TASK, clients=number, state=state, **options)
    return found


def listing(weight):
    """x ← x + 1/N_t Σ a Δ, with FedAU's ω as the mean of the rounds between participations."""
    x, seen = np.zeros(3) + TASK.start.numpy(), {}
    for t in range(ROUNDS):
        N, step = (FEW, 0.0) if t < JOINED else (ALL, 0.0)
        for n in np.flatnonzero(PRESENT[t, :N]):
            came, first = seen.setdefault(n, []), JOINED if n >= FEW else 0
            mean = (came[-1] + 1 - first) / len(came) if came else 1.0
            y = x.copy()
            for _ in range(3):
                y = y - 0.1 * PROBLEM.matrices[n] @ (y - PROBLEM.centers[n])
            step = step + (mean if weight == "omega" else 1.0) * (y - x)
            came.append(t)
        x = x + step / N
    return x


@pytest.mark.parametrize(
    ("algorithm", "weight"), [(A.FedAU(cutoff=None), "omega"), (A.FedAvg(weights="all"), "one")]
)
@pytest.mark.parametrize("clients", [(NAMES[:FEW], NAMES), (NAMES[:FEW], ALL)], ids=str)
def test_they_take_part_from_then_on(algorithm, weight, clients, tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    found = grow(algorithm, tmp_path / "state", clients, ledger=url)
    np.testing.assert_allclose(model(found), listing(weight), rtol=1e-9)
    used = read_ledger(url).filter(stage="used")
    wanted = [
        (t, str(n))
        for t in range(ROUNDS)
        for n in range(FEW if t < JOINED else ALL)
        if PRESENT[t, n]
    ]
    assert sorted(used.select("round", "client").rows()) == sorted(wanted)
    joined = found.training.registry.names
    wanted_steps = [3 * sum(client == name for _, client in wanted) for name in joined]
    assert found.training.steps_taken.tolist() == wanted_steps


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_in_the_first_round_with_them_does_no_harm(after, tmp_path, monkeypatch):
    whole = grow(A.Auto(control_variates=True), tmp_path / "whole")
    grow(A.Auto(control_variates=True), tmp_path / "state", (NAMES[:FEW],), (JOINED,))
    with monkeypatch.context() as patch:
        kill_in_call(patch, type(whole.training), "save", 1, after)
        with pytest.raises(Killed):
            grow(A.Auto(control_variates=True), tmp_path / "state", (NAMES,), (ROUNDS,))
    again = grow(A.Auto(control_variates=True), tmp_path / "state", (NAMES,), (ROUNDS,))
    np.testing.assert_array_equal(model(again), model(whole))


def test_a_selection_starts_anew_with_them(tmp_path, caplog):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    selection = P.LeastServed(size=2, period=4)
    with caplog.at_level(logging.WARNING):
        grow(A.FedAvg(), tmp_path / "state", selection=selection, ledger=url)
    assert caplog.text.count("The selection starts afresh") == 1
    asked = read_ledger(url).filter(stage="used")
    assert {"5", "6"} <= set(asked["client"].to_list())


@pytest.mark.parametrize("later", [[*reversed(NAMES)], ["x", *NAMES], NAMES[1:]], ids=str)
def test_names_that_are_known_keep_their_places(later, tmp_path):
    grow(A.FedAvg(), tmp_path, (NAMES[:FEW],), (2,))
    with pytest.raises(InvalidInputError, match=r"^clients: .*give these in this order, further"):
        grow(A.FedAvg(), tmp_path, (later,), (4,))


def test_privacy_keeps_the_number_of_clients(tmp_path):
    options = {"privacy": ft.privacy.Gaussian(1.0, 1.0, 1e-5)}
    grow(A.FedAU(cutoff=5), tmp_path, (NAMES[:FEW],), (2,), **options)
    with pytest.raises(InvalidInputError, match=r"^privacy: .*; keep the number of clients"):
        grow(A.FedAU(cutoff=5), tmp_path, (NAMES,), (4,), **options)
    assert grow(A.FedAU(cutoff=5), tmp_path, (NAMES[:FEW],), (4,), **options).training.round == 4
