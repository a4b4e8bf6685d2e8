"""A network as a pure function of its parameters."""

from __future__ import annotations

import copy
import threading

import torch
from torch import Tensor, nn

from fedtide.errors import InvalidInputError
from fedtide.problems.layout import Params
from fedtide.problems.models.keyed_dropout import DropoutMasks, replace_dropout


class FunctionalModel:
    """A `torch.nn.Module` as two functions of its parameters: for training and for evaluation.

    Parameters that do not require gradients keep their values.

    Args:
        module: the network, which is copied.
        example: features of two or more samples, for a trial run of the network.
        classes: C, the number of logits per sample.
        training_dtype: the dtype of the computations in training; parameters, logits and gradients
            keep their own. None: the dtype of the example.

    Attributes:
        params: the trainable parameters by name.
        draws: whether training needs a key, because the network has dropout.

    Raises:
        InvalidInputError: the network does not fit the features, does not return logits of shape
            (B, C), keeps running statistics, or draws random numbers outside dropout layers.
    """

    def __init__(
        self,
        module: nn.Module,
        example: tuple[Tensor, ...],
        names: tuple[str | None, ...] | None = None,
        training_dtype: torch.dtype | None = None,
    ) -> None:
        self.buffers: Params = {}
        self._original = copy.deepcopy(module)
        self._names = names or (None,) * len(example)
        self.params: Params = {
            name: p.detach().clone() for name, p in module.named_parameters() if p.requires_grad
        }
        if not self.params:
            raise InvalidInputError(
                "model: it has no parameters to train; set requires_grad to True"
            )
        self._evaluating = copy.deepcopy(module).eval()
        self._dtype = training_dtype or next(iter(self.params.values())).dtype
        training, masks = replace_dropout(copy.deepcopy(module).train().to(self._dtype))
        self._training = (training, masks)
        self.draws = masks is not None
        self._thread_local = threading.local()
        args, kw = self._call(
            tuple(t.to(self._dtype) if t.is_floating_point() else t for t in example)
        )
        self.example_output = _check_pure(training, masks, args, kw)

    def _call(self, inputs):
        args = tuple(t for t, n in zip(inputs, self._names) if n is None)
        return args, {n: t for t, n in zip(inputs, self._names) if n is not None}

    def __call__(
        self, params: Params, inputs, key: Tensor | None = None, sample_mask=None, buffers=None
    ) -> Tensor:
        """Return the logits (B, C) in training; `key`, an int64 scalar, determines the dropout."""
        module, masks = self._training_module()
        if masks is not None:
            masks.start_pass(key)
        converted = {name: tensor.to(self._dtype) for name, tensor in params.items()}
        args, kw = self._call(
            tuple(t.to(self._dtype) if t.is_floating_point() else t for t in inputs)
        )
        logits: Tensor = torch.func.functional_call(module, converted, args, kw)
        return logits.to(next(iter(params.values())).dtype)

    def module(self, params, buffers=None):
        m = copy.deepcopy(self._original)
        m.load_state_dict({**m.state_dict(), **params})
        return m

    def evaluate(self, params: Params, inputs, buffers=None) -> Tensor:
        """Return the logits (B, C), without dropout."""
        args, kw = self._call(inputs)
        return torch.func.functional_call(self._evaluating, params, args, kw)  # type: ignore[no-any-return]

    def _training_module(self) -> tuple[nn.Module, DropoutMasks | None]:
        # functional_call swaps the module's tensors temporarily, so each thread has its own copy
        if not hasattr(self._thread_local, "training"):
            module = self._training[0]
            tensors = (*module.parameters(), *module.buffers())
            # shared tensors allow this copy during tracing (make_fx), too
            self._thread_local.training = copy.deepcopy(self._training, {id(t): t for t in tensors})
        return self._thread_local.training  # type: ignore[no-any-return]


@torch.no_grad()
def _check_pure(module: nn.Module, masks: DropoutMasks | None, args, kw):
    """Raise InvalidInputError unless the module is a pure function in training."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    if masks is not None:
        masks.start_pass(torch.zeros((), dtype=torch.int64, device=x.device))
    with torch.random.fork_rng(devices=[]):
        state = torch.get_rng_state()
        logits = _run(module, args, kw)
        random = not torch.equal(state, torch.get_rng_state())
    if masks is not None:
        masks.start_pass(None)
    for name, buffer in module.named_buffers():
        if not torch.equal(buffer, before[name]):
            layer = name.rpartition(".")[0] or type(module).__name__
            raise InvalidInputError(
                f"model: layer {layer!r} changes its buffer {name!r} in training; use GroupNorm, "
                f"or track_running_stats=False"
            )
    if random:
        raise InvalidInputError(
            "model: the forward pass draws from torch's global generator (as RReLU and "
            "functional.dropout do), so a step is not reproducible; use nn.Dropout, or layers "
            "without random numbers"
        )
    return logits


def _run(module, args, kw) -> object:
    x = (*args, *kw.values())[0]
    try:
        return module(*args, **kw)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidInputError(
            f"model: it cannot process features of shape {tuple(x.shape[1:])} ({reason}); choose "
            f"one that fits the data set"
        ) from error
