"""JSON text in one canonical form, by which equal plain data are recognised."""

from __future__ import annotations

import json
from typing import Any


def canonical_json(value: Any) -> str:
    """Return the same text for data that differ only in the order of keys; 7 and "7" are one key.

    >>> canonical_json({"rates": {7: 0.1, "ann": 0.2}})
    '{"rates": {"7": 0.1, "ann": 0.2}}'
    """
    with_text_keys = json.loads(json.dumps(value, default=str))
    return json.dumps(with_text_keys, sort_keys=True)
