"""Checks of losses: one number for each sample, which depends on this sample alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedtide.problems.losses import LossFunction, check_per_sample, resolve_loss
from fedtide.testing._purity import assertions, fail, no_global_randomness
from fedtide.testing.network import are_close, changed_by, find_parameter


def check_loss(
    loss: str | LossFunction, outputs: Any, targets: Tensor, mask: Tensor | None = None
) -> None:
    """Check a loss: can clients of any sizes train with it?

    Minibatches may be padded, and means are taken over samples, clients and classes. So a loss is a
    function of outputs and targets alone:

    - It gives a finite number for each sample, shape (B,), that does not depend on other samples.
    - It has a gradient with respect to the outputs, and depends on no parameters of its own.
    - It keeps nothing from call to call, draws no numbers, and changes no arguments.

    Args:
        loss: a function of (outputs, targets) or, for padded sequences, (outputs, targets, mask).
        outputs: of a network for two or more samples, usually a tensor (B, ...).
        targets: (B, ...).
        mask: False where sequences are padded, (B, L); None: there are none.

    Raises:
        AssertionError: it is none; the sentence says how to change it.

    >>> def squares(outputs, targets):
    ...     return (outputs - targets).square().mean(dim=1)
    >>> check_loss(squares, torch.rand(4, 1), torch.rand(4, 1))
    >>> check_loss(squares, torch.rand(4, 1), torch.rand(4))
    Traceback (most recent call last):
    AssertionError: the loss of a sample depends on the other samples: it pairs all outputs, shape
    (4, 1), with all targets, shape (4,); give both the same shape, as outputs.squeeze(-1) does
    """
    masks = () if mask is None else (mask,)
    with assertions(), no_global_randomness("the loss", "compute it without random numbers"):
        function, _ = resolve_loss(loss)
        versions = [tensor._version for tensor in (targets, *masks)]
        check_per_sample("loss", function, outputs, targets, *masks)
        _check_values(function, outputs, targets, *masks)
        if versions != [tensor._version for tensor in (targets, *masks)]:
            fail("the loss changes its targets in place, which would change the data; copy them")
        if isinstance(outputs, Tensor):
            _check_gradient(function, outputs, targets, *masks)
            _check_samples(function, outputs, targets, *masks)


@torch.no_grad()
def _check_values(function: LossFunction, outputs: Any, *batch: Tensor) -> None:
    values = function(outputs, *batch)
    if not torch.isfinite(values).all():
        fail(f"the loss {values!s:.60} is not finite; give finite values for all outputs")
    with torch.enable_grad():
        changed = changed_by(lambda: function(outputs, *batch), function)
        again = function(outputs, *batch)
    if changed or not are_close(values, again, 1e-9):
        fail(
            f"the loss keeps {changed or 'a count or a mean'} from call to call, which clients, "
            "and training and evaluation, would share; compute it from outputs and targets alone"
        )


def _check_gradient(function: LossFunction, outputs: Tensor, *batch: Tensor) -> None:
    leaf = outputs.detach().clone().requires_grad_()
    losses = function(leaf, *batch)
    if hidden := find_parameter(losses, ()):
        fail(
            f"the loss depends on {hidden}, which keeps its initial values throughout; compute "
            "what it needs in forward of the model, and return it with the outputs"
        )
    losses.sum().backward()  # type: ignore[no-untyped-call]


@torch.no_grad()
def _check_samples(
    function: LossFunction, outputs: Tensor, targets: Tensor, *masks: Tensor
) -> None:
    batch = (outputs, targets, *masks)
    together = function(*batch)
    alone = []
    for row in range(len(targets)):  # beside a copy of itself
        copies = (part[row : row + 1].repeat_interleave(2, 0) for part in batch)
        alone.append(function(*copies)[0])
    if are_close(together, torch.stack(alone), 1e-5):
        return
    reason = "compute it from each sample alone"
    if outputs.numel() == targets.numel() and outputs.shape != targets.shape:
        reason = (
            f"it pairs all outputs, shape {tuple(outputs.shape)}, with all targets, shape "
            f"{tuple(targets.shape)}; give both the same shape, as outputs.squeeze(-1) does"
        )
    fail(f"the loss of a sample depends on the other samples: {reason}")
