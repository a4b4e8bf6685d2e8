"""Partitions against literal implementations of the papers, and properties for any data."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtide.errors import InvalidInputError
from fedtide.problems.partitions import (
    Dirichlet,
    Flwr,
    Iid,
    MajorityClass,
    Natural,
    Partition,
    SingleClass,
    StoredShards,
)
from fedtide.problems.partitions.splitting import split
from fedtide.randomness import generator

LABELS = np.random.default_rng(0).integers(10, size=3000)


def samples_of(shards, client):
    return shards.held_by(client).tolist()


def all_samples(shards):
    return [samples_of(shards, client) for client in range(len(shards.sizes))]


@settings(max_examples=40)
@given(
    partition=st.sampled_from(
        [Iid(), Dirichlet(0.1), Dirichlet(10), MajorityClass(0.3), SingleClass(), SingleClass(3, 0)]
    ),
    labels=st.lists(st.integers(0, 3), min_size=4, max_size=80),
    clients=st.integers(4, 12),
    seed=st.integers(0, 2**63),
)
def test_every_sample_belongs_to_exactly_one_client(partition, labels, clients, seed):
    labels = np.array(labels)
    shards = partition.split(labels, clients, seed)
    samples = [sample for client in all_samples(shards) for sample in client]
    assert len(shards.sizes) == clients
    assert sorted(samples) == list(range(len(labels)))


@pytest.mark.parametrize("partition", [Iid(), SingleClass()])
def test_the_seed_determines_the_partition(partition):
    first, again, other = (all_samples(partition.split(LABELS, 50, seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_iid_sizes_differ_by_at_most_one():
    sizes = Iid().split(LABELS[:1234], 100, 0).sizes
    assert sizes.max() - sizes.min() == 1


def test_dirichlet_divides_each_class_as_in_the_paper():
    clients, alpha, seed = 30, 0.1, 5
    kappa = generator(seed, "partition").dirichlet([alpha] * 10, clients)
    expected = [[] for _ in range(clients)]
    for label in range(10):
        samples = [i for i, of in enumerate(LABELS) if of == label]
        begin, cumulated, total = 0, 0.0, sum(kappa[n][label] for n in range(clients))
        for n in range(clients):
            cumulated += kappa[n][label]
            end = round(len(samples) * (cumulated / total))  # Python rounds halves to even
            expected[n] += samples[begin:end]
            begin = end
    shards = Dirichlet(alpha).split(LABELS, clients, seed)
    assert [sorted(held) for held in expected] == all_samples(shards)


def test_majority_class_assigns_samples_as_the_authors_program():
    clients, similarity, seed = 25, 0.2, 3
    draw = generator(seed, "partition")
    foreign = draw.random(len(LABELS)) < similarity
    anyone = draw.integers(clients, size=len(LABELS))
    held = [[] for _ in range(clients)]
    for sample, label in enumerate(LABELS):
        group = range(round(label * clients / 10), round((label + 1) * clients / 10))
        smallest = min(group, key=lambda client: (len(held[client]), client))
        held[anyone[sample] if foreign[sample] else smallest].append(sample)
    assert all_samples(MajorityClass(similarity).split(LABELS, clients, seed)) == held


def test_single_class_sizes_follow_the_clipped_normal():
    clients, seed = 40, 2
    drawn = generator(seed, "partition").normal(5, 1, clients)
    weights = [min(max(w, 3), 7) for w in drawn]
    shards = SingleClass().split(LABELS, clients, seed)
    for label in range(10):
        members = range(4 * label, 4 * label + 4)
        samples = np.flatnonzero(label == LABELS).tolist()
        assert list(chain.from_iterable(samples_of(shards, n) for n in members)) == samples
        total = sum(weights[n] for n in members)
        for n in members:
            assert abs(shards.sizes[n] - len(samples) * weights[n] / total) <= 1
    assert (shards.class_shares(LABELS, 10).max(axis=1) == 1).all()


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["b", "a", "b"], ["a", "b"]),
        ([7, -3, 7], [-3, 7]),
        ([7.0, 3.0, 7.0], [3, 7]),
        ([7.5, 3.0, 7.5], ["3", "7.5"]),
        (np.array(["2026-02-01", "2025-03-01", "2026-02-01"], dtype="M8[D]"), None),
    ],
)
def test_natural_names_clients_by_their_values(values, names):
    values = np.asarray(values)
    shards = Natural("user").split(np.zeros(3, int), 2, 0, {"user": values})
    names = names or ["2025-03-01", "2026-02-01"]
    assert shards.names.tolist() == names
    assert [type(name) for name in shards.names.tolist()] == [type(name) for name in names]
    owners = {name: set(values[own]) for name, own in zip(names, all_samples(shards), strict=True)}
    assert all(len(found) == 1 for found in owners.values())


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (np.array(["a", None, "b", None], dtype=object), "'user' is missing in 2 of 4 rows"),
        (np.array(["2026-01-01", "NaT"] * 2, dtype="M8[s]"), "'user' is missing in 2 of 4 rows"),
        (np.array([1, "1", 2, "2"], dtype=object), "'user' holds values of different types"),
        (np.array([b"\xff", b"a", b"b", b"b"], dtype=object), "'user' holds values .*no names"),
    ],
)
def test_natural_refuses_missing_and_mixed_values(values, complaint):
    with pytest.raises(InvalidInputError, match=f"^column: {complaint}.*; "):
        Natural("user").split(np.zeros(4, int), 2, 0, {"user": values})


def test_a_natural_partitioner_of_flwr_datasets_names_clients():
    pytest.importorskip("flwr_datasets")
    labels, users = np.zeros(5, int), np.array(["b", "a", "b", "c", "a"])
    partition = Flwr("NaturalIdPartitioner", {"partition_by": "user"})
    shards = partition.split(labels, 3, 0, {"user": users})
    assert dict(zip(shards.names, all_samples(shards), strict=True)) == {
        user: np.flatnonzero(users == user).tolist() for user in "abc"
    }
    assert Flwr("IidPartitioner").split(labels, 3, 0, {"user": users}).names is None


def test_shards_give_means_and_class_shares_by_client():
    lists = [np.array([3, 1]), np.array([0]), np.array([2, 4, 5])]
    shards = StoredShards.from_lists(lists)
    values, labels = np.arange(6) ** 2.0, np.array([0, 2, 1, 2, 1, 1])
    assert shards.client_means(values) == pytest.approx([5.0, 0.0, 15.0])
    assert shards.class_shares(labels, 3) == pytest.approx(
        np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0]])
    )


def test_locate_accepts_leading_dimensions():
    shards = StoredShards.from_lists([np.array([3, 1]), np.array([0, 2])])
    positions = np.array([[[0, 1], [1, 1]], [[1, 0], [0, 1]]])  # (I, S, B)
    samples = shards.locate(np.array([1, 0]), positions)
    assert samples.tolist() == [[[0, 2], [1, 1]], [[2, 0], [3, 1]]]


@pytest.mark.parametrize(
    "name", ["IidPartitioner", "DirichletPartitioner", "PathologicalPartitioner"]
)
def test_flwr_partitioners_by_name(name):
    pytest.importorskip("flwr_datasets")
    arguments = {"DirichletPartitioner": {"alpha": 0.5, "min_partition_size": 1}}.get(name, {})
    if name == "PathologicalPartitioner":
        arguments = {"num_classes_per_partition": 2}
    shards = Flwr(name, arguments).split(LABELS, 20, 3)
    assert sorted(chain.from_iterable(all_samples(shards))) == list(range(len(LABELS)))
    if name == "PathologicalPartitioner":
        assert ((shards.class_shares(LABELS, 10) > 0).sum(axis=1) == 2).all()


def test_flwr_instances_can_be_reused_and_use_other_columns():
    partitioner = pytest.importorskip("flwr_datasets.partitioner")
    partition = partitioner.NaturalIdPartitioner("writer")
    columns = {"writer": np.array(["b", "a", "b"])}
    for _ in range(2):
        shards = split(partition, np.zeros(3, int), 2, 0, columns)
        assert sorted(all_samples(shards)) == [[0, 2], [1]]


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: SingleClass(5, 2.5), "^spread: .*2.5.*; "),
        (lambda: SingleClass(5, -1), "^spread: .*-1"),
        (
            lambda: MajorityClass(0).split(LABELS, 5, 0),
            "^clients: 5 .* 10 classes; .*at least 10",
        ),
        (
            lambda: SingleClass().split(LABELS, 5, 0),
            "^clients: 5 .* 10 classes; .*at least 10",
        ),
        (
            lambda: Natural("writre").split(LABELS, 5, 0, {"writer": LABELS}),
            "^column: .*'writre'; did you mean 'writer'",
        ),
        (
            lambda: split(Natural("writer"), LABELS, 5, 0, {"writer": LABELS}),
            "^clients: 5 .*Natural .*10 clients; give clients: 10",
        ),
    ],
)
def test_invalid_inputs_name_the_field(make, complaint):
    with pytest.raises(InvalidInputError, match=complaint):
        make()


@pytest.mark.parametrize(
    ("partition", "complaint"),
    [
        (Flwr("DirichletPartitoner"), "^name: .*; did you mean 'DirichletPartitioner'"),
        (Flwr("DirichletPartitioner"), "^arguments: DirichletPartitioner .*; give"),
        (
            Flwr("IidPartitioner", {"num_partitions": 7}),
            "^clients: .*; give clients: 7",
        ),
        (Flwr("NaturalIdPartitioner", {"partition_by": "x"}), "^partition: .*cannot split.*; use"),
    ],
)
def test_invalid_flwr_partitioners_are_refused(partition, complaint):
    pytest.importorskip("flwr_datasets")
    with pytest.raises(InvalidInputError, match=complaint):
        split(partition, LABELS, 20, 0, {})


class Own(Partition):
    """A partition of the user's own, which returns what `make` does."""

    def __init__(self, make):
        self.make = make

    def split(self, labels, clients, seed, columns=None):
        return self.make(labels)


WRONG = {
    "two-lists": ([[0], [5]], "^clients: 3 given, but Own .* among 2 clients; give clients: 2"),
    "empty": ([[0], [], [1]], r"^clients: 1 of 3 would get no samples \(the first is client 1\)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_partition_of_ones_own_returns_is_checked(case):
    lists, complaint = WRONG[case]
    with pytest.raises(InvalidInputError, match=complaint):
        split(Own(lambda labels: StoredShards.from_lists(lists)), np.arange(20) % 3, 3, 0, {})
