"""A training that gets further clients: they begin as all did, and N is larger from then on."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedtide import algorithms as a
from fedtide.algorithms import Algorithm
from fedtide.algorithms.serialization import from_tensors, to_tensors
from fedtide.differential_privacy import Gaussian
from fedtide.differential_privacy.private_sum import make_private
from fedtide.errors import InvalidInputError
from fedtide.flower import ClientSideMemory
from fedtide.flower.server.state_changes import add_clients, with_further_clients
from fedtide.population import Population

from .driver import Quadratics, drive, random_table
from .methods import BOUNDED, METHODS
from .references import algorithm_2, algorithm_2_decayed, local, present

FEW, ALL, JOINED, ROUNDS, LR, STEPS = 4, 7, 14, 40, 0.05, 3
PROBLEM = Quadratics.random(np.random.default_rng(8), ALL)
START = np.array([2.0, -1.0, 3.0])
TABLE = random_table(np.random.default_rng(1), ROUNDS, ALL)
TABLE[:JOINED, FEW:] = 0
TABLE[JOINED + 2 :, 5:] = np.random.default_rng(2).random((ROUNDS - JOINED - 2, 2)) < 0.6


def grow(method: Algorithm, state, few: int = FEW, total: int = ALL):
    """Return the state with further clients, as a deployment makes it."""
    initial = method.init(torch.as_tensor(START), Population(total))
    tensors = with_further_clients(to_tensors(state), to_tensors(initial), few)
    return add_clients(method, from_tensors(initial, tensors), few)


def iterates(method: Algorithm) -> np.ndarray:
    few = Quadratics(PROBLEM.A[:FEW], PROBLEM.e[:FEW])
    before = drive(method, few, TABLE[:JOINED, :FEW], LR, STEPS, START)
    state = grow(method, before.state)
    after = drive(method, PROBLEM, TABLE, LR, STEPS, START, state=state, first=JOINED)
    return np.concatenate([before.iterates, after.iterates[1:]])


def count(t: int) -> int:
    return FEW if t < JOINED else ALL


def count_from(n: int) -> int:
    return 0 if n < FEW else JOINED


def deltas(t, x):
    return {n: local(PROBLEM, n, x, LR, STEPS)[0] - x for n in present(TABLE[t])}


def fedau(K=math.inf, decay=None):
    omega = {}
    for n in range(ALL):
        first = count_from(n)
        seen = (TABLE[first:, n] > 0).tolist()
        means = algorithm_2_decayed(seen, K, decay) if decay else algorithm_2(seen, K)
        omega[n] = [math.nan] * first + means
    xs = [START]
    for t in range(ROUNDS):
        step = sum(omega[n][t] * delta for n, delta in deltas(t, xs[-1]).items())
        xs.append(xs[-1] + step / count(t))
    return np.array(xs)


def latest(cohort=False):
    """MIFA and FedLaAvg; with a cohort term FedVARP."""
    xs, h = [START], np.zeros((ALL, 3))
    for t in range(ROUNDS):
        found, x = deltas(t, xs[-1]), xs[-1]
        if cohort:
            news = [delta - h[n] for n, delta in found.items()]
            step = h.sum(axis=0) / count(t) + np.mean(news, axis=0) if found else 0.0
        for n, delta in found.items():
            h[n] = delta
        xs.append(x + (step if cohort else h.sum(axis=0) / count(t)))
    return np.array(xs)


def scaffold():
    xs, c_n = [START], np.zeros((ALL, 3))
    for t in range(ROUNDS):
        S, x, c = present(TABLE[t]), xs[-1], c_n.sum(axis=0) / count(t)
        ends = {n: local(PROBLEM, n, x, LR, STEPS, correction=c - c_n[n]) for n in S}
        for n, (_, gradients) in ends.items():
            c_n[n] = np.mean(gradients, axis=0)
        xs.append(x + np.mean([y - x for y, _ in ends.values()], axis=0) if S else x)
    return np.array(xs)


def auto(control_variates):
    """Without the scaling of coordinates, which knows nothing of clients."""
    rho, xs, M, used, h = (math.sqrt(5) - 1) / 2, [START], 0, 0, np.zeros((ALL, 3))
    c = dict.fromkeys(range(FEW), 0.0)
    for t in range(ROUNDS):
        N, found = count(t), deltas(t, xs[-1])
        if t == JOINED:
            c |= dict.fromkeys(range(FEW, ALL), float(used))
        owed = used + 1 + N / rho * max(used, 1) / max(M, 1)
        debt = {n: max(0.0, owed - c[n]) for n in found}
        cut = min(1.0, 1.1 * N / (rho * sum(debt.values()) or 1.0))
        step = h.sum(axis=0) / N if found else np.zeros(3)
        for n, delta in found.items():
            weight = cut * rho * debt[n]
            step = step + weight / N * (delta - h[n])
            c[n] = owed - debt[n] + weight
        for n, delta in found.items():
            h[n] = delta if control_variates else 0.0
        M, used = M + len(found), used + bool(found)
        xs.append(xs[-1] + step)
    return np.array(xs)


LISTINGS = {
    "fedau": (a.FedAU(cutoff=None), fedau),
    "fedau 3": (a.FedAU(cutoff=3), lambda: fedau(3)),
    "fedau decay": (a.FedAU(cutoff=4, average=0.7), lambda: fedau(4, 0.7)),
    "mifa": (a.MIFA(), latest),
    "fedlaavg": (a.FedLaAvg(), latest),
    "fedvarp": (a.FedVARP(), lambda: latest(cohort=True)),
    "scaffold": (a.Scaffold(), scaffold),
    "auto with memory": (a.Auto(preconditioned=False, control_variates=True), lambda: auto(True)),
}


@pytest.mark.parametrize("name", LISTINGS)
def test_a_method_goes_on_as_its_listing_with_a_growing_n(name):
    method, listing = LISTINGS[name]
    np.testing.assert_allclose(iterates(method), listing(), rtol=1e-9, atol=1e-11)


def fits(method: Algorithm) -> bool:
    """Whether it can be deployed without a value for each client."""
    try:
        method.init(torch.as_tensor(START), Population(ALL, samples=np.ones(ALL, dtype=np.int64)))
    except InvalidInputError:
        return False
    return not (method.traits.centralised or method.traits.simulation_only)


DEPLOYED = [method for method in METHODS + BOUNDED if fits(method)]


@pytest.mark.parametrize(
    "method", [replace(m, initial=0.1) if m == a.F3AST() else m for m in DEPLOYED], ids=repr
)
def test_clients_that_are_added_before_round_0_have_always_been_there(method):
    few = method.init(torch.as_tensor(START), Population(FEW))
    grown, initial = (
        to_tensors(grow(method, few)),
        to_tensors(method.init(torch.as_tensor(START), Population(ALL))),
    )
    assert grown.keys() == initial.keys()
    for name, tensor in initial.items():
        assert torch.equal(grown[name], tensor), name


@pytest.mark.parametrize("method", DEPLOYED, ids=repr)
def test_a_method_trains_with_further_clients(method):
    models = iterates(method)
    assert len(models) == ROUNDS + 1
    assert np.isfinite(models).all()
    whole = drive(
        method, Quadratics(PROBLEM.A[:FEW], PROBLEM.e[:FEW]), TABLE[:, :FEW], LR, STEPS, START
    ).iterates
    np.testing.assert_array_equal(models[: JOINED + 1], whole[: JOINED + 1])


@pytest.mark.parametrize(
    "method",
    [
        make_private(
            a.FedAU(cutoff=5), Gaussian(clip=1.0, noise_multiplier=1.0, delta=1e-3), seed=0
        ),
        ClientSideMemory(a.FedAU(cutoff=5)),
    ],
    ids=repr,
)
def test_methods_that_count_from_round_0_refuse_further_clients(method):
    state = method.init(torch.as_tensor(START), Population(FEW))
    with pytest.raises(InvalidInputError, match="round 0, so none can be added later; keep"):
        grow(method, state)
