"""Which samples a client uses in which step, against a literal run through shuffled epochs."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.training import LocalTraining
from fedtide.training.minibatches import MinibatchPlanner

SIZES = [1, 3, 4, 8, 9, 17, 40]


def population(sizes=SIZES):
    return Population(len(sizes), samples=np.array(sizes))


def used(planner, clients):
    """Return, for each client, the list of its minibatches in this round, without padding."""
    plan = planner.plan(np.array(clients))
    assert plan.clients.tolist() == list(clients)
    batches = []
    for s in range(len(clients)):
        batches.append([])
        for k in range(plan.steps[s]):
            row = k if len(plan.positions) > 1 else 0
            keep = slice(None) if plan.mask is None else plan.mask[row, s]
            batches[-1].append(plan.positions[row, s][keep].tolist())
    return batches


def stream(local, sizes, seed, client, rounds):
    """Return all minibatches that a client uses in these rounds."""
    planner = MinibatchPlanner(population(sizes), local, seed)
    return [batch for _ in range(rounds) for batch in used(planner, [client])[0]]


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    batch=st.integers(1, 12),
    steps=st.integers(1, 7),
    seed=st.integers(0, 2**40),
)
def test_steps_run_through_shuffled_epochs_of_complete_batches(sizes, batch, steps, seed):
    """Each sample at most once an epoch; all of them but an incomplete rest, which is left out."""
    local = LocalTraining(steps=steps, batch_size=batch)
    for client, size in enumerate(sizes):
        wanted = min(batch, size)
        in_epoch = size // wanted
        rounds = -(-2 * in_epoch // steps)
        batches = stream(local, sizes, seed, client, rounds)
        assert len(batches) == rounds * steps
        assert all(len(b) == wanted for b in batches)
        for start in range(0, len(batches) - in_epoch + 1, in_epoch):
            epoch = list(chain(*batches[start : start + in_epoch]))
            assert len(set(epoch)) == len(epoch) == in_epoch * wanted
            assert set(epoch) <= set(range(size))


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    batch=st.integers(1, 12),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 2**40),
)
def test_epochs_use_every_sample_once_each(sizes, batch, epochs, seed):
    """The last batch of an epoch is what is left, so clients take different numbers of steps."""
    local = LocalTraining(epochs=epochs, batch_size=batch)
    planner = MinibatchPlanner(population(sizes), local, seed)
    for _ in range(2):
        for size, batches in zip(sizes, used(planner, range(len(sizes))), strict=True):
            in_epoch = -(-size // min(batch, max(sizes)))
            assert len(batches) == epochs * in_epoch
            for start in range(0, len(batches), in_epoch):
                assert sorted(chain(*batches[start : start + in_epoch])) == list(range(size))


@pytest.mark.parametrize("steps", [{"steps": 3}, {"epochs": 2}])
def test_full_batches(steps):
    planner = MinibatchPlanner(population(), LocalTraining(**steps), seed=0)
    count = steps.get("steps", steps.get("epochs"))
    for size, batches in zip(SIZES, used(planner, range(len(SIZES))), strict=True):
        assert [sorted(batch) for batch in batches] == [list(range(size))] * count


def test_a_client_goes_its_own_way_whoever_else_takes_part():
    """Cohorts at random: what client n uses is the beginning of its own stream, in order."""
    local = LocalTraining(steps=3, batch_size=4)
    planner = MinibatchPlanner(population(), local, seed=7)
    draw = np.random.default_rng(0)
    found = {client: [] for client in range(len(SIZES))}
    for _ in range(30):
        cohort = np.flatnonzero(draw.random(len(SIZES)) < 0.4)
        for client, batches in zip(cohort, used(planner, cohort), strict=True):
            found[client] += batches
    for client, batches in found.items():
        assert batches == stream(local, SIZES, 7, client, len(batches) // 3)


def test_a_client_that_is_done_begins_no_further_epochs():
    """The first client takes 6000 steps, in which the others would go through 3000 epochs each."""
    sizes = np.array([6000] + [2] * 399)
    local = LocalTraining(epochs=1, batch_size=1, lr=0.1)
    plan = MinibatchPlanner(Population(400, samples=sizes), local, seed=0).plan(np.arange(400))
    for client, size in enumerate(sizes):
        own = plan.positions[plan.active[:, client], client, 0]
        assert np.array_equal(np.sort(own), np.arange(size))
    assert (plan.positions < sizes[:, None]).all()


def test_a_planner_goes_on_from_what_was_taken():
    local = LocalTraining(steps=2, batch_size=4)
    first = MinibatchPlanner(population(), local, seed=3)
    for _ in range(5):
        first.plan(np.arange(len(SIZES)))
    second = MinibatchPlanner(population(), local, seed=3)
    second.steps_taken[:] = first.steps_taken
    ahead, behind = first.plan(np.arange(len(SIZES))), second.plan(np.arange(len(SIZES)))
    assert np.array_equal(ahead.positions, behind.positions)
    assert np.array_equal(ahead.keys, behind.keys)


def test_seeds_clients_and_epochs_are_shuffled_apart():
    local = LocalTraining(epochs=2, batch_size=40)
    orders = [
        tuple(batch)
        for seed in (0, 1)
        for client in (0, 1)
        for batch in stream(local, [40, 40], seed, client, 1)
    ]
    assert len(set(orders)) == 8


def test_every_order_is_equally_likely():
    """χ² over the 24 orders of 4 samples in 2400 epochs; the seed is fixed, P(fail) < 1e-4."""
    planner = MinibatchPlanner(population([4] * 2400), LocalTraining(steps=1, batch_size=4), seed=0)
    orders = planner.plan(np.arange(2400)).positions[0]
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 24
    assert ((counts - 100) ** 2 / 100).sum() < 58.6  # the 0.9999 quantile of χ² with 23 degrees


def test_keys_differ_between_clients_and_steps_and_do_not_depend_on_the_cohort():
    planner = MinibatchPlanner(population(), LocalTraining(steps=4, batch_size=2), seed=0)
    both = [planner.plan(np.array([2, 5])).keys, planner.plan(np.array([2, 5])).keys]
    assert len(set(np.concatenate(both).flatten().tolist())) == 16
    alone = MinibatchPlanner(population(), LocalTraining(steps=4, batch_size=2), seed=0)
    assert np.array_equal(alone.plan(np.array([5])).keys[:, 0], both[0][:, 1])
    assert np.array_equal(alone.plan(np.array([5])).keys[:, 0], both[1][:, 1])


def test_nobody_trains_in_an_empty_round():
    for local in (
        LocalTraining(steps=2, batch_size=4),
        LocalTraining(epochs=1),
        LocalTraining(steps=1),
    ):
        plan = MinibatchPlanner(population(), local, seed=0).plan(np.array([], dtype=np.int64))
        assert plan.steps.tolist() == []


@pytest.mark.parametrize(
    ("local", "field"),
    [(LocalTraining(steps=1, batch_size=4), "batch_size"), (LocalTraining(epochs=1), "epochs")],
)
def test_functions_have_no_batches(local, field):
    with pytest.raises(InvalidInputError, match=f"^{field}: .*; remove it"):
        MinibatchPlanner(Population(3), local, seed=0)


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=6),
    batch=st.none() | st.integers(1, 200),
    counted=st.sampled_from(["steps", "epochs"]),
    data=st.data(),
)
def test_minibatches_are_as_wide_as_the_largest_of_the_chosen_clients(sizes, batch, counted, data):
    local = LocalTraining(**{counted: 2}, batch_size=batch)
    planner = MinibatchPlanner(population(sizes), local, seed=0)
    plan = planner.plan(np.arange(len(sizes)))
    which = data.draw(st.lists(st.sampled_from(range(len(sizes))), min_size=1))
    some = plan.select(np.array(which))
    width = some.positions.shape[2]
    largest = min(max(sizes[n] for n in which), batch or max(sizes))
    assert largest <= width <= min(max(32, 2 * largest), batch or max(sizes))
    for place, client in enumerate(which):
        for before, after in [(plan.positions, some.positions), (plan.mask, some.mask)]:
            if before is not None:
                assert np.array_equal(before[:, client, :width], after[:, place])
        assert plan.mask is None or not plan.mask[:, client, width:].any()
    alone = planner.widths[planner.widths >= min(sizes[which[0]], width)].min()
    assert plan.single_client(which[0]).positions.shape[2] == alone
