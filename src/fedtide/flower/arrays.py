"""Models as Flower's arrays: between named tensors, vectors and the bytes that travel.

`Layout` orders names in a vector. What the server sends has the dtype of the initial arrays; a
model in float16 travels in it, and the server computes in float32.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor, nn

from fedtide.errors import InvalidInputError, first_line
from fedtide.problems.layout import Layout, Params

_MAGIC = 10
"""How many bytes `np.save` writes before the text of a header; the last two are its length."""

_LONGEST_HEADER = 2_000
"""How many bytes a header may have; NumPy writes some 120, to which requests add 64 blanks."""

_NUMPY = "numpy.ndarray"
"""Flower's name for the format of `np.save`."""

_DTYPES: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(np.float16): torch.float16,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}
"""The types that models may have, in the byte order of this machine."""


def initial_arrays(model: nn.Module) -> ArrayRecord:
    """Return the trainable parameters of a model, from which a strategy starts.

    Raises:
        InvalidInputError: parameters of a type that NumPy does not have, such as bfloat16; layers
            that keep running statistics, which Flower clients do not send.

    >>> list(initial_arrays(nn.Linear(2, 1)))
    ['weight', 'bias']
    """
    refuse_running_statistics(model)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype not in _DTYPES.values():
            raise InvalidInputError(
                f"model: {name} is of type {parameter.dtype}, which Flower's arrays do not have; "
                "give model.float()"
            )
    return params_to_arrays({n: p for n, p in model.named_parameters() if p.requires_grad})


def refuse_running_statistics(model: nn.Module) -> None:
    """Raise InvalidInputError if a layer keeps running statistics when the model is trained.

    Layers in evaluation mode do not, unless the whole model is in that mode (see
    `FunctionalModel`).
    """
    for name, layer in model.named_modules():
        counts = isinstance(getattr(layer, "num_batches_tracked", None), Tensor)
        if counts and (layer.training or not model.training):
            raise InvalidInputError(
                f"model: layer {name!r} keeps running statistics, which Flower clients do not "
                "send; use GroupNorm, or call model.train() and then layer.eval() of each such "
                "layer, which keeps the statistics that it has, as of pretraining"
            )


def params_to_arrays(params: Mapping[str, Tensor], blanks: bytes = b"") -> ArrayRecord:
    """Return named tensors as Flower's arrays, with blanks in their headers."""
    return ArrayRecord({name: _encode(tensor, blanks) for name, tensor in params.items()})


def arrays_to_params(arrays: ArrayRecord) -> Params:
    """Return Flower's arrays as named tensors."""
    return {name: torch.tensor(array.numpy()) for name, array in arrays.items()}


def vector_to_arrays(x: Tensor, layout: Layout, blanks: bytes = b"") -> ArrayRecord:
    """Return the vector x, shape (d,), as named arrays, with blanks in their headers."""
    return params_to_arrays(layout.unflatten(x), blanks)


def draw_blanks() -> bytes:
    """Return unpredictable blanks for the headers of arrays; NumPy ignores them."""
    return f"{secrets.randbits(64):064b}".replace("0", " ").replace("1", "\t").encode()


def arrays_to_vector(
    arrays: ArrayRecord, layout: Layout, like: Tensor, origin: Tensor | None = None
) -> Tensor:
    """Return named arrays, minus `origin`, as a vector like `like`, shape (d,).

    Differences are taken in the arrays' own dtype if that is the wider one. Models may be large:
    nothing else of their size is allocated.

    Raises:
        ValueError: names, shapes or dtypes other than the layout's.
        FloatingPointError: values that are not finite, or whose sum of squares is not.
    """
    if arrays.keys() != layout.shapes.keys():
        raise ValueError(f"arrays {sorted(arrays)} instead of {sorted(layout.shapes)}")
    start = None if origin is None else origin.numpy(force=True)
    vector = torch.empty_like(like, device="cpu")
    x, end = vector.numpy(), 0
    with np.errstate(all="ignore"):
        for name, shape in layout.shapes.items():
            values = _decode(arrays[name], tuple(shape))
            part = slice(end, end := end + values.size)
            if start is None:
                x[part] = values.ravel()
            else:
                np.subtract(values.ravel(), start[part], out=x[part], casting="same_kind")
        if not math.isfinite(np.dot(x, x)):
            raise FloatingPointError("numbers that are not finite, or too large")
    return vector.to(like.device)


def _encode(tensor: Tensor, blanks: bytes) -> Array:
    """Encode a tensor as Flower's `Array(ndarray)` does, with one copy fewer of its values.

    Without blanks, the bytes are the same. bfloat16, which NumPy lacks, becomes float32.
    """
    tensor = tensor.detach().cpu()
    numbers = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    values = np.asarray(numbers.numpy(), order="C")
    file = BytesIO()
    facts = {"descr": values.dtype.str, "fortran_order": False, "shape": values.shape}
    np.lib.format.write_array_header_1_0(file, facts)
    header = file.getvalue()
    if blanks:
        text = header[_MAGIC:-1] + blanks + b"\n"
        header = header[: _MAGIC - 2] + len(text).to_bytes(2, "little") + text
    return Array(str(values.dtype), values.shape, _NUMPY, b"".join((header, values.data)))


def _decode(array: Array, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the values of an array of this shape, without a copy.

    What the header declares is compared with the bytes that are there before anything is decoded.

    Raises:
        ValueError: bytes that are no array of floating-point numbers, or one of another shape.
    """
    start = _MAGIC + int.from_bytes(array.data[_MAGIC - 2 : _MAGIC], "little")
    try:
        if array.stype != _NUMPY:
            raise ValueError
        found, fortran, dtype = _read_header(array.data[:start])
    except Exception:  # the bytes may be anything; NumPy's messages would not help
        raise ValueError("an array that cannot be read") from None
    if found != shape:
        raise ValueError(f"an array of shape {found} instead of {shape}")
    if dtype.kind != "f":
        raise ValueError(f"an array of type {dtype}")
    if len(array.data) - start != dtype.itemsize * math.prod(shape):
        raise ValueError("an array that cannot be read")
    values = np.frombuffer(array.data, dtype, offset=start)
    return values.reshape(shape, order="F" if fortran else "C")


@lru_cache(maxsize=4096)  # parsing takes longer than all else for small arrays, which are many
def _read_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return the shape, whether it is in Fortran's order, and the type."""
    file = BytesIO(header)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError
    return np.lib.format.read_array_header_1_0(file, max_header_size=_LONGEST_HEADER)


def flatten_initial(arrays: ArrayRecord) -> tuple[Layout, Tensor]:
    """Return the layout of the initial arrays, and their vector x_0, shape (d,).

    Raises:
        InvalidInputError: no numbers, or numbers that are not finite; arrays of integers, of
            several dtypes, or of one that PyTorch does not have.
    """
    try:
        values = {name: array.numpy() for name, array in arrays.items()}
        dtypes = {value.dtype for value in values.values()}
    except Exception as error:  # what Flower cannot decode
        reason = first_line(error, with_type=True)
        raise InvalidInputError(
            f"initial_arrays: they cannot be read ({reason}); make them with initial_arrays(model)"
        ) from None
    if len(dtypes) != 1 or not dtypes <= _DTYPES.keys():
        found = ", ".join(sorted(map(str, dtypes))) or "no arrays"
        raise InvalidInputError(
            f"initial_arrays: {found}; give floating-point arrays of one dtype, float16, float32 "
            "or float64 in this machine's byte order, without counters: initial_arrays(model)"
        )
    tensors = {name: torch.tensor(value) for name, value in values.items()}
    layout = Layout.from_params(tensors)
    x = layout.flatten(tensors)
    if not len(x) or not bool(torch.isfinite(torch.linalg.vector_norm(widen_half(x)))):
        what = "numbers that are not finite, or too large" if len(x) else "no numbers"
        raise InvalidInputError(f"initial_arrays: {what}; give those of a model before training")
    return layout, x


def widen_half(x: Tensor) -> Tensor:
    """Return a float16 tensor in float32, in which the server computes; others unchanged."""
    return x.float() if x.dtype == torch.float16 else x


class ModelWriter:
    """Writes vectors of the server's state, shape (d,), in the dtype of the initial arrays.

    Args:
        layout: of the model.
        sends_half: whether the initial arrays are of float16, and vectors of float32.
    """

    def __init__(self, layout: Layout, sends_half: bool) -> None:
        self._layout, self._sends_half = layout, sends_half
        self.renew_blanks()

    def renew_blanks(self) -> None:
        """Make further requests differ from earlier ones, so that no client can predict them."""
        self._blanks = draw_blanks()

    def to_arrays(self, x: Tensor) -> ArrayRecord:
        """Return the vector x as named arrays."""
        return vector_to_arrays(self.narrow(x), self._layout)

    def to_request(self, x: Tensor) -> ArrayRecord:
        """Return arrays that no client can predict; equal ones of a round are sent once."""
        return vector_to_arrays(self.narrow(x), self._layout, self._blanks)

    def narrow(self, x: Tensor) -> Tensor:
        """Return a vector of the state in the dtype of the initial arrays."""
        if not self._sends_half:
            return x
        largest = torch.finfo(torch.float16).max  # larger numbers would become infinite
        return x.clamp(-largest, largest).half()
