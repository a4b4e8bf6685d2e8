"""A network as a pure function of its parameters."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from fedtide.errors import InvalidInputError, first_line
from fedtide.problems.layout import Params
from fedtide.problems.models.batch_norm import RunningStatistics, replace_batch_norm
from fedtide.problems.models.keyed_dropout import (
    DropoutMasks,
    KeyedFunctions,
    has_dropout,
    replace_attention,
)

Inputs = tuple[Tensor, ...]
"""The arguments of a network's `forward` for a minibatch; the first dimension is the sample."""


@dataclass(frozen=True)
class _TrainingModule:
    """The network for training, with the state that its layers share during a forward pass.

    Args:
        module: the network; its attention and batch normalisation are pure.
        masks: of its dropout.
        functions: the context in which all other dropout is pure; None: there is no dropout.
        statistics: of its batch normalisation, if it has any.
    """

    module: nn.Module
    masks: DropoutMasks
    functions: KeyedFunctions | None
    statistics: RunningStatistics | None

    @classmethod
    def of(cls, module: nn.Module, dtype: torch.dtype) -> _TrainingModule:
        """Return a copy of a network for training in this dtype; its statistics keep their own."""
        copied = copy.deepcopy(module)
        if not copied.training:  # a whole network is often left in evaluation mode by accident
            copied.train()
        masks = DropoutMasks()
        replaced, statistics = replace_batch_norm(replace_attention(copied, masks))
        return cls(cast_network(replaced, dtype), masks, KeyedFunctions(masks), statistics)

    def copy(self) -> _TrainingModule:
        """Return a copy that shares all tensors, so that it can be made during tracing, too."""
        tensors = [*self.module.parameters(), *self.module.buffers()]
        tensors += [] if self.statistics is None else self.statistics.initial.values()
        return copy.deepcopy(self, {id(t): t for t in tensors})


class FunctionalModel:
    """A `torch.nn.Module` as two functions of its parameters: for training and for evaluation.

    Parameters that do not require gradients keep their values, and so do the statistics of layers
    in evaluation mode (`layer.eval()`), which apply no dropout. A network that is in evaluation
    mode as a whole is trained as a whole. Tied parameters count once.

    The outputs must be a function of parameters, inputs and the key alone: dropout, attention,
    recurrent layers and batch normalisation are made so, and `fedtide.testing.check_network` tells
    whether the rest of a network is.

    Args:
        module: the network, which is copied.
        example: the arguments of `forward` for two or more samples, for a first pass.
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
        InvalidInputError: the network has no parameters to train, fails on the example, or changes
            its inputs in place.

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
        self.params: Params = {
            name: p.detach().clone() for name, p in module.named_parameters() if p.requires_grad
        }
        if not self.params:
            raise InvalidInputError(
                "model: it has no parameters to train; set requires_grad to True"
            )
        self._ties = _find_ties(module)
        self._names = names or (None,) * len(example)
        self._dtype = next(iter(self.params.values())).dtype
        self._training_dtype = training_dtype or self._dtype
        self._evaluating = copy.deepcopy(module).eval()
        self._training = _TrainingModule.of(module, self._training_dtype)
        recurrent = (nn.RNNBase, nn.RNNCellBase)
        self.is_recurrent = any(isinstance(layer, recurrent) for layer in module.modules())
        statistics = self._training.statistics
        self.buffers: Params = {} if statistics is None else _cast(statistics.initial, self._dtype)
        self._thread_local = threading.local()
        trial = self._training.copy()
        with _shape_errors(example, self._names), torch.no_grad():
            key = torch.zeros((), dtype=torch.int64, device=example[0].device)
            copies = tuple(x.clone() for x in example)
            outputs = self._run(trial, self.params, copies, key)
        if any(x._version for x in copies):
            raise InvalidInputError(
                "model: it changes its inputs in place (as x -= 1 and ReLU(inplace=True) do), and "
                "so the data; compute new tensors, as x = x - 1 does"
            )
        self.example_output: Any = outputs[0] if self.buffers else outputs
        self.draws = trial.masks.used or has_dropout(self._training.module)
        if not self.draws:
            self._training = replace(self._training, functions=None)
        few = trial.statistics is not None and trial.statistics.fewest_values <= len(example[0])
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
        values = self._tied(params) | (buffers or {})
        return torch.func.functional_call(self._evaluating, values, args, kwargs, tie_weights=False)

    @torch.no_grad()
    def module(self, params: Params, buffers: Params | None = None) -> nn.Module:
        """Return the network itself with these values, in evaluation mode.

        Its `state_dict()` fits the original network, as it has the same layers.
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
        training.masks.start_pass(key)
        if training.statistics is not None:
            training.statistics.start_pass(buffers or self.buffers, sample_mask)
        args, kwargs = self._arguments(inputs, self._training_dtype)
        values = self._tied(_cast(params, self._training_dtype))
        with training.functions or nullcontext():
            outputs = torch.func.functional_call(
                training.module, values, args, kwargs, tie_weights=False
            )
        outputs = tree_map(self._in_own_dtype, outputs)
        end = {} if training.statistics is None else training.statistics.end_pass()
        return (outputs, end) if self.buffers else outputs

    def _tied(self, params: Params) -> Params:
        """Return the parameters under all their names in different layers.

        `functional_call` would also find both names of a layer that is used twice, and leave the
        values that it sets in the network.
        """
        return params | {name: params[first] for name, first in self._ties.items()}

    def _in_own_dtype(self, output: Any) -> Any:
        floating = isinstance(output, Tensor) and output.is_floating_point()
        return output.to(self._dtype) if floating else output

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


def cast_network(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Convert the floating-point parameters and buffers of a network in place, and return it.

    Complex ones stay as they are: `module.to(dtype)` would drop their imaginary parts.

    >>> net = nn.Linear(1, 1)
    >>> net.register_buffer("turn", torch.tensor(1j))
    >>> cast_network(net, torch.float64).turn
    tensor(0.+1.j)
    """
    return _CASTS[dtype](module)


_CASTS: dict[torch.dtype, Callable[[nn.Module], nn.Module]] = {
    torch.float64: nn.Module.double,
    torch.float32: nn.Module.float,
    torch.bfloat16: nn.Module.bfloat16,
    torch.float16: nn.Module.half,
}


def _find_ties(module: nn.Module) -> dict[str, str]:
    """Return, for each further name of a trainable parameter in several layers, its first name.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> net[1].weight = net[0].weight
    >>> _find_ties(net)
    {'1.weight': '0.weight'}
    """
    first: dict[int, str] = {}
    ties = {}
    for prefix, layer in module.named_modules():
        for key, parameter in layer.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{prefix}.{key}".lstrip(".")
            known = first.setdefault(id(parameter), name)
            if known != name and parameter.requires_grad:
                ties[name] = known
    return ties


def _cast(params: Params, dtype: torch.dtype) -> Params:
    return {name: tensor.to(dtype) for name, tensor in params.items()}


@contextmanager
def _shape_errors(example: Inputs, names: tuple[str | None, ...]) -> Iterator[None]:
    """Turn any error of a network's first pass into one that names its inputs."""
    try:
        yield
    except InvalidInputError:
        raise
    except Exception as error:  # a user's code may raise anything
        given = [
            f"{name or ''} {tuple(x.shape[1:])} and dtype {x.dtype}".replace("torch.", "").strip()
            for name, x in zip(names, example, strict=True)
        ]
        raise InvalidInputError(
            f"model: it cannot process features of shape {', '.join(given)} ({first_line(error)}); "
            "choose a network that fits the inputs, or change the inputs: a list of columns, as "
            "in [age], forms one vector, and {user: user_id} passes each by forward's argument name"
        ) from error
