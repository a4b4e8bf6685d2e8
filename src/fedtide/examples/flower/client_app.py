"""A client: five lines make it follow any method that the server runs."""

from flwr.app import Context
from task import TRAINING, model, shard

from fedtide.flower import client


def data(context: Context):
    """Return this client's images and digits; `--node-config` says which client it is."""
    config = context.node_config
    return shard(int(config["partition-id"]), int(config["num-partitions"]))


def available(t: int, context: Context) -> bool:
    """Return whether this client takes part in round t: in every `every` rounds (node config)."""
    return t % int(context.node_config.get("every", 1)) == 0


app = client(model, data, TRAINING, available=available)
