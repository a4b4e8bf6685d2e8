"""What an audit says, in sentences: the same on the terminal, on the page and in the JSON."""

from __future__ import annotations

import numpy as np

from fedtide.auditing.log.refusals import format_reasons
from fedtide.auditing.output.formatting import (
    format_method,
    format_p_value,
    format_ratio,
    format_short,
    format_skew,
    list_some,
)
from fedtide.auditing.output.limits import list_limits
from fedtide.auditing.recommend.findings import Findings, is_biased
from fedtide.auditing.statistics.group_influence import GroupInfluence
from fedtide.auditing.statistics.influence import EffectiveObjective
from fedtide.auditing.statistics.stages import StageShift
from fedtide.errors import printable, quantify

_AIMS = {
    "equal": "every client should have the same weight",
    "roster": "clients should have the weights of the roster",
    "samples": "clients should have weights in proportion to their samples",
}
"""The wanted weights in words, by where they come from."""
_SURE = 0.001
"""The level of a test at which its result is stated as a fact."""
_SAME = 0.001
"""The L1 distance up to which two objectives are the same."""
_ROUNDING = 1e-9
"""The rounding error of sums of weights."""
_NAMED = 3
"""The most clients that a sentence names."""
_REMEMBER = "have the server remember each client's updates and count them while it is away"
_REWEIGH = "give rarer clients more weight"
_ACTIONS = {
    "fedavg": "keep averaging",
    **dict.fromkeys(("scaffold", "amplified-scaffold", "fedvarp"), _REMEMBER),
    **dict.fromkeys(("auto", "fedau", "known-rates"), _REWEIGH),
}
"""What a method does, in words that need no explanation."""


def list_lines(audit: Findings) -> dict[str, str]:
    """Return the summary by label. The first three lines are for everyone."""
    lines = {
        "WHOSE MODEL": [describe_verdict(audit)],
        "HOW SURE": [describe_certainty(audit)],
        "DO": [describe_advice(audit)],
        "WHY": audit.advice[0].reasons[:1],
        "NEEDS": audit.advice[0].needs,
        "THIS LOG": [describe_log(audit)],
        "NEXT RUN": [describe_next_run(audit)],
        "ASSUMES": [
            f"{_AIMS[audit.wanted_source]}; local steps are small and equally many; participation "
            "does not depend on the training (else averaging does not minimise Σ w_n F_n with "
            "these influences w_n)"
        ],
        "WHO": describe_extremes(audit),
        "STAGES": [*describe_availability(audit), *describe_selection(audit)],
        "REFUSALS": describe_refusals(audit),
        "MEMORY": [describe_memory(audit)],
        "DRIFT": [describe_drift(audit)],
        "STEP SIZES": [
            f"by the theorem for {method}: {', '.join(f'{k} {v:.3g}' for k, v in rates.items())}"
            for method, rates in audit.learning_rates.items()
        ],
        "READ": audit.log.notes or ["every row, as it is"],
        "NOT KNOWN": list_limits(audit),
    }
    return {label: "; ".join(parts) for label, parts in lines.items() if parts}


def describe_verdict(audit: Findings) -> str:
    """Return whose model averaging trains, in words that need no explanation."""
    objectives, size = audit.objectives, quantify(audit.log.size, "client")
    averaging = "averaging with the log's weights" if has_own_weights(audit) else "averaging"
    whole, recent = objectives.in_force, objectives.recent
    if audit.favours_clients is None:
        return f"not known: too few rounds to tell whether {averaging} favours some clients"
    if not audit.favours_clients:
        if whole.l1_skew < _ROUNDING:
            return "everyone's: every client has the influence that it should have"
        if whole.interval[0] < 0.02:
            return f"everyone's, as far as this log shows: {averaging} favours no clients"
        return f"nearly everyone's: {averaging} favours some clients, but only a little"
    if is_biased(whole.correctable):
        text = f"mostly that of some clients: {averaging} misplaces {_share(whole)} of the "
        return "; ".join([f"{text}influence on the model", *_name_clear(audit)])
    if recent is not None and is_biased(recent.objective.correctable):
        last = "round" if recent.window == 1 else quantify(recent.window, "round")
        return (
            f"lately that of some clients: in the last {last}, {averaging} misplaced "
            f"{_share(recent.objective)} of the influence on the model"
        )
    skews = [whole.skew, *([] if recent is None else [recent.objective.skew])]
    if any(map(is_biased, skews)):
        never = int((objectives.wanted[audit.coverage.never] > 0).sum())
        took = "never took part" if audit.selection is None else "never had an update used"
        return (
            f"that of the clients that came: {never:,} of {size} {took} and have no influence; "
            "among the others, none is clearly favoured"
        )
    return (
        f"that of different clients at different times: {averaging} is fair over the whole log, "
        "but the model follows those that took part last"
    )


def describe_certainty(audit: Findings) -> str:
    """Return how sure the verdict is."""
    judged, recent = audit.objectives.in_force, audit.objectives.recent
    if recent is not None and is_biased(recent.objective.skew) and not is_biased(judged.skew):
        judged = recent.objective
    low, high = (end / 2 for end in judged.interval)
    if is_biased(judged.skew):
        share = f"{low:.0%} to {high:.0%}" if f"{low:.0%}" != f"{high:.0%}" else f"{low:.0%}"
        return f"beyond chance: if participation stays alike, {share} is misplaced (95%)"
    if audit.swings:
        return f"beyond chance ({format_p_value(audit.forgetting.p_value)}): {_swing(audit)}"
    if not np.isfinite(high):
        return f"not at all: {audit.rates.reason or 'the log is too short for an interval'}"
    if audit.favours_clients is None:
        return f"not sure: between {low:.0%} and {high:.0%} of the influence is misplaced (95%)"
    return f"if participation stays alike, at most {high:.0%} of the influence is misplaced (95%)"


def describe_advice(audit: Findings) -> str:
    """Return what to do, in plain words: the first method, and the first without a memory."""
    first, shift = audit.advice[0], audit.selection and audit.selection.selecting
    text = f"{_ACTIONS[first.algorithm]} ({format_method(first)})"
    if audit.favours_clients is None:
        text = f"audit again after more rounds; until then, {text}"
    if shift and shift.p_value < _SURE and shift.distance.corrected / 2 > 0.05:
        text = f"choose clients evenly, as the choice causes part of this (STAGES); then, {text}"
    light = next((one for one in audit.advice if one.memory == "light"), first)
    if light is not first:
        action = _ACTIONS[light.algorithm]
        text += f"; if nothing may be kept for each client, {action} ({format_short(light)})"
    if first.algorithm != "fedavg":
        text += "; --strategy FILE.py or --experiment FILE.yaml writes it"
    if len(never := audit.coverage.never):
        listed = list_some([audit.log.show_name(n) for n in never[:_NAMED]], _NAMED, len(never))
        text += f"; no method reaches the {quantify(len(never), 'client')} without an update"
        text += f" ({listed})"
    if audit.left_out:
        names = dict.fromkeys(map(format_short, audit.left_out))
        text += f"; the privacy mechanism refuses {', '.join(names)}"
    return text


def describe_log(audit: Findings) -> str:
    """Return the size of the log and what averaging did in it, which has no sampling error."""
    log, observed = audit.log, audit.objectives.in_force.l1_skew
    least, most = (int(audit.coverage.cohort[name]) for name in ("smallest", "largest"))
    sizes = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    empty = audit.coverage.empty_rounds
    return (
        f"{quantify(log.length, 'round')}{f', {empty:,} of them empty' if empty else ''}, "
        f"{quantify(len(log.clients), 'update')} by {log.size - len(audit.coverage.never):,} of "
        f"{quantify(log.size, 'client')}, {sizes} in a round; {observed / 2:.0%} of the influence "
        f"was misplaced (L1 skew {observed:.2f}, counted without sampling error)"
    )


def describe_next_run(audit: Findings) -> str:
    """Return the skew to expect, over the whole log and in the last rounds."""
    recent = audit.objectives.recent
    text = f"if participation stays alike, {format_skew(audit.objectives.in_force.skew)}"
    if recent is not None and np.isfinite(recent.objective.interval).all():
        text += f"; if it stays as in the last {quantify(recent.window, 'round')}, "
        text += format_skew(recent.objective.skew)
    if has_own_weights(audit):
        text += f"; averaging without the log's weights: {format_skew(audit.objectives.plain.skew)}"
    return text


def describe_extremes(audit: Findings) -> list[str]:
    """Return who has most and least influence, without intervals as they are selected; churn."""
    log, ratios = audit.log, audit.objectives.ratios
    seen = np.flatnonzero((log.counts > 0) & (audit.objectives.wanted > 0))
    order = seen[np.argsort(ratios[seen], kind="stable")]
    lines = []
    if len(seen) > 1 and np.ptp(ratios[seen]) > _ROUNDING:
        most = min(_NAMED, len(order) // 2)
        for word, some in (("most", order[::-1][:most]), ("least", order[:most])):
            named = [f"{log.show_name(n)} ({format_ratio(ratios[n])})" for n in some]
            lines.append(f"{word} influence for its share: {', '.join(named)}")
        if len(seen) > 2 * most:
            lines.append(f"the extremes of {len(seen):,} are partly chance")
    for group in audit.groups[:2]:
        lines += describe_groups(group)
    if len(audit.churn.gone) or len(audit.churn.late):
        lines += describe_churn(audit)
    return lines


def describe_groups(groups: GroupInfluence) -> list[str]:
    """Return the influence of the groups, those furthest from their share first."""
    lines = []
    with_share = np.flatnonzero(groups.wanted > 0)
    distances = np.abs(np.log(np.maximum(groups.ratios[with_share], 1e-9)))
    for g in with_share[np.argsort(-distances)][:_NAMED]:
        ratio, wanted = groups.ratios[g], groups.wanted[g]
        low, high = groups.low[g] / wanted, groups.high[g] / wanted
        fair = low <= 1 <= high and 0.9 < ratio < 1.1
        known = np.isfinite([low, high]).all()
        lines.append(
            f"{printable(groups.grouping, 40)} {printable(groups.names[g], 80)} has "
            f"{'about' if fair else f'{format_ratio(ratio)} times'} its share of the influence "
            + (f"(95%: {low:.2f} to {high:.2f})" if known else "(no interval)")
        )
    return lines


def describe_churn(audit: Findings) -> list[str]:
    """Return who stopped coming and who joined late."""
    churn = audit.churn
    if not churn.tested:
        return ["too few clients came back after a silence to tell who left or joined late"]
    lines = []
    for clients, rounds, what in (
        (churn.gone, churn.last, "stopped coming, last seen"),
        (churn.late, churn.first, "joined late, first seen"),
    ):
        if len(clients):
            listed = [
                f"{audit.log.show_name(n)} in round {rounds[n] + audit.log.first_round:,}"
                for n in clients
            ]
            lines.append(f"{quantify(len(clients), 'client')} {what}: {list_some(listed, _NAMED)}")
    return lines or ["no client is known to have stopped coming or joined late"]


def describe_availability(audit: Findings) -> list[str]:
    """Return the bias of availability alone; empty if the log does not say who was available."""
    availability = audit.availability
    if availability is None:
        return []
    skew = format_skew(availability.objective.skew)
    weighting = describe_weighting(audit, availability.weighted)
    return [f"averaging over all available clients{weighting and f', {weighting}'}: {skew}"]


def describe_selection(audit: Findings) -> list[str]:
    """Return what selection and dropout add; empty if the log has no stage but "used"."""
    selection = audit.selection
    if selection is None:
        return []
    return [
        f"{what} {describe_shift(shift)}"
        for shift, what in (
            (selection.selecting, "the choice among the available clients"),
            (selection.dropping, "the loss of selected clients (dropout, refusals)"),
        )
        if shift is not None
    ]


def describe_weighting(audit: Findings, by_samples: bool) -> str:
    """Return how the clients of a stage are weighted; empty if the log's weights change nothing."""
    if by_samples:
        return "weighted by samples"
    return "without the weights in the log" if has_own_weights(audit) else ""


def describe_shift(shift: StageShift) -> str:
    """Return how far a choice moves the influence, and whether it may be uniform."""
    low, high = shift.distance.interval
    moved = f"moves {shift.distance.corrected / 2:.0%} of the influence"
    if np.isfinite([low, high]).all():
        moved += f" (95%: {low / 2:.0%} to {high / 2:.0%})"
    uniform = "which a uniform draw can explain" if shift.p_value > _SURE else "not uniformly"
    return f"{moved}, {uniform} ({format_p_value(shift.p_value)})"


def describe_refusals(audit: Findings) -> list[str]:
    """Return why clients were left out of rounds, and which ones most often; empty: no reasons."""
    refusals = audit.log.refusals
    if refusals is None:
        return []
    clients = [
        f"{audit.log.show_name(n)} in {quantify(rounds, 'round')} (used in {audit.log.counts[n]:,})"
        for n, rounds in refusals.rank_clients()[:_NAMED]
    ]
    return [
        f"a client was left out of a round {quantify(int(refusals.counts.sum()), 'time')} for a "
        f"known reason: {format_reasons(refusals.total(), most=4)}",
        f"most often {', '.join(clients)}",
    ]


_MEMORY = {
    "positive": "positive: who takes part is likelier to take part again soon",
    "negative": "negative: clients take turns, more evenly than by chance",
    "none": "little or none",
    "undecided": "not known",
}


def describe_memory(audit: Findings) -> str:
    """Return how rounds depend on each other, and whether the objective swings."""
    pattern, memory = audit.pattern, audit.pattern.memory
    low, high = memory.interval
    if pattern.reason:
        text = pattern.reason if pattern.always else f"not known: {pattern.reason}"
    else:
        text = _MEMORY[memory.state]
        if np.isfinite([low, high]).all():
            text += (
                f"; counts vary {memory.dispersion:.2f} times as much as those of independent "
                f"rounds (95%: {low:.2f} to {high:.2f})"
            )
    if pattern.cycle is not None and pattern.period is not None:
        p_value = format_p_value(pattern.cycle.p_value)
        text = f"participation repeats every {pattern.period} rounds ({p_value}); besides, {text}"
    text += f"; {describe_forgetting(audit)}" if audit.swings else ""
    idle = pattern.idle_rounds
    return f"{text}; without {quantify(idle, 'round')} of pauses" if idle else text


def describe_drift(audit: Findings) -> str:
    """Return whether rates change over time: found, not found, or not testable and why."""
    drift = audit.pattern.drift
    if audit.pattern.always:
        return "none"
    if drift.found is None or drift.interval is None:
        return f"not testable: {drift.obstacle}"
    p_value = format_p_value(drift.p_value)
    low, high = drift.interval
    if drift.found:
        size = f"{drift.change:.0%} of their mean (95%: {low:.0%} to {high:.0%})"
        return f"found ({p_value}): rates change slowly by {size}"
    return f"none found ({p_value}): slow changes are at most {high:.0%} of the rates (95%)"


def describe_forgetting(audit: Findings) -> str:
    """Return how far the objective in force swings."""
    forgetting = audit.forgetting
    if len(forgetting.windows) == 0:
        return "the log is too short, or clients come back too rarely, to tell how far it swings"
    if forgetting.p_value >= _SURE:
        return f"no clear swing of the influence ({format_p_value(forgetting.p_value)})"
    half = forgetting.halving_window
    return _swing(audit) + (f", and half as much in {_count_busy(audit, half)}" if half else "")


def _swing(audit: Findings) -> str:
    window, (low, _) = audit.forgetting.window, audit.forgetting.interval
    return (
        f"in {_count_busy(audit, window)} in a row, at least {low:.0%} of the influence is "
        "elsewhere than in the whole log"
    )


def _count_busy(audit: Findings, count: int) -> str:
    """Return a number of rounds in words, and that empty ones do not count if there are any."""
    every = audit.log.nonempty_rounds == audit.log.length
    return quantify(count, "round") + ("" if every else " with participants")


def has_own_weights(audit: Findings) -> bool:
    """Return whether the log's weights give another objective than averaging over the cohort."""
    given, plain = audit.objectives.given, audit.objectives.plain
    return given is not None and float(np.abs(given.weights - plain.weights).sum()) > _SAME


def _share(objective: EffectiveObjective) -> str:
    """Return the share of the influence that is misplaced, chance deducted."""
    corrected = objective.skew.corrected
    return f"{(corrected if np.isfinite(corrected) else objective.l1_skew) / 2:.0%}"


def _name_clear(audit: Findings) -> list[str]:
    """Return, in words, who counts most and least, at most three in all, of those beyond chance."""
    found, ratios = audit.objectives, audit.objectives.ratios
    clear = np.flatnonzero(found.beyond_chance & (found.wanted > 0) & (audit.log.counts > 0))
    order = clear[np.argsort(-ratios[clear], kind="stable")]
    most = order[ratios[order] > 1][: _NAMED - 1]
    least = order[ratios[order] < 1][::-1][: _NAMED - len(most)]
    named: list[str] = []
    for n in [*most, *least]:
        name, times = audit.log.show_name(n), f"{format_ratio(ratios[n])} times"
        who = f"client {name}" if name.isdigit() else name
        named.append(f"{who} {times}" if named else f"{who} counts {times} its share")
    return [", ".join(named)] if named else []
