"""A client without PyTorch, which starts fast: it reads the messages' records itself.

What it `sends` is an "update" or, as its node config says: "nothing", ever; "no name", to the
question that comes first; an update, "late": when the round that it is for has ended; or "lies":
NaN or another's name to FedAvg, a wrong shape or another round to all others.
"""

import sqlite3
import threading
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from script import LR, PRESENT, STEPS, update_of

app = ClientApp()


@app.query("fedtide_name")
def tell_name(message, context):
    if context.node_config.get("sends") == "no name":
        threading.Event().wait()
    name = ConfigRecord({"name": context.node_config["name"]})
    return Message(RecordDict({"config": name}), reply_to=message)


@app.train()
def train(message, context):
    request, client = message.content["config"], int(context.node_config["client"])
    t, sends = request["server-round"] - 1, context.node_config.get("sends", "update")
    config = ConfigRecord({"server-round": t + 1, "client": request["fedtide-client"]})
    if request["scripted"] and not PRESENT[t, client]:
        config["declined"] = True
        return Message(RecordDict({"config": config}), reply_to=message)
    if sends == "nothing":
        threading.Event().wait()
    if sends == "late":
        wait_for_the_end_of(t, Path(context.run_config["folder"]) / f"{request['method']}.db")
    if sends == "lies":
        update = lie(request["method"], t, config)
    else:
        x = message.content["arrays"]["x"].numpy()
        correction = (
            message.content["correction"]["x"].numpy() if "correction" in message.content else 0.0
        )
        update = update_of(client, x, correction)
    config["followed"] = True
    arrays = ArrayRecord({"x": Array(update)})
    if "ballast" in message.content["arrays"]:
        size = message.content["arrays"]["ballast"].shape
        arrays["ballast"] = Array(np.random.default_rng(t).random(size))
    content = RecordDict(
        {
            "update": arrays,
            "metrics": MetricRecord({"num-examples": 1, "lr": LR, "steps": STEPS}),
            "config": config,
        }
    )
    return Message(content, reply_to=message)


def lie(method, t, config):
    """Return a false update, or put a false claim into the config."""
    if t % 2 == 0:
        return np.full(3, np.nan) if method == "fedavg" else np.zeros(2)
    config.update({"client": "site-0"} if method == "fedavg" else {"server-round": 1})
    return np.ones(3)


def wait_for_the_end_of(t, ledger):
    """Poll the ledger until it has round t."""
    with sqlite3.connect(ledger) as connection:
        while not connection.execute("SELECT 1 FROM rounds WHERE round = ?", (t,)).fetchone():
            time.sleep(0.2)
