"""Tables from whatever holds them: arrays, data frames, data sets of other libraries, and files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from fedtide.content_hash import once
from fedtide.errors import InvalidInputError, did_you_mean, first_line
from fedtide.import_paths import import_object, is_import_path
from fedtide.problems.datasets.hub import load_from_hub, undecoded
from fedtide.problems.datasets.image_decoding import decode_cached, decode_images
from fedtide.text_files import DAMAGE, has_rows, read_header, split_suffix, unreadable
from fedtide.validation import expand_home

Ints = NDArray[np.int64]

_IMAGE_BYTES = "bytes"  # of the struct in which Hugging Face stores an image
_SUFFIXES = (".parquet", ".csv", ".tsv", ".csv.gz", ".tsv.gz")
_MISSING = pa.array(pyarrow.csv.ConvertOptions().null_values)  # such as "" and "NA"
_KINDS = (
    "a mapping of arrays, a pandas, Polars or PyArrow table, a Hugging Face or PyTorch data set, "
    "the path of a Parquet, CSV or TSV file, the import path of a function that returns one of "
    "these, hub:OWNER/NAME, or femnist, shakespeare or stackoverflow"
)


@dataclass(frozen=True, eq=False)
class Ragged:
    """Sequences of different lengths: row n is `values[offsets[n]:offsets[n + 1]]`.

    Args:
        values: the elements of all sequences, one after another, shape (m, ...).
        offsets: the boundaries between sequences, shape (n + 1,).

    >>> padded, mask = Ragged(np.array([5, 6, 7]), np.array([0, 1, 3])).pad()
    >>> padded.tolist(), mask.tolist()
    ([[5, 0], [6, 7]], [[True, False], [True, True]])
    """

    values: NDArray[Any]
    offsets: Ints

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def pad(self, length: int | None = None) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return the sequences filled with zeros to one length, (n, L, ...), and their mask.

        Args:
            length: L; None: that of the longest.
        """
        sizes = np.diff(self.offsets)
        longest = int(sizes.max()) if length is None else length
        mask = np.arange(longest) < sizes[:, None]
        padded = np.zeros((*mask.shape, *self.values.shape[1:]), self.values.dtype)
        padded[mask] = self.values
        return padded, mask


Column = NDArray[Any] | Ragged
"""One value per row, (n, ...): numbers, truth values, text (dtype object), uint8 images
(n, C, H, W), or sequences of different lengths."""


class Table:
    """Named columns of one length, each converted when it is first asked for.

    Args:
        read: for each column, a function that returns it.
        source: what the table is called in error messages.
        index: the names of the index of a pandas table, which is no column.
    """

    def __init__(
        self, read: Mapping[str, Callable[[], Column]], source: str, index: Sequence[str] = ()
    ) -> None:
        self._read, self._columns, self._source = dict(read), dict[str, Column](), source
        self._index = index

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self._read)

    def __contains__(self, name: str) -> bool:
        return name in self._read

    def column(self, field: str, name: str) -> Column:
        """Return a column.

        Args:
            field: the field that an error names.
            name: of the column.

        Raises:
            InvalidInputError: the column does not exist, lacks values, or holds something else
                than numbers, text, images or lists of numbers.
        """
        if name not in self._read:
            hint = did_you_mean(name, self.names)
            if name in self._index:
                hint = f"it is the index; give table.reset_index({name!r})"
            raise InvalidInputError(f"{field}: {self._source} has no column {name!r}; {hint}")
        if name not in self._columns:
            try:
                self._columns[name] = self._read[name]()
            except InvalidInputError as error:
                raise InvalidInputError(
                    f"{field}: column {name!r} of {self._source}: {error}"
                ) from None
        return self._columns[name]

    def require_rows(self, columns: Mapping[str, Iterable[str]]) -> int:
        """Return the number of rows.

        Args:
            columns: the names of the columns that are used, by the field that names them.

        Raises:
            InvalidInputError: a column does not exist, columns differ in length, or have no rows.
        """
        sizes = {
            name: len(self.column(field, name))
            for field, names in columns.items()
            for name in names
        }
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{name!r} has {size}" for name, size in sizes.items())
            raise InvalidInputError(
                f"{self._source}: the columns differ in length ({listed}); give one value per row"
            )
        if not any(sizes.values()):
            raise InvalidInputError(f"{self._source}: it has no rows; give at least one")
        return next(iter(sizes.values()))


def read_source(field: str, source: Any, order: Sequence[str], names: str | None = None) -> Table:
    """Return the table that `source` holds.

    Args:
        field: the field that an error names.
        source: a mapping of arrays or tensors, a structured array of NumPy, a Polars, pandas or
            PyArrow table, a Hugging Face `Dataset`, a map-style PyTorch `Dataset`, or text, see
            `_read_named`.
        order: the names of the elements where rows are tuples, as those of a PyTorch data set.
        names: the column that names clients, if there is one: in tuples it comes last and may be
            missing, and in text files it is read as it is written ("007" is not 7).

    Raises:
        InvalidInputError: something else, a file that cannot be read, or two columns of one name.

    >>> table = read_source("train", {"x": [[1.0], [2.0]], "y": ["a", "b"]}, order=())
    >>> table.column("inputs", "x").shape, table.require_rows({"inputs": ["x"], "target": ["y"]})
    ((2, 1), 2)
    """
    if isinstance(source, str):
        return _read_named(field, source, order, names)
    if isinstance(source, Path):
        return _read_file(field, source, names)
    if isinstance(source, Mapping):
        _refuse_several(field, source, [*order, *([] if names is None else [names])])
        return _table(source.items(), field)
    if isinstance(source, pl.LazyFrame):
        source = source.collect()
    if isinstance(source, pl.DataFrame):
        return _table(zip(source.columns, source.iter_columns(), strict=True), field)
    if isinstance(source, pa.Table):
        return _table(zip(source.column_names, source.columns, strict=True), field)
    if isinstance(source, np.ndarray) and source.dtype.names is not None:
        return _table(((name, source[name]) for name in source.dtype.names), field)
    if _is_pandas(source):
        index = [str(level) for level in source.index.names if level is not None]
        return _table(source.items(), field, index)
    library = type(source).__module__.partition(".")[0]
    if library == "datasets" and hasattr(source, "features") and hasattr(source, "__len__"):
        arrow = undecoded(source).with_format("arrow")[:]
        return _table(zip(arrow.column_names, arrow.columns, strict=True), field)
    if library != "pandas" and hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        columns = [*order, *([] if names is None else [names])]
        return _table(_collect_rows(field, source, columns, len(order)).items(), field)
    raise InvalidInputError(
        f"{field}: a {type(source).__name__} is not a table; give {_instead_of(source)}"
    )


def _instead_of(source: Any) -> str:
    """Return what to give instead of something that is no table."""
    if isinstance(source, torch.utils.data.DataLoader):
        return "its data set, loader.dataset, as fedtide draws the minibatches"
    if type(source).__module__.partition(".")[0] == "pandas":
        return "a DataFrame"
    if isinstance(source, Iterable):
        return "list(...) of it, which holds all samples in memory"
    return _KINDS


def split_files(field: str, folder: Path) -> list[Path]:
    """Return the files of a folder that hold training and, if there are any, test samples.

    Raises:
        InvalidInputError: the folder has no training samples.
    """
    found = [
        next((file for suffix in _SUFFIXES if (file := folder / f"{name}{suffix}").is_file()), None)
        for name in ("train", "test")
    ]
    if found[0] is None:
        raise InvalidInputError(
            f"{field}: the folder {str(folder)!r} has no train.parquet or train.csv; write one"
        )
    return [file for file in found if file is not None]


def _read_named(field: str, name: str, order: Sequence[str], names: str | None) -> Table:
    """Return the table that a text names.

    Args:
        field: the field that an error names.
        name: a natural data set, NAME or NAME:SPLIT with NAME in `NATURAL`; hub:OWNER/NAME or
            hub:OWNER/NAME:SPLIT on the Hugging Face hub; the path of a .parquet, .csv or .tsv file,
            the latter two also with .gz; or, if there is no such file, the import path of a
            function without arguments that returns any source. The split is "train" by default.
        order, names: see `read_source`.

    Raises:
        InvalidInputError: a file that cannot be read, a function that fails, or no connection.
    """
    from fedtide.problems.datasets.natural import NATURAL, load_natural

    head, _, split = name.partition(":")
    if head in NATURAL:
        return _table(load_natural(field, head, split or "train").items(), field)
    if head == "hub":
        data, _, split = split.partition(":")
        arrow = load_from_hub(field, data, split or "train", "give a file")
        return _table(zip(arrow.column_names, arrow.columns, strict=True), field)
    if is_import_path(name) and not Path(name).exists():
        return read_source(field, _call(field, name), order, names)
    return _read_file(field, Path(name), names)


def _call(field: str, path: str) -> Any:
    """Return what the function at an import path returns."""
    function = import_object(path, field)
    try:
        return once(("loaded", path), function)
    except InvalidInputError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise InvalidInputError(
            f"{field}: {path} fails without arguments ({first_line(error, with_type=True)}); it "
            f"must return {_KINDS}"
        ) from error


def _table(columns: Iterable[tuple[Any, Any]], source: str, index: Sequence[str] = ()) -> Table:
    named = [(str(name), value) for name, value in columns]
    _require_distinct(source, "the table", [name for name, _ in named])
    return Table({name: partial(to_column, value) for name, value in named}, source, index)


def _require_distinct(field: str, what: str, names: Sequence[str]) -> None:
    """Raise InvalidInputError if columns have the same name."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InvalidInputError(
            f"{field}: {what} has two columns called {twice[0]!r}; rename or remove one of them"
        )


def _is_pandas(value: Any) -> bool:
    """Return whether a value is a DataFrame of pandas, or of a library that extends it."""
    classes = ((cls.__module__.partition(".")[0], cls.__name__) for cls in type(value).__mro__)
    return ("pandas", "DataFrame") in classes


def _is_table(value: Any) -> bool:
    """Return whether a value is a data set by itself, and no column of one."""
    kinds = (pl.DataFrame, pl.LazyFrame, pa.Table, torch.utils.data.Dataset)
    return isinstance(value, kinds) or hasattr(value, "column_names") or _is_pandas(value)


def _refuse_several(field: str, source: Mapping[Any, Any], names: Sequence[str]) -> None:
    """Raise InvalidInputError if this is a mapping of data sets, of splits or of clients.

    Args:
        field: the field that an error names.
        source: the mapping.
        names: of the columns that are used; a column may be a table of numbers.
    """
    tables = [str(name) for name, value in source.items() if _is_table(value)]
    if not tables or len(tables) < len(source) or any(name in source for name in names):
        return
    listed = ", ".join(tables[:3]) + (", ..." if len(tables) > 3 else "")
    raise InvalidInputError(
        f"{field}: it holds several data sets ({listed}); give one, such as data[{tables[0]!r}], "
        "or, if each is that of a client, one table of all rows with a column of their clients"
    )


def _read_file(field: str, path: Path, names: str | None) -> Table:
    path = expand_home(path)
    if path.is_dir():
        raise InvalidInputError(f"{field}: {str(path)!r} is a folder; give the file in it")
    if not path.is_file():
        where = "" if path.is_absolute() else f" in the working directory {str(Path.cwd())!r}"
        raise InvalidInputError(f"{field}: no file {str(path)!r}{where}; give {_KINDS}")
    if not path.name.lower().endswith(_SUFFIXES):
        raise InvalidInputError(
            f"{field}: {str(path)!r} is neither a .parquet nor a .csv or .tsv file; give {_KINDS}"
        )
    status = path.stat()
    table = _read_arrow(field, path, names, status.st_size, status.st_mtime_ns)

    def reader(name: str, column: pa.ChunkedArray) -> Callable[[], Column]:
        return lambda: from_arrow(column, partial(decode_cached, path, name))

    columns = zip(table.column_names, table.columns, strict=True)
    return Table({name: reader(name, column) for name, column in columns}, str(path))


@lru_cache(maxsize=8)
def _read_arrow(field: str, path: Path, names: str | None, size: int, time: int) -> pa.Table:
    """Read a file; its size and modification time identify its version in this function's cache."""
    try:
        if split_suffix(path)[0] == ".parquet":
            with pq.ParquetFile(path) as file:
                table = file.read()
        else:
            table = _read_text(path, names)
    except DAMAGE as error:
        raise unreadable(field, path, error) from None
    _require_distinct(field, repr(str(path)), table.column_names)
    if not len(table):
        raise InvalidInputError(f"{field}: {str(path)!r} has no rows; give at least one")
    return table


def _read_text(path: Path, names: str | None) -> pa.Table:
    """Read delimited text, where what is empty is missing, and in numbers what says so, too.

    Raises:
        ValueError: a column that is not UTF-8, among other errors of `DAMAGE`.
    """
    header = read_header(path)
    if not has_rows(path, header):
        return pa.table([pa.nulls(0)] * len(header.names), names=header.names)
    with pa.input_stream(str(path), compression="gzip" if split_suffix(path)[1] else None) as file:
        table = pyarrow.csv.read_csv(
            file,
            pyarrow.csv.ReadOptions(column_names=header.names, skip_rows=header.lines),
            pyarrow.csv.ParseOptions(delimiter=header.separator),
            pyarrow.csv.ConvertOptions(
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                null_values=[""],
                column_types={} if names is None else {names: pa.string()},
            ),
        )
    for place, (name, column) in enumerate(zip(header.names, table.columns, strict=True)):
        if pa.types.is_binary(column.type):
            raise ValueError(f"column {name!r} is not UTF-8")
        if name == names:
            table = table.set_column(place, name, _parse_ids(column))
        elif pa.types.is_string(column.type):
            table = table.set_column(place, name, _parse_numbers(column, header.separator != ","))
    return table


def _parse_ids(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return text as whole numbers if all of it is written as such."""
    whole = pc.all(pc.match_substring_regex(column, r"^(0|-?[1-9][0-9]{0,17})$")).as_py()
    return column.cast(pa.int64()) if whole else column


def _parse_numbers(column: pa.ChunkedArray, decimal_comma: bool) -> pa.ChunkedArray:
    """Return text as numbers if all of it are numbers, or say that one is missing.

    Args:
        column: text.
        decimal_comma: whether numbers may have a comma instead of a point.
    """
    text = pc.if_else(pc.is_in(column, _MISSING), pa.scalar(None, pa.string()), column)
    if decimal_comma:
        text = pc.replace_substring(text, ",", ".")
    try:
        return column if text.null_count == len(text) else text.cast(pa.float64())
    except pa.ArrowInvalid:
        return column


def _collect_rows(field: str, data: Any, order: Sequence[str], least: int) -> dict[str, list[Any]]:
    """Return the columns of a map-style data set whose items are mappings or tuples.

    Args:
        field: the field that an error names.
        data: the data set.
        order: the names of the parts of a tuple.
        least: how many of these parts a tuple has at least.
    """
    items: Iterator[Any] = (data[row] for row in range(len(data)))
    columns: dict[str, list[Any]] = {}
    for row, item in enumerate(items):
        if not isinstance(item, Mapping):
            parts = item if isinstance(item, tuple | list) else (item,)
            if not least <= len(parts) <= len(order):
                if row == 0:
                    _refuse_parts(field, data, order)
                raise InvalidInputError(
                    f"{field}: item {row} has {len(parts)} parts for the columns "
                    f"{', '.join(order)}; name as many inputs and targets as it has parts"
                )
            item = dict(zip(order, parts, strict=False))
        for name, value in item.items():
            columns.setdefault(str(name), []).append(
                value.numpy(force=True) if isinstance(value, torch.Tensor) else value
            )
    return columns


def _refuse_parts(field: str, data: Any, order: Sequence[str]) -> None:
    """Raise InvalidInputError if this is no list of samples, but one of columns or of data sets.

    Args:
        field: the field that an error names.
        data: a map-style data set whose first item does not fit the columns.
        order: the names of the columns.
    """
    if not isinstance(data, list | tuple):
        return
    if all(map(_is_table, data)):
        raise InvalidInputError(
            f"{field}: it is a {type(data).__name__} of {len(data)} data sets; give one table of "
            "all rows with a column of their clients, as "
            "[{'x': x, 'y': y, 'client': n} for n, part in enumerate(parts) for x, y in part]"
        )
    if len(data) <= len(order) and all(getattr(part, "ndim", 0) for part in data):
        named = ", ".join(f"{name!r}: ..." for name in order[: len(data)])
        raise InvalidInputError(
            f"{field}: it is a {type(data).__name__} of {len(data)} arrays, which would be "
            f"{len(data)} samples; if they are columns, name them: {{{named}}}"
        )


def _join_columns(columns: Iterable[tuple[Any, Any]]) -> NDArray[Any]:
    """Return columns of numbers, one per row each, side by side, (n, columns)."""
    parts = []
    for name, values in columns:
        try:
            part = to_column(values)
        except InvalidInputError as error:
            raise InvalidInputError(f"its column {name!r}: {error}") from None
        if isinstance(part, Ragged) or part.ndim > 1 or part.dtype == object:
            raise InvalidInputError(
                f"its column {name!r} does not hold one number per row; leave that out"
            )
        parts.append(part)
    if not parts:
        raise InvalidInputError("it is a table without columns")
    return np.stack(parts, axis=1)


def to_column(value: Any) -> Column:
    """Return a column from an array, a tensor, a list, a column or a table of numbers.

    Raises:
        InvalidInputError: missing values, or values of a type that no network can use.
    """
    if hasattr(value, "toarray") or getattr(value, "layout", torch.strided) is not torch.strided:
        dense = "to_dense" if isinstance(value, torch.Tensor) else "toarray"
        raise InvalidInputError(f"it is sparse; give a dense array, such as its .{dense}()")
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = value.float() if value.dtype == torch.bfloat16 else value
        value = value.resolve_conj().resolve_neg().numpy()
    if isinstance(value, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(value)
        if mask.ndim and mask.any():
            missing = mask.reshape(len(mask), -1).any(1)
            raise _missing(int(missing.sum()), len(mask), int(missing.argmax()))
        value = value.data
    if _is_pandas(value):
        return _join_columns(value.items())
    if isinstance(value, pl.DataFrame):
        return _join_columns(zip(value.columns, value.iter_columns(), strict=True))
    if isinstance(value, pl.Series):
        try:
            value = value.to_arrow()
        except (pa.ArrowException, pl.exceptions.PolarsError):  # 128 bits, or Python objects
            raise _no_numbers(value.dtype) from None
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return from_arrow(value)
    if type(value).__module__.partition(".")[0] == "pandas":
        return _from_objects(value, from_pandas=True)
    if not isinstance(value, np.ndarray):
        value = _stack(value)
    if isinstance(value, np.ndarray) and value.ndim and value.dtype.kind in "biuf":
        return value
    return _from_objects(value)


def _stack(value: Any) -> Any:
    """Return a list as an array if its elements have one shape."""
    try:
        stacked = np.asarray(value)
    except ValueError:  # of different lengths
        return value
    return value if stacked.dtype.kind in "OSU" else stacked


def _from_objects(values: Any, from_pandas: bool = False) -> Column:
    """Return a column from text, or from lists or arrays in the cells of a table."""
    try:
        return from_arrow(pa.array(values, from_pandas=from_pandas))
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, InvalidInputError):
            raise
        if isinstance(error, OverflowError):
            raise InvalidInputError(
                "its whole numbers need more than 64 bits; give text, or floating-point numbers"
            ) from None
        kinds: set[str] = set()
        try:  # PyArrow does not take arrays of several dimensions in cells
            kinds = {type(cell).__name__ for cell in values}
            arrays = [np.asarray(cell) for cell in values]
        except (TypeError, ValueError):
            arrays = []
        if (joined := _join_arrays(arrays)) is not None:
            return joined
        if len(kinds) > 1:
            raise InvalidInputError(
                f"its values are of different types ({', '.join(sorted(kinds))}); convert them to "
                "numbers or to text"
            ) from None
        raise InvalidInputError(
            f"it is not an array ({first_line(error, 100)}); give numbers, text, images, or "
            "lists of numbers"
        ) from None


def _join_arrays(arrays: Sequence[NDArray[Any]]) -> Column | None:
    """Return arrays of numbers, one a row, as a column; None: they hold or are something else.

    Arrays of up to two dimensions that differ in length are sequences.
    """
    if not arrays or any(array.dtype.kind not in "biuf" for array in arrays):
        return None
    if len({array.shape for array in arrays}) == 1:
        return np.stack(arrays)
    if len({array.shape[1:] for array in arrays}) > 1 or not 1 <= arrays[0].ndim <= 2:
        return None
    sizes = [len(array) for array in arrays]
    if not min(sizes):
        raise _empty_list(sizes.index(0))
    return Ragged(np.concatenate(arrays), np.concatenate([[0], np.cumsum(sizes)]))


def _empty_list(row: int) -> InvalidInputError:
    """Return the error about a row whose sequence has no elements."""
    return InvalidInputError(f"the list in row {row} is empty; remove the row")


def from_arrow(
    values: pa.Array | pa.ChunkedArray, cache: Callable[[Any], Any] = lambda decode: decode()
) -> Column:
    """Return an Arrow column.

    Args:
        values: numbers, text, encoded images (bytes, or a struct with `bytes`), or (nested) lists.
        cache: wraps the decoding of images, which is slow.

    Raises:
        InvalidInputError: missing values, or another type.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    kind = values.type
    if values.null_count:
        raise _missing(values.null_count, len(values), values.is_null().index(True).as_py())
    if pa.types.is_dictionary(kind):
        return from_arrow(values.dictionary_decode(), cache)
    if pa.types.is_struct(kind) and kind.get_field_index(_IMAGE_BYTES) >= 0:
        return from_arrow(values.field(_IMAGE_BYTES), cache)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return np.asarray(cache(lambda: decode_images(values.to_pylist())))
    if pa.types.is_decimal(kind):
        values, kind = values.cast(pa.float64()), pa.float64()
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.array(values.to_numpy(zero_copy_only=False))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view():
        return np.array(values.to_pylist(), dtype=object)
    if pa.types.is_fixed_size_list(kind):
        return _reshape(values.flatten(), len(values), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _from_lists(values)
    raise _no_numbers(kind)


def _missing(count: int, rows: int, first: int) -> InvalidInputError:
    """Return the error about a column that lacks values."""
    return InvalidInputError(
        f"{count} of {rows} values are missing (the first in row {first}); fill them in or remove "
        "the rows"
    )


def _no_numbers(kind: object) -> InvalidInputError:
    """Return the error about a column of this type."""
    return InvalidInputError(
        f"its type {kind} is not numeric; give numbers, text, images, or lists of numbers"
    )


def _reshape(values: pa.Array, rows: int, length: int) -> NDArray[Any]:
    """Return flattened lists of one length as an array (n, L, ...)."""
    inner = from_arrow(values)
    if isinstance(inner, Ragged):
        raise InvalidInputError("its lists are of different lengths on two levels; pad the inner")
    return inner.reshape(rows, length, *inner.shape[1:])


def _from_lists(values: pa.Array) -> Column:
    """Return lists as an array if they are of one length, and as sequences otherwise."""
    sizes = pc.list_value_length(values).to_numpy().astype(np.int64)
    if len(sizes) and not sizes.min():
        raise _empty_list(int(sizes.argmin()))
    if len(sizes) == 0 or sizes.min() == sizes.max():
        return _reshape(values.flatten(), len(values), int(sizes.max(initial=0)))
    inner = from_arrow(values.flatten())
    if isinstance(inner, Ragged):
        raise InvalidInputError("its lists are of different lengths on two levels; pad the inner")
    return Ragged(inner, np.concatenate([[0], np.cumsum(sizes)]))
