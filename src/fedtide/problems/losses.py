"""Losses: one number for each sample, from the network's outputs and the targets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, huber_loss, log_softmax

from fedtide.errors import InvalidInputError, did_you_mean, first_line
from fedtide.import_paths import import_object, is_import_path
from fedtide.problems.models.functional import cast_network

LossFunction = Callable[..., Tensor]
"""Takes outputs (B, ...), targets (B, ...) and, for sequences, a mask (B, L) that is False where
they are padded; returns one loss per sample, (B,). It must consist of torch operations."""

_logger = logging.getLogger("fedtide")

LossT = TypeVar("LossT", bound=Callable[..., Any])

TargetKind = Literal["classes", "numbers", "tokens"]


def cross_entropy(outputs: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return −log softmax(z)_y for logits z (B, C) and classes y (B,).

    For sequences, logits (B, L, C) and classes (B, L), the mean over the positions.

    >>> cross_entropy(torch.zeros(1, 4), torch.tensor([2])).exp()
    tensor([4.])
    """
    # torch's own function also checks for labels to ignore, which doubles its cost
    logs = log_softmax(outputs, dim=-1)
    return average_positions(-logs.gather(-1, target.unsqueeze(-1)).squeeze(-1), mask)


def next_token(outputs: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean of −log softmax(z_t)_{x_{t+1}} over the positions t of a sequence.

    Args:
        outputs: the logits z, (B, L, V), where z_t must depend on x_0..x_t only.
        target: the tokens x, (B, L).
        mask: False where the sequence is padded, (B, L).
    """
    return cross_entropy(outputs[:, :-1], target[:, 1:], None if mask is None else mask[:, 1:])


def mse(outputs: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return (z − y)², the mean over the dimensions of a target.

    >>> mse(torch.tensor([[1.0], [3.0]]), torch.tensor([1.0, 1.0]))
    tensor([0., 4.])
    """
    return average_positions((match_target(outputs, target) - target) ** 2, mask)


def mae(outputs: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return |z − y|, the mean over the dimensions of a target."""
    return average_positions((match_target(outputs, target) - target).abs(), mask)


def huber(outputs: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return ½ (z − y)² where |z − y| <= 1, and |z − y| − ½ elsewhere."""
    losses = huber_loss(match_target(outputs, target), target, reduction="none")
    return average_positions(losses, mask)


def bce(outputs: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return −y log σ(z) − (1 − y) log(1 − σ(z)) for logits z and targets y in [0, 1].

    With several targets per sample (multi-label), the mean over them.
    """
    logits = match_target(outputs, target)
    return average_positions(
        binary_cross_entropy_with_logits(logits, target, reduction="none"), mask
    )


def match_target(outputs: Tensor, target: Tensor) -> Tensor:
    """Return the outputs in the shape of the target; they may differ by a last dimension of 1.

    Raises:
        ValueError: they differ by more: subtraction would pair every output with every target.
    """
    if outputs.dim() == target.dim() + 1 and outputs.shape[-1] == 1:
        outputs = outputs.squeeze(-1)
    elif target.dim() == outputs.dim() + 1 and target.shape[-1] == 1:
        outputs = outputs.unsqueeze(-1)
    if outputs.shape != target.shape:
        raise ValueError(f"one is {tuple(outputs.shape)}, the other {tuple(target.shape)}")
    return outputs


def average_positions(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean of values (B, ...) over all dimensions but the first, shape (B,).

    Args:
        values: one for each sample, or for each position of a sample.
        mask: False for positions that do not count, (B, L); None: all count.
    """
    if values.dim() == 1:
        return values
    if mask is None or mask.dim() > values.dim():
        return values.flatten(1).mean(1)
    weights = mask.to(values.dtype).view(*mask.shape, *[1] * (values.dim() - mask.dim()))
    weights = weights.expand_as(values)
    return (values * weights).flatten(1).sum(1) / weights.flatten(1).sum(1).clamp(min=1)


LOSSES: dict[str, LossFunction] = {
    "cross_entropy": cross_entropy,
    "mse": mse,
    "mae": mae,
    "huber": huber,
    "bce": bce,
    "next_token": next_token,
}
"""The losses by name."""

TARGET_KINDS: dict[LossFunction, TargetKind] = {
    cross_entropy: "classes",
    mse: "numbers",
    mae: "numbers",
    huber: "numbers",
    bce: "numbers",
    next_token: "tokens",
}
"""The targets that each loss expects; a user-defined function gets them as they are stored."""


def resolve_function(field: str, given: object, known: Mapping[str, object]) -> Any:
    """Return the function that a name or an import path refers to; other values as they are.

    Args:
        field: the name in an error.
        given: a name in `known`, "package.module:function", or not text.
        known: functions by name.

    Raises:
        InvalidInputError: an unknown name, or an import that fails.
    """
    if is_import_path(given):
        return import_object(str(given), field)
    if not isinstance(given, str):
        return given
    if given not in known:
        raise InvalidInputError(
            f"{field}: unknown {given!r}; {did_you_mean(given, known)}, or give a function"
        )
    return known[given]


def resolve_loss(loss: str | LossFunction) -> tuple[LossFunction, TargetKind | None]:
    """Return a loss, and the targets that it expects (None: as they are stored).

    Raises:
        InvalidInputError: an unknown name, or something that is not a function.
    """
    function = resolve_function("loss", loss, LOSSES)
    if not callable(function):
        raise InvalidInputError(f"loss: {function!r:.60} is not a function; give one, or a name")
    return function, TARGET_KINDS.get(function)


def adapt_loss(loss: LossT, device: torch.device, dtype: torch.dtype) -> LossT:
    """Return a loss whose tensors, such as class weights, have this device and this dtype.

    A loss without tensors, such as a function, is returned as it is.
    """
    if not isinstance(loss, nn.Module) or not [*loss.parameters(), *loss.buffers()]:
        return loss
    return cast("LossT", cast_network(deepcopy(loss).to(device), dtype))


def check_outputs(outputs: Any, target: Tensor, kind: TargetKind | None, classes: int) -> None:
    """Check the outputs of a network for a few samples.

    Args:
        outputs: of the network.
        target: (B, ...).
        kind: of targets that the loss expects; None: the loss is user-defined.
        classes: C; 0 if targets are not classes.

    Raises:
        InvalidInputError: they are not one tensor, or do not have one logit for each class.
    """
    if kind is not None and not isinstance(outputs, Tensor):
        raise InvalidInputError(
            f"model: it returns a {type(outputs).__name__}; return the logits or predictions "
            "alone, such as outputs.logits, or give a loss of your own"
        )
    if kind not in ("classes", "tokens"):
        return
    positions, shape = tuple(target.shape), tuple(outputs.shape)
    one_class = bool(classes) and len(positions) == 1
    if shape[:-1] == positions and (shape[-1] == classes if one_class else shape[-1] >= classes):
        return
    width = f"C {'=' if one_class else 'at least'} {classes}" if classes else "C tokens"
    hint = "put the classes last, unlike in torch's cross_entropy (outputs.movedim(1, -1))"
    if kind == "tokens":
        hint = (
            "return logits for every token: the loss compares those of each token with the token "
            "after it, so that the last token is only a target"
        )
    raise InvalidInputError(
        f"model: the output for targets of shape {positions} should have shape "
        f"({', '.join(map(str, positions))}, C) with {width}, got {shape}; set the last layer's "
        f"width, and {hint}"
    )


@torch.enable_grad()
def check_per_sample(
    field: str, function: LossFunction, outputs: Any, target: Tensor, *masks: Tensor
) -> None:
    """Raise InvalidInputError unless a function gives one number for each of a few samples.

    The loss needs a gradient, too: without one, nothing would train, and no trainer would say so.

    Args:
        field: the name in errors.
        function: the loss or metric.
        outputs: the network's, for these samples.
        target: (B, ...).
        masks: none, or that of sequences, (B, L).
    """
    takes = "(outputs, target, mask)" if masks else "(outputs, target)"
    given = f"on outputs {_shape(outputs)} and targets {_shape(target)} of {len(target)} samples"
    if field == "loss" and isinstance(outputs, Tensor) and outputs.is_floating_point():
        outputs = outputs.detach().requires_grad_()
    try:
        values: object = function(outputs, target, *masks)
    except Exception as error:  # a user's code may raise anything
        raise InvalidInputError(
            f"{field}: it fails {given} ({first_line(error, 150)}); it must take {takes}; change "
            "it, the model's last layer or the target"
        ) from error
    if not isinstance(values, Tensor) or values.shape != (len(target),):
        raise InvalidInputError(
            f"{field}: {given} it gives values {_shape(values)}; it must give one number per "
            f"sample, shape ({len(target)},), as torch's losses do with reduction='none' and a "
            "mean over other dimensions, values.flatten(1).mean(1)"
        )
    if not values.requires_grad and isinstance(outputs, Tensor) and outputs.requires_grad:
        raise InvalidInputError(
            f"{field}: it has no gradient with respect to the outputs (as after argmax, a "
            "comparison or detach); compute it by differentiable operations"
        )


def _shape(values: object) -> str:
    return f"of shape {tuple(values.shape)}" if isinstance(values, Tensor) else f"{values!r:.60}"


_APPLIED: dict[LossFunction, type[nn.Module]] = {
    cross_entropy: nn.Softmax,
    next_token: nn.Softmax,
    bce: nn.Sigmoid,
}
"""What a loss applies to the network's outputs itself."""


def warn_of_probabilities(module: nn.Module, loss: LossFunction) -> None:
    """Warn if the last layer of a network is the sigmoid or softmax that its loss also applies."""
    *_, last = module.modules()
    if isinstance(last, _APPLIED.get(loss, ())):
        _logger.warning(
            "model: it ends in a %s, which the loss applies itself, so the network hardly learns; "
            "remove that layer and return the logits",
            type(last).__name__,
        )
