"""A published experiment as a study file, to start one's own from."""

from __future__ import annotations

from typing import Any

from fedtide.errors import BadInput
from fedtide.papers.paper import PaperExperiment, Scale
from fedtide.papers.plan import plan


def study_of(paper: PaperExperiment, scale: Scale, case: str) -> dict[str, Any]:
    """Return one case of a published experiment in the form that `fedtide run` reads.

    What all methods share stands at the top, and what they do not under `methods`.

    Raises:
        BadInput: an unknown case, or an experiment that is computed, not trained.
    """
    if paper.compute is not None:
        raise BadInput(f"study: {paper.name} is computed, not trained; choose another experiment")
    runs = plan(paper, scale, cases=[case])
    seeds = list(dict.fromkeys(run.seed for run in runs))
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
    return {"name": name, "seeds": seeds, **shared, "methods": own}
