"""Records of published runs: small results with all their settings, in one Parquet file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

import polars as pl
from polars.exceptions import PolarsError

from fedtide.atomic_io import make_folder, write_atomically
from fedtide.errors import InvalidInputError
from fedtide.locking import lock_folder

RecordT = TypeVar("RecordT")

_PATIENCE = 60.0  # seconds that another process may take to write its records
_PLAIN = ("str", "int", "float", "str | None", "int | None", "float | None")


class Records(Generic[RecordT]):
    """A Parquet file with a row for each record, found by its key.

    A record is a dataclass of plain data, and each of its fields a column: numbers and text as they
    are, lists and mappings as JSON text, with all digits. Rows are sorted by their keys, so equal
    records make equal files.

    Args:
        file: the file, which need not exist.
        kind: the class of the records.
        key: the fields that identify a record.
    """

    def __init__(self, file: Path, kind: type[RecordT], key: Sequence[str]) -> None:
        self.file, self._kind, self._key = file, kind, key
        self._plain = {f.name for f in fields(kind) if f.type in _PLAIN}  # type: ignore[arg-type]

    def read(self) -> list[RecordT]:
        """Return all records, sorted by their keys; none if there is no file.

        Raises:
            InvalidInputError: the file does not hold such records.
        """
        if not self.file.exists():
            return []
        try:
            rows = pl.read_parquet(self.file, glob=False).iter_rows(named=True)
            return [self._from_row(row) for row in rows]
        except (OSError, ValueError, TypeError, PolarsError) as error:
            raise InvalidInputError(
                f"records: {self.file} does not hold records of runs ({type(error).__name__}); "
                "give another place"
            ) from None

    def add(self, records: Iterable[RecordT]) -> None:
        """Write records, in place of those with the same keys.

        Raises:
            InvalidInputError: the file does not hold such records, or cannot be written.
        """
        make_folder(self.file.parent, field="records")
        with lock_folder(self.file.parent, "records", "wait until it has ended", _PATIENCE):
            known = {self._place(record): record for record in self.read()}
            known |= {self._place(record): record for record in records}
            rows = [self._to_row(known[place]) for place in sorted(known)]
            frame = pl.DataFrame(rows, infer_schema_length=None)
            write_atomically(
                self.file,
                lambda draft: frame.write_parquet(draft, compression="zstd", compression_level=19),
                "records",
            )

    def _place(self, record: RecordT) -> tuple[Any, ...]:
        return tuple(getattr(record, name) for name in self._key)

    def _to_row(self, record: RecordT) -> dict[str, Any]:
        plain = asdict(record)  # type: ignore[call-overload]
        return {
            name: value if name in self._plain else json.dumps(value, ensure_ascii=False)
            for name, value in plain.items()
        }

    def _from_row(self, row: dict[str, Any]) -> RecordT:
        return self._kind(
            **{
                name: value if name in self._plain else json.loads(value)
                for name, value in row.items()
            }
        )


def record_text(record: Any) -> str:
    """Return a record as JSON, with a line for each field."""
    lines = (
        f" {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in asdict(record).items()
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"
