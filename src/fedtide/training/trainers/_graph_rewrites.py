"""Rewriting a captured graph so that it runs faster, with the same results.

Each function changes the graph that it is given, whose nodes know their shapes.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

_aten = torch.ops.aten

_RESHAPES = ("aten.expand.default", "aten.view.default", "aten._unsafe_view.default")


def remove_no_ops(graph: Any) -> None:
    """Remove the operations without effect that stacking leaves behind."""
    for node in list(graph.nodes):
        same = _find_equal(node)
        if same is not None:
            node.replace_all_uses_with(same)
    graph.eliminate_dead_code()


def _find_equal(node: Any) -> Any:
    """Return the earlier node whose value this one repeats, or None."""
    source: Any = node.args[0] if node.op == "call_function" and node.args else None
    if not hasattr(source, "users"):  # a number
        return None
    operation = str(node.target)
    if operation in _RESHAPES and node.meta["val"].shape == source.meta["val"].shape:
        return source
    is_one = operation == "aten.mul.Scalar" and node.args[1] == 1
    if is_one and node.meta["val"].dtype == source.meta["val"].dtype:
        return source
    is_undone = operation == str(source.target) == "aten.transpose.int"
    if is_undone and set(node.args[1:]) == set(source.args[1:]):
        before = source.args[0]
        return before if hasattr(before, "users") else None
    return None


def reshape_views(graph: Any) -> None:
    """Replace views by reshapes, as the strides of some real tensors do not allow a view."""
    views = (_aten.view.default, _aten._unsafe_view.default)
    for node in graph.nodes:
        if node.target in views:
            node.target = _aten.reshape.default


def align_images(graph: Any) -> None:
    """Give all images that a pointwise operation reads the memory format of those it returns.

    Where a network flattens channels-last images, their gradient comes back contiguous. An
    operation that reads both formats takes ten times as long as one whose images share a format.
    The values do not change.

    Args:
        graph: as captured, with the shape of each node; it is changed.
    """
    for node in list(graph.nodes):
        if torch.Tag.pointwise not in getattr(node.target, "tags", ()):
            continue
        wanted = memory_format(node.meta["val"])
        for images in node.all_input_nodes if wanted else ():
            found = images.meta["val"]
            other = memory_format(found)
            if other and other != wanted and found.shape == node.meta["val"].shape:
                with graph.inserting_before(node):
                    copy = graph.call_function(
                        _aten.clone.default, (images,), {"memory_format": wanted}
                    )
                copy.meta["val"] = found.contiguous(memory_format=wanted)
                node.replace_input_with(images, copy)


def memory_format(images: Any) -> torch.memory_format | None:
    """Return the memory format of images; None: neither or both formats, or not images."""
    if not isinstance(images, torch.Tensor) or images.dim() != 4:
        return None
    formats = (torch.contiguous_format, torch.channels_last)
    found = [form for form in formats if images.is_contiguous(memory_format=form)]
    return found[0] if len(found) == 1 else None


def add_in_place(graph: Any) -> None:
    """Add matrix products to the weights of stacked clients in place.

    The gradient of a linear layer with weights W is a matrix product A B that sums over the samples
    of a minibatch. As captured, a local step W + γ A B writes A B to memory, reads it back and
    writes new weights. A matrix library can instead add γ A B to W as it computes the product.
    Overwrites only memory that the graph itself has written and does not read again.

    Args:
        graph: as captured, with the shape of each node; it is changed.
    """
    _join_products(graph)
    place = {node: k for k, node in enumerate(graph.nodes)}
    for node in place:
        if node.target is _aten.baddbmm.default and not node.kwargs:
            weights = node.args[0]
            own = weights.target in (
                _aten.addcmul.default,
                _aten.baddbmm.default,
                _aten.baddbmm_.default,
            )
            fits = weights.meta.get("val", node.meta["val"]).shape == node.meta["val"].shape
            if own and fits and _last_use(weights, place) <= place[node]:
                node.target = _aten.baddbmm_.default


def _join_products(graph: Any) -> None:
    """Join each matrix product and its addition to the weights into one operation."""
    for node in list(graph.nodes):
        product, others = _split_step(node)
        if product is None:
            continue
        weights, _, factor = node.args
        stacked = weights.meta["val"].dim() == 3
        with graph.inserting_before(node):
            for other in others:
                stacked |= other.meta["val"].dim() == 3
                weights = graph.call_function(_aten.addcmul.default, (weights, other, factor))
            if not stacked:  # in the first step all clients share their weights
                shape = [*node.meta["val"].shape]
                weights = graph.call_function(_aten.expand.default, (weights, shape))
            a, b = product.args
            scaled = graph.call_function(_aten.mul.Tensor, (a, factor))
            new = graph.call_function(_aten.baddbmm.default, (weights, scaled, b))
        new.meta = node.meta
        node.replace_all_uses_with(new)
    graph.eliminate_dead_code()


def _split_step(node: Any) -> tuple[Any, list[Any]]:
    """Return A B and the terms added to it if the node is W + γ (A B + ...), otherwise None.

    Similar operations of a network or a loss are left as they are: with one factor per column, with
    another `value`, with terms that are numbers, or with a repeated product.
    """
    if node.target is not _aten.addcmul.default or node.kwargs or node.args[2].meta["val"].dim():
        return None, []
    direction = node.args[1]
    others: list[Any] = []
    while len(direction.users) == 1:
        if direction.target is _aten.bmm.default:
            whole = direction.meta["val"].shape == node.meta["val"].shape
            return (direction if whole else None), others
        if direction.target is not _aten.add.Tensor or direction.kwargs:
            break
        direction, other = direction.args
        if not (hasattr(direction, "users") and hasattr(other, "users")):  # a number
            break
        others.append(other)
    return None, []


def _last_use(node: Any, place: dict[Any, int]) -> float:
    """Return the place of the last node that reads the memory of this one."""
    last = float(place[node])
    for user in node.users:
        shares = user.target in (_aten._unsafe_view.default, operator.getitem)
        if user.op == "output":
            last = math.inf
        elif shares or getattr(user.target, "is_view", True):
            last = max(last, _last_use(user, place))
        else:
            last = max(last, place[user])
    return last
