"""The fields in which two experiments differ."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields
from typing import Any

from fedtide.configurable import field_types
from fedtide.errors import InvalidInputError
from fedtide.simulation.experiment import BUILDER, Experiment


def list_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys in which two experiments, as plain data, differ, with both values.

    A field that is missing because an earlier version wrote the experiment has its default.
    """
    return _compare(_complete(before), _complete(now))


def _complete(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return an experiment written by an earlier version, with the defaults of later fields.

    What cannot be built, such as data that were in memory, stays as it is.
    """
    completed = {}
    for known in fields(Experiment):
        if known.default is not MISSING:
            completed[known.name] = BUILDER.to_dict(known.default)
        elif known.default_factory is not MISSING:
            completed[known.name] = BUILDER.to_dict(known.default_factory())
    types = field_types(Experiment)
    for key, value in plain.items():
        completed[key] = value
        if key in types:
            with suppress(InvalidInputError):
                completed[key] = BUILDER.to_dict(BUILDER.build(types[key], value, key))
    return completed


def _compare(old: Any, new: Any, path: str = "") -> list[str]:
    """Return the dotted keys in which two pieces of plain data differ, with both values.

    >>> _compare({"rounds": 5, "local": {"lr": 0.1}}, {"rounds": 6, "local": {"lr": 0.1}})
    ['rounds (was 5, is 6)']
    """
    if isinstance(old, dict) and isinstance(new, dict):
        if old.get("in_memory") and old.get("in_memory") == new.get("in_memory"):
            drawn = "; new layers draw new weights: use torch.manual_seed, or give the class"
            hint = drawn if "structure" in old and old["structure"] == new["structure"] else ""
            return [] if old == new else [f"{path} (other content than in the folder{hint})"]
        keys = list(dict.fromkeys([*old, *new]))
        return [
            line
            for key in keys
            for line in _compare(old.get(key), new.get(key), f"{path}.{key}" if path else key)
        ]
    return [] if old == new else [f"{path} (was {old!r:.40}, is {new!r:.40})"]
