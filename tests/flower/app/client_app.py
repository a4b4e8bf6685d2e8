"""A client without PyTorch, which starts in no time: it follows the messages' records itself."""

import time

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from script import LR, STEPS, THERE, update_of

app = ClientApp()


@app.query("fedtide_name")
def tell_name(message, context):
    name = ConfigRecord({"name": context.node_config["name"]})
    return Message(RecordDict({"config": name}), reply_to=message)


@app.train()
def train(message, context):
    told, client = message.content["config"], int(context.node_config["client"])
    t = told["server-round"] - 1
    config = ConfigRecord({"server-round": t + 1, "client": told["fedtide-client"]})
    if told["scripted"] and not THERE[t, client]:
        config["declined"] = True
        return Message(RecordDict({"config": config}), reply_to=message)
    time.sleep(float(context.node_config.get("seconds", 0)))
    x = message.content["arrays"]["x"].numpy()
    drift = message.content["drift"]["x"].numpy() if "drift" in message.content else 0.0
    config["followed"] = True
    content = RecordDict(
        {
            "update": ArrayRecord({"x": Array(update_of(client, x, drift))}),
            "metrics": MetricRecord({"num-examples": 1, "lr": LR, "steps": STEPS}),
            "config": config,
        }
    )
    return Message(content, reply_to=message)
