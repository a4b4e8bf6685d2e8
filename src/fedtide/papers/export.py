"""A published experiment as a study file, to start one's own from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedtide.errors import InvalidInputError
from fedtide.papers.paper_spec import PaperExperiment, Scale
from fedtide.papers.plan import plan


def study_of(
    paper: PaperExperiment,
    scale: Scale,
    seeds: Sequence[int] | None = None,
    methods: Sequence[str] | None = None,
    cases: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return one case of a published experiment in the form that `fedtide run` reads.

    What all methods share stands at the top, and what they do not under `methods`.

    Args:
        paper: the experiment.
        scale: of it.
        seeds, methods: some of them only.
        cases: which one; None: the first.

    Raises:
        InvalidInputError: an unknown name, several cases, or an experiment that is computed, not trained.
    """
    if paper.compute is not None:
        raise InvalidInputError(
            f"study: {paper.name} is computed, not trained; choose another experiment"
        )
    case = [next(iter(paper.cases))] if cases is None else cases
    if len(case) != 1:
        raise InvalidInputError(f"cases: a study has one case; choose one of {', '.join(case)}")
    runs = plan(paper, scale, seeds, methods, case)
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
    name = paper.name.replace("/", "-")
    held = list(dict.fromkeys(run.seed for run in runs))
    return {"name": name, "seeds": held, **shared, "methods": own}
