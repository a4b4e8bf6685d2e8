"""A client without PyTorch, which starts fast: it reads the messages' records itself."""

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from script import LR, PRESENT, STEPS, update_of

app = ClientApp()


@app.query("fedtide_name")
def tell_name(message, context):
    name = ConfigRecord({"name": context.node_config["name"]})
    return Message(RecordDict({"config": name}), reply_to=message)


@app.train()
def train(message, context):
    request, client = message.content["config"], int(context.node_config["client"])
    t = request["server-round"] - 1
    config = ConfigRecord({"server-round": t + 1, "client": request["fedtide-client"]})
    if request["scripted"] and not PRESENT[t, client]:
        config["declined"] = True
        return Message(RecordDict({"config": config}), reply_to=message)
    x = message.content["arrays"]["x"].numpy()
    correction = message.content.get("correction")
    update = update_of(client, x, 0.0 if correction is None else correction["x"].numpy())
    config["followed"] = True
    content = RecordDict(
        {
            "update": ArrayRecord({"x": Array(update)}),
            "metrics": MetricRecord({"num-examples": 1, "lr": LR, "steps": STEPS}),
            "config": config,
        }
    )
    return Message(content, reply_to=message)
