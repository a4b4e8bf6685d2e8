"""Secure aggregation: the example's masked sums give the model of the open federation."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, RecordDict
from flwr.common import bytes_to_ndarray
from flwr.common.secure_aggregation.secaggplus_constants import (
    RECORD_KEY_CONFIGS,
    Key,
    Stage,
)
from flwr.server.workflow import SecAggPlusWorkflow
from scipy import stats

import fedtide.examples
from fedtide.algorithms import FedAU
from fedtide.flower import ClientSideMemory, FedTide, custom_client

from .fake_grid import FakeGrid, Node

EXAMPLE = Path(fedtide.examples.__file__).parent / "flower_secure"
SITES, ROUNDS, CUTOFF = 6, 13, 4
DEATH = (Stage.COLLECT_MASKED_VECTORS, {4}, 3)
"""A site dies: before it answers a message of this stage, in these rounds, and which site."""
QUERY = "query"
"""The stage before those of SecAgg+: the server asks who takes part."""


@pytest.fixture
def example(monkeypatch):
    """Return the modules of the example."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import client_app
    import server_app

    yield client_app, server_app
    for name in ("client_app", "server_app"):
        del sys.modules[name]


def dying(app, site, death):
    """Return an app that is killed before it answers."""

    def answer(message, context):
        stage, t = stage_of(message)
        if stage == death[0] and t in death[1] and site == death[2]:
            raise RuntimeError("killed")
        return app(message, context)

    return answer


def stage_of(message) -> tuple[str, int]:
    """Return the stage and the round of a request."""
    config = message.content.config_records.get(RECORD_KEY_CONFIGS)
    if config is not None:
        return config[Key.STAGE], int(message.metadata.group_id) - 1
    return QUERY, message.content.config_records["getpropertiesins.config"]["round"]


def recording(grid, secure_app, sent, death):
    """Return a grid that appends every reply to `sent`."""
    for node in grid.nodes.values():

        def record(reply):
            sent.append(reply)
            return reply

        node.app, node.tamper = dying(secure_app, node.config["partition-id"], death), record
    return grid


def nodes(app) -> dict[int, Node]:
    return {100 + n: Node(app, {"partition-id": n}) for n in range(SITES)}


def run_secure(example, memory: Path, death=DEATH, rounds=ROUNDS, noise_multiplier=0.0):
    """Return the model and all replies."""
    client_app, server_app = example
    config = {
        "num-clients": SITES,
        "num-server-rounds": rounds,
        "cutoff": CUTOFF,
        "memory": str(memory),
        "noise-multiplier": noise_multiplier,
    }
    replies = []
    grid = FakeGrid(nodes(client_app.app), run_config=config)
    grid = recording(grid, client_app.app, replies, death)
    context = Context(grid.run_id, 1, {}, RecordDict(), config)
    server_app.app(grid, context)
    return context.state.array_records["parameters"].to_numpy_ndarrays()[0], replies


def counted(is_available, death, rounds=ROUNDS) -> np.ndarray:
    """Return whose updates count in which round, (rounds, SITES)."""
    present = np.array([[is_available(n, t) for n in range(SITES)] for t in range(rounds)])
    stage, dead, site = death
    for t in dead:
        assert present[t, site]
        if stage in (Stage.SETUP, Stage.SHARE_KEYS):  # the others cannot remove its masks
            present[t] = False
        if stage in (QUERY, Stage.COLLECT_MASKED_VECTORS):
            present[t, site] = False
    present[present.sum(axis=1) < 3] = False
    return present


def run_open(example, memory: Path, present):
    """Return the model of the federation without masks, for the participation `present`."""
    client_app, _ = example

    def make(context):
        return lambda model, request: client_app.train(
            model["x"], context.node_config["partition-id"]
        )

    app = custom_client(
        make,
        available=lambda t, context: bool(present[t, context.node_config["partition-id"]]),
        memory=lambda context: memory,
    )
    grid = FakeGrid(nodes(app))
    strategy = FedTide(ClientSideMemory(FedAU(cutoff=CUTOFF)), clients=SITES, clock=grid.clock)
    start = ArrayRecord({"x": Array(np.zeros(client_app.SIZE))})
    strategy.start(grid, start, num_rounds=len(present), timeout=60)
    return strategy.training.output.numpy()


def sent_in(reply) -> list[np.ndarray]:
    """Return all numbers of a model's size in a reply: masked parameters, and arrays."""
    if not reply.has_content():
        return []
    config = reply.content.config_records.get(RECORD_KEY_CONFIGS, {})
    arrays = [a for record in reply.content.array_records.values() for a in record.values()]
    masked_ones = [bytes_to_ndarray(part).ravel() for part in config.get(Key.MASKED_PARAMETERS, [])]
    return masked_ones + [array.numpy().ravel() for array in arrays]


def test_masked_sums_give_the_open_model(example, tmp_path):
    client_app, _ = example
    secure, replies = run_secure(example, tmp_path / "secure")
    openly = run_open(example, tmp_path / "open", counted(client_app.is_available, DEATH))
    # Each round rounds to whole quanta, and the local steps shrink earlier rounding errors.
    quantum = 2 * client_app.CLIP / 2**22
    assert np.abs(openly).max() > 1000 * quantum * ROUNDS
    np.testing.assert_allclose(secure, openly, rtol=0, atol=quantum * ROUNDS)

    seen = np.concatenate([vector for reply in replies for vector in sent_in(reply)])
    assert len(seen) > 300
    # Each is uniform on its own: a correct program fails this with probability 1e-9.
    distance = stats.kstest(seen / 2.0**32, "uniform").statistic
    assert distance < np.sqrt(np.log(2 / 1e-9) / (2 * len(seen)))


def run_with_death(example, folder, stage):
    """Return the model, the replies, and whose updates count, if one of four and of three dies."""
    client_app, _ = example
    death, rounds = (stage, {2, 3}, 4), 4
    present = np.array([[client_app.is_available(n, t) for n in range(SITES)] for t in (2, 3)])
    assert present.sum(axis=1).tolist() == [4, 3]
    secure, replies = run_secure(example, folder / "secure", death, rounds)
    return secure, replies, counted(client_app.is_available, death, rounds)


@pytest.mark.parametrize(
    ("stage", "counts"),
    [
        (Stage.SHARE_KEYS, [0, 0]),
        (Stage.COLLECT_MASKED_VECTORS, [3, 0]),
        (Stage.UNMASK, [4, 3]),
    ],
)
def test_a_site_that_dies_leaves_the_sum_of_the_others_or_no_sum(example, tmp_path, stage, counts):
    """A sum of fewer than three is never decoded: it would tell each of two what the other sent."""
    secure, replies, present = run_with_death(example, tmp_path, stage)
    assert present[2:].sum(axis=1).tolist() == counts
    openly = run_open(example, tmp_path / "open", present)
    quantum = 2 * example[0].CLIP / 2**22
    np.testing.assert_allclose(secure, openly, rtol=0, atol=quantum * len(present))
    if stage == Stage.COLLECT_MASKED_VECTORS:  # the server asks nobody to unmask the sum of two
        assert [reply.metadata.group_id for reply in replies].count("4") == 3 * 3


def test_sites_refuse_to_unmask_a_sum_of_two_for_a_server_that_asks(example, tmp_path, monkeypatch):
    client_app, server_app = example
    stock = SecAggPlusWorkflow.collect_masked_vectors_stage
    monkeypatch.setattr(server_app.EnoughContributions, "collect_masked_vectors_stage", stock)
    stage = Stage.COLLECT_MASKED_VECTORS
    secure, _, present = run_with_death(example, tmp_path, stage)
    openly = run_open(example, tmp_path / "open", present)
    quantum = 2 * client_app.CLIP / 2**22
    np.testing.assert_allclose(secure, openly, rtol=0, atol=quantum * len(present))


@pytest.mark.statistical
def test_shares_of_the_honest_sites_have_the_noise_of_a_trusted_server(example):
    """In a sum of three, one adds none; fails with probability 1e-6."""
    client_app, _ = example
    assert client_app.MIN_SITES - 1 >= client_app.HONEST_SITES
    z, size = 0.8, 50_000
    shares = [client_app.noise_share(size, z, CUTOFF) for _ in range(client_app.HONEST_SITES)]
    scaled = sum(shares).numpy() / (z * CUTOFF * client_app.NORM)
    assert stats.kstest(scaled, "norm").pvalue > 1e-6


@pytest.mark.parametrize("noise_multiplier", [0.5, 100.0])
def test_sites_clip_and_add_noise_before_they_mask(
    example, tmp_path, monkeypatch, noise_multiplier
):
    """With shares that a test knows, the masked sums give the model written out.

    Noise beyond CLIP left no site that sent an update, and the model where it was.
    """
    client_app, _ = example
    deviation = noise_multiplier * CUTOFF * 0.5 / np.sqrt(client_app.HONEST_SITES)
    shares = []

    def known_share(size, *settings):
        assert settings == (noise_multiplier, CUTOFF)
        shares.append(deviation * np.random.default_rng(len(shares)).normal(size=size))
        return torch.from_numpy(shares[-1])

    monkeypatch.setattr(client_app, "noise_share", known_share)
    monkeypatch.setattr(client_app, "NORM", 0.5)
    nobody = ("never", set(), 0)
    secure, _ = run_secure(example, tmp_path, nobody, 1, noise_multiplier)
    assert len(shares) == SITES
    total = sum(shares)
    for site in range(SITES):
        delta = client_app.train(torch.zeros(client_app.SIZE).double(), site).update["x"].numpy()
        assert np.linalg.norm(delta) > 0.5
        total = total + delta * 0.5 / np.linalg.norm(delta)
    quantum = 2 * (client_app.CLIP + 8 * deviation) / 2**22
    np.testing.assert_allclose(secure, total / SITES, rtol=0, atol=quantum)
