"""Exports a published experiment as a sweep file, to start your own experiment from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedtide.errors import InvalidInputError
from fedtide.papers.paper_spec import PaperExperiment, Scale
from fedtide.papers.plan import plan


def export_sweep(
    paper: PaperExperiment,
    scale: Scale,
    seeds: Sequence[int] | None = None,
    methods: Sequence[str] | None = None,
    cases: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return one case of a published experiment in the form that `fedtide run` reads.

    Settings that all methods share are at the top, the others under `methods`.

    Args:
        paper: the experiment.
        scale: "paper" or "laptop".
        seeds, methods: a part of its runs; None: all.
        cases: the one case; None: the first.

    Raises:
        InvalidInputError: an unknown name, several cases, or an experiment without training.
    """
    if paper.compute is not None:
        raise InvalidInputError(
            f"export: {paper.name} is computed, not trained; choose another experiment"
        )
    cases = [next(iter(paper.cases))] if cases is None else cases
    if len(cases) != 1:
        raise InvalidInputError(f"cases: a sweep has one case; choose one of {', '.join(cases)}")
    runs = plan(paper, scale, seeds, methods, cases)
    settings = {
        run.method: {k: v for k, v in run.settings.items() if k not in ("name", "seed")}
        for run in runs
    }
    first = next(iter(settings.values()))
    shared = {
        key: value
        for key, value in first.items()
        if all(other.get(key) == value for other in settings.values())
    }
    own = {
        method: {key: value for key, value in plain.items() if key not in shared}
        for method, plain in settings.items()
    }
    seeds = list(dict.fromkeys(run.key.seed for run in runs))
    name = paper.name.replace("/", "-")
    return {"name": name, "seeds": seeds, **shared, "methods": own}
