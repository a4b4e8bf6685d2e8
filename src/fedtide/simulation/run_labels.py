"""What runs are called: a name, and the fields in which runs of that name differ."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from os.path import commonprefix
from typing import Any

from fedtide.simulation.experiment_files import flatten
from fedtide.spec import without_addresses

_MOST = 40  # characters of a value
_IMPORT_PATH = re.compile(r"[\w.]+:(?=[^\W\d]\w*$)")


def list_fields(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of each field by its dotted name; that of a part is its type.

    >>> list_fields({"algorithm": {"type": "fedau", "cutoff": 50}, "local": {"lr": 0.1}})
    {'algorithm': 'fedau', 'algorithm.cutoff': 50, 'local.lr': 0.1}
    """
    return {name.removesuffix(".type"): value for name, value in flatten(plain)}


def show_value(value: Any) -> str:
    """Return a value as text; of an import path, what it imports.

    >>> show_value(0.1 + 0.2), show_value(None), show_value("my.methods:Mine")
    ('0.3', 'none', 'Mine')
    """
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value).lower() if value is None or isinstance(value, bool) else str(value)
    return _IMPORT_PATH.sub("", without_addresses(text))


def label_method(plain: Mapping[str, Any]) -> str:
    """Return the type of an experiment's algorithm, by which it goes if no other is shown."""
    return show_value(list_fields(plain)["algorithm"])


def label_runs(names: Sequence[str], fields: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return each name, followed by the fields in which things of that name differ.

    Fields of a part, such as a method's, are compared only where it has the same type. A field goes
    by the end of its name if no other one that is shown ends like that.

    >>> runs = [{"algorithm": "fedau", "algorithm.cutoff": k, "lr": 0.1} for k in (5, 50)]
    >>> label_runs(["fedau", "fedau", "mifa"], [*runs, {"algorithm": "mifa", "lr": 0.2}])
    ['fedau, cutoff 5', 'fedau, cutoff 50', 'mifa']
    """
    shown: dict[str, dict[int, str]] = {}
    for field in dict.fromkeys(field for one in fields for field in one):
        parts = field.split(".")
        above = [".".join(parts[:end]) for end in range(1, len(parts))]
        alike: dict[str, dict[int, str]] = {}
        for i, one in enumerate(fields):
            if field in one:
                key = str([names[i], *(show_value(one.get(part)) for part in above)])
                alike.setdefault(key, {})[i] = show_value(one[field])
        for values in alike.values():
            if len({*values.values()}) > 1:
                shown.setdefault(field, {}).update(abbreviate(values))
    short = dict(zip(shown, _shortest_ends([*shown]), strict=True))
    return [
        ", ".join([name, *(f"{short[f]} {of[i]}" for f, of in shown.items() if i in of)])
        for i, name in enumerate(names)
    ]


def _shortest_ends(fields: Sequence[str]) -> list[str]:
    """Return the shortest end of each dotted name that no other one has.

    >>> _shortest_ends(["local.lr", "problem.alpha", "participation.rates.alpha"])
    ['lr', 'problem.alpha', 'rates.alpha']
    """
    ends = [[name.split(".", k)[-1] for k in range(name.count("."), -1, -1)] for name in fields]
    used = [end for of in ends for end in of]
    return [next((end for end in of if used.count(end) == 1), of[-1]) for of in ends]


def abbreviate(values: Mapping[int, str], most: int = _MOST) -> dict[int, str]:
    """Shorten texts to about `most` characters each, from shortly before where they differ.

    >>> abbreviate({0: "aaaaaaaaab", 1: "aaaaaaaaac", 2: "a"}, 6)
    {0: '…aab', 1: '…aac', 2: 'a'}
    """
    long = [value for value in values.values() if len(value) > most]
    common = len(commonprefix(long)) if len(set(long)) > 1 else 0  # noqa: RUF071 - characters
    begin = max(0, common - most // 2 + 1)
    return {
        i: value
        if len(value) <= most
        else "…" * (begin > 0) + value[begin : begin + most - 2] + "…" * (begin + most < len(value))
        for i, value in values.items()
    }
