"""Trials of a user-defined loss or metric: its output, and whether samples influence each other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from fedtide.errors import InvalidInputError, first_line
from fedtide.problems.losses import LossFunction, TargetKind, bce, cross_entropy, next_token
from fedtide.problems.models import FunctionalModel
from fedtide.problems.models.functional import cast_network
from fedtide.problems.models.network_checks import (
    Attributes,
    are_close,
    find_parameter,
    is_alike,
    read_attributes,
    refuse_impure,
)
from fedtide.problems.supervised_data import DeviceSamples

_logger = logging.getLogger("fedtide")

LossT = TypeVar("LossT", bound=Callable[..., Any])

_TRIED = 32  # the number of samples on which a function is tried


def adapt_loss(loss: LossT, device: torch.device, dtype: torch.dtype) -> LossT:
    """Return a loss whose tensors, such as class weights, have this device and this dtype.

    A loss without tensors, such as a function, is returned as it is.

    Raises:
        InvalidInputError: it has tensors and cannot be copied.
    """
    if not isinstance(loss, nn.Module) or not [*loss.parameters(), *loss.buffers()]:
        return loss
    try:
        copied = deepcopy(loss)
    except Exception as error:  # a user's object may hold anything
        raise InvalidInputError(
            f"loss: it cannot be copied ({first_line(error, 150)}); leave out what cannot, such as "
            "locks and open files"
        ) from error
    return cast("LossT", cast_network(copied.to(device), dtype))


def check_functions(
    functions: Mapping[str, LossFunction],
    kind: TargetKind | None,
    classes: int,
    model: FunctionalModel,
    samples: DeviceSamples,
    arguments: Callable[[DeviceSamples], tuple[Tensor, ...]],
) -> bool:
    """Try the loss and the metrics on a network's outputs for some samples.

    Args:
        functions: the loss, as `loss`, and the metrics by name.
        kind: of targets that the loss expects; None: the loss is user-defined.
        classes: C; 0 if targets are not classes.
        model: the network.
        samples: the training samples.
        arguments: returns the network's arguments for some samples.

    Returns:
        Whether the loss of a sample depends on the other samples of the batch.

    Raises:
        InvalidInputError: the network's outputs do not fit, a function does not give one number
            per sample, or the loss cannot be differentiated.
    """
    example = samples.example
    fields = {n if n == "loss" else f"metrics.{n}": function for n, function in functions.items()}
    _check_outputs(model.example_output, example, kind, classes)
    with torch.no_grad():
        for field, function in fields.items():
            batch = (example.target, *example.masks)
            require_per_sample(field, function, model.example_output, *batch)
    _check_gradient(model, arguments(example), functions["loss"], example)
    if samples.target.is_meta:
        return False
    some = samples.select(trial_rows(samples.target))
    with torch.no_grad():
        outputs = model.evaluate(model.params, arguments(some))
        return _check_independence(fields, outputs, some)


def _check_outputs(
    outputs: Any, example: DeviceSamples, kind: TargetKind | None, classes: int
) -> None:
    count = len(example)
    if kind is not None and not isinstance(outputs, Tensor):
        part = "outputs.logits" if hasattr(outputs, "logits") else "a tensor"
        raise InvalidInputError(
            f"model: it returns a {type(outputs).__name__}; return the logits or predictions "
            f"alone ({part}), or give a loss of your own"
        )
    if classes and example.target.dim() == 1:
        shape = tuple(outputs.shape)
        if shape != (count, classes):
            raise InvalidInputError(
                f"model: the output for {count} samples of {classes} classes should have shape "
                f"({count}, {classes}), got {shape}; set the last layer's width to {classes}"
            )
    elif kind in ("classes", "tokens"):
        positions, shape = tuple(example.target.shape), tuple(outputs.shape)
        if shape[:-1] != positions or shape[-1] < classes:
            if positions == (count, 1):
                raise InvalidInputError(
                    f"target: it has shape {positions} for {count} samples, as a sequence of one "
                    "class each; give one class per row, as y.squeeze(-1) does"
                )
            width = f"C at least {classes}" if classes else "C the number of tokens"
            raise InvalidInputError(
                f"model: the output for targets of shape {positions} should have shape "
                f"({', '.join(map(str, positions))}, C) with {width}, got {shape}; the classes "
                "come last, unlike in torch's cross_entropy (outputs.movedim(1, -1) moves them)"
            )


def _check_gradient(
    model: FunctionalModel,
    arguments: tuple[Tensor, ...],
    loss: LossFunction,
    example: DeviceSamples,
) -> None:
    """Check that the loss has a gradient with respect to the network's parameters and no others."""
    key = torch.zeros((), dtype=torch.int64, device=example.target.device)
    leaves = {name: p.detach().requires_grad_() for name, p in model.params.items()}
    try:
        with torch.enable_grad():
            outputs = model({name: leaf.clone() for name, leaf in leaves.items()}, arguments, key)
            outputs = outputs[0] if model.buffers else outputs
            losses = loss(outputs, example.target, *example.masks)
            gradients: tuple[Tensor | None, ...] = ()
            if losses.requires_grad:
                gradients = torch.autograd.grad(
                    losses.sum(), list(leaves.values()), allow_unused=True
                )
    except Exception as error:  # a user's code may raise anything
        raise InvalidInputError(
            f"loss: it cannot be differentiated ({first_line(error, 150)}); compute it and the "
            "model's outputs by torch operations that change nothing they have used"
        ) from error
    if any(gradient is not None and gradient.is_sparse for gradient in gradients):
        raise InvalidInputError(
            "model: its gradient is sparse, which not every trainer can use; leave out "
            "sparse=True, which changes no result"
        )
    if losses.requires_grad:
        refuse_other_parameters(losses, leaves.values())
        return
    if isinstance(outputs, Tensor) and not outputs.requires_grad:
        raise InvalidInputError(
            "model: its outputs have no gradient with respect to its parameters (as under "
            "torch.no_grad, or after detach); compute them by differentiable operations"
        )
    raise InvalidInputError(
        "loss: it has no gradient with respect to the outputs (as after argmax, a comparison "
        "or detach); compute it by differentiable operations"
    )


def _check_independence(
    fields: Mapping[str, LossFunction], outputs: Any, samples: DeviceSamples
) -> bool:
    """Return whether the loss of a sample depends on others; refuse a metric for which it does.

    Args:
        fields: the loss and the metrics, by their names in errors.
        outputs: the network's, for the samples.
        samples: the samples of `trial_rows`.
    """
    batch = (samples.target, *samples.masks)
    for field, function in fields.items():
        try:
            values = function(outputs, *batch)
        except Exception:  # as on an odd number of samples; training will say so
            continue
        require_shape(field, values, outputs, samples.target)
    if not isinstance(outputs, Tensor):
        return False
    dependent = [
        f for f, function in fields.items() if depends_on_others(f, function, outputs, *batch)
    ]
    for field in dependent:
        if field != "loss":
            raise InvalidInputError(
                f"{field}: its value for a sample depends on the others, so metrics of "
                "clients would be wrong; compute it from each sample alone, and scores of a "
                "whole set from the outputs of result.module()"
            )
    return bool(dependent)


def refuse_other_parameters(losses: Tensor, known: Iterable[Tensor]) -> None:
    """Refuse a loss that depends on parameters of networks other than these.

    Args:
        losses: values of the loss, computed with gradients.
        known: the parameters on which they may depend.

    Raises:
        InvalidInputError: they do, and training would not change these parameters.
    """
    if hidden := find_parameter(losses, known):
        raise InvalidInputError(
            f"loss: it depends on {hidden} outside the model, which keeps its initial values "
            "throughout; compute what it needs in forward, and return it with the outputs"
        )


def require_per_sample(
    field: str, function: LossFunction, outputs: Any, target: Tensor, *masks: Tensor
) -> None:
    """Raise InvalidInputError unless the function gives one number for each of a few samples.

    Args:
        field: the name in errors.
        function: the loss or metric.
        outputs: the network's, for these samples.
        target: (B, ...).
        masks: none, or that of sequences, (B, L).

    Raises:
        InvalidInputError: it fails, changes the targets, draws from a global generator, keeps
            state from call to call, or does not return shape (B,).
    """
    shapes = f"outputs {_shape(outputs)} and targets {_shape(target)} of {len(target)} samples"
    try:
        with refuse_impure(field, (target, *masks), "target"), torch.enable_grad():
            values: object = function(outputs, target, *masks)
            before = _read_state(function)
            again: object = function(outputs, target, *masks)
            after = _read_state(function)
    except InvalidInputError:
        raise
    except Exception as error:  # a user's code may raise anything
        hint = "change it, the model's last layer or the target"
        if masks and "positional argument" in str(error):
            hint = "sequences are padded, so it must take (outputs, target, mask)"
        elif not target.is_floating_point() and "Long" in str(error):
            hint = "the target holds whole numbers; convert them, as target.float() does"
        raise InvalidInputError(
            f"{field}: it fails on {shapes} ({first_line(error, 150)}); {hint}"
        ) from error
    require_shape(field, values, outputs, target)
    if not are_close(values, again, rtol=1e-5) or not all(
        is_alike(value, after[name]) for name, value in before.items()
    ):
        raise InvalidInputError(
            f"{field}: it keeps a count or a mean from call to call, which clients, and training "
            "and evaluation, would share; compute it from outputs and targets alone, and keep "
            "records of your own in a dictionary"
        )


def require_shape(field: str, values: object, outputs: Any, target: Tensor) -> None:
    """Raise InvalidInputError unless values of a function are one number for each sample.

    Args:
        field: the name in the error.
        values: the return value of a loss or metric.
        outputs: the outputs that it was given, for the error.
        target: (B, ...).
    """
    count = len(target)
    if isinstance(values, Tensor) and values.shape == (count,):
        return
    hint = ", as torch's losses do with reduction='none'"
    if isinstance(values, Tensor) and values.dim() > 1 and len(values) == count:
        hint = ", such as the mean of these values, values.flatten(1).mean(1)"
    elif field != "loss":
        hint = "; compute scores of a whole set, such as F1, from the outputs of result.module()"
    raise InvalidInputError(
        f"{field}: on outputs {_shape(outputs)} and targets {_shape(target)} of {count} "
        f"samples it gives values {_shape(values)}; it must give one number per sample, shape "
        f"({count},){hint}"
    )


def _read_state(function: object) -> Attributes:
    """Return the state of a module: its buffers and plain attributes; {} for a function."""
    if not isinstance(function, nn.Module):
        return {}
    buffers = {f"buffer {name}": buffer.clone() for name, buffer in function.named_buffers()}
    return read_attributes(function) | buffers


def trial_rows(target: Tensor) -> Tensor:
    """Return samples from all parts of the data, with the smallest and the largest target."""
    rows = np.linspace(0, len(target) - 1, _TRIED).astype(np.int64)
    extremes = [int(target.argmin()), int(target.argmax())] if target.dim() == 1 else []
    return torch.from_numpy(np.unique([*rows, *extremes])).to(target.device)


@torch.no_grad()
def depends_on_others(
    field: str, function: LossFunction, outputs: Tensor, target: Tensor, *masks: Tensor
) -> bool:
    """Return whether the function's value for a sample depends on the others in the batch.

    Args:
        field: the name in the error.
        function: the loss or metric.
        outputs: the network's, for the samples of `trial_rows`.
        target: (B, ...).
        masks: none, or that of sequences, (B, L).

    Raises:
        InvalidInputError: it does, because broadcasting pairs every output with every target.

    >>> outputs, target = torch.ones(3, 1), torch.tensor([1.0, 2.0, 3.0])
    >>> def loss(z, y):
    ...     return (z - y).square().mean(dim=1)
    >>> depends_on_others("loss", loss, outputs, target)
    Traceback (most recent call last):
    fedtide.errors.InvalidInputError: loss: its value for a sample depends on the others, because it
    pairs all outputs, shape (B, 1), with all targets, shape (B,); give both the same shape, as
    outputs.squeeze(-1) does
    """
    # random ones as well, because an untrained network may give one class or zeros alone
    noise = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0)).to(outputs)
    if not any(_depends(function, z, target, *masks) for z in (outputs, noise)):
        return False
    if any(_pairs_all(function, z, target, *masks) for z in (outputs, noise)):
        raise InvalidInputError(
            f"{field}: its value for a sample depends on the others, because it pairs all "
            f"outputs, shape {_batch_shape(outputs)}, with all targets, shape "
            f"{_batch_shape(target)}; give both the same shape, as outputs.squeeze(-1) does"
        )
    return True


def _depends(function: LossFunction, *batch: Tensor) -> bool | None:
    """Return whether samples have other values here than in batches of copies; None: unknown."""
    try:
        every = torch.arange(len(batch[0]), device=batch[0].device)
        beside = [function(*(part[row.expand(2)] for part in batch))[0] for row in every]
        together, alone = function(*batch).double(), torch.stack(beside).double()
    except Exception:  # a user's code may raise anything, as on an odd number of samples
        return None
    if together.shape != alone.shape:
        return None
    rounding = 1e-5 * float(together.nan_to_num(0, 0, 0).abs().max())
    return not torch.allclose(together, alone, rtol=1e-5, atol=rounding, equal_nan=True)


def _pairs_all(function: LossFunction, outputs: Tensor, target: Tensor, *masks: Tensor) -> bool:
    """Return whether the samples are independent once outputs and target have the same shape."""
    if outputs.numel() != target.numel() or outputs.shape == target.shape:
        return False
    same = [(outputs.view_as(target), target), (outputs, target.view_as(outputs))]
    return any(_depends(function, *pair, *masks) is False for pair in same)


def _batch_shape(tensor: Tensor) -> str:
    """Return a shape with B for the number of samples."""
    rest = ", ".join(map(str, tensor.shape[1:]))
    return f"(B, {rest})" if rest else "(B,)"


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
        layers = [layer for layer in module.modules() if not any(layer.children())]
        found = isinstance(layers[-1], nn.Sigmoid)
    elif loss in (cross_entropy, next_token) and isinstance(outputs, Tensor):
        sums = outputs.detach().double().sum(dim=-1)
        found = not outputs.is_meta and bool(
            (outputs >= 0).all() and torch.allclose(sums, torch.ones_like(sums), atol=1e-3)
        )
    else:
        return
    if found:
        layer, name = ("sigmoid", "bce") if loss is bce else ("softmax", "cross_entropy")
        _logger.warning(
            "model: it ends in a %s, which the loss %s applies itself, so the network hardly "
            "learns; remove that layer and return the logits",
            layer,
            name,
        )
