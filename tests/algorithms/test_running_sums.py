"""Sums over all clients and means over rounds that are kept up to date, in single precision."""

import numpy as np
import pytest
import torch

from fedtide import algorithms as a
from fedtide.algorithms import ClientUpdates, RoundDriver
from fedtide.flower import ClientSideMemory
from fedtide.population import Population

N = 5
EVERYONE = torch.arange(N)

KEPT = {
    "mifa": (a.MIFA(), lambda s: s.total / N, lambda s: s.memory),
    "fedlaavg": (a.FedLaAvg(), lambda s: s.total / N, lambda s: s.memory),
    "fedvarp": (a.FedVARP(), lambda s: s.total / N, lambda s: s.memory),
    "fedstale": (a.FedStale(), lambda s: s.total / N, lambda s: s.memory),
    "focus": (a.FOCUS(), lambda s: s.total / N, lambda s: s.memory),
    "auto": (a.Auto(control_variates=True), lambda s: s.latest.mean, lambda s: s.latest.rows),
    "scaffold": (a.Scaffold(), lambda s: s.mean_control, lambda s: s.control),
    "scaffold, 1": (a.Scaffold(option=1), lambda s: s.mean_control, lambda s: s.control),
    "amplified-scaffold": (
        a.AmplifiedScaffold(period=1, factor=1.0),
        lambda s: s.mean_control,
        lambda s: s.control,
    ),
    "fedawe": (a.FedAWE(), lambda s: s.mean, lambda s: s.local),
}


def reports(instructions, ids, targets):
    """One step of γ = 1 on the squared distance to the targets, which takes clients there."""
    gradients = instructions.model - targets
    steps = gradients if instructions.correction is None else gradients + instructions.correction
    if instructions.end_gradients:
        gradients = targets
    ones = torch.ones(len(ids))
    return ClientUpdates(ids, ones / len(ids), -steps, 1.0, ones, gradients=gradients)


@pytest.mark.parametrize("name", KEPT)
def test_a_huge_report_leaves_nothing_behind_in_a_sum_over_all_clients(name):
    """Client 0 is at 1e9 once, together with others; then all come, in other groups."""
    method, kept, memory = KEPT[name]
    rng = np.random.default_rng(0)
    driver = RoundDriver(method, torch.zeros(3), Population(N))
    for t, cohort in enumerate([[0, 1, 2, 3, 4], [0, 2, 3], *3 * [[0, 1], [2, 3, 4]]]):
        ids = torch.tensor(cohort)
        targets = torch.from_numpy(rng.normal(size=(len(ids), 3))).float()
        if t == 1:
            targets[0] = 1e9
        driver.absorb(reports(driver.instruct(ids), ids, targets))
        driver.step(1.0)
        rows = memory(driver.state).read(EVERYONE).double()
        error = (kept(driver.state) - rows.mean(dim=0)).abs().max()
        assert error <= 1e-7, t


@pytest.mark.parametrize(
    ("method", "weight"),
    [(a.Averaged(), lambda r: 1.0), (a.Auto(preconditioned=False), lambda r: r * (r + 1.0))],
    ids=["averaged", "auto"],
)
def test_in_single_precision_late_iterates_still_count_in_the_mean(method, weight):
    """The last 1,000 of 2,000 differ by 1e-3 from the mean, in which each counts a thousandth."""
    weights = [weight(r) for r in range(1, 2001)]
    driver = RoundDriver(method, torch.full((1,), 100.0), Population(1))
    iterates = []
    ids, ones = torch.arange(1), torch.ones(1)
    for t in range(2000):
        delta = torch.full((1, 1), -1e-3 if t == 1000 else 0.0)
        driver.absorb(ClientUpdates(ids, ones, delta, 0.1, ones))
        driver.step(0.1)
        iterates.append(driver.state.model.item())
    assert driver.output.dtype == torch.float32
    mean = np.average(iterates, weights=weights)
    assert driver.output.item() == pytest.approx(mean, abs=4e-6)
    moved = method.with_model(driver.state, torch.zeros(1))
    mean = np.average([*iterates[:-1], 0.0], weights=weights)
    assert method.output(moved).item() == pytest.approx(mean, abs=4e-6)


@pytest.mark.parametrize("method", [a.MIFA(), a.FedLaAvg()], ids=["mifa", "fedlaavg"])
def test_many_small_differences_add_up_to_the_sum_over_all_clients(method):
    """Sent by clients whose memories sum to 10,000, where numbers in float32 are 1e-3 apart."""
    driver = RoundDriver(ClientSideMemory(method), torch.zeros(1), Population(N))
    ones = torch.ones(N)
    for t in range(1000):
        rows = torch.full((N, 1), 2000.0 if t == 0 else 1e-4)
        driver.absorb(ClientUpdates(EVERYONE, ones, rows, 1.0, ones))
        driver.step(1.0)
    expected = N * (2000.0 + 999 * float(torch.tensor(1e-4)))
    assert driver.state.total.item() == pytest.approx(expected, abs=1e-6)
