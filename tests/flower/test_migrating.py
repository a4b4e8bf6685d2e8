"""What the documentation shows of Flower runs with the Flower that is installed."""

import re
from pathlib import Path

import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from .fake_grid import FakeGrid, Node

PAGE = Path(__file__).parents[2] / "docs" / "migrating.md"


def test_the_excerpt_of_flower_runs_twenty_rounds():
    client, trained = ClientApp(), []

    @client.train()
    def train(message, context):
        trained.append(message.content["config"]["server-round"])
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
        return Message(content, reply_to=message)

    @client.evaluate()
    def evaluate(message, context):
        return Message(RecordDict({"m": MetricRecord({"num-examples": 1})}), reply_to=message)

    text = PAGE.read_text(encoding="utf-8")
    block = re.search(r"## Flower\n\n```py\n(.*?)```", text, re.DOTALL)[1]
    names = {"Net": lambda: torch.nn.Linear(2, 1)}
    exec(block, names)
    grid = FakeGrid({n: Node(client, {}) for n in range(2, 32)})
    context = Context(grid.run_id, 1, {}, RecordDict(), {})
    names["app"](grid, context)
    assert sorted(trained) == [t for t in range(1, 21) for _ in range(3)]
