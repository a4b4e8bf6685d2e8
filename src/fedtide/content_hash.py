"""SHA-256 of the content of files, arrays, tables, data sets and networks.

The libraries whose objects are hashed are not imported: objects are recognised by the names of
their classes.
"""

from __future__ import annotations

import datetime
import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Protocol, TypeVar
from weakref import ReferenceType

import numpy as np

from fedtide.errors import InvalidInputError, first_line
from fedtide.import_paths import import_path_of

T = TypeVar("T")

_BATCH = 10_000  # rows of a data set that are hashed together
_PLAIN = (type(None), str, bytes, int, float, complex, np.generic, Path, Decimal)
_TIMES = (datetime.date, datetime.time, datetime.timedelta)


class _Digest(Protocol):
    def update(self, data: Any, /) -> None: ...


class _Known:
    """The fingerprints of objects, by id, and the results of `once`, by key."""

    def __init__(self, outer: _Known | None = None) -> None:
        self.objects: dict[int, tuple[Any, str]] = {} if outer is None else {**outer.objects}
        self.results: list[tuple[Any, Any]] = [] if outer is None else outer.results
        self.call: object = object() if outer is None else outer.call


_known: ContextVar[_Known | None] = ContextVar("known", default=None)


@contextmanager
def hash_once() -> Iterator[None]:
    """Hash no object twice in this context, during which data and code must not change.

    The outer one of two nested contexts does not keep alive what is hashed in the inner one.
    """
    token = _known.set(_Known(_known.get()))
    try:
        yield
    finally:
        _known.reset(token)


def once(key: Any, compute: Callable[[], T]) -> T:
    """Return `compute()`, which is called only once for equal keys within `hash_once`."""
    known = _known.get()
    results = [] if known is None else known.results
    for earlier, result in results:
        if earlier == key:
            return result  # type: ignore[no-any-return]
    results.append((key, compute()))
    return results[-1][1]  # type: ignore[no-any-return]


def this_call() -> object:
    """Return an object that identifies the outermost `hash_once` context; None outside of any."""
    known = _known.get()
    return None if known is None else known.call


def is_data(thing: Any) -> bool:
    """Return whether this is an array, table, data set or network, or a mapping of columns.

    >>> is_data(np.zeros(3)), is_data({"x": np.zeros(3), "y": [0, 1, 1]}), is_data([0, 1, 1])
    (True, True, False)
    """
    return _hasher(thing) is not None


def fingerprint(thing: Any) -> str:
    """Return the SHA-256 of data: 64 hexadecimal digits, equal if names, types and values are.

    Raises:
        InvalidInputError: data of this type cannot be hashed.

    >>> fingerprint(np.zeros(3)) == fingerprint(np.zeros(3)), fingerprint(np.zeros(3))[:8]
    (True, '9ae54aa3')
    """
    known = _known.get()
    if known is not None and id(thing) in known.objects:
        return known.objects[id(thing)][1]
    digest = hashlib.sha256()
    _update(digest, thing)
    value = digest.hexdigest()
    if known is not None:
        known.objects[id(thing)] = thing, value
    return value


def describe(thing: Any) -> dict[str, Any] | None:
    """Return the description of data given in memory for an experiment file, or None.

    It is None for anything but data, and for single arrays and tensors, whose values a file holds.

    >>> describe({"x": np.zeros(3), "y": [0, 1, 1]})["in_memory"]
    'dict'
    """
    name = _data_type(thing)
    if name in (None, "numpy.ndarray", "torch.Tensor"):
        return None
    about: dict[str, Any] = {"in_memory": name}
    if name == "torch.Module":
        about |= {"in_memory": _code_name(type(thing)), "structure": str(thing)}
    else:
        about["rows"] = _count_rows(next(iter(thing.values())) if name == "dict" else thing)
    return about | {"sha256": fingerprint(thing)}


def hash_file(path: str | Path) -> str:
    """Return the SHA-256 of a file, which is read once per process unless it changes."""
    status = Path(path).stat()
    return _hash_version(Path(path).resolve(), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=256)
def _hash_version(path: Path, size: int, time: int) -> str:
    """Return the SHA-256 of a file; its size and modification time identify its version."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _data_type(thing: Any) -> str | None:
    """Return the key of `_HASHERS` for this object if it is data."""
    if isinstance(thing, Mapping):
        return "dict" if _has_columns(thing) else None
    cls: Any = type(thing)  # mypy considers classes unhashable
    return _class_key(cls)


@lru_cache(maxsize=512)
def _class_key(cls: type[object]) -> str | None:
    names = (f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in cls.__mro__)
    return next((name for name in names if name in _HASHERS), None)


def _has_columns(thing: Mapping[Any, Any]) -> bool:
    """Return whether a mapping holds columns of equal length, one of them an array."""
    columns = list(thing.values())
    if not any(_data_type(column) for column in columns):
        return False
    try:
        return len({len(column) for column in columns}) == 1
    except TypeError:  # a number, or an array without dimensions
        return False


def _hasher(thing: Any) -> Callable[[_Digest, Any], None] | None:
    name = _data_type(thing)
    return None if name is None else _HASHERS[name]


def _count_rows(thing: Any) -> int:
    try:
        return len(thing)
    except TypeError:
        raise InvalidInputError(
            f"out: a {type(thing).__name__} object has no length; give a data set that has one"
        ) from None


def _update(digest: _Digest, value: Any) -> None:
    """Add a value to the digest, with its type and size."""
    hasher = _hasher(value)
    digest.update(f"<{_data_type(value) or type(value).__name__}>".encode())
    if hasher is not None:
        hasher(digest, value)
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


def _hash_module(digest: _Digest, module: Any) -> None:
    """Hash a network: its parameters, buffers and attributes, and which parameters are trained."""
    _hash_part(digest, module, ())
    trained = [name for name, p in module.named_parameters() if p.requires_grad]
    _update(digest, {"state": dict(module.state_dict()), "trained": trained})
    frozen = [name for name, layer in module.named_modules() if not layer.training]
    if module.training and frozen:  # a network that is in evaluation mode as a whole is trained
        _update(digest, {"evaluating": frozen})


def _hash_part(digest: _Digest, part: Any, around: tuple[Any, ...]) -> None:
    """Add what a network holds to the digest, like `_update`; other objects as pickle stores them.

    Args:
        digest: the digest.
        part: the network, or a part of it.
        around: what contains the part, from the outside in; a part may contain itself.
    """
    inside = (*around, part)
    name = _data_type(part)
    if any(part is one for one in around):
        digest.update(f"<within {next(i for i, p in enumerate(around) if p is part)}>".encode())
    elif name == "torch.Module":
        digest.update(f"<{name} {_code_name(type(part))}>".encode())
        _hash_part(digest, _attributes(part), inside)
    elif name not in (None, "dict") or isinstance(part, _PLAIN + _TIMES):
        _update(digest, part)
    elif isinstance(part, Mapping | list | tuple | set | frozenset):
        digest.update(f"<{type(part).__name__} {len(part)}>".encode())
        parts = part.items() if isinstance(part, Mapping) else part
        for one in sorted(parts, key=repr) if isinstance(part, set | frozenset) else parts:
            _hash_part(digest, one, inside)
    elif isinstance(part, ReferenceType):  # as recurrent layers have of their parameters
        _hash_part(digest, part(), inside)
    elif isinstance(part, type | FunctionType):
        digest.update(f"<{_code_name(part)}>".encode())
    elif isinstance(part, ModuleType):
        digest.update(f"<{part.__name__}>".encode())
    else:
        digest.update(b"<object>")
        _hash_part(digest, _reduce(part), inside)


def _attributes(module: Any) -> dict[str, Any]:
    """Return a network's own attributes, its parts, and the functions of its hooks."""
    import torch

    found = {k: v for k, v in vars(module).items() if k not in ("training", "_parameters")}
    for name in vars(torch.nn.Module()):
        if "hooks" in name and name in found:
            hooks = found.pop(name)  # keys are numbers that differ between equal networks
            found |= {name: list(hooks.values())} if hooks else {}
    return found


def _code_name(thing: Any) -> str:
    """Return the module and the name of a class or function.

    Raises:
        InvalidInputError: these do not identify it, or its code is not in any file.
    """
    module, name = thing.__module__.replace("__mp_main__", "__main__"), thing.__qualname__
    interactive = module == "__main__" and not hasattr(sys.modules["__main__"], "__file__")
    local = "<" in name and not module.startswith("torch.")  # a lambda, or what a function defines
    if local or interactive:
        return import_path_of(thing)
    return f"{module}:{name}"


def _reduce(thing: Any) -> Any:
    """Return what pickle stores of an object: its name, or how and from what to rebuild it."""
    try:
        stored = thing.__reduce_ex__(2)
    except Exception:  # a lock, a file, or an error in its own method
        raise InvalidInputError(
            f"out: a {type(thing).__name__} object in a network has no fingerprint; leave it out, "
            "or run without a folder"
        ) from None
    if isinstance(stored, str):
        return stored
    return [list(part) if isinstance(part, Iterator) else part for part in stored]


def _hash_arrow(digest: _Digest, table: Any) -> None:
    """Hash a PyArrow table: the bytes of its columns, regardless of metadata and chunks."""
    import pyarrow as pa

    plain = table.replace_schema_metadata(None).combine_chunks()
    with pa.ipc.new_stream(pa.PythonFile(_Sink(digest), mode="w"), plain.schema) as writer:
        for batch in plain.to_batches(max_chunksize=_BATCH):
            # a copy, in which the bits after the last row are 0
            writer.write_batch(batch.take(pa.array(np.arange(batch.num_rows))))


def _hash_pandas(digest: _Digest, frame: Any) -> None:
    import pyarrow as pa

    _hash_converted(digest, lambda: pa.Table.from_pandas(frame, preserve_index=False))


def _hash_polars(digest: _Digest, frame: Any) -> None:
    def to_arrow() -> Any:
        if "Object" in map(str, frame.dtypes):  # Arrow stores them as addresses
            raise TypeError("a column of Python objects")
        return frame.to_arrow()

    _hash_converted(digest, to_arrow)


def _hash_converted(digest: _Digest, to_arrow: Callable[[], Any]) -> None:
    try:
        table = to_arrow()
    except Exception as error:  # a column of mixed types
        raise InvalidInputError(
            f"out: a table has no fingerprint ({first_line(error, 120)}); give each column one "
            "type, or run without a folder"
        ) from None
    _hash_arrow(digest, table)


def _hash_hugging_face(digest: _Digest, data: Any) -> None:
    for batch in data.with_format("arrow").iter(batch_size=_BATCH):
        _hash_arrow(digest, batch)


def _hash_samples(digest: _Digest, data: Any) -> None:
    """Hash a map-style PyTorch data set: its tensors, or one sample after another."""
    if type(data).__module__.startswith("torch.") and hasattr(data, "tensors"):
        _update(digest, list(data.tensors))  # a class derived from it may return anything
        return
    for i in range(_count_rows(data)):
        _update(digest, data[i])


class _Sink:
    """A file-like object that feeds what is written to a digest."""

    closed = False

    def __init__(self, digest: _Digest) -> None:
        self._digest = digest

    def write(self, data: Any) -> int:
        self._digest.update(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing, as nothing is buffered."""

    def close(self) -> None:
        """Do nothing, as the digest stays open."""


_HASHERS: dict[str, Callable[[_Digest, Any], None]] = {
    "dict": _hash_mapping,
    "numpy.ndarray": _hash_array,
    "torch.Tensor": _hash_tensor,
    "torch.Module": _hash_module,
    "torch.Dataset": _hash_samples,
    "pyarrow.Table": _hash_arrow,
    "polars.DataFrame": _hash_polars,
    "polars.Series": lambda digest, series: _hash_polars(digest, series.to_frame()),
    "pandas.DataFrame": _hash_pandas,
    "pandas.Series": lambda digest, series: _hash_pandas(digest, series.to_frame()),
    "datasets.Dataset": _hash_hugging_face,
}
"""The function that hashes each type, by the library and the name of the class."""
