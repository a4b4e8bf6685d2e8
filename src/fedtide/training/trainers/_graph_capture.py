"""Capturing what a function of tensors does as a graph, to run it again without tracing.

On every call, `torch.func` traces which operations make up the gradient of a stacked model. With
models as small as those of federated learning, tracing takes longer than the operations.

Private interfaces of PyTorch are used in this module only: `make_fx` and the node metadata of FX
graphs (`capture`), and TorchInductor's entry point for graphs (`compile_graph`). If anything in
them fails, each function returns what it was given, with one warning: training is then slower, not
different.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedtide.cache_folder import keep_compiled
from fedtide.errors import first_line
from fedtide.training.devices import is_cpu
from fedtide.training.trainers._graph_rewrites import (
    add_in_place,
    align_images,
    remove_no_ops,
    reshape_views,
)

TensorFunction = Callable[..., tuple[Tensor, ...]]
Operations = Mapping[Any, Callable[..., Any]]


def capture(
    function: TensorFunction, examples: list[Tensor], operations: Operations | None = None
) -> TensorFunction:
    """Return a graph of what `function` does with tensors of the shapes of `examples`.

    If the function cannot be captured, it is returned itself, with a warning. An error of the
    function itself is raised.

    Args:
        function: the function to capture.
        examples: tensors of the shapes that it takes.
        operations: functions that replace operations; where one returns `NotImplemented`, the
            operation stays. None: every operation stays.

    >>> double = capture(lambda x: (x + x,), [torch.zeros(2)])
    >>> double(torch.ones(2))
    (tensor([2., 2.]),)
    """
    try:
        return _captured(function, examples, operations)
    except Exception as error:
        function(*examples)  # raises if the function itself is at fault
        _warn(f"local steps are not captured and run slower: {first_line(error)}")
        return function


def in_memory(tensor: Tensor) -> Tensor:
    """Return the tensor so that a compiler computes it once, rather than wherever it is used.

    It is a strided view, which needs its numbers in memory.

    >>> in_memory(torch.arange(3))
    tensor([0, 1, 2])
    """
    # The compiler applies the strides to the whole storage that the tensor may be a part of.
    if tensor.storage_offset() or tensor.stride() != torch.empty_like(tensor).stride():
        tensor = tensor.clone()
    return tensor.as_strided(tensor.shape, tensor.stride())


@cache
def onednn_product() -> Callable[[Tensor, Tensor], Tensor] | None:
    """Return an operation of compiled graphs that multiplies matrices with oneDNN, or None.

    Its arguments are a float32 matrix and the transpose of another, both contiguous. TorchInductor
    itself calls oneDNN only for constant weights.
    """
    try:
        from torch._inductor.ir import TensorBox
        from torch._inductor.lowering import register_lowering
        from torch._inductor.mkldnn_ir import LinearUnary

        product = torch.library.custom_op("fedtide::product", _multiply, mutates_args=())
        product.register_fake(lambda a, b: a.new_empty(len(a), len(b)))
        operation: Any = torch.ops.fedtide.product.default
        register: Any = register_lowering
        linear: Any = LinearUnary
        register(operation, type_promotion_kind=None)(
            lambda a, b: TensorBox.create(linear.create(a, b, None, "none", [], ""))
        )
        # what one upgrade may change, tried once
        one = torch.ones(1, 1)
        compile_graph(_captured(lambda x: (operation(x, x),), [one], {}), [one])
    except Exception as error:
        _warn(f"oneDNN is not used for products of matrices: {first_line(error)}")
        return None
    found: Callable[[Tensor, Tensor], Tensor] = operation
    return found


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    return a @ b.t()


def has_constants(graph: TensorFunction) -> bool:
    """Return whether a graph holds tensors of its own; true of a function that is not a graph.

    >>> one = torch.ones(2)
    >>> [has_constants(capture(f, [one])) for f in (lambda x: (x + one,), lambda x: (x + x,))]
    [True, False]
    """
    module: Any = graph
    if not isinstance(graph, torch.fx.GraphModule):
        return True
    return any(node.op == "get_attr" for node in module.graph.nodes)


def compile_graph(graph: TensorFunction, examples: list[Tensor]) -> TensorFunction:
    """Return the graph compiled by TorchInductor, or the graph itself if that fails.

    On a CPU it becomes a single C++ function that runs without the interpreter's lock.

    Args:
        graph: as `capture` returns it.
        examples: tensors of the shapes that it takes.
    """
    options = {
        "size_asserts": False,
        "cpp_wrapper": is_cpu(examples[0]),
        "cpp.enable_floating_point_contract_flag": "fast",  # a x + b in one instruction
    }
    try:
        inductor: Any = torch._inductor
        # PyTorch's own warnings would end it where warnings are errors
        with warnings.catch_warnings(action="ignore"):
            compiled: TensorFunction = inductor.compile(graph, [*examples], options)
    except Exception as error:
        _warn(f"local steps are not compiled: {first_line(error)}")
        return graph
    return compiled


def _captured(
    function: TensorFunction, examples: list[Tensor], operations: Operations | None
) -> TensorFunction:
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.graph import CodeGen

    keep_compiled()
    # Shapes are enough; the compiler requires all fake tensors to come from one mode.
    with _without_log():
        trace = make_fx(function, operations, tracing_mode="fake", _allow_non_fake_inputs=True)
        module = trace(*examples)
    remove_no_ops(module.graph)
    if operations is None:  # a compiler chooses memory layouts itself
        align_images(module.graph)
        add_in_place(module.graph)
        reshape_views(module.graph)
    module.graph.set_codegen(CodeGen())  # takes a flat list of tensors: nothing is nested
    module.recompile()
    return module


@contextmanager
def _without_log() -> Iterator[None]:
    """Keep PyTorch from logging errors with traceback; the caller raises or warns of them."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


@cache
def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=3)
