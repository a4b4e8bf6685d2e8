"""Groups runs by method and problem, and names the groups by what tells them apart."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from os.path import commonprefix
from typing import Any

from fedtide.report.loading import LoadedRun
from fedtide.simulation.experiment_files import flatten
from fedtide.spec import canonical, without_addresses

Groups = Mapping[str, Sequence[LoadedRun]]
"""The runs of each method, one per seed."""

_MAX_VALUE_LENGTH = 60  # characters of a value in a method's label
_MAX_FIELDS = 3  # in a method's label


def group_by_method(runs: Iterable[LoadedRun]) -> dict[str, list[LoadedRun]]:
    """Return the runs of each method, one per seed, in the order in which the methods appear.

    Runs belong to one method if they differ only in the seed and in how they were executed, and
    used the same data and code. Methods with the same name are told apart by the fields in which
    they differ. The name of a method whose runs are under way says how far they have got.
    """
    groups: dict[str, dict[int, LoadedRun]] = {}
    for run in runs:
        groups.setdefault(run.identity, {}).setdefault(run.experiment["seed"], run)
    distinct = [list(group.values()) for group in groups.values()]
    labels = _labels([group[0] for group in distinct])
    labels = [label + _how_far(group) for label, group in zip(labels, distinct, strict=True)]
    return dict(zip(labels, distinct, strict=True))


def split_by_problem(runs: Iterable[LoadedRun]) -> list[tuple[str, list[LoadedRun]]]:
    """Return the runs of each problem with its name, in the order in which they appear.

    Losses and accuracies of different problems, or objectives, are not comparable.
    """
    groups: dict[str, list[LoadedRun]] = {}
    for run in runs:
        key = canonical(_describe_problem(run))
        groups.setdefault(key, []).append(run)
    names = _name_problems([_describe_problem(group[0]) for group in groups.values()])
    return list(zip(names, groups.values(), strict=True))


def _describe_problem(run: LoadedRun) -> dict[str, Any]:
    """Return the problem and its objective as plain data.

    What these cannot describe is represented by its name: it may differ only because it was
    created again for each run.
    """
    problem = json.loads(without_addresses(json.dumps(run.experiment["problem"], default=str)))
    if not isinstance(problem, Mapping):
        problem = {"type": problem}
    return {"problem": problem, "objective": run.experiment.get("objective")}


def _name_problems(problems: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return each problem's data set or type, with up to four fields in which they differ."""
    flat = flatten_alike(problems)
    kind = ("problem.dataset", "problem.type")
    fields = [field for field in differing_fields(flat) if field not in kind][:4]
    shown = {f: abbreviate([str(one.get(f)) for one in flat], 30) for f in fields}
    names = []
    for i, one in enumerate(flat):
        details = [f"{f.removeprefix('problem.')} {shown[f][i]}" for f in fields if f in one]
        name = one.get("problem.dataset") or one["problem.type"]
        names.append(", ".join([str(name), *details]))
    return names


def _how_far(group: Sequence[LoadedRun]) -> str:
    """Return the last evaluated round of the slowest run if runs are under way."""
    rounds = [int(run.metrics["round"][-1]) for run in group if not run.is_finished]
    return f" (round {min(rounds):,} of {group[0].experiment['rounds']:,})" if rounds else ""


def _labels(runs: Sequence[LoadedRun]) -> list[str]:
    """Return a distinct name for each run: equal names get the fields in which they differ."""
    same: dict[str, list[LoadedRun]] = {}
    for run in runs:
        same.setdefault(run.method, []).append(run)
    details = {name: iter(_differences(group)) for name, group in same.items()}
    labels = [
        f"{run.method} ({next(details[run.method])})" if len(same[run.method]) > 1 else run.method
        for run in runs
    ]
    repeated = {label for label in labels if labels.count(label) > 1}
    return [
        f"{label} in {run.folder.path}" if label in repeated else label
        for run, label in zip(runs, labels, strict=True)
    ]


def _differences(runs: Sequence[LoadedRun]) -> list[str]:
    """Return for each run its values of the fields in which the runs differ, shortened."""
    flat = flatten_alike([run.fields for run in runs])
    fields = differing_fields(flat)
    values = {
        name: abbreviate([str(one.get(name, "none")) for one in flat], _MAX_VALUE_LENGTH)
        for name in fields[:_MAX_FIELDS]
    }
    more = f", and {len(fields) - _MAX_FIELDS} more" if len(fields) > _MAX_FIELDS else ""
    return [
        ", ".join(f"{name}={shown[i]}" for name, shown in values.items()) + more
        for i in range(len(runs))
    ]


def abbreviate(values: Sequence[str], most: int) -> list[str]:
    """Shorten texts to about `most` characters each, from shortly before where they differ.

    >>> abbreviate(["aaaaaaaaab", "aaaaaaaaac", "a"], 6)
    ['…aab', '…aac', 'a']
    """
    long = [value for value in values if len(value) > most]
    common = len(commonprefix(long)) if len(set(long)) > 1 else 0  # noqa: RUF071 - characters
    begin = max(0, common - most // 2 + 1)
    return [
        value
        if len(value) <= most
        else "…" * (begin > 0) + value[begin : begin + most - 2] + "…" * (begin + most < len(value))
        for value in values
    ]


def differing_fields(flat: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields whose values are not the same in all mappings."""
    fields = dict.fromkeys(field for one in flat for field in one)
    return [field for field in fields if len({str(one.get(field)) for one in flat}) > 1]


def flatten_alike(
    plains: Sequence[Mapping[str, Any]], without: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return the dotted names and values of each mapping's fields; `without` names keys to skip.

    A mapping stays whole if another one has something other than a mapping in its place.

    >>> flatten_alike([{"rates": 0.1, "seed": 3}, {"rates": {"north": 0.1}}], without=["seed"])
    [{'rates': 0.1}, {'rates': {'north': 0.1}}]
    >>> flatten_alike([{"local": {"lr": 0.1}}])
    [{'local.lr': 0.1}]
    """
    kept = [{key: plain[key] for key in plain if key not in without} for plain in plains]
    whole = {name for plain in kept for name, _ in flatten(plain)}
    return [dict(flatten(plain, whole)) for plain in kept]
