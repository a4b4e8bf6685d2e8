"""SHA-256 of the content of files, arrays, tables, data sets and networks.

The libraries whose objects are hashed are not imported: objects are recognised by the names of
their classes.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedtide.errors import InvalidInputError
from fedtide.import_paths import code_name

_BATCH = 10_000  # rows of a data set that are hashed together
_PLAIN = (type(None), str, bytes, int, float, complex, np.generic, Path, Decimal)
_TIMES = (datetime.date, datetime.time, datetime.timedelta)


class _Digest(Protocol):
    def update(self, data: Any, /) -> None: ...


def is_data(thing: Any) -> bool:
    """Return whether this is an array, table, data set or network, or a mapping of columns.

    >>> is_data(np.zeros(3)), is_data({"x": np.zeros(3), "y": [0, 1, 1]}), is_data([0, 1, 1])
    (True, True, False)
    """
    return data_type(thing) is not None


def is_network(thing: Any) -> bool:
    """Return whether this is a `torch.nn.Module`."""
    return data_type(thing) == "torch.Module"


def is_table(thing: Mapping[Any, Any]) -> bool:
    """Return whether a mapping holds columns of equal length, one of them an array."""
    columns = list(thing.values())
    if not any(data_type(column) for column in columns):
        return False
    try:
        return len({len(column) for column in columns}) == 1
    except TypeError:  # a number, or an array without dimensions
        return False


def fingerprint(thing: Any) -> str:
    """Return the SHA-256 of data: 64 hexadecimal digits, equal if names, types and values are.

    Raises:
        InvalidInputError: data of this type cannot be hashed.

    >>> fingerprint(np.zeros(3)) == fingerprint(np.zeros(3)), fingerprint(np.zeros(3))[:8]
    (True, '9ae54aa3')
    """
    digest = hashlib.sha256()
    _update(digest, thing)
    return digest.hexdigest()


def hash_file(path: str | Path) -> str:
    """Return the SHA-256 of a file, which is read once per process unless it changes."""
    status = Path(path).stat()
    return _hash_version(Path(path).resolve(), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=256)
def _hash_version(path: Path, size: int, time: int) -> str:
    """Return the SHA-256 of a file; its size and modification time identify its version."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def data_type(thing: Any) -> str | None:
    """Return the key of `_HASHERS` for this object if it is data."""
    if isinstance(thing, Mapping):
        return "dict" if is_table(thing) else None
    cls: Any = type(thing)  # mypy considers classes unhashable
    return _class_key(cls)


@lru_cache(maxsize=512)
def _class_key(cls: type[object]) -> str | None:
    names = (f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in cls.__mro__)
    return next((name for name in names if name in _HASHERS), None)


def _update(digest: _Digest, value: Any) -> None:
    """Add a value to the digest, with its type and size."""
    name = data_type(value)
    digest.update(f"<{name or type(value).__name__}>".encode())
    if name is not None:
        _HASHERS[name](digest, value)
    elif isinstance(value, Mapping):
        _hash_mapping(digest, value)
    elif isinstance(value, list | tuple):
        digest.update(f"{len(value)} ".encode())
        for part in value:
            _update(digest, part)
    elif isinstance(value, _PLAIN + _TIMES):
        digest.update(f"{value!r};".encode())
    elif hasattr(value, "__array__") or hasattr(value, "__array_interface__"):  # such as images
        _hash_array(digest, np.asarray(value))
    else:
        raise InvalidInputError(
            f"out: a {type(value).__name__} object has no fingerprint; give arrays, tensors or "
            "numbers, or run without a folder"
        )


def _hash_mapping(digest: _Digest, mapping: Mapping[Any, Any]) -> None:
    digest.update(f"{len(mapping)} ".encode())
    for key, value in mapping.items():
        digest.update(f"{key!r}:".encode())
        _update(digest, value)


def _hash_array(digest: _Digest, array: np.ndarray[Any, Any]) -> None:
    digest.update(f"{array.dtype.str} {array.shape} ".encode())
    if array.dtype.hasobject:
        for part in array.ravel().tolist():
            _update(digest, part)
    elif array.size:
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def _hash_tensor(digest: _Digest, tensor: Any) -> None:
    import torch

    if tensor.layout is not torch.strided:
        entries = tensor.detach().to_sparse().coalesce()
        _update(digest, ["sparse", list(tensor.shape), entries.indices(), entries.values()])
        return
    flat = tensor.detach().cpu().contiguous().flatten()
    digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
    if len(flat):
        digest.update(flat.view(torch.uint8).numpy())


def _hash_network(digest: _Digest, network: Any) -> None:
    """Hash the layers of a network, their settings, and all parameters and buffers.

    The settings of a layer are what its `repr` shows and those of its attributes that are plain
    values. Code counts by its name: it is hashed with the module that defines it.
    """
    for name, layer in network.named_modules():
        is_frozen = network.training and not layer.training  # else it is trained as a whole
        plain = {k: v for k, v in vars(layer).items() if isinstance(v, _PLAIN) and k != "training"}
        _update(digest, [name, code_name(type(layer)), is_frozen, layer.extra_repr(), plain])
    _update(digest, {name: [p.requires_grad, p] for name, p in network.named_parameters()})
    _update(digest, dict(network.named_buffers()))


def _hash_arrow(digest: _Digest, table: Any) -> None:
    """Hash a PyArrow table: the bytes of its columns, regardless of metadata and chunks."""
    import pyarrow as pa

    plain = table.replace_schema_metadata(None).combine_chunks()
    digest.update(plain.schema.serialize())
    for batch in plain.to_batches(max_chunksize=_BATCH):
        # a copy, in which the bits after the last row are 0
        digest.update(batch.take(pa.array(np.arange(batch.num_rows))).serialize())


def _hash_table(digest: _Digest, table: Any) -> None:
    """Hash a table or column of pandas or Polars."""
    import pyarrow as pa

    frame = table.to_frame() if hasattr(table, "to_frame") else table
    is_polars = hasattr(frame, "to_arrow")
    arrow = frame.to_arrow() if is_polars else pa.Table.from_pandas(frame, preserve_index=False)
    _hash_arrow(digest, arrow)


def _hash_hugging_face(digest: _Digest, data: Any) -> None:
    for batch in data.with_format("arrow").iter(batch_size=_BATCH):
        _hash_arrow(digest, batch)


def _hash_samples(digest: _Digest, data: Any) -> None:
    """Hash a map-style PyTorch data set: its tensors, or one sample after another."""
    if type(data).__module__.startswith("torch.") and hasattr(data, "tensors"):
        _update(digest, list(data.tensors))  # a class derived from it may return anything
        return
    for i in range(len(data)):
        _update(digest, data[i])


_HASHERS: dict[str, Callable[[_Digest, Any], None]] = {
    "dict": _hash_mapping,
    "numpy.ndarray": _hash_array,
    "torch.Tensor": _hash_tensor,
    "torch.Module": _hash_network,
    "torch.Dataset": _hash_samples,
    "pyarrow.Table": _hash_arrow,
    "polars.DataFrame": _hash_table,
    "polars.Series": _hash_table,
    "pandas.DataFrame": _hash_table,
    "pandas.Series": _hash_table,
    "datasets.Dataset": _hash_hugging_face,
}
"""The function that hashes each type, by the library and the name of the class."""
