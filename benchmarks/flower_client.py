"""A client of Flower for `peers.py`, in a module of its own as in Flower's documentation.

Ray sends what it finds in a module by name. It would send a function that is defined within another
one with every message.
"""

from __future__ import annotations

from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from workload import Workload

WORK = Workload(cohort=10, steps=6, batch=10)  # clients do not depend on the size of the cohort
clients = ClientApp()


@clients.train()
def train(message: Message, context: Context) -> Message:
    """Take the local steps."""
    torch.set_num_threads(1)
    x, y = _samples(int(context.node_config["partition-id"]))
    network = nn.Linear(*WORK.shape, WORK.classes)
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(network.parameters(), lr=WORK.lr)
    for step in range(WORK.steps):
        batch = slice(step * WORK.batch, (step + 1) * WORK.batch)
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x[batch]), y[batch]).backward()
        optimizer.step()
    content = {
        "arrays": ArrayRecord(network.state_dict()),
        "metrics": MetricRecord({"num-examples": len(x)}),
    }
    return Message(RecordDict(content), reply_to=message)


@cache
def _samples(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    return WORK.draw_client(client)
