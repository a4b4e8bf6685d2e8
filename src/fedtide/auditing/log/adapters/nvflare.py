"""NVFlare's summary of a job: the file job_stats_run_summary.json of its JobStatsReporter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedtide.errors import InvalidInputError

_RETURNED = (None, "OK")


def is_job_statistics(value: object) -> bool:
    """Return whether a JSON document is a summary that JobStatsReporter wrote."""
    return isinstance(value, dict) and {"rounds", "participation", "timing"} <= value.keys()


def read_job_statistics(summary: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return one row per round, with lists of clients and stages, and facts about the reading.

    A client that a round targets was selected. It reported if a task of the round ended well, or if
    the aggregator rejected its result, and was used if its result was accepted. Rounds that had not
    ended are left out. The rounds of several workflows are numbered one after the other.

    Raises:
        InvalidInputError: no rounds; a round whose list of accepted clients is incomplete; a
            document without the fields of NVFlare 2.9.
    """
    try:
        rounds = [row for row in summary["rounds"] if row["ended_at"] is not None]
        _reject_incomplete(rounds)
        returned = _find_returned(summary["timing"]["tasks"])
        stages = [_find_stages(row, returned) for row in rounds]
        notes = _describe(summary, rounds)
    except (KeyError, TypeError, AttributeError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else f"unexpected values ({error})"
        raise InvalidInputError(
            f"log: NVFlare's summary has {what}; give a job_stats_run_summary.json of NVFlare 2.9"
        ) from None
    if not rounds:
        raise InvalidInputError(
            "log: NVFlare's summary has no round that ended; audit a longer job"
        )
    return [
        {"round": number, "client": list(reached), "stage": list(reached.values())}
        for number, reached in zip(_number_rounds(rounds), stages, strict=True)
    ], notes


def _find_returned(tasks: list[dict[str, Any]]) -> set[tuple[Any, Any, str]]:
    """Return (workflow, round, client) of the tasks whose result arrived without an error."""
    return {
        (task["workflow"], task["round"], task["client"])
        for task in tasks
        if task["received_at"] is not None and task["return_code"] in _RETURNED
    }


def _find_stages(row: Mapping[str, Any], returned: set[tuple[Any, Any, str]]) -> dict[str, str]:
    """Return the last stage of each client of a round."""
    stages = {}
    for client in row["targeted_clients"]:
        arrived = (row["workflow"], row["round"], client) in returned
        rejected = client in row["rejected_clients"]  # others are rejected as late: see their round
        stages[client] = "reported" if arrived or rejected else "selected"
    return stages | dict.fromkeys(row["accepted_client_names"], "used")


def _number_rounds(rounds: list[dict[str, Any]]) -> list[int]:
    """Return the number of each round: its own, or its place if there are several workflows."""
    own = [row["round"] for row in rounds]
    single = len({row["workflow"] for row in rounds}) <= 1
    if single and all(type(number) is int for number in own):
        return own
    return list(range(len(rounds)))


def _reject_incomplete(rounds: list[dict[str, Any]]) -> None:
    """Raise InvalidInputError if the names of some accepted clients are unknown."""
    unknown = [row for row in rounds if not row["accepted_client_names_complete"]]
    if unknown:
        first = unknown[0]
        raise InvalidInputError(
            f"log: NVFlare does not know which clients took part in {len(unknown)} of "
            f"{len(rounds)} rounds (round {first['round']}: {first['accepted_clients']} accepted, "
            f"{len(first['accepted_client_names'])} by name), so they cannot be audited; let the "
            "aggregator publish the names of its contributors"
        )


def _describe(summary: Mapping[str, Any], rounds: list[dict[str, Any]]) -> list[str]:
    notes = []
    unfinished = len(summary["rounds"]) - len(rounds)
    if unfinished:
        notes.append(f"rounds that had not ended are left out: {unfinished}")
    if summary["participation"]["participation_basis"] != "aggregation_stats":
        notes.append(
            "NVFlare's aggregator did not publish whose results it used in every round; in the "
            "others, clients whose results were accepted, or arrived without an error, are used"
        )
    workflows = {row["workflow"] for row in rounds}
    if len(workflows) > 1:
        notes.append(f"the rounds of {len(workflows)} workflows are numbered one after the other")
    return notes
