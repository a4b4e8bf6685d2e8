"""Arranges runs by condition and method: methods are compared under equal conditions only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from fedtide.report.loading import LoadedRun
from fedtide.simulation.run_labels import label_method, label_runs, show_value
from fedtide.spec import canonical, without_addresses

Groups = Mapping[str, Sequence[LoadedRun]]
"""The runs of each method, one per seed, by the label of the method."""

Conditions = Mapping[str, Groups]
"""The methods that were run under each condition, by the label of the condition."""

_METHOD = re.compile(
    r"(algorithm|privacy|local\.lr|local\.schedule|evaluation|on_nonfinite|record_iterates|version"
    r"|problem\.model\.sha256)(\.|$)"
)
"""The fields that make up a method, with the initial weights of a network that was given as an
object; all others are its conditions."""

_PROBLEM = re.compile(r"(problem|objective)(\.|$)")


def arrange(runs: Iterable[LoadedRun]) -> dict[str, dict[str, list[LoadedRun]]]:
    """Return the runs of each method under each condition, one per seed, in the order given.

    Runs belong to one method if they differ only in the seed and in how they were executed, and
    used the same data and code. What is no part of a method, such as the problem and the
    participation, is its condition. If there is no condition under which several methods were run,
    all runs of a problem are compared with one another, and what differs is part of their labels.
    Methods go by the names of their experiments if these differ, and otherwise by their types;
    fields in which methods of one name differ follow it.
    The label of a method whose runs are under way says how far they have got.
    """
    runs = list(runs)
    found = _split(runs, lambda field: not _METHOD.match(field))
    if all(len(groups) == 1 for groups in found.values()):
        found = _split(runs, lambda field: bool(_PROBLEM.match(field) and not _METHOD.match(field)))
    return found


def _split(
    runs: Sequence[LoadedRun], is_condition: Callable[[str], bool]
) -> dict[str, dict[str, list[LoadedRun]]]:
    found: dict[str, dict[str, dict[int, LoadedRun]]] = {}
    for run in runs:
        condition = {name: value for name, value in run.fields.items() if is_condition(name)}
        # objects may differ only because they were created again for each run
        of = found.setdefault(without_addresses(canonical(condition)), {})
        of.setdefault(run.identity, {}).setdefault(run.experiment["seed"], run)
    groups = [[[*seeds.values()] for seeds in methods.values()] for methods in found.values()]
    every = [group for of in groups for group in of]
    named = any(len({group[0].experiment["name"] for group in of}) > 1 for of in groups)
    name = _given_name if named else _method_name
    methods = iter(_label(every, name, lambda field: not is_condition(field)))
    first = [of[0] for of in groups]
    conditions = _tell_apart(_label(first, _problem_name, is_condition), first)
    return {
        condition: {
            method + _how_far(group): group
            for method, group in zip(_tell_apart([*islice(methods, len(of))], of), of, strict=True)
        }
        for condition, of in zip(conditions, groups, strict=True)
    }


def _label(
    groups: Sequence[Sequence[LoadedRun]],
    name: Callable[[LoadedRun], str],
    counts: Callable[[str], bool],
) -> list[str]:
    """Return a label for each group, made of a name and of the fields that count."""
    firsts = [group[0] for group in groups]
    fields = [{key: v for key, v in run.fields.items() if counts(key)} for run in firsts]
    return label_runs([name(run) for run in firsts], fields)


def _given_name(run: LoadedRun) -> str:
    return run.name or str(run.experiment["name"])


def _method_name(run: LoadedRun) -> str:
    return run.name or label_method(run.experiment)


def _problem_name(run: LoadedRun) -> str:
    return show_value(run.fields.get("problem.dataset") or run.fields["problem"])


def _tell_apart(labels: Sequence[str], groups: Sequence[Sequence[LoadedRun]]) -> list[str]:
    """Return the labels, equal ones followed by the folder of the first run."""
    count = Counter(labels)
    return [
        f"{label} in {group[0].folder.path}" if count[label] > 1 else label
        for label, group in zip(labels, groups, strict=True)
    ]


def _how_far(group: Sequence[LoadedRun]) -> str:
    """Return the last evaluated round of the slowest run if runs are under way."""
    rounds = [int(run.metrics["round"][-1]) for run in group if not run.is_finished]
    return f" (round {min(rounds):,} of {group[0].experiment['rounds']:,})" if rounds else ""
