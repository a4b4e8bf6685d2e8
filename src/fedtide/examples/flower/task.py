"""The learning task: the model, how clients train it, and the digits that each of them holds."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedtide import LocalTraining

TRAINING = LocalTraining(steps=20, batch_size=16, lr=0.3)
TEST = 360  # the server tests on the last images


def model() -> nn.Module:
    """Return the network, with the same initial parameters everywhere."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def digits() -> tuple[Tensor, Tensor]:
    """Return all images, with pixels in [0, 1], and their digits."""
    # Flower starts a new client process for every message, and importing sklearn takes a second.
    [sklearn] = find_spec("sklearn").submodule_search_locations
    table = np.loadtxt(Path(sklearn) / "datasets/data/digits.csv.gz", delimiter=",")
    images, labels = table[:, :-1] / 16.0, table[:, -1]
    return torch.tensor(images, dtype=torch.float32), torch.tensor(labels, dtype=torch.int64)


def owner(labels: Tensor, clients: int) -> Tensor:
    """Return the client of each digit: client 0 of 5 holds the digits 0 and 1, and so on."""
    return labels * clients // 10


def shard(client: int, clients: int) -> tuple[Tensor, Tensor]:
    """Return a client's training images and their digits."""
    images, labels = (tensor[:-TEST] for tensor in digits())
    own = owner(labels, clients) == client
    return images[own], labels[own]


def test_set() -> tuple[Tensor, Tensor]:
    """Return the test images and their digits."""
    images, labels = (tensor[-TEST:] for tensor in digits())
    return images, labels
