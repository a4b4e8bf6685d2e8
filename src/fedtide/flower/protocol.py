"""What goes over the wire: models, instructions and reports as Flower's records.

To a client, message type "train": the ArrayRecord "arrays" (the model), the ConfigRecord "config"
(what is below, and the train_config of the run), and where the method wants it the ArrayRecord
"correction". Back: the ArrayRecord "update" (Δ_n) or, from any ordinary Flower client, "arrays" (its
model), and the MetricRecord "metrics". `Layout` says in which order names lie in a vector.
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
"""The message type that asks a client who it is."""


def record_of(x: Tensor, layout: Layout) -> ArrayRecord:
    """Return the vector x, shape (d,), as named arrays."""
    return arrays_of(layout.unflatten(x))


def layout_of(arrays: ArrayRecord) -> tuple[Layout, Tensor]:
    """Return how these arrays lie in a vector, and the vector, shape (d,).

    Raises:
        InvalidInputError: arrays of integers or of several types, or none.
    """
    tensors = params_of(arrays)
    dtypes = {tensor.dtype for tensor in tensors.values()}
    if len(dtypes) != 1 or not next(iter(dtypes)).is_floating_point:
        found = ", ".join(sorted(map(str, dtypes))) or "no arrays"
        raise InvalidInputError(
            f"initial_arrays: {found}; give floating-point arrays of one type, without counters"
        )
    layout = Layout.from_params(tensors)
    return layout, layout.flatten(tensors)


def vector_of(arrays: ArrayRecord, layout: Layout, like: Tensor) -> Tensor:
    """Return named arrays as a vector, shape (d,), of the type of `like`.

    Raises:
        ValueError: names or shapes that are not those of the layout, no numbers, or some that
            are not finite or whose squares are not.
    """
    tensors = params_of(arrays)
    if tensors.keys() != layout.shapes.keys():
        raise ValueError(f"arrays {sorted(tensors)} instead of {sorted(layout.shapes)}")
    for name, shape in layout.shapes.items():
        if tuple(tensors[name].shape) != tuple(shape):
            raise ValueError(f"{name} of shape {tuple(tensors[name].shape)} instead of {shape}")
        if not tensors[name].is_floating_point():
            raise ValueError(f"{name} of type {tensors[name].dtype}")
    x = layout.flatten(tensors).to(like)
    if not bool(torch.isfinite(x.square().sum())):
        raise ValueError("numbers that are not finite, or too large")
    return x


def initial_arrays(model: nn.Module) -> ArrayRecord:
    """Return the parameters that a model trains, which a strategy starts from.

    >>> list(initial_arrays(nn.Linear(2, 1)))
    ['weight', 'bias']
    """
    return arrays_of({name: p for name, p in model.named_parameters() if p.requires_grad})


def params_of(arrays: ArrayRecord) -> Params:
    """Return Flower's arrays as named tensors."""
    return {name: torch.tensor(array.numpy()) for name, array in arrays.items()}


@dataclass(frozen=True)
class TrainRequest:
    """How a client is asked to train.

    Args:
        round: t, the absolute round, counted from 0.
        client: the name by which the federation knows this client.
        taken: how many local steps the client has taken in this federation, as far as they count:
            where its shuffled epochs go on.
        accepted: the round in which this client was asked for the report that was its last to
            count; -1: none has.
        form: in which form of `ClientSideMemory` it is to report; "": Δ as it is.
        correction: what is to be added to every gradient, by name; None: nothing.
        mu: μ, the proximal weight: μ (y - x) is to be added to every gradient.
        gradients_at_start: whether every gradient is to be taken at x itself.
        full_batch: whether every step is to use all samples.
        gradients: whether ∇F_n(x) is wanted as well.
        requires_plain_sgd: whether the method reads gradients off Δ_n: no momentum, no projection.
        config: all of the message's ConfigRecord, the run's train_config included.
    """

    round: int
    client: str = ""
    taken: int = 0
    accepted: int = -1
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
        gradients: ∇F_n(x) by name, where that was asked for.
        metrics: further figures, which the strategy averages over samples.
    """

    update: Params
    samples: int
    lr: float
    steps: int
    gradients: Params | None = None
    metrics: Mapping[str, float] | None = None


def train_content(
    arrays: ArrayRecord, told: Instructions, correction: ArrayRecord | None, **others: Any
) -> RecordDict:
    """Return what one client is sent.

    Args:
        arrays: the model.
        told: the instructions of the cohort.
        correction: this client's own.
        **others: the fields of `TrainRequest` that instructions do not have: round, client, taken,
            accepted, form, requires_plain_sgd, and config, that of the run.
    """
    config = ConfigRecord(dict(others["config"]))
    config["server-round"] = others["round"] + 1  # Flower counts from 1
    config["proximal-mu"] = float(told.mu)
    for name in ("client", "taken", "accepted", "form", "requires_plain_sgd"):
        config[f"fedtide-{name.replace('_', '-')}"] = others[name]
    for name in ("frozen", "full_batch", "gradients"):
        config[f"fedtide-{name.replace('_', '-')}"] = bool(getattr(told, name))
    content = RecordDict({"arrays": arrays, "config": config})
    if correction is not None:
        content["correction"] = correction
    return content


def is_plain(content: RecordDict) -> bool:
    """Say whether a client is asked for nothing but to train the model as it always does."""
    told = content.config_records["config"]
    bent = ("frozen", "full-batch", "gradients", "form")
    bends = [told["proximal-mu"], *(told[f"fedtide-{name}"] for name in bent)]
    return "correction" not in content and not any(bends)


def read_train(content: RecordDict) -> tuple[Params, TrainRequest]:
    """Return the model and the instructions in what a client was sent.

    Raises:
        KeyError: it was not sent by fedtide's strategy.
    """
    told = content.config_records["config"]
    correction = content.array_records.get("correction")
    asked = TrainRequest(
        round=int(told["server-round"]) - 1,  # type: ignore[arg-type]
        client=str(told["fedtide-client"]),
        accepted=int(told["fedtide-accepted"]),  # type: ignore[arg-type]
        form=str(told["fedtide-form"]),
        taken=int(told["fedtide-taken"]),  # type: ignore[arg-type]
        correction=None if correction is None else params_of(correction),
        mu=float(told["proximal-mu"]),  # type: ignore[arg-type]
        gradients_at_start=bool(told["fedtide-frozen"]),
        full_batch=bool(told["fedtide-full-batch"]),
        gradients=bool(told["fedtide-gradients"]),
        requires_plain_sgd=bool(told["fedtide-raw-gradients"]),
        config=dict(told),
    )
    return params_of(content.array_records["arrays"]), asked


def update_content(update: Update, asked: TrainRequest) -> RecordDict:
    """Return what a client sends back, its name and the round that it was asked for included.

    Raises:
        ValueError: the update lacks what was asked for.
    """
    metrics = MetricRecord({k: float(v) for k, v in (update.metrics or {}).items()})
    metrics["num-examples"] = int(update.samples)
    metrics["lr"], metrics["steps"] = float(update.lr), int(update.steps)
    config = ConfigRecord(
        {"server-round": asked.round + 1, "client": asked.client, "followed": True}
    )
    content = RecordDict({"update": arrays_of(update.update), "metrics": metrics, "config": config})
    if asked.gradients:
        if update.gradients is None:
            raise ValueError("gradients were asked for; return them in the Update")
        content["gradients"] = arrays_of(update.gradients)
    return content


def name_content(name: str) -> RecordDict:
    """Return what a client answers that is asked who it is."""
    return RecordDict({"config": ConfigRecord({"name": name})})


def arrays_of(params: Mapping[str, Tensor]) -> ArrayRecord:
    """Return named tensors as Flower's arrays."""
    return ArrayRecord(
        {name: Array(np.ascontiguousarray(t.detach().cpu().numpy())) for name, t in params.items()}
    )


def declined_content(asked: TrainRequest) -> RecordDict:
    """Return what a client sends back that does not take part in this round."""
    return RecordDict({"config": ConfigRecord({**_claims(asked), "declined": True})})


def lost_content(asked: TrainRequest) -> RecordDict:
    """Return what a client sends back that does not have what it should remember."""
    return RecordDict({"config": ConfigRecord({**_claims(asked), "lost": True})})


def _claims(asked: TrainRequest) -> dict[str, int | str]:
    """Return what a client says about the message that it answers."""
    return {"server-round": asked.round + 1, "client": asked.client}
