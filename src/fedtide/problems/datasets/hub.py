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
        hint: what to do instead of going online, as an imperative.

    Raises:
        InvalidInputError: the hub is not reached, or has no such data set or split.
    """
    from datasets import load_dataset

    try:
        data = load_dataset(name, split=split)
    except Exception as error:  # of any of the libraries below
        raise InvalidInputError(
            f"{field}: {name!r}, split {split!r}, cannot be loaded from the Hugging Face hub "
            f"({first_line(error, 100, with_type=True)}); go online, or {hint}"
        ) from error
    return undecoded(data).with_format("arrow")[:]


def undecoded(data: Any) -> Any:
    """Return a Hugging Face data set whose images stay encoded."""
    from datasets import Image

    for column, feature in data.features.items():
        if isinstance(feature, Image):
            data = data.cast_column(column, Image(decode=False))
    return data
