"""Whether a network's outputs, the loss and the metrics fit the targets, in their shapes."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn

from fedtide.errors import InvalidInputError, first_line
from fedtide.problems.losses import LossFunction, TargetKind, bce, cross_entropy, next_token

_logger = logging.getLogger("fedtide")


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
        part = "outputs.logits" if hasattr(outputs, "logits") else "a tensor"
        raise InvalidInputError(
            f"model: it returns a {type(outputs).__name__}; return the logits or predictions "
            f"alone ({part}), or give a loss of your own"
        )
    if kind not in ("classes", "tokens"):
        return
    positions, shape = tuple(target.shape), tuple(outputs.shape)
    one_class = bool(classes) and len(positions) == 1
    if shape[:-1] == positions and (shape[-1] == classes if one_class else shape[-1] >= classes):
        return
    if positions[1:] == (1,):
        raise InvalidInputError(
            f"target: it has shape {positions} for {len(target)} samples, as a sequence of one "
            "class each; give one class per row, as y.squeeze(-1) does"
        )
    width = f"C {'=' if one_class else 'at least'} {classes}" if classes else "C tokens"
    raise InvalidInputError(
        f"model: the output for targets of shape {positions} should have shape "
        f"({', '.join(map(str, positions))}, C) with {width}, got {shape}; set the last layer's "
        "width, and put the classes last, unlike in torch's cross_entropy (outputs.movedim(1, -1))"
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
    if isinstance(values, Tensor) and values.shape == (len(target),):
        if not values.requires_grad and isinstance(outputs, Tensor) and outputs.requires_grad:
            raise InvalidInputError(
                f"{field}: it has no gradient with respect to the outputs (as after argmax, a "
                "comparison or detach); compute it by differentiable operations"
            )
        return
    hint = "as torch's losses do with reduction='none'"
    if isinstance(values, Tensor) and values.dim() > 1 and len(values) == len(target):
        hint = "such as the mean of these values, values.flatten(1).mean(1)"
    elif field != "loss":
        hint = "and scores of a whole set, such as F1, come from the outputs of result.module()"
    raise InvalidInputError(
        f"{field}: {given} it gives values {_shape(values)}; it must give one number per sample, "
        f"shape ({len(target)},), {hint}"
    )


def _shape(values: object) -> str:
    return f"of shape {tuple(values.shape)}" if isinstance(values, Tensor) else f"{values!r:.60}"


def warn_of_probabilities(module: nn.Module, loss: LossFunction, outputs: object) -> None:
    """Warn if a network ends in the sigmoid or softmax that its loss also applies.

    Args:
        module: the network.
        loss: one of fedtide's losses, or any other, of which nothing is known.
        outputs: the network's for some samples.
    """
    if loss is bce:
        *_, last = module.modules()
        found = isinstance(last, nn.Sigmoid)
    elif loss in (cross_entropy, next_token) and isinstance(outputs, Tensor):
        sums = outputs.detach().double().sum(dim=-1)
        found = not outputs.is_meta and bool(
            (outputs >= 0).all() and torch.allclose(sums, torch.ones_like(sums), atol=1e-3)
        )
    else:
        return
    if found:
        _logger.warning(
            "model: it ends in a %s, which the loss %s applies itself, so the network hardly "
            "learns; remove that layer and return the logits",
            *(("sigmoid", "bce") if loss is bce else ("softmax", "cross_entropy")),
        )
