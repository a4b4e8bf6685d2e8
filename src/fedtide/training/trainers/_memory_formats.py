"""One memory format for all images that a captured operation reads.

Where a network flattens channels-last images, their gradient comes back contiguous. An operation
that reads both formats takes ten times as long as one whose images share a format.
"""

from __future__ import annotations

from typing import Any

import torch


def align_images(graph: Any) -> None:
    """Give all images that a pointwise operation reads the memory format of those it returns.

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
                        torch.ops.aten.clone.default, (images,), {"memory_format": wanted}
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
