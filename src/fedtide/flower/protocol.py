"""The wire format: models, instructions and updates as Flower's records.

To a client, message type "train": the ArrayRecord "arrays" (the model), the ConfigRecord "config"
(the fields of `TrainRequest` and the run's train_config) and, for methods with control variates,
the ArrayRecord "correction". Back: the ArrayRecord "arrays" (y_n, the client's own model, with the
names of the one received, as ordinary Flower clients send it and Flower's mods expect it), the
MetricRecord "metrics" and, if the method asks for it, the ArrayRecord "gradients". Only updates
that are not the difference of two models (the forms of `ClientSideMemory`) travel as the
ArrayRecord "update", which the server takes for Δ_n in any reply.

The SuperLink identifies parts of messages by their hashes, and refuses a message if one of its
parts was registered in another form before. Any client could do that to a part that it can predict.
So each record other than arrays has a nonce, and the headers of arrays that the server sends have
random blanks.

A reply to a request to train also repeats the request's nonce. The SuperLink checks that a reply
answers a message to the node that it names, but lets any node with a key name another one.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedtide.algorithms import Instructions
from fedtide.flower.arrays import arrays_to_params, params_to_arrays
from fedtide.problems.layout import Params

RecordT = TypeVar("RecordT", ArrayRecord, ConfigRecord, MetricRecord)

NAME_ACTION = "fedtide_name"
"""The name by which Flower calls the function that returns a client's name."""

NAME_QUERY = f"query.{NAME_ACTION}"
"""The message type that asks for it."""

CHECK_ACTION = "fedtide_check"
"""The name of the function with which `fedtide flower check` has a client try to train."""

CHECK_QUERY = f"query.{CHECK_ACTION}"
"""The message type that it uses; the server never sends it."""

NONCE = "fedtide-nonce"
"""The key of the nonce in records."""

ECHO = "fedtide-echo"
"""The key of a request's nonce in the reply, which shows that the sender was sent the request."""

LONGEST_NAME = 200
"""The largest length of a client's name."""


@dataclass(frozen=True)
class TrainRequest:
    """What the server asks of a client in one round.

    Args:
        round: t, the absolute round, counted from 0.
        client: the name by which the federation knows this client.
        steps_taken: how many of the client's local steps have counted so far in this federation,
            modulo 2³¹: its shuffled epochs continue there.
        accepted_round: the round of the client's last update that counted; -1: none.
        form: the form of `ClientSideMemory` in which to send the update; "": plain Δ.
        correction: added to every gradient, by name; None: nothing.
        mu: μ, the proximal weight: add μ (y - x) to every gradient.
        gradients_at_start: take every gradient at x itself.
        full_batch: use all samples in every step.
        gradients: also send ∇F_n(x).
        requires_plain_sgd: the method derives gradients from Δ_n: no momentum, no projection.
        config: all of the message's ConfigRecord, including the run's train_config.
    """

    round: int
    client: str = ""
    steps_taken: int = 0
    accepted_round: int = -1
    form: str = ""
    correction: Params | None = None
    mu: float = 0.0
    gradients_at_start: bool = False
    full_batch: bool = False
    gradients: bool = False
    requires_plain_sgd: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Update:
    """What a client sends back.

    Args:
        update: Δ_n = y_n - x by name; the client sends y_n = x + Δ_n.
        samples: how many samples it holds, at least 1.
        lr: γ, the local learning rate that it used.
        steps: I_n, how many local steps it took.
        gradients: ∇F_n(x) by name, if requested.
        metrics: further numbers; the strategy logs the median of each over the clients.
    """

    update: Params
    samples: int
    lr: float
    steps: int
    gradients: Params | None = None
    metrics: Mapping[str, float] | None = None


def build_round_config(
    instructions: Instructions,
    t: int,
    form: str,
    requires_plain_sgd: bool,
    run_config: Mapping[str, Any],
) -> ConfigRecord:
    """Return the config that the requests of round t have in common.

    Args:
        instructions: those of the cohort.
        t: the round.
        form, requires_plain_sgd: see `TrainRequest`.
        run_config: the run's train_config.
    """
    config = ConfigRecord(dict(run_config))
    config["server-round"] = t + 1  # Flower counts from 1
    config["proximal-mu"] = float(instructions.mu)
    config[_key("requires_plain_sgd")] = requires_plain_sgd
    if form:  # Flower's message_size_mod raises on empty text
        config[_key("form")] = form
    for name in ("gradients_at_start", "full_batch", "gradients"):
        config[_key(name)] = bool(getattr(instructions, name))
    return config


def build_train_content(
    common: RecordDict,
    correction: ArrayRecord | None,
    client: str,
    steps_taken: int,
    accepted_round: int,
) -> RecordDict:
    """Return the content of a message that asks one client to train.

    Args:
        common: what all clients get: "arrays", the model, and "config", from `build_round_config`.
        correction, client, steps_taken, accepted_round: this client's own, see `TrainRequest`.
    """
    values = {
        _key("client"): client,
        _key("steps_taken"): steps_taken,
        _key("accepted_round"): accepted_round,
        **draw_nonce(),  # one each: clients that are sent theirs early must not predict the others
    }
    shared = select_records(common, ConfigRecord)["config"]
    content = RecordDict({**common, "config": ConfigRecord({**shared, **values})})
    if correction is not None:
        content["correction"] = correction
    return content


def describe_request(content: RecordDict) -> dict[str, Any]:
    """Return what `PendingReply` keeps of a request to train: plain, lr, gradients."""
    config = select_records(content, ConfigRecord)["config"]
    deviations = ("gradients_at_start", "full_batch", "gradients", "form")
    deviates = config["proximal-mu"] or any(config.get(_key(name)) for name in deviations)
    rate = config.get("lr", 0.0)
    return {
        "plain": "correction" not in content and not deviates,
        "lr": float(rate) if isinstance(rate, int | float) else 0.0,
        "gradients": bool(config[_key("gradients")]),
    }


def read_nonce(content: RecordDict) -> int:
    """Return the nonce of a request to train."""
    nonce = select_records(content, ConfigRecord)["config"][NONCE]
    assert isinstance(nonce, int)
    return nonce


def select_records(content: Mapping[str, Any], kind: type[RecordT]) -> dict[str, RecordT]:
    """Return the records of one kind by name.

    Flower's own views, such as `content.array_records`, are part of reference cycles: a model that
    was looked at through one stays in memory until the garbage collector finds it.
    """
    return {name: record for name, record in content.items() if isinstance(record, kind)}


def read_model(content: RecordDict) -> Params:
    """Return the model in a message to a client."""
    return arrays_to_params(select_records(content, ArrayRecord)["arrays"])


def read_round(content: RecordDict) -> int | None:
    """Return the round t (from 0) after which a client is asked to evaluate; None: unknown."""
    config: Any = content.config_records.get("config", {})
    server_round = config.get("server-round")
    return int(server_round) - 1 if isinstance(server_round, int | float) else None


def read_request(content: RecordDict) -> TrainRequest:
    """Return the request in a message that asks a client to train.

    Raises:
        KeyError: a message of another strategy.
    """
    config: Mapping[str, Any] = select_records(content, ConfigRecord)["config"]
    correction = select_records(content, ArrayRecord).get("correction")
    return TrainRequest(
        round=int(config["server-round"]) - 1,
        client=str(config[_key("client")]),
        steps_taken=int(config[_key("steps_taken")]),
        accepted_round=int(config[_key("accepted_round")]),
        form=str(config.get(_key("form"), "")),
        correction=None if correction is None else arrays_to_params(correction),
        mu=float(config["proximal-mu"]),
        gradients_at_start=bool(config[_key("gradients_at_start")]),
        full_batch=bool(config[_key("full_batch")]),
        gradients=bool(config[_key("gradients")]),
        requires_plain_sgd=bool(config[_key("requires_plain_sgd")]),
        config=dict(config),
    )


def build_update_content(update: Update, request: TrainRequest, model: Params) -> RecordDict:
    """Return the content of a client's reply with its update of the model that it received.

    Raises:
        ValueError: the update lacks requested gradients, or has other names or shapes than the
            model.
    """
    metrics = MetricRecord({k: float(v) for k, v in (update.metrics or {}).items()})
    metrics["num-examples"] = int(update.samples)
    metrics["lr"], metrics["steps"] = float(update.lr), int(update.steps)
    metrics.update(draw_nonce())
    content = build_reply_content(request, followed=True)
    content["metrics"] = metrics
    if request.form:
        content["update"] = params_to_arrays(update.update)
    else:
        content["arrays"] = params_to_arrays(_add(model, update.update))
    if request.gradients:
        if update.gradients is None:
            raise ValueError("the server requested gradients; return them in the Update")
        content["gradients"] = params_to_arrays(update.gradients)
    return content


def build_reply_content(request: TrainRequest, **flags: bool) -> RecordDict:
    """Return the content of a reply that names its request and client, and raises flags.

    Args:
        request: the one that it answers.
        **flags: followed (the client follows all instructions), declined (it does not take part
            in this round), or lost (it no longer has what it must remember).
    """
    config = ConfigRecord({"server-round": request.round + 1, "client": request.client})
    config.update(flags | draw_nonce())
    if NONCE in request.config:
        config[ECHO] = request.config[NONCE]
    return RecordDict({"config": config})


def build_answer(**values: str | bool) -> RecordDict:
    """Return the content of a client's answer to `NAME_QUERY`, name, or to an evaluation, declined.

    >>> build_answer(name="site-a")["config"]["name"]
    'site-a'
    """
    return RecordDict({"config": ConfigRecord(values | draw_nonce())})


def draw_nonce() -> dict[str, Any]:
    """Return an entry that makes a record unpredictable."""
    return {NONCE: secrets.randbits(62)}


def is_name(name: object) -> bool:
    """Return whether this can name a client: printable text of 1 to 200 characters, not blank."""
    if not isinstance(name, str) or len(name) > LONGEST_NAME:
        return False
    return name.isprintable() and bool(name.strip())


def _add(model: Params, update: Params) -> Params:
    """Return model + update in the order of the model's names, which mods compare."""
    shapes = {name: tuple(tensor.shape) for name, tensor in model.items()}
    found = {name: tuple(tensor.shape) for name, tensor in update.items()}
    if found != shapes:
        raise ValueError(f"the update has arrays {found}, and the model has {shapes}")
    return {name: tensor + update[name] for name, tensor in model.items()}


@cache
def _key(name: str) -> str:
    """Return the config key of a field of `TrainRequest`."""
    return f"fedtide-{name.replace('_', '-')}"
