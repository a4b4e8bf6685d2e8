"""A network as a pure function of its parameters."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from fedtide.errors import InvalidInputError, first_line
from fedtide.problems.layout import Params
from fedtide.problems.models.batch_norm import RunningStatistics, replace_batch_norm
from fedtide.problems.models.keyed_dropout import DropoutMasks, replace_dropout

Inputs = tuple[Tensor, ...]
"""The arguments of a network's `forward` for a minibatch; the first dimension is the sample."""


@dataclass(frozen=True)
class _TrainingModule:
    """The network for training, with what its layers share during a forward pass.

    Args:
        module: the network; its dropout and batch normalisation are pure.
        masks: of its dropout, if it has any.
        statistics: of its batch normalisation, if it has any.
    """

    module: nn.Module
    masks: DropoutMasks | None
    statistics: RunningStatistics | None

    @classmethod
    def of(cls, module: nn.Module, dtype: torch.dtype) -> _TrainingModule:
        """Return a copy of a network for training in this dtype; its statistics keep theirs."""
        copied = copy.deepcopy(module)
        if not copied.training:  # a whole network is often left in evaluation mode by accident
            copied.train()
        replaced, masks = replace_dropout(copied)
        replaced, statistics = replace_batch_norm(replaced)
        return cls(replaced.to(dtype), masks, statistics)

    def copy(self) -> _TrainingModule:
        """Return a copy that shares all tensors, so that it can be made during tracing, too."""
        tensors = (*self.module.parameters(), *self.module.buffers())
        tensors += () if self.statistics is None else tuple(self.statistics.initial.values())
        return copy.deepcopy(self, {id(t): t for t in tensors})


class FunctionalModel:
    """A `torch.nn.Module` as two functions of its parameters: for training and for evaluation.

    Parameters that do not require gradients keep their values, and so do the statistics of layers
    in evaluation mode (`layer.eval()`), in which dropout is off. A network that is as a whole in
    evaluation mode is trained as a whole. Tied parameters count once.

    Args:
        module: the network, which is copied.
        example: the arguments of `forward` for two or more samples, for a trial run.
        names: for each argument the keyword by which it is passed; None: by position.
        training_dtype: the dtype of the computations in training; parameters, outputs and gradients
            keep their own. None: that of the parameters. Only floating arguments are converted.

    Attributes:
        params: the trainable parameters by name.
        buffers: the running statistics that training changes, by name, in the dtype of the
            parameters (`num_batches_tracked`, too); empty without batch normalisation.
        draws: whether training needs a key, because the network has dropout.
        is_recurrent: whether it has recurrent layers.
        fewest_samples: how many samples a minibatch needs; 2 if batch normalisation gets a single
            value per sample and channel, else 1.
        example_output: what the network returns for the example in training.

    Raises:
        InvalidInputError: the network does not take the arguments, changes them, its parameters or
            buffers other than those of batch normalisation, or is no function of them, as it draws
            random numbers outside dropout, attention and recurrent layers.

    >>> net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    >>> model = FunctionalModel(net, (torch.ones(4, 3),))
    >>> outputs, buffers = model(model.params, (torch.ones(4, 3),))
    >>> outputs.shape, buffers["1.num_batches_tracked"]
    (torch.Size([4, 2]), tensor(1.))
    """

    def __init__(
        self,
        module: nn.Module,
        example: Inputs,
        names: tuple[str | None, ...] | None = None,
        training_dtype: torch.dtype | None = None,
    ) -> None:
        refuse_lazy(module)
        self.params: Params = {
            name: p.detach().clone() for name, p in module.named_parameters() if p.requires_grad
        }
        if not self.params:
            raise InvalidInputError(
                "model: it has no parameters to train; set requires_grad to True"
            )
        self._names = names or (None,) * len(example)
        self._dtype = next(iter(self.params.values())).dtype
        self._training_dtype = training_dtype or self._dtype
        self._evaluating = copy_network(module).eval()
        self._training = _TrainingModule.of(module, self._training_dtype)
        recurrent = (nn.RNNBase, nn.RNNCellBase)
        self.is_recurrent = any(isinstance(layer, recurrent) for layer in module.modules())
        self.draws = self._training.masks is not None
        statistics = self._training.statistics
        self.buffers: Params = {} if statistics is None else _cast(statistics.initial, self._dtype)
        self._thread_local = threading.local()
        self.example_output: Any = self._try(example)
        few = statistics is not None and statistics.fewest_values <= len(example[0])
        self.fewest_samples = 2 if few else 1

    def __call__(
        self,
        params: Params,
        inputs: Inputs,
        key: Tensor | None = None,
        sample_mask: Tensor | None = None,
        buffers: Params | None = None,
    ) -> Any:
        """Return the outputs in training, or (outputs, new buffers) if the network has buffers.

        Args:
            params: the trainable parameters.
            inputs: the arguments of `forward`.
            key: an int64 scalar that determines the dropout.
            sample_mask: False for samples of the minibatch that are padding, (B,): they do not
                enter the statistics of the minibatch. None: no padding.
            buffers: the running statistics before the step; None: those of the network.
        """
        if not hasattr(self._thread_local, "training"):
            # functional_call swaps the module's tensors temporarily, so each thread has a copy
            self._thread_local.training = self._training.copy()
        return self._run(self._thread_local.training, params, inputs, key, sample_mask, buffers)

    def evaluate(self, params: Params, inputs: Inputs, buffers: Params | None = None) -> Any:
        """Return the outputs in evaluation: no dropout, normalisation by running statistics."""
        args, kwargs = self._arguments(inputs, self._dtype)
        values = params | (buffers or {})
        return torch.func.functional_call(self._evaluating, values, args, kwargs)

    @torch.no_grad()
    def module(self, params: Params, buffers: Params | None = None) -> nn.Module:
        """Return the network itself with these values, in evaluation mode.

        Its `state_dict()` fits the original network, whose layers it has.
        """
        module = copy.deepcopy(self._evaluating)
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for name, value in (params | (buffers or {})).items():
            target = tensors[name]
            target.copy_(value if target.is_floating_point() else value.round())
        return module

    def _run(
        self,
        training: _TrainingModule,
        params: Params,
        inputs: Inputs,
        key: Tensor | None,
        sample_mask: Tensor | None = None,
        buffers: Params | None = None,
    ) -> Any:
        if training.masks is not None:
            training.masks.start_pass(key)
        if training.statistics is not None:
            training.statistics.start_pass(buffers or self.buffers, sample_mask)
        args, kwargs = self._arguments(inputs, self._training_dtype)
        values = _cast(params, self._training_dtype)
        outputs = torch.func.functional_call(training.module, values, args, kwargs)
        if isinstance(outputs, Tensor) and outputs.is_floating_point():
            outputs = outputs.to(self._dtype)
        end = {} if training.statistics is None else training.statistics.end_pass()
        return (outputs, end) if self.buffers else outputs

    def _arguments(
        self, inputs: Inputs, dtype: torch.dtype
    ) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Return the arguments by position and by name, floating ones in this dtype."""
        converted = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
        named = list(zip(self._names, converted, strict=True))
        return (
            tuple(x for name, x in named if name is None),
            {name: x for name, x in named if name is not None},
        )

    @torch.no_grad()
    def _try(self, example: Inputs) -> Any:
        """Return the outputs for the example.

        Raises:
            InvalidInputError: unless the network is a pure function in training.
        """
        training, key = self._training, torch.zeros((), dtype=torch.int64, device=example[0].device)
        before = {name: buffer.clone() for name, buffer in training.module.named_buffers()}
        params = {name: value.clone() for name, value in self.params.items()}
        with refuse_impure("model", example, "input"), _shape_errors(example, self._names):
            self.evaluate(params, example)
            outputs, again = (self._run(training, params, example, key) for _ in range(2))
        written = any(  # .data keeps the version
            not (value.is_meta or torch.equal(params[name], value))
            for name, value in self.params.items()
        )
        if written or any(_versions(params.values())):
            raise InvalidInputError(
                "model: it changes its parameters while it computes outputs (as "
                "nn.Embedding(max_norm=...) does), so that evaluating would change the model, too; "
                "compute outputs from limited copies, as weight.clamp(-1, 1)"
            )
        if not are_close(outputs, again):
            raise InvalidInputError(
                "model: it gives other outputs when it gets the same inputs again, so a step is "
                "not reproducible; use nn.Dropout for what is random, and keep no counts"
            )
        if training.masks is not None:
            training.masks.start_pass(None)
        for name, buffer in training.module.named_buffers():
            if not _is_equal(buffer, before[name]):
                layer = name.rpartition(".")[0] or type(training.module).__name__
                raise InvalidInputError(
                    f"model: layer {layer!r} changes its buffer {name!r} in training; use "
                    "BatchNorm or GroupNorm, or track_running_stats=False"
                )
        return outputs[0] if self.buffers else outputs


def _is_equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two buffers hold the same values; the matrix of a graph may be sparse."""
    if one.layout is torch.strided:
        return torch.equal(one, other)
    one, other = (tensor.to_sparse().coalesce() for tensor in (one, other))
    return torch.equal(one.indices(), other.indices()) and torch.equal(one.values(), other.values())


def refuse_lazy(module: nn.Module) -> None:
    """Raise InvalidInputError if a network has layers whose sizes its first input determines."""
    if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
        raise InvalidInputError(
            "model: it has lazy layers without parameters; give them sizes, or call it once"
        )


def copy_network(module: nn.Module) -> nn.Module:
    """Return a copy of a network.

    Raises:
        InvalidInputError: it cannot be copied, as with the older `torch.nn.utils.weight_norm`.
    """
    try:
        return copy.deepcopy(module)
    except Exception as error:
        raise InvalidInputError(
            f"model: it cannot be copied ({first_line(error, 150)}); build what it holds from "
            "parameters, buffers and layers, with torch.nn.utils.parametrizations"
        ) from error


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _cast(params: Params, dtype: torch.dtype) -> Params:
    return {name: tensor.to(dtype) for name, tensor in params.items()}


@contextmanager
def refuse_impure(field: str, given: Inputs, what: str) -> Iterator[None]:
    """Refuse code that changes its arguments, or draws from a global random generator.

    The generators of torch, NumPy and Python keep their states.

    Args:
        field: whose code runs in this context; the message begins with it.
        given: what it may not change.
        what: what the message calls that.

    Raises:
        InvalidInputError: it was changed, or random numbers were drawn.

    >>> with refuse_impure("loss", (), "target"):
    ...     mask = torch.rand(3)
    Traceback (most recent call last):
    fedtide.errors.InvalidInputError: loss: it draws from a global random generator (as RReLU,
    functional.dropout and numpy.random do), so a step is not reproducible; use nn.Dropout in the
    model, or no random numbers
    """
    versions = _versions(given)
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
            f"{field}: it draws from a global random generator (as RReLU, functional.dropout and "
            "numpy.random do), so a step is not reproducible; use nn.Dropout in the model, or no "
            "random numbers"
        )
    if _versions(given) != versions:
        raise InvalidInputError(
            f"{field}: it changes its {what} in place (as x -= 1 and ReLU(inplace=True) do), which "
            "would change the data; compute new tensors, as x = x - 1 does"
        )


def mixes_samples(loss: Callable[[Tensor], Tensor], count: int) -> bool:
    """Return whether the loss of two samples depends on what a third one is, as padding.

    Args:
        loss: of a minibatch of these samples, (3,), of which the last one is padding.
        count: how many samples there are.
    """
    try:
        first, second = (loss(torch.tensor([0, count // 2, last])) for last in (0, count - 1))
    except Exception:  # as with an odd number of samples; training will say so
        return False
    return not are_close(first, second, rtol=1e-6)  # rows are computed alike


def _versions(tensors: Iterable[Tensor]) -> list[int]:
    """Return how often each tensor was changed in place; inference tensors do not count it."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def are_close(first: Any, second: Any, rtol: float = 1e-3) -> bool:
    """Return whether two outputs or losses are equal up to rounding, as far as they have values."""
    pairs = zip(tree_leaves(first), tree_leaves(second), strict=True)
    return all(
        torch.allclose(a, b, rtol=rtol, atol=rtol / 1e3, equal_nan=True)
        for a, b in pairs
        if isinstance(a, Tensor) and not a.is_meta
    )


@contextmanager
def _shape_errors(example: Inputs, names: tuple[str | None, ...]) -> Iterator[None]:
    """Turn any error of a network's trial run into one that says what it was given."""
    try:
        yield
    except InvalidInputError:
        raise
    except Exception as error:
        reason = first_line(error)
        given = [
            f"{name or ''} {tuple(x.shape[1:])} and dtype {_name(x.dtype)}".strip()
            for name, x in zip(names, example, strict=True)
        ]
        hint = "choose a network that fits the inputs, or change the inputs"
        if any(x.dim() == 1 for x in example):
            hint = "write a column of single numbers in a list, as in inputs: [age]"
        elif "dtype" in reason and not all(x.is_floating_point() for x in example):
            hint = "convert the column to floats, or name it in a list"
        raise InvalidInputError(
            f"model: it cannot process features of shape {', '.join(given)} ({reason}); {hint}"
        ) from error
