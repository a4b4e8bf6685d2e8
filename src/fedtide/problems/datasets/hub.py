"""Tables from the Hugging Face hub."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pyarrow as pa

from fedtide.errors import InvalidInputError, first_line


@lru_cache(maxsize=2)
def load_from_hub(field: str, name: str, split: str, hint: str) -> pa.Table:
    """Return a split of a data set on the hub, or of its cached copy; images stay encoded.

    Args:
        field: the field that an error names.
        name: OWNER/NAME.
        split: such as "train".
        hint: what to do instead of going online, in the imperative.

    Raises:
        InvalidInputError: the hub cannot be reached, or has no such data set or split.
    """
    from datasets import load_dataset

    try:
        data = load_dataset(name, split=split)
    except Exception as error:  # of any of the libraries below
        raise InvalidInputError(
            f"{field}: {name!r}, split {split!r}, cannot be loaded from the Hugging Face hub "
            f"({first_line(error, 100, with_type=True)}); go online, or {hint}"
        ) from error
    return to_arrow(field, data)


def to_arrow(field: str, data: Any) -> pa.Table:
    """Return a Hugging Face data set as a table that holds all images, encoded.

    Args:
        field: the field that an error names.
        data: the data set, which may hold the paths of image files.

    Raises:
        InvalidInputError: a file cannot be read.
    """
    from datasets.table import embed_table_storage

    try:
        return embed_table_storage(data.with_format("arrow")[:])
    except OSError as error:
        raise InvalidInputError(
            f"{field}: a file of the data set cannot be read ({first_line(error)}); correct its "
            "path"
        ) from error
