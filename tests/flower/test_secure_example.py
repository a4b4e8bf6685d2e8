"""Secure aggregation: the example's masked sums give the model of the open federation."""

import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, RecordDict
from flwr.common import bytes_to_ndarray
from flwr.common.secure_aggregation.secaggplus_constants import (
    RECORD_KEY_CONFIGS,
    Key,
    Stage,
)
from scipy import stats

import fedtide.examples
from fedtide.algorithms import FedAU
from fedtide.flower import ClientSideMemory, FedTide, custom_client

from .fake_grid import FakeGrid, Node

EXAMPLE = Path(fedtide.examples.__file__).parent / "flower_secure"
SITES, ROUNDS, CUTOFF, KILLED = 6, 13, 4, (4, 3)
"""KILLED: the round in which a site dies between its keys and its update, and that site."""


@pytest.fixture
def example(monkeypatch):
    """Return the modules of the example."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import client_app
    import server_app

    yield client_app, server_app
    for name in ("client_app", "server_app"):
        del sys.modules[name]


def dying(app, site):
    """Return an app that is killed before it sends its masked update in the round KILLED."""

    def answer(message, context):
        config = message.content.config_records.get(RECORD_KEY_CONFIGS, {})
        masks = config.get(Key.STAGE) == Stage.COLLECT_MASKED_VECTORS
        if masks and (int(message.metadata.group_id) - 1, site) == KILLED:
            raise RuntimeError("killed")
        return app(message, context)

    return answer


def recording(grid, secure_app, sent):
    """Return a grid that appends every reply to `sent`."""
    for node in grid.nodes.values():

        def record(reply):
            sent.append(reply)
            return reply

        node.app, node.tamper = dying(secure_app, node.config["partition-id"]), record
    return grid


def nodes(app) -> dict[int, Node]:
    return {100 + n: Node(app, {"partition-id": n}) for n in range(SITES)}


def run_secure(example, memory: Path):
    """Return the model and all replies."""
    client_app, server_app = example
    config = {"num-clients": SITES, "num-server-rounds": ROUNDS, "cutoff": CUTOFF}
    replies = []
    grid = FakeGrid(nodes(client_app.app), run_config={"memory": str(memory)})
    grid = recording(grid, client_app.app, replies)
    context = Context(grid.run_id, 1, {}, RecordDict(), config)
    server_app.app(grid, context)
    return context.state.array_records["parameters"].to_numpy_ndarrays()[0], replies


def run_open(example, memory: Path):
    """Return the model of the same federation without masks."""
    client_app, server_app = example
    present = np.array(
        [[client_app.is_available(n, t) for n in range(SITES)] for t in range(ROUNDS)]
    )
    present[present.sum(axis=1) < server_app.MIN_SITES] = False
    assert present[KILLED]
    present[KILLED] = False

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
    strategy.start(grid, start, num_rounds=ROUNDS, timeout=60)
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
    openly = run_open(example, tmp_path / "open")
    # Each round rounds to whole quanta, and the local steps shrink earlier rounding errors.
    quantum = 2 * client_app.CLIP / 2**22
    assert np.abs(openly).max() > 1000 * quantum * ROUNDS
    np.testing.assert_allclose(secure, openly, rtol=0, atol=quantum * ROUNDS)

    seen = np.concatenate([vector for reply in replies for vector in sent_in(reply)])
    assert len(seen) > 300
    # Each is uniform on its own: a correct program fails this with probability 1e-9.
    distance = stats.kstest(seen / 2.0**32, "uniform").statistic
    assert distance < np.sqrt(np.log(2 / 1e-9) / (2 * len(seen)))
