"""The wire format: models, instructions and updates as Flower's records.

To a client, message type "train": the ArrayRecord "arrays" (the model), the ConfigRecord "config"
(the fields of `TrainRequest` and the run's train_config) and, for methods with control variates,
the ArrayRecord "correction". Back: the ArrayRecord "update" (Δ_n) or, from an ordinary Flower
client, "arrays" (its model), and the MetricRecord "metrics". `Layout` orders names in a vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor, nn

from fedtide.algorithms import Instructions
from fedtide.errors import InvalidInputError
from fedtide.problems.layout import Layout, Params

NAME_QUERY = "query.fedtide_name"
"""The message type that asks a client for its name."""


@dataclass(frozen=True)
class TrainRequest:
    """What the server asks of a client in one round.

    Args:
        round: t, the absolute round, counted from 0.
        client: the name by which the federation knows this client.
        steps_taken: how many of the client's local steps have counted so far in this federation:
            its shuffled epochs continue there.
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
        update: Δ_n = y_n - x by name.
        samples: how many samples it holds, at least 1.
        lr: γ, the local learning rate that it used.
        steps: I_n, how many local steps it took.
        gradients: ∇F_n(x) by name, if requested.
        metrics: further numbers; the strategy averages each, weighted by samples.
    """

    update: Params
    samples: int
    lr: float
    steps: int
    gradients: Params | None = None
    metrics: Mapping[str, float] | None = None


def initial_arrays(model: nn.Module) -> ArrayRecord:
    """Return the trainable parameters of a model, from which a strategy starts.

    >>> list(initial_arrays(nn.Linear(2, 1)))
    ['weight', 'bias']
    """
    return params_to_arrays({n: p for n, p in model.named_parameters() if p.requires_grad})


def params_to_arrays(params: Mapping[str, Tensor]) -> ArrayRecord:
    """Return named tensors as Flower's arrays."""
    return ArrayRecord(
        {name: Array(np.ascontiguousarray(t.detach().cpu().numpy())) for name, t in params.items()}
    )


def arrays_to_params(arrays: ArrayRecord) -> Params:
    """Return Flower's arrays as named tensors."""
    return {name: torch.tensor(array.numpy()) for name, array in arrays.items()}


def vector_to_arrays(x: Tensor, layout: Layout) -> ArrayRecord:
    """Return the vector x, shape (d,), as named arrays."""
    return params_to_arrays(layout.unflatten(x))


def arrays_to_vector(arrays: ArrayRecord, layout: Layout, like: Tensor) -> Tensor:
    """Return named arrays as a vector, shape (d,), of the dtype of `like`.

    Raises:
        ValueError: names, shapes or dtypes other than the layout's.
        FloatingPointError: values that are not finite, or whose sum of squares is not.
    """
    tensors = arrays_to_params(arrays)
    if tensors.keys() != layout.shapes.keys():
        raise ValueError(f"arrays {sorted(tensors)} instead of {sorted(layout.shapes)}")
    for name, shape in layout.shapes.items():
        if tuple(tensors[name].shape) != tuple(shape):
            raise ValueError(f"{name} of shape {tuple(tensors[name].shape)} instead of {shape}")
        if not tensors[name].is_floating_point():
            raise ValueError(f"{name} of type {tensors[name].dtype}")
    x = layout.flatten(tensors).to(like)
    if not bool(torch.isfinite(x.square().sum())):
        raise FloatingPointError("numbers that are not finite, or too large")
    return x


def flatten_initial(arrays: ArrayRecord) -> tuple[Layout, Tensor]:
    """Return the layout of the initial arrays, and their vector x_0, shape (d,).

    Raises:
        InvalidInputError: no arrays, or arrays of integers or of several dtypes.
    """
    tensors = arrays_to_params(arrays)
    dtypes = {tensor.dtype for tensor in tensors.values()}
    if len(dtypes) != 1 or not next(iter(dtypes)).is_floating_point:
        found = ", ".join(sorted(map(str, dtypes))) or "no arrays"
        raise InvalidInputError(
            f"initial_arrays: {found}; give floating-point arrays of one dtype, without counters"
        )
    layout = Layout.from_params(tensors)
    return layout, layout.flatten(tensors)


def build_train_content(
    arrays: ArrayRecord, instructions: Instructions, correction: ArrayRecord | None, **fields: Any
) -> RecordDict:
    """Return the content of a message that asks one client to train.

    Args:
        arrays: the model.
        instructions: those of the cohort.
        correction: this client's own.
        **fields: the fields of `TrainRequest` that instructions lack: round, client, steps_taken,
            accepted_round, form, requires_plain_sgd, and config, that of the run.
    """
    config = ConfigRecord(dict(fields["config"]))
    config["server-round"] = fields["round"] + 1  # Flower counts from 1
    config["proximal-mu"] = float(instructions.mu)
    for name in ("client", "steps_taken", "accepted_round", "form", "requires_plain_sgd"):
        config[_key(name)] = fields[name]
    for name in ("gradients_at_start", "full_batch", "gradients"):
        config[_key(name)] = bool(getattr(instructions, name))
    content = RecordDict({"arrays": arrays, "config": config})
    if correction is not None:
        content["correction"] = correction
    return content


def is_plain(content: RecordDict) -> bool:
    """Return whether a client is only asked to train as an ordinary Flower client does."""
    config = content.config_records["config"]
    deviations = ("gradients_at_start", "full_batch", "gradients", "form")
    deviates = config["proximal-mu"] or any(config[_key(name)] for name in deviations)
    return "correction" not in content and not deviates


def requested_rate(content: RecordDict) -> float:
    """Return the local learning rate that a request to train asks for; 0: the client's own."""
    rate = content.config_records["config"].get("lr", 0.0)
    return float(rate) if isinstance(rate, int | float) else 0.0


def read_train_content(content: RecordDict) -> tuple[Params, TrainRequest]:
    """Return the model and the request in a message to a client.

    Raises:
        KeyError: a message of another strategy.
    """
    config: Mapping[str, Any] = content.config_records["config"]
    correction = content.array_records.get("correction")
    request = TrainRequest(
        round=int(config["server-round"]) - 1,
        client=str(config[_key("client")]),
        steps_taken=int(config[_key("steps_taken")]),
        accepted_round=int(config[_key("accepted_round")]),
        form=str(config[_key("form")]),
        correction=None if correction is None else arrays_to_params(correction),
        mu=float(config["proximal-mu"]),
        gradients_at_start=bool(config[_key("gradients_at_start")]),
        full_batch=bool(config[_key("full_batch")]),
        gradients=bool(config[_key("gradients")]),
        requires_plain_sgd=bool(config[_key("requires_plain_sgd")]),
        config=dict(config),
    )
    return arrays_to_params(content.array_records["arrays"]), request


def build_update_content(update: Update, request: TrainRequest) -> RecordDict:
    """Return the content of a client's reply with its update.

    Raises:
        ValueError: the update lacks requested gradients.
    """
    metrics = MetricRecord({k: float(v) for k, v in (update.metrics or {}).items()})
    metrics["num-examples"] = int(update.samples)
    metrics["lr"], metrics["steps"] = float(update.lr), int(update.steps)
    content = build_reply_content(request, followed=True)
    content["update"], content["metrics"] = params_to_arrays(update.update), metrics
    if request.gradients:
        if update.gradients is None:
            raise ValueError("the server requested gradients; return them in the Update")
        content["gradients"] = params_to_arrays(update.gradients)
    return content


def build_reply_content(request: TrainRequest, **flags: bool) -> RecordDict:
    """Return the content of a reply that names its round and client, and raises flags.

    Args:
        request: the one that it answers.
        **flags: followed (the client follows all instructions), declined (it does not take part
            in this round), or lost (it no longer has what it must remember).
    """
    config = ConfigRecord({"server-round": request.round + 1, "client": request.client})
    config.update(flags)
    return RecordDict({"config": config})


def build_name_content(name: str) -> RecordDict:
    """Return the content of a client's answer to `NAME_QUERY`."""
    return RecordDict({"config": ConfigRecord({"name": name})})


def _key(name: str) -> str:
    """Return the config key of a field of `TrainRequest`."""
    return f"fedtide-{name.replace('_', '-')}"
