"""A network as a pure function of its parameters."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from fedtide.errors import InvalidInputError, first_line
from fedtide.problems.layout import Params
from fedtide.problems.models.batch_norm import RunningStatistics, replace_batch_norm
from fedtide.problems.models.dropout_masks import DropoutMasks
from fedtide.problems.models.keyed_attention import replace_attention
from fedtide.problems.models.keyed_functions import KeyedFunctions
from fedtide.problems.models.network_checks import (
    Inputs,
    agree,
    are_close,
    check_network,
    count_changes,
    has_dropout,
    read_attributes,
    refuse_changed_buffers,
    refuse_changes,
    refuse_hidden_parameters,
    refuse_impure,
    shape_errors,
    shift,
    sum_frozen,
    warn_of_idle_dropout,
)


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
        InvalidInputError: the network does not accept the arguments; changes them, its parameters,
            or buffers other than those of batch normalisation; or is not a function of them: it
            draws random numbers outside dropout, attention and recurrent layers, counts its calls,
            or reads parameters other than by their names; or see `check_network`.

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
        check_network(module)
        warn_of_idle_dropout(module)
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
        self._evaluating = copy_network(module).eval()
        self._training = _TrainingModule.of(module, self._training_dtype)
        recurrent = (nn.RNNBase, nn.RNNCellBase)
        self.is_recurrent = any(isinstance(layer, recurrent) for layer in module.modules())
        statistics = self._training.statistics
        self.buffers: Params = {} if statistics is None else _cast(statistics.initial, self._dtype)
        self._thread_local = threading.local()
        trial = self._training.copy()
        self.example_output: Any = self._try(trial, module, example)
        self.draws = trial.masks.used or has_dropout(self._training.module)
        if not self.draws:
            self._training = replace(self._training, functions=None)
        statistics = trial.statistics
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
        return self._evaluate(self._evaluating, params, inputs, buffers)

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

    def _evaluate(
        self, module: nn.Module, params: Params, inputs: Inputs, buffers: Params | None = None
    ) -> Any:
        args, kwargs = self._arguments(inputs, self._dtype)
        values = self._tied(params) | (buffers or {})
        return torch.func.functional_call(module, values, args, kwargs, tie_weights=False)

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

    @torch.no_grad()
    def _try(self, training: _TrainingModule, module: nn.Module, example: Inputs) -> Any:
        """Return the outputs for the example.

        Args:
            training: the network for training, a copy that later passes do not use.
            module: the network as it was given.
            example: the arguments.

        Raises:
            InvalidInputError: unless the network is a pure function in training.
        """
        key = torch.zeros((), dtype=torch.int64, device=example[0].device)
        evaluating = _copy_sharing(self._evaluating)
        modules = {"training": training.module, "evaluation": evaluating}
        buffers = {mode: _clone(tried.named_buffers()) for mode, tried in modules.items()}
        frozen = sum_frozen(modules.values())
        params = _clone(self.params.items())
        with refuse_impure("model", example, "input"), shape_errors(example, self._names):
            self._evaluate(evaluating, params, example)
            outputs = self._run(training, params, example, key)
            attributes = read_attributes(training.module)
            again = self._run(training, params, example, key)
        written = any(  # .data keeps the version
            not (value.is_meta or torch.equal(params[name], value))
            for name, value in self.params.items()
        )
        if written or any(count_changes(params.values())) or sum_frozen(modules.values()) != frozen:
            raise InvalidInputError(
                "model: it changes its parameters while it computes outputs (as "
                "nn.Embedding(max_norm=...) does), so that evaluating would change the model, too; "
                "compute outputs from limited copies, as weight.clamp(-1, 1)"
            )
        del params
        refuse_changes(attributes, read_attributes(training.module))
        if not are_close(outputs, again):
            raise InvalidInputError(
                "model: it gives other outputs when it gets the same inputs again, so a step is "
                "not reproducible; use nn.Dropout for randomness, and keep no counts"
            )
        for mode, tried in modules.items():
            refuse_changed_buffers(tried, buffers[mode], mode)
        self._try_other_parameters(training, evaluating, module, example, key)
        leaves = {name: p.detach().requires_grad_() for name, p in self.params.items()}
        refuse_hidden_parameters(lambda: self._run(training, leaves, example, key), leaves.values())
        return outputs[0] if self.buffers else outputs

    def _try_other_parameters(
        self,
        training: _TrainingModule,
        evaluating: nn.Module,
        module: nn.Module,
        example: Inputs,
        key: Tensor,
    ) -> None:
        """Refuse a network that caches values of its parameters, or ignores the given parameters.

        Args:
            training, evaluating: the network after passes with the initial parameters.
            module: the network as it was given.
            example: the arguments.
            key: of the dropout.
        """
        others = shift(self.params)
        own = copy_network(module).train()  # no parameters are merged yet
        for name, parameter in own.named_parameters():
            if name in others:
                parameter.copy_(others[name])
        own.eval()  # only now: a layer may merge its parameters when its mode changes, as LoRA does
        args, kwargs = self._arguments(example, self._dtype)
        try:
            trained = [
                self._run(module, others, example, key)
                for module in (training, self._training.copy())
            ]
            evaluated = [self._evaluate(evaluating, others, example), own(*args, **kwargs)]
        except Exception:  # the network may be undefined for these parameters
            return
        if not (agree(*trained) and agree(*evaluated)):
            raise InvalidInputError(
                "model: with other parameters its outputs are not those of a copy with these "
                "parameters, because it keeps values computed from them, or reads them other "
                "than by their names; compute outputs from attributes of the module in each "
                "forward pass"
            )


def cast_network(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Convert the floating-point parameters and buffers of a network in place, and return it.

    Complex ones stay as they are: `module.to(dtype)` would drop their imaginary parts.

    >>> net = nn.Linear(1, 1)
    >>> net.register_buffer("turn", torch.tensor(1j))
    >>> cast_network(net, torch.float64).turn
    tensor(0.+1.j)
    """
    if not any(tensor.is_complex() for tensor in (*module.parameters(), *module.buffers())):
        return module.to(dtype)  # a network may override it, to convert other things it keeps
    convert: dict[torch.dtype, Callable[[], nn.Module]] = {
        torch.float64: module.double,
        torch.float32: module.float,
        torch.bfloat16: module.bfloat16,
        torch.float16: module.half,
    }
    return convert[dtype]()


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


def _copy_sharing(module: nn.Module) -> nn.Module:
    """Return a copy of a network that shares its tensors."""
    return copy.deepcopy(module, {id(t): t for t in (*module.parameters(), *module.buffers())})


def _clone(tensors: Iterable[tuple[str, Tensor]]) -> Params:
    return {name: tensor.clone() for name, tensor in tensors}


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


def _cast(params: Params, dtype: torch.dtype) -> Params:
    return {name: tensor.to(dtype) for name, tensor in params.items()}


def mixes_samples(loss: Callable[[Params, Tensor], Tensor], params: Params, count: int) -> bool:
    """Return whether the loss of two samples depends on a third, such as padding.

    Args:
        loss: of the parameters and a minibatch of these samples, (3,), the last of them padding.
        params: the initial parameters; nearby ones are tried, too, as the last layer may start at
            zero.
        count: the number of samples.
    """
    for tried in (params, shift(params)):
        try:
            first, second = (
                loss(tried, torch.tensor([0, count // 2, last])) for last in (0, count - 1)
            )
        except Exception:  # as with an odd number of samples; training will say so
            continue
        if not are_close(first, second, rtol=1e-6):  # rows are computed alike
            return True
    return False
