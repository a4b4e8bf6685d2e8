"""Checks of a user's network: what training as a pure function would silently drop or change."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from fedtide.errors import InvalidInputError, first_line
from fedtide.problems.layout import Params

_logger = logging.getLogger("fedtide")

_RECOMPUTES = "saved tensors are replaced"
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)

Inputs = tuple[Tensor, ...]
"""The arguments of a network's `forward` for a minibatch; the first dimension is the sample."""

Attributes = dict[str, int | float | Tensor]
"""Numbers, tensors and list lengths that layers keep in addition to parameters and buffers."""


def check_network(module: nn.Module) -> None:
    """Check the layers and parameters of a network, before it is copied.

    Raises:
        InvalidInputError: lazy layers without sizes; parameters that are complex, or hold NaN or
            infinity; or features that do not work in a function of parameters: gradient hooks,
            wrappers, and gradients scaled by counts of the minibatch.
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


def has_dropout(module: nn.Module) -> bool:
    """Return whether any layer in training mode may apply dropout, if the input reaches it."""
    return any(
        layer.training
        and (
            (isinstance(layer, _DROPOUT) and layer.p > 0)
            or (isinstance(layer, nn.MultiheadAttention | nn.RNNBase) and layer.dropout > 0)
        )
        for layer in module.modules()
    )


def warn_of_idle_dropout(module: nn.Module) -> None:
    """Warn if dropout is off in a part of the network, such as a pretrained one inside it."""
    idle = [
        name
        for name, layer in module.named_modules()
        if isinstance(layer, _DROPOUT) and layer.p and not layer.training
    ]
    if module.training and idle:
        _logger.warning(
            "model: layer %r is in evaluation mode, so it drops nothing, like all layers of "
            "networks from from_pretrained; to enable dropout, call .train() on the network",
            idle[0],
        )


def _check_parameter(name: str, parameter: Tensor) -> None:
    if parameter.is_complex():
        raise InvalidInputError(
            f"model: the parameter {name!r} is complex, and models are vectors of real numbers; "
            "store real and imaginary parts, and use torch.view_as_complex in forward"
        )
    has_values = parameter.layout == torch.strided and not parameter.is_meta
    if has_values and parameter.dtype in _FLOATS and not bool(torch.isfinite(parameter).all()):
        raise InvalidInputError(
            f"model: the parameter {name!r} holds NaN or infinity, as after a run that diverged; "
            "give a network with finite parameters"
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

    Such a network reads its parameters other than by their names, or recomputes parts of the
    outputs in the backward pass, when its own parameters have replaced the given ones again.

    Args:
        run: a forward pass with the given parameters.
        known: the given parameters, which require gradients.

    Raises:
        InvalidInputError: it does.
    """
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks(_RECOMPUTES):
            outputs = run()
    except Exception as error:  # a user's code may raise anything; other errors recur later
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
    """Yield the leaf tensors that require gradients and on which outputs depend."""
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
            elif type(value) in (int, float):  # not bool: layers may record a first pass
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
                "compute outputs from parameters and inputs alone, and keep records of your own in "
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
    """Return whether two outputs or losses are equal up to rounding, apart from meta tensors."""
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
    """Return the tensors of two outputs in pairs; None if they differ in number or shape."""
    one, other = (
        [leaf for leaf in tree_leaves(part) if isinstance(leaf, Tensor) and not leaf.is_meta]
        for part in (first, second)
    )
    shapes = [[(tensor.shape, tensor.dtype) for tensor in part] for part in (one, other)]
    return [*zip(one, other, strict=True)] if shapes[0] == shapes[1] else None


def _largest(tensor: Tensor) -> float:
    return float(tensor.nan_to_num(0, 0, 0).abs().max()) if tensor.numel() else 0.0


def shift(params: Params) -> Params:
    """Return parameters near these, hardly any of them zero, for another trial of a network.

    Layers often start at zero, which hides what they would compute.

    >>> shift({"weight": torch.zeros(2)})
    {'weight': tensor([0.0100, 0.0054])}
    """
    return {
        name: 1.01 * p + 0.01 * torch.arange(p.numel(), device=p.device).cos().view(p.shape).to(p)
        for name, p in params.items()
    }


def sum_frozen(modules: Iterable[nn.Module]) -> list[str]:
    """Return a sum of each frozen parameter, as text, so that NaN equals itself."""
    frozen = [p for module in modules for p in module.parameters() if not p.requires_grad]
    return [] if any(p.is_meta for p in frozen) else [str(p.sum().item()) for p in frozen]


def refuse_changed_buffers(module: nn.Module, before: Params, mode: str) -> None:
    """Raise InvalidInputError if the network has changed its buffers in this mode."""
    for name, buffer in module.named_buffers():
        if name in before and not _is_equal(buffer, before[name]):
            layer = name.rpartition(".")[0] or type(module).__name__
            hint = (
                "use BatchNorm or GroupNorm, or track_running_stats=False, or put the layer in "
                "evaluation mode (layer.eval()) if it keeps its buffers there"
            )
            if mode == "evaluation":
                hint = "use plain attributes, as self.last = x.mean(), for what forward only notes"
            raise InvalidInputError(
                f"model: layer {layer!r} changes its buffer {name!r} in {mode}; {hint}"
            )


def _is_equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two buffers hold the same values; the matrix of a graph may be sparse."""
    if one.is_meta:  # it has no values
        return True
    if one.layout is torch.strided:
        known = one == one  # NaN, as for values not yet known, equals itself
        return torch.equal(known, other == other) and torch.equal(one[known], other[known])
    one, other = (_to_coordinates(tensor) for tensor in (one, other))
    return torch.equal(one.indices(), other.indices()) and torch.equal(one.values(), other.values())


def _to_coordinates(tensor: Any) -> Tensor:
    """Return a sparse tensor of any layout in the coordinate format."""
    coordinates: Tensor = tensor.to_sparse_coo()
    return coordinates.coalesce()


@contextmanager
def refuse_impure(field: str, given: Inputs, what: str) -> Iterator[None]:
    """Refuse code that changes its arguments, or draws from a global random generator.

    The generators of torch, NumPy and Python keep their states.

    Args:
        field: whose code runs in this context; the message begins with it.
        given: the tensors that it may not change.
        what: their name in the message.

    Raises:
        InvalidInputError: it was changed, or random numbers were drawn.

    >>> with refuse_impure("loss", (), "target"):
    ...     mask = torch.rand(3)
    Traceback (most recent call last):
    fedtide.errors.InvalidInputError: loss: it draws from a global random generator (as torch.rand,
    torch.dropout, nn.RReLU and DropPath do), so a step is not reproducible; use nn.Dropout, or
    functional.dropout with training=self.training, in the model, or no random numbers
    """
    versions = count_changes(given)
    plain, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        state = torch.get_rng_state()
        try:
            yield
            drawn = not torch.equal(state, torch.get_rng_state()) or random.getstate() != plain
            drawn |= not all(map(np.array_equal, np.random.get_state(), numpy))  # noqa: NPY002
        finally:
            random.setstate(plain)
            np.random.set_state(numpy)  # noqa: NPY002
    if drawn:
        raise InvalidInputError(
            f"{field}: it draws from a global random generator (as torch.rand, torch.dropout, "
            "nn.RReLU and DropPath do), so a step is not reproducible; use nn.Dropout, or "
            "functional.dropout with training=self.training, in the model, or no random numbers"
        )
    if count_changes(given) != versions:
        raise InvalidInputError(
            f"{field}: it changes its {what} in place (as x -= 1 and ReLU(inplace=True) do), which "
            "would change the data; compute new tensors, as x = x - 1 does"
        )


def count_changes(tensors: Iterable[Tensor]) -> list[int]:
    """Return how often each tensor was changed in place; inference tensors do not count this."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


@contextmanager
def shape_errors(example: Inputs, names: tuple[str | None, ...]) -> Iterator[None]:
    """Turn any error of a network's trial run into one that names its inputs."""
    try:
        yield
    except InvalidInputError:
        raise
    except Exception as error:
        reason = first_line(error)
        given = [
            f"{name or ''} {tuple(x.shape[1:])} and dtype {x.dtype}".replace("torch.", "").strip()
            for name, x in zip(names, example, strict=True)
        ]
        raise InvalidInputError(
            f"model: it cannot process features of shape {', '.join(given)} ({reason}); "
            f"{_shape_hint(reason, example, names)}"
        ) from error


def _shape_hint(reason: str, example: Inputs, names: tuple[str | None, ...]) -> str:
    """Return advice for the error of a network that was given these inputs."""
    if "attention_mask" in names and "mask" in reason:
        return (
            "its argument attention_mask got 1 where a sequence is not padded and 0 where it is; "
            "if it means something else, give it another name"
        )
    if "positional argument" in reason or "keyword argument" in reason:
        return (
            "give each argument of forward a column by name, as in inputs: {user: user_id, item: "
            "item_id}; columns of one number that are listed together form one vector"
        )
    if any(x.dim() == 1 for x in example):
        return "write a column of single numbers in a list, as in inputs: [age]"
    if "dtype" in reason and not all(x.is_floating_point() for x in example):
        return "convert the column to floats, or name it in a list"
    if "indices" in reason and any(x.is_floating_point() for x in example):
        return "give ids as whole numbers in a column of their own, as in inputs: {user: user_id}"
    if "channels" in reason and any(x.dim() == 4 and x.shape[-1] in (1, 3, 4) for x in example):
        return "images have their channels first, as array.transpose(0, 3, 1, 2) gives them"
    return "choose a network that fits the inputs, or change the inputs"
