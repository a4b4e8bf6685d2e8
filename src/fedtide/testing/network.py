"""Checks of networks: are their outputs functions of parameters and inputs alone?"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fedtide.problems.layout import Params
from fedtide.problems.models import FunctionalModel
from fedtide.problems.models.functional import Inputs
from fedtide.testing._purity import assertions, fail, no_global_randomness

_TRACKING = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def check_network(
    network: nn.Module, inputs: Tensor | Sequence[Tensor] | Mapping[str, Tensor]
) -> None:
    """Check a network: do clients train it as a plain loop of PyTorch would?

    In a round, many clients train one network, whose parameters are given to it anew in every step,
    and minibatches may be padded. So its outputs have to be a function of parameters and inputs:

    - Parameters are finite, real and read by their names, in the forward and in the backward pass.
    - No number is drawn, except by dropout (in layers, functions, attention, recurrent layers).
    - No pass changes parameters, inputs, attributes, or buffers other than those of BatchNorm.
    - The outputs for a sample do not depend on the other samples, except through BatchNorm.

    Args:
        network: a network, which stays as it is; give one for small inputs, as it is copied.
        inputs: the arguments of `forward` for two or more samples, by position or by name.

    Raises:
        AssertionError: it would train otherwise, silently; the sentence says how to change it.

    >>> check_network(nn.Linear(3, 2), torch.rand(4, 3))
    >>> check_network(nn.Sequential(nn.Linear(3, 2), nn.RReLU()), torch.randn(99, 3))
    Traceback (most recent call last):
    AssertionError: the network draws from a global random generator, so a run cannot ...
    """
    names: tuple[str, ...] | None = None
    if isinstance(inputs, Mapping):
        names, inputs = tuple(inputs), tuple(inputs.values())
    given: Inputs = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    _check_parameters(network)
    _check_passes(network, tuple(x.clone() for x in given), names)
    hint = (
        "use nn.Dropout, or functional.dropout with training=self.training, instead of torch.rand, "
        "nn.RReLU and stochastic depth"
    )
    with assertions(), no_global_randomness("the network", hint):
        model = FunctionalModel(network, given, names)
        _check_outputs(model, given)
        _check_other_parameters(network, model, given, names)


def _check_parameters(network: nn.Module) -> None:
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.is_complex():
            fail(
                f"the parameter {name!r} is complex, and models are vectors of real numbers; store "
                "real and imaginary parts, and use torch.view_as_complex in forward"
            )
        if not torch.isfinite(parameter).all():
            fail(f"the parameter {name!r} holds NaN or infinity; give finite initial values")


@torch.no_grad()
def _check_passes(network: nn.Module, inputs: Inputs, names: tuple[str, ...] | None) -> None:
    """Refuse a network that each pass changes, in training or in evaluation."""
    training = copy.deepcopy(network)
    if not training.training:
        training.train()
    for mode, module in (("training", training), ("evaluation", copy.deepcopy(network).eval())):
        changed = changed_by(partial(_call, module, inputs, names), module)
        if changed:
            fail(
                f"every forward pass in {mode} changes {changed} of the network, which clients, "
                "and training and evaluation, would not share; compute outputs from parameters "
                "and inputs alone, with BatchNorm or GroupNorm for running statistics, or put the "
                "layer in evaluation mode (layer.eval())"
            )


def _call(module: nn.Module, inputs: Inputs, names: tuple[str, ...] | None) -> Any:
    return module(*inputs) if names is None else module(**dict(zip(names, inputs, strict=True)))


def changed_by(call: Callable[[], object], owner: object) -> str | None:
    """Return the name of what two equal calls change in a module; None: nothing.

    It is a parameter, a buffer, or an attribute, a number or a tensor, which the second call
    changes, as the first may fill caches. Statistics of BatchNorm may change.
    """
    if not isinstance(owner, nn.Module):
        return None
    before = _tensors_of(owner)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        call()
        before |= _attributes_of(owner)
        torch.manual_seed(0)  # for the same dropout
        call()
    after = _tensors_of(owner) | _attributes_of(owner)
    changed = (name for name, value in before.items() if not _is_same(value, after.get(name)))
    return next(map(repr, changed), None)


def _tensors_of(module: nn.Module) -> dict[str, Any]:
    """Return copies of all parameters and buffers but those of BatchNorm."""
    tracked = {id(b) for m in module.modules() if isinstance(m, _TRACKING) for b in m.buffers()}
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return {name: _copy(tensor) for name, tensor in tensors if id(tensor) not in tracked}


def _attributes_of(module: nn.Module) -> dict[str, Any]:
    """Return the numbers, and copies of the tensors, that layers keep."""
    return {
        f"{prefix}.{key}".lstrip("."): _copy(value)
        for prefix, layer in module.named_modules()
        for key, value in vars(layer).items()
        if isinstance(value, Tensor) or type(value) in (int, float)
    }


def _copy(value: Any) -> Any:
    return value.detach().to_dense().clone() if isinstance(value, Tensor) else value


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            return False
        if one.is_floating_point() or one.is_complex():
            return torch.allclose(one, other, rtol=1e-9, equal_nan=True)
        return torch.equal(one, other)
    return bool(one == other or one != one)


def _check_outputs(model: FunctionalModel, inputs: Inputs) -> None:
    """Check that outputs can be repeated, and do not depend on other parameters or samples."""
    params = {name: p.detach().requires_grad_() for name, p in shift(model.params).items()}
    outputs = _train(model, params, inputs)
    if hidden := find_parameter(outputs, params.values()):
        fail(
            f"the outputs depend on {hidden} that training does not reach, as in a list or in a "
            "lambda; make it an attribute of a module (nn.ParameterList, nn.ModuleList) that "
            "forward reads by its name, or freeze it with requires_grad_(False)"
        )
    if not any(tensor.requires_grad for tensor in _tensors(outputs)):
        fail(
            "the outputs have no gradient with respect to the parameters (as under torch.no_grad, "
            "or after detach); compute them by differentiable operations"
        )
    if not are_close(outputs, _train(model, params, inputs), 1e-9):
        fail("the outputs for the same inputs differ in a second pass; keep no counts")
    with torch.no_grad():
        _check_samples(model, params, inputs)


def _check_samples(model: FunctionalModel, params: Params, inputs: Inputs) -> None:
    """Refuse a network in which padding, or another sample, changes the outputs."""
    count = len(inputs[0])
    is_real = torch.arange(count) < count - 1
    padded = tuple(torch.cat([x[:-1], x[:1]]) for x in inputs)
    trained = [_rows(_train(model, params, x, is_real), count - 1) for x in (inputs, padded)]
    copies = tuple(x[:1].expand_as(x) for x in inputs)
    evaluated = [_rows(model.evaluate(params, x, model.buffers), 1) for x in (inputs, copies)]
    if not all(are_close(one, other, 1e-4) for one, other in (trained, evaluated)):
        fail(
            "the outputs for a sample depend on the other samples of the minibatch, which may be "
            "padding; compute them from each sample alone, or normalise by BatchNorm"
        )


def _train(
    model: FunctionalModel, params: Params, inputs: Inputs, is_real: Tensor | None = None
) -> Any:
    """Return the outputs in training, with padding where a sample is not real."""
    outputs = model(params, inputs, torch.zeros((), dtype=torch.int64), is_real)
    return outputs[0] if model.buffers else outputs


def _rows(outputs: Any, count: int) -> list[Tensor]:
    """Return the outputs of the first samples."""
    return [tensor[:count] for tensor in _tensors(outputs) if tensor.dim()]


def _check_other_parameters(
    network: nn.Module,
    model: FunctionalModel,
    inputs: Inputs,
    names: tuple[str, ...] | None,
) -> None:
    """Refuse a network that keeps values of its parameters, or reads them not by their names.

    Outputs and gradients for other parameters are those of a copy that holds these parameters.
    """
    shifted = shift(shift(model.params))  # unlike those of all passes before
    others = {name: p.detach().requires_grad_() for name, p in shifted.items()}
    outputs = model.evaluate(others, inputs, model.buffers)
    plain = copy.deepcopy(network).train()  # no parameters are merged yet
    own = {name: p for name, p in plain.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(others[name])
    plain.eval()  # only now: a layer may merge its parameters when its mode changes, as LoRA does
    expected = _call(plain, inputs, names)
    if not are_close(outputs, expected, 1e-3) or not are_close(
        _gradients(outputs, others.values()), _gradients(expected, own.values()), 1e-3
    ):
        fail(
            "with other parameters the outputs or their gradients are not those of a copy with "
            "these parameters, because the network keeps values computed from them, recomputes "
            "them in the backward pass (torch.utils.checkpoint), or reads them other than by their "
            "names; compute outputs from attributes of the module in each forward pass"
        )


def _gradients(outputs: Any, parameters: Iterable[Tensor]) -> list[Tensor | None]:
    """Return the gradients of the sum of the squares of all outputs."""
    total = sum(tensor.square().sum() for tensor in _tensors(outputs) if tensor.requires_grad)
    return [*torch.autograd.grad(total, [*parameters], allow_unused=True)]  # type: ignore[arg-type]


def shift(params: Params) -> Params:
    """Return parameters near these, hardly any of them zero, which hides what layers compute.

    >>> shift({"weight": torch.zeros(2)})
    {'weight': tensor([0.0100, 0.0054])}
    """
    return {
        name: 1.01 * p + 0.01 * torch.arange(p.numel(), device=p.device).cos().view(p.shape).to(p)
        for name, p in params.items()
    }


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
    tensors = _tensors(outputs)
    yield from (tensor for tensor in tensors if tensor.is_leaf)
    nodes: list[Any] = [tensor.grad_fn for tensor in tensors]
    seen = {None}
    while nodes:
        node = nodes.pop()
        if node not in seen:
            seen.add(node)
            if type(node).__name__ == "AccumulateGrad":
                yield node.variable
            nodes.extend(before for before, _ in node.next_functions)


def are_close(first: Any, second: Any, tolerance: float) -> bool:
    """Return whether two outputs are equal up to rounding, relative to their largest number.

    >>> are_close(torch.tensor([1000.0, 0.0]), torch.tensor([1000.0, 0.1]), 1e-3)
    True
    """
    ours, theirs = _tensors(first), _tensors(second)
    return [tensor.shape for tensor in ours] == [tensor.shape for tensor in theirs] and all(
        torch.allclose(a.double(), b.double(), rtol=0, atol=tolerance * _largest(b), equal_nan=True)
        for a, b in zip(ours, theirs, strict=True)
    )


def _largest(tensor: Tensor) -> float:
    return float(tensor.detach().double().nan_to_num(0, 0, 0).abs().max()) if tensor.numel() else 0


def _tensors(outputs: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
