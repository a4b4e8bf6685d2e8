"""Checks of a network of the user's: what training as a pure function would silently change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from fedtide.errors import InvalidInputError
from fedtide.problems.layout import Params

_RECOMPUTES = "saved tensors are replaced"

Attributes = dict[str, int | float | Tensor]
"""Numbers, tensors and lengths of lists that layers keep besides parameters and buffers."""


def check_network(module: nn.Module) -> None:
    """Check what layers and parameters a network has, before it is copied.

    Raises:
        InvalidInputError: lazy layers without sizes, or something that has no effect on a function
            of parameters: gradient hooks, wrappers, gradients scaled by counts of the minibatch; or
            complex parameters.
    """
    if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
        raise InvalidInputError(
            "model: it has lazy layers without parameters; give them sizes, or call it once"
        )
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise InvalidInputError(
            f"model: {type(module).__name__} distributes a network over devices, which fedtide "
            "does itself; give the network that it wraps, its attribute module"
        )
    if isinstance(module, torch.jit.ScriptModule):
        raise InvalidInputError(
            "model: it is compiled by torch.jit, whose parameters cannot be replaced; give the "
            "network as it was before torch.jit.script or torch.jit.trace"
        )
    for name, layer in module.named_modules():
        if getattr(layer, "scale_grad_by_freq", False) and layer.weight.requires_grad:
            raise InvalidInputError(
                f"model: layer {name!r} divides gradients by how often a token is in the "
                "minibatch, and minibatches may be padded; leave out scale_grad_by_freq=True"
            )
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            _check_parameter(name, parameter)


def _check_parameter(name: str, parameter: Tensor) -> None:
    if parameter.is_complex():
        raise InvalidInputError(
            f"model: the parameter {name!r} is complex, and models are vectors of real numbers; "
            "store real and imaginary parts, and use torch.view_as_complex in forward"
        )
    hooks = ("_backward_hooks", "_post_accumulate_grad_hooks")
    if any(getattr(parameter, kind, None) for kind in hooks):
        raise InvalidInputError(
            f"model: the parameter {name!r} has a hook on its gradient, which training would not "
            "call; change what forward computes instead, such as weight * mask"
        )


@torch.enable_grad()
def refuse_hidden_parameters(run: Callable[[], Any], known: Iterable[Tensor]) -> None:
    """Refuse a network that computes outputs from parameters other than those that it is given.

    Such a network reads its parameters elsewhere than under their names, or recomputes parts of the
    outputs in the backward pass, when its own parameters have taken the place of those given.

    Args:
        run: a forward pass with the given parameters.
        known: the given parameters, which require gradients.

    Raises:
        InvalidInputError: it does.
    """
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks(_RECOMPUTES):
            outputs = run()
    except Exception as error:  # a user's code may raise anything; what is no checkpoint, later
        if _RECOMPUTES in str(error):
            raise InvalidInputError(
                "model: it recomputes or moves what the backward pass needs "
                "(torch.utils.checkpoint, or hooks on saved tensors such as save_on_cpu), and "
                "there its parameters are not those of the client; switch that off, as "
                "gradient_checkpointing_disable() does"
            ) from error
        return
    if hidden := find_parameter(outputs, known):
        raise InvalidInputError(
            f"model: its outputs depend on {hidden} that training does not reach, as in a list or "
            "in a lambda; make it an attribute of a module (nn.ParameterList, nn.ModuleList) that "
            "forward reads by its name, or freeze it with requires_grad_(False)"
        )


def find_parameter(outputs: Any, known: Iterable[Tensor]) -> str | None:
    """Return "a parameter of shape ..." if outputs depend on one that is not among these.

    >>> weight = nn.Parameter(torch.ones(2))
    >>> find_parameter(weight.sum(), ()), find_parameter(weight.sum(), (weight,))
    ('a parameter of shape (2,)', None)
    """
    given = {id(tensor) for tensor in known}
    for leaf in _leaves(outputs):
        if isinstance(leaf, nn.Parameter) and leaf.requires_grad and id(leaf) not in given:
            return f"a parameter of shape {tuple(leaf.shape)}"
    return None


def _leaves(outputs: Any) -> Iterator[Tensor]:
    """Yield the tensors without a history that require gradients and outputs depend on."""
    tensors = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
    yield from (tensor for tensor in tensors if tensor.is_leaf)
    nodes: list[Any] = [tensor.grad_fn for tensor in tensors]
    seen = {None}
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "AccumulateGrad":
            yield node.variable
        nodes.extend(before for before, _ in node.next_functions)


def read_attributes(module: nn.Module) -> Attributes:
    """Return the plain attributes of layers that a forward pass may change.

    They are numbers, copies of tensors, and the lengths of lists.

    >>> layer = nn.Linear(2, 1)
    >>> layer.history = []
    >>> read_attributes(layer)["history"]
    0
    """
    found: Attributes = {}
    for prefix, layer in module.named_modules():
        for key, value in vars(layer).items():
            name = f"{prefix}.{key}".lstrip(".")
            if isinstance(value, Tensor):
                found[name] = value.clone()
            elif isinstance(value, list):
                found[name] = len(value)
            elif type(value) in (int, float):  # no truth values: layers may note a first pass
                found[name] = value
    return found


def refuse_changes(before: Attributes, after: Attributes) -> None:
    """Refuse attributes that a second, equal forward pass has changed, such as counts.

    Raises:
        InvalidInputError: one has changed by more than rounding.
    """
    for name, value in before.items():
        if name in after and not is_alike(value, after[name]):
            raise InvalidInputError(
                f"model: every forward pass changes its attribute {name!r}, such as a count, a "
                "mean or a time, which clients, and training and evaluation, would not share; "
                "compute outputs from parameters and inputs alone, and keep notes for yourself in "
                "a dictionary"
            )


def is_alike(one: Any, other: Any) -> bool:
    """Return whether two attributes are equal up to rounding.

    >>> is_alike(1, 2), is_alike(torch.ones(2), torch.ones(2)), is_alike(torch.ones(2), 1)
    (False, True, False)
    """
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return type(one) is type(other) and bool(one == other or one != one)
    if (one.shape, one.dtype, one.layout) != (other.shape, other.dtype, other.layout):
        return False
    return one.layout is not torch.strided or are_close(one, other)


def are_close(first: Any, second: Any, rtol: float = 1e-3) -> bool:
    """Return whether two outputs or losses are equal up to rounding, as far as they have values."""
    pairs = _pair(first, second)
    return pairs is not None and all(
        torch.allclose(a, b, rtol=rtol, atol=rtol / 1e3, equal_nan=True)
        if a.is_floating_point() or a.is_complex()
        else torch.equal(a, b)
        for a, b in pairs
    )


def agree(first: Any, second: Any) -> bool:
    """Return whether two outputs are equal up to rounding, relative to their largest number.

    >>> agree(torch.tensor([1000.0, 0.0]), torch.tensor([1000.0, 0.1]))
    True
    """
    pairs = _pair(first, second)
    return pairs is not None and all(
        torch.allclose(a, b, rtol=0, atol=1e-3 * _largest(b), equal_nan=True)
        for a, b in pairs
        if a.is_floating_point()
    )


def _pair(first: Any, second: Any) -> list[tuple[Tensor, Tensor]] | None:
    """Return the tensors of two outputs side by side; None if they differ in number or shape."""
    one, other = (
        [leaf for leaf in tree_leaves(part) if isinstance(leaf, Tensor) and not leaf.is_meta]
        for part in (first, second)
    )
    shapes = [[(tensor.shape, tensor.dtype) for tensor in part] for part in (one, other)]
    return [*zip(one, other, strict=True)] if shapes[0] == shapes[1] else None


def _largest(tensor: Tensor) -> float:
    return float(tensor.nan_to_num(0, 0, 0).abs().max()) if tensor.numel() else 0.0


def shift(params: Params) -> Params:
    """Return parameters near these, of which hardly any is zero, to try a network once more.

    Layers often start at zero, which hides what they would compute.

    >>> shift({"weight": torch.zeros(2)})
    {'weight': tensor([0.0100, 0.0054])}
    """
    return {
        name: 1.01 * p + 0.01 * torch.arange(p.numel(), device=p.device).cos().view(p.shape).to(p)
        for name, p in params.items()
    }
