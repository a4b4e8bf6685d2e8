"""The wire format: models, instructions and updates as Flower's records.

To a client, message type "train": the ArrayRecord "arrays" (the model), the ConfigRecord "config"
(the fields of `TrainRequest` and the run's train_config) and, for methods with control variates,
the ArrayRecord "correction". Back: the ArrayRecord "arrays" (y_n, the client's own model, with the
names of the one received, as ordinary Flower clients send it and Flower's mods expect it), the
MetricRecord "metrics" and, if the method asks for it, the ArrayRecord "gradients". Only what is no
difference of two models, a form of `ClientSideMemory`, travels as the ArrayRecord "update"; the
server takes that for Δ_n in any reply. `Layout` orders names in a vector. What the server sends has
the dtype of the initial arrays; a model in float16 travels in it, and the server computes in
float32.

The SuperLink knows parts of messages by their hashes, and refuses a message of which a part was
registered in another form before, as any client can do with a part that it can foresee. So each
record that is no array has a nonce, and the headers of arrays that the server sends have blanks
drawn at random.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from typing import Any, TypeVar, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor, nn

from fedtide.algorithms import Instructions
from fedtide.errors import InvalidInputError, first_line
from fedtide.flower._flwr_private import copy_with
from fedtide.problems.layout import Layout, Params

RecordT = TypeVar("RecordT", ArrayRecord, ConfigRecord, MetricRecord)

NAME_QUERY = "query.fedtide_name"
"""The message type that asks a client for its name."""

_MAGIC = 10
"""The bytes of `np.save` before the text of a header; the last two are its length."""

_NUMPY = "numpy.ndarray"
"""How Flower calls the form in which `np.save` writes arrays."""

_DTYPES: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(np.float16): torch.float16,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}
"""The types that models may have, in the byte order of this machine."""

NONCE = "fedtide-nonce"
"""The key of the nonce in records."""

LONGEST_NAME = 200
"""The length of a client's name, at most."""


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

    Raises:
        InvalidInputError: parameters of a type that NumPy does not have, such as bfloat16.

    >>> list(initial_arrays(nn.Linear(2, 1)))
    ['weight', 'bias']
    """
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype not in _DTYPES.values():
            raise InvalidInputError(
                f"model: {name} is of type {parameter.dtype}, which Flower's arrays do not have; "
                "give model.float()"
            )
    return params_to_arrays({n: p for n, p in model.named_parameters() if p.requires_grad})


def params_to_arrays(params: Mapping[str, Tensor], blanks: bytes = b"") -> ArrayRecord:
    """Return named tensors as Flower's arrays, with blanks in their headers."""
    return ArrayRecord({name: _encode(tensor, blanks) for name, tensor in params.items()})


def arrays_to_params(arrays: ArrayRecord) -> Params:
    """Return Flower's arrays as named tensors."""
    return {name: torch.tensor(array.numpy()) for name, array in arrays.items()}


def vector_to_arrays(x: Tensor, layout: Layout, blanks: bytes = b"") -> ArrayRecord:
    """Return the vector x, shape (d,), as named arrays, with blanks in their headers."""
    return params_to_arrays(layout.unflatten(x), blanks)


def draw_blanks() -> bytes:
    """Return blanks for the headers of arrays, over which NumPy passes, and nobody can foresee."""
    return f"{secrets.randbits(64):064b}".replace("0", " ").replace("1", "\t").encode()


def arrays_to_vector(
    arrays: ArrayRecord, layout: Layout, like: Tensor, origin: Tensor | None = None
) -> Tensor:
    """Return named arrays, less `origin`, as a vector like `like`, shape (d,).

    Differences are taken in the arrays' own dtype if that is the wider one. Models may be large:
    nothing else of their size is made.

    Raises:
        ValueError: names, shapes or dtypes other than the layout's.
        FloatingPointError: values that are not finite, or whose sum of squares is not.
    """
    if arrays.keys() != layout.shapes.keys():
        raise ValueError(f"arrays {sorted(arrays)} instead of {sorted(layout.shapes)}")
    start = None if origin is None else origin.numpy(force=True)
    vector = torch.empty_like(like, device="cpu")
    x, end = vector.numpy(), 0
    with np.errstate(all="ignore"):
        for name, shape in layout.shapes.items():
            values = _decode(arrays[name], tuple(shape))
            if values.shape != tuple(shape):
                raise ValueError(f"{name} of shape {values.shape} instead of {tuple(shape)}")
            if values.dtype.kind != "f":
                raise ValueError(f"{name} of type {values.dtype}")
            part = slice(end, end := end + values.size)
            if start is None:
                x[part] = values.ravel()
            else:
                np.subtract(values.ravel(), start[part], out=x[part], casting="same_kind")
        if not math.isfinite(np.dot(x, x)):
            raise FloatingPointError("numbers that are not finite, or too large")
    return vector.to(like.device)


def _encode(tensor: Tensor, blanks: bytes) -> Array:
    """Return a tensor as Flower's `Array(ndarray)` does, without a further copy of its values.

    Without blanks the bytes are the same, too.
    """
    values = np.asarray(tensor.detach().cpu().numpy(), order="C")
    for header, dtype in _headers(values.shape):
        if values.dtype == dtype:
            if blanks:
                text = header[_MAGIC:-1] + blanks + b"\n"
                header = header[: _MAGIC - 2] + len(text).to_bytes(2, "little") + text
            return Array(str(dtype), values.shape, _NUMPY, b"".join((header, values.data)))
    return Array(values)


def _decode(array: Array, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the values of an array.

    What `np.save` writes for this shape and a usual type is neither parsed nor copied: parsing a
    header takes longer than all else for the small arrays of which most models consist.

    Raises:
        ValueError: bytes that are no array.
    """
    for header, dtype in _headers(shape):
        if array.stype == _NUMPY and array.data.startswith(header):
            return np.frombuffer(array.data, dtype, offset=len(header)).reshape(shape)
    try:
        values = array.numpy()
    except Exception:  # its bytes may be anything; NumPy's messages are not for its operator
        raise ValueError("an array that cannot be read") from None
    if not isinstance(values, np.ndarray):  # an archive of several
        raise ValueError("an array that cannot be read")
    return values


@cache
def _headers(shape: tuple[int, ...]) -> list[tuple[bytes, np.dtype[Any]]]:
    """Return what `np.save` writes before the values of arrays of this shape."""
    headers = []
    for dtype in _DTYPES:
        file = BytesIO()
        facts = {"descr": dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, facts)
        headers.append((file.getvalue(), dtype))
    return headers


def flatten_initial(arrays: ArrayRecord) -> tuple[Layout, Tensor]:
    """Return the layout of the initial arrays, and their vector x_0, shape (d,).

    Raises:
        InvalidInputError: no numbers, or numbers that are not finite; arrays of integers, of
            several dtypes, or of one that PyTorch does not have.
    """
    try:
        values = {name: array.numpy() for name, array in arrays.items()}
        dtypes = {value.dtype for value in values.values()}
    except Exception as error:  # what Flower cannot decode
        reason = first_line(error, with_type=True)
        raise InvalidInputError(
            f"initial_arrays: they cannot be read ({reason}); make them with initial_arrays(model)"
        ) from None
    if len(dtypes) != 1 or not dtypes <= _DTYPES.keys():
        found = ", ".join(sorted(map(str, dtypes))) or "no arrays"
        raise InvalidInputError(
            f"initial_arrays: {found}; give floating-point arrays of one dtype, float16, float32 "
            "or float64 in this machine's byte order, without counters"
        )
    tensors = {name: torch.tensor(value) for name, value in values.items()}
    layout = Layout.from_params(tensors)
    x = layout.flatten(tensors)
    if not len(x) or not bool(torch.isfinite(torch.linalg.vector_norm(widen_half(x)))):
        what = "numbers that are not finite, or too large" if len(x) else "no numbers"
        raise InvalidInputError(f"initial_arrays: {what}; give those of a model before training")
    return layout, x


def widen_half(x: Tensor) -> Tensor:
    """Return a tensor of float16 in float32, in which the server computes; others as they are."""
    return x.float() if x.dtype == torch.float16 else x


def build_round_config(instructions: Instructions, **fields: Any) -> ConfigRecord:
    """Return the config that the requests of a round have in common.

    Args:
        instructions: those of the cohort.
        **fields: the fields of `TrainRequest` that instructions lack and that are the same for all
            clients: round, form, requires_plain_sgd, and config, that of the run.
    """
    config = ConfigRecord(dict(fields["config"]))
    config["server-round"] = fields["round"] + 1  # Flower counts from 1
    config["proximal-mu"] = float(instructions.mu)
    config[_key("requires_plain_sgd")] = fields["requires_plain_sgd"]
    if fields["form"]:  # Flower's message_size_mod raises on empty text
        config[_key("form")] = fields["form"]
    for name in ("gradients_at_start", "full_batch", "gradients"):
        config[_key(name)] = bool(getattr(instructions, name))
    return config


def build_train_content(
    common: RecordDict, correction: ArrayRecord | None, **fields: Any
) -> RecordDict:
    """Return the content of a message that asks one client to train.

    Args:
        common: what all clients get: "arrays", the model, and "config", from `build_round_config`.
        correction: this client's own.
        **fields: the client's own fields of `TrainRequest`: client, steps_taken, accepted_round.
    """
    config = select_records(common, ConfigRecord)["config"]
    # A nonce for each: those who get theirs early shall not foresee the requests to others.
    values = {_key(name): value for name, value in fields.items()} | draw_nonce()
    own = {"config": copy_with(config, values)}
    return copy_with(common, own if correction is None else own | {"correction": correction})


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


def select_records(content: Mapping[str, Any], kind: type[RecordT]) -> dict[str, RecordT]:
    """Return the records of one kind by name.

    Flower's own views, such as `content.array_records`, are part of reference cycles: a model that
    was looked at through one stays in memory until the garbage collector finds it.
    """
    # isinstance takes ten times as long: the classes of records are abstract
    own = {n: record for n, record in content.items() if kind in type(record).__mro__}
    return cast("dict[str, RecordT]", own)


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
    """Return the content of a reply that names its round and client, and raises flags.

    Args:
        request: the one that it answers.
        **flags: followed (the client follows all instructions), declined (it does not take part
            in this round), or lost (it no longer has what it must remember).
    """
    config = ConfigRecord({"server-round": request.round + 1, "client": request.client})
    config.update(flags | draw_nonce())
    return RecordDict({"config": config})


def build_name_content(name: str) -> RecordDict:
    """Return the content of a client's answer to `NAME_QUERY`."""
    return RecordDict({"config": ConfigRecord({"name": name} | draw_nonce())})


def build_declined_content() -> RecordDict:
    """Return the content of a reply to an evaluation in which the client does not take part."""
    return RecordDict({"config": ConfigRecord({"declined": True} | draw_nonce())})


def draw_nonce() -> dict[str, Any]:
    """Return an entry that makes a record one that nobody can foresee."""
    return {NONCE: secrets.randbits(62)}


def is_name(name: object) -> bool:
    """Return whether this can name a client: printable text of 1 to 200 characters."""
    return isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable()


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
