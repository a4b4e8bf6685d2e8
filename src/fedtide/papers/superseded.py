"""Records of earlier runs, whose settings are no longer the planned ones."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable

from fedtide.errors import InvalidInputError
from fedtide.papers.paper_spec import PaperExperiment, Scale
from fedtide.papers.plan import PlannedRun, RunKey, plan, without_execution
from fedtide.papers.record import Record
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.experiment_files import flatten


def superseded(
    paper: PaperExperiment, records: Iterable[Record]
) -> dict[tuple[Scale, str], list[Record]]:
    """Return the records that match no planned run, by scale and by how their settings differ."""
    plans: dict[str, dict[RunKey, PlannedRun]] = {}
    groups: dict[tuple[Scale, str], list[Record]] = defaultdict(list)
    for record in records:
        scale: Scale = "laptop" if record.scale == "laptop" else "paper"
        if scale not in plans:
            plans[scale] = {run.key: run for run in plan(paper, scale)}
        run = plans[scale].get(record.key)
        if run is None:
            groups[scale, "no longer planned"].append(record)
        elif not record.matches(run):
            groups[scale, _difference(record, run)].append(record)
    return groups


def _difference(record: Record, run: PlannedRun) -> str:
    """Return the settings of a record that differ from those of its planned run, in words.

    Settings that only one of the two has are left out if others differ: they are usually newer.
    """
    try:
        settings = Experiment.from_dict(record.settings).to_dict()
    except InvalidInputError:
        settings = record.settings
    old, new = (
        {key: json.dumps(value) for key, value in flatten(without_execution(one))}
        for one in (settings, run.resolved)
    )
    changed = [key for key in old if key in new and old[key] != new[key]]
    changed = changed or sorted(set(old) ^ set(new))
    return ", ".join(f"`{key}` {old.get(key, '-')} (now {new.get(key, '-')})" for key in changed)
