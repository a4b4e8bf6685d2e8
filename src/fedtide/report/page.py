"""The report as one HTML page that needs nothing else."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import jinja2
import numpy as np
import yaml
from markupsafe import Markup, escape

from fedtide.errors import InvalidInputError
from fedtide.plotting.style import Picture, styles, svg
from fedtide.report.comparison import COLUMNS, cell, comparison
from fedtide.report.figures.learning_curves import pictures
from fedtide.report.loading import FinishedRun, OtherRun, by_method, flattened
from fedtide.report.summary import Groups, Target, headline, lower_is_better, skew, target

_LONGEST = 1500  # characters of a resolved value, such as a list of rates


@dataclass(frozen=True)
class Part:
    """The runs of one problem.

    Args:
        name: what tells the problem from the others.
        groups: its runs, by method.
        target: what it takes to get to a level.
        pictures: the figures.
    """

    name: str
    groups: Groups
    target: Target
    pictures: Mapping[str, Sequence[Picture]]


def parts(
    runs: Sequence[FinishedRun], wanted: str | None = None, smooth: float = 0.0
) -> list[Part]:
    """Return a part for every problem: losses and accuracies of different ones are not compared.

    Args:
        runs: finished runs.
        wanted: METRIC=LEVEL, a target; None: what all methods of a problem reach in the end.
        smooth: the share of the evaluations over which curves are averaged.

    Raises:
        InvalidInputError: no runs; a target that not all runs have, or one for several problems.
    """
    by_problem: dict[str, list[FinishedRun]] = {}
    for run in runs:
        by_problem.setdefault(_problem(run), []).append(run)
    if not by_problem:
        raise InvalidInputError(
            "report: no run has ended well, so there is nothing to show; run them first"
        )
    if wanted and len(by_problem) > 1:
        raise InvalidInputError(
            f"target: the runs are of {len(by_problem)} different problems, in which {wanted!r} "
            "means different things; give the folders of one"
        )
    names = _names([group[0] for group in by_problem.values()])
    found = []
    for name, group in zip(names, by_problem.values(), strict=True):
        groups = by_method(group)
        found.append(Part(name, groups, target(groups, wanted), pictures(groups, smooth)))
    return found


def _problem(run: FinishedRun) -> str:
    kept = {key: run.experiment.get(key) for key in ("problem", "objective")}
    return json.dumps(kept, sort_keys=True, default=str)


def _names(runs: Sequence[FinishedRun]) -> list[str]:
    """Return what each problem is called: its data or type, and where it differs from others."""
    flat = [dict(flattened({"problem": run.experiment["problem"]})) for run in runs]
    fields = dict.fromkeys(field for one in flat for field in one)
    differing = [field for field in fields if len({str(one.get(field)) for one in flat}) > 1]
    return [
        ", ".join([_kind(run), *_said(one, differing)]) for run, one in zip(runs, flat, strict=True)
    ]


def _kind(run: FinishedRun) -> str:
    problem = run.experiment["problem"]
    return str(problem.get("dataset") or problem["type"])


def _said(flat: Mapping[str, Any], fields: Sequence[str]) -> list[str]:
    plain = [field for field in fields if field not in ("problem.dataset", "problem.type")]
    return [f"{f.removeprefix('problem.')} {flat[f]!s:.30}" for f in plain[:4] if f in flat]


def render(found: Sequence[Part], others: Sequence[OtherRun], title: str) -> str:
    """Return the page's text.

    Args:
        found: what is shown, problem by problem.
        others: the runs that have not ended well.
        title: of the page.
    """
    template = files("fedtide.report").joinpath("page.html.jinja").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    limits = []
    if len(found) > 1:
        limits.append(
            f"The runs are of {len(found)} different problems. Each stands for itself: losses and "
            "accuracies of different problems cannot be compared."
        )
    return environment.from_string(template).render(
        title=title,
        limits=limits,
        others=others,
        runs=sum(len(group) for part in found for group in part.groups.values()),
        parts=[_content(part) for part in found],
        show=_figures,
        versions=_versions(),
    )


def _versions() -> str:
    names = ("fedtide", "torch", "numpy", "polars")
    said = ", ".join(f"{name} {version(name)}" for name in names)
    return f"Made with {said}, Python {platform.python_version()} on {platform.machine()}."


def _figures(shown: Sequence[Picture], part: int) -> Markup:
    """Return figures with their titles and captions."""
    text = []
    for one in shown:
        wide = ' class="wide"' if one.figure.get_figwidth() > 6 else ""
        drawn = svg(one.figure, str(escape(one.title)), f"p{part}-{one.name}")
        text.append(
            f"<figure{wide}><h4>{escape(one.title)}</h4><div>{drawn}</div>"
            f"<figcaption>{escape(one.caption)}</figcaption></figure>"
        )
    return Markup("\n".join(text))


def _content(part: Part) -> dict[str, Any]:
    first = next(iter(part.groups.values()))[0]
    seeds = {run.experiment["seed"] for group in part.groups.values() for run in group}
    tiles = [
        (f"{len(part.groups):,}", "methods" if len(part.groups) > 1 else "method"),
        (f"{len(seeds):,}", "seeds" if len(seeds) > 1 else "seed"),
        (f"{first.experiment['rounds']:,}", "rounds"),
        (f"{len(first.clients):,}", "clients"),
        (f"{first.cohorts().mean():,.1f}", "clients in a round, on average"),
    ]
    fields, settings = _differing(part.groups)
    return {
        "name": part.name,
        "verdict": verdict(part.groups),
        "tiles": tiles,
        **_table(part.groups),
        "target": [_target_row(row) for row in part.target.rows],
        "target_words": _target_words(part.target),
        "pictures": part.pictures,
        "differing": fields,
        "settings": settings,
        "experiments": [(method, _resolved(group[0])) for method, group in part.groups.items()],
    }


def verdict(groups: Groups) -> str:
    """Return what the comparison comes to, in a sentence or two."""
    metric = headline(groups)
    scored = {method: [run.last(metric) for run in group] for method, group in groups.items()}
    known = {m: np.array(v, dtype=float) for m, v in scored.items() if None not in v}
    if not known:
        return f"No method has a {metric.replace('_', ' ')}."
    ranked = sorted(
        known, key=lambda m: float(known[m].mean()), reverse=not lower_is_better(metric)
    )
    best = ranked[0]
    words = f"{best} ends with the best {metric.replace('_', ' ')}: {_level(metric, known[best])}."
    others = ranked[1:]
    if others and min(map(len, known.values())) < 2:
        return f"{words} One seed does not tell whether that is more than chance."
    near = [method for method in others if not _apart(known[best], known[method])]
    if near:
        more = f" and {len(near) - 4} more" if len(near) > 4 else ""
        return f"{words} Within two standard errors of it: {', '.join(near[:4])}{more}."
    if others:
        return f"{words} Last is {others[-1]} with {_level(metric, known[others[-1]])}."
    return words


def _apart(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Say whether two means differ by more than two standard errors."""
    error = np.sqrt(one.var(ddof=1) / len(one) + other.var(ddof=1) / len(other))
    return bool(abs(one.mean() - other.mean()) > 2 * error)


def _level(metric: str, values: np.ndarray[Any, Any]) -> str:
    scale, unit, digits = (1, "", 4) if lower_is_better(metric) else (100, " %", 1)
    spread = f" ± {scale * values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{scale * values.mean():.{digits}f}{spread}{unit}"


def _table(groups: Groups) -> dict[str, Any]:
    """Return the comparison's heads and rows, with the skew of what was minimised."""
    frame = comparison(run for group in groups.values() for run in group)
    shown = [column for column in COLUMNS if column.key in frame.columns]
    looks = styles(groups)
    rows = []
    for row, (method, group) in zip(frame.iter_rows(named=True), groups.items(), strict=True):
        skews = [found for run in group if (found := skew(run)) is not None]
        said = f"{np.mean(skews):.3f}" if skews else ""
        cells = [str(len(group)), *(cell(row, column) for column in shown), said]
        rows.append((method, looks[method]["color"], cells))
    heads = ["seeds", *(column.title.replace("\n", " ") for column in shown), "L1 skew"]
    known = {column.key for column in shown}
    return {"heads": heads, "rows": rows, "legend": _legend(known)}


def _legend(known: set[str]) -> str:
    words = ["Last evaluation, mean ± standard deviation over the seeds."]
    if "client_test_accuracy_worst_tenth" in known:
        words.append(
            "Worst tenth: the mean over the tenth of the clients that fare worst; spread: the "
            "standard deviation over clients."
        )
    words.append(
        "Loss: with all clients alike, which is wanted, and by presence, each counting as often as "
        "it was there. L1 skew: Σ |w_n − 1/N|, how far the objective that was really minimised is "
        "from the wanted one, 0 to 2."
    )
    return " ".join(words)


def _target_words(found: Target) -> str:
    level = f"{found.level:.4g}" if lower_is_better(found.metric) else f"{100 * found.level:.1f} %"
    return f"a {found.metric.replace('_', ' ')} of {level}, seen at evaluations"


def _target_row(row: Any) -> tuple[str, int, int, str, str]:
    method, reached, of, rounds, updates = row
    return method, reached, of, _counted(*rounds), _counted(*updates)


def _counted(mean: float, std: float) -> str:
    if np.isnan(mean):
        return "never"
    return f"{mean:,.0f} ± {std:,.0f}" if std else f"{mean:,.0f}"


def _differing(groups: Groups) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the fields in which methods differ, and the values of each."""
    flat = {
        method: dict(flattened(group[0].experiment, ("seed", "name")))
        for method, group in groups.items()
    }
    fields = dict.fromkeys(field for one in flat.values() for field in one)
    differing = [f for f in fields if len({str(one.get(f)) for one in flat.values()}) > 1]
    values = [(m, [f"{one.get(f, '')!s:.60}" for f in differing]) for m, one in flat.items()]
    return differing, values


def _resolved(run: FinishedRun) -> str:
    shown = _map(run.experiment, lambda v: v if len(str(v)) <= _LONGEST else f"{v!s:.{_LONGEST}} …")
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=100)


def _map(plain: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(plain, Mapping):
        return {key: _map(value, change) for key, value in plain.items()}
    return change(plain)
