"""Recording what a function of tensors does, once, to replay it without asking again.

`torch.func` works out every call anew: which operations a gradient stacked over clients comes to.
For models as small as those of federated learning that costs more than the operations do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.graph import CodeGen

Recording = Callable[..., tuple[Tensor, ...]]

_aten = torch.ops.aten
_RESHAPES = (_aten.expand.default, _aten.view.default, _aten._unsafe_view.default)


def record(function: Callable[..., tuple[Tensor, ...]], examples: list[Tensor]) -> GraphModule:
    """Return what `function` does with tensors of the shapes of `examples`, as plain operations.

    >>> double = record(lambda x: (x + x,), [torch.zeros(2)])
    >>> double(torch.ones(2))
    (tensor([2., 2.]),)
    """
    # The shapes are enough, and the compiler wants them all from one mode.
    recorder = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)
    module = recorder(*examples)
    _drop_no_ops(module.graph)
    module.graph.set_codegen(CodeGen())  # takes the tensors as they are: nothing is nested
    module.recompile()
    return module


def _drop_no_ops(graph: Graph) -> None:
    """Remove the operations that stacking leaves behind without any effect."""
    for node in list(graph.nodes):
        same = _same_as(node)
        if same is not None:
            node.replace_all_uses_with(same)
    graph.eliminate_dead_code()


def _same_as(node: Node) -> Node | None:
    """Return the earlier node whose value this one repeats, if there is one."""
    source = node.args[0] if node.op == "call_function" and node.args else None
    if not isinstance(source, Node):
        return None
    if node.target in _RESHAPES and _shape(node) == _shape(source):
        return source
    if node.target is _aten.mul.Scalar and node.args[1] == 1:
        return source
    undone = node.target is source.target is _aten.transpose.int
    if undone and set(node.args[1:]) == set(source.args[1:]):
        before = source.args[0]
        return before if isinstance(before, Node) else None
    return None


def _shape(node: Node) -> Any:
    return node.meta["val"].shape
