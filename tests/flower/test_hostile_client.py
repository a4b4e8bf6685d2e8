"""A client whose updates are finite, plausible and wrong: it ruins averages, not bounded ones."""

import numpy as np
import pytest
import torch

import fedtide as ft
from fedtide.flower.clients.app import custom_client
from fedtide.flower.protocol import Update
from fedtide.problems import Task

from .driver import deploy, federation, model, prepare
from .fake_grid import WireGrid

A = ft.algorithms
CLIENTS, HOSTILE, ROUNDS = 6, 4, 8
LOCAL = ft.LocalTraining(steps=3, lr=0.3)
OPTIMUM = np.array([1.0, -2.0, 0.5])
WRONG = torch.tensor([40.0, 40.0, -40.0], dtype=torch.float64)


@pytest.fixture(scope="module")
def task() -> Task:
    """Return quadratics whose clients agree on the optimum, within a tenth."""
    matrices = np.tile(np.eye(3), (CLIENTS, 1, 1))
    centers = OPTIMUM + np.random.default_rng(0).uniform(-0.1, 0.1, (CLIENTS, 3))
    return prepare(ft.problems.Quadratic(matrices=matrices, centers=centers))


def attacked(task: Task, algorithm: A.Algorithm, present: np.ndarray | None = None) -> float:
    """Return how far from the optimum the federation ends in which one client is hostile."""
    grid = federation(task, LOCAL, present)

    def hostile(context):
        def train(model, request) -> Update:
            x = task.layout.flatten(model)
            return Update(task.layout.unflatten(0.5 * (WRONG - x)), samples=1, lr=0.1, steps=3)

        return train

    node = next(n for n in grid.nodes.values() if n.config["partition-id"] == HOSTILE)
    came = None if present is None else (lambda t, context: bool(present[t, HOSTILE]))
    node.app = custom_client(hostile, available=came)
    strategy = deploy(grid, algorithm, ROUNDS, task=task)
    return float(np.abs(model(strategy) - OPTIMUM).max())


AVERAGES = [A.FedAvg(), A.FedAU(cutoff=4)]
TRIMMED = [A.TrimmedMean(0.2, A.FedAU(cutoff=4)), A.Median()]


@pytest.mark.parametrize("algorithm", AVERAGES, ids=repr)
def test_plain_averages_end_where_a_hostile_client_wants_them(task, algorithm):
    assert attacked(task, algorithm) > 5


@pytest.mark.parametrize("algorithm", TRIMMED, ids=repr)
def test_trimmed_averages_end_where_the_honest_clients_do(task, algorithm):
    assert attacked(task, algorithm) < 0.1


def test_clipping_bounds_how_far_a_hostile_client_pulls(task):
    """Its pull is that of an honest client: five of six still agree."""
    assert attacked(task, A.Clipped(bound=0.5)) < 0.5


def test_a_hostile_client_that_stays_away_gains_nothing(task):
    """FedAU gives its rare updates four times the weight; a trimmed mean counts it once."""
    present = np.ones((ROUNDS, CLIENTS), dtype=bool)
    present[:, HOSTILE] = np.arange(ROUNDS) % 4 == 3
    assert attacked(task, A.FedAU(cutoff=4), present) > 5
    assert attacked(task, A.TrimmedMean(0.2, A.FedAU(cutoff=4)), present) < 0.1


def test_a_reply_that_cannot_be_decoded_forges_no_lines_of_the_log(caplog):
    """Flower's error quotes what the client wrote in place of the type of a record."""

    def corrupt(message, objects):
        if message.metadata.message_type == "train" and message.metadata.src_node_id == 101:
            head, zero, body = objects[message.object_id].partition(b"\x00")
            _, children, length = head.split(b" ")
            forged = b"\x1b[2J\x1b[31mfine\r" + b"x" * 1000
            objects[message.object_id] = b" ".join([forged, children, length]) + zero + body

    with caplog.at_level("WARNING", "flwr"):
        deploy(WireGrid(federation().nodes, corrupt), A.FedAvg(), rounds=1)
    (quoted,) = [text for text in caplog.messages if "cannot be read" in text]
    assert quoted.isprintable()
    assert "fine" in quoted
    assert len(quoted) < 600
