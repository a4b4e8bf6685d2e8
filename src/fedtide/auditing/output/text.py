"""The findings of an audit in sentences, for the terminal and the page."""

from __future__ import annotations

import numpy as np

from fedtide.auditing.api import Audit
from fedtide.auditing.log.refusals import format_reasons
from fedtide.auditing.output.formatting import (
    format_bound,
    format_method,
    format_p_value,
    format_percent,
    format_ratio,
    format_short,
    format_skew,
    list_some,
)
from fedtide.auditing.recommend.findings import (
    count_busy,
    describe_swing,
    favours_clients,
    is_biased,
)
from fedtide.auditing.statistics.group_influence import GroupInfluence
from fedtide.auditing.statistics.influence import EffectiveObjective
from fedtide.auditing.statistics.pattern import (
    DISPERSION,
    DRIFT,
    NEIGHBOURS,
    PERIOD,
    PRESENCE,
    SLOW_DISPERSION,
    Pattern,
)
from fedtide.auditing.statistics.stages import StageShift
from fedtide.auditing.statistics.unseen import UnseenClients
from fedtide.errors import printable, quantify

_AIMS = {
    "equal": "if every client is to have the same weight",
    "roster": "if clients are to have the weights of the roster",
    "samples": "if clients are to have weights in proportion to their samples",
}
"""The wanted weights in words, by where they come from."""
_SURE = 0.001
"""The level of a test at which its result is stated as a fact."""
_NO_SKEW = 0.02
"""If the interval of an L1 skew begins below this, there may be no skew."""
_SAME = 0.001
"""The L1 distance up to which two objectives are the same."""
_ROUNDING = 1e-9
"""The rounding error of sums of weights."""
_SHOWN = 0.005
"""The smallest L1 skew that shows in two decimals."""
_LIKELY = 0.05
"""Above this p-value, that chance can explain a result needs no comment."""
_LISTED, _GROUPS = 4, 3
"""The most clients that a sentence lists, and the most groups that get one."""


def describe_verdict(audit: Audit) -> str:
    """Return whether averaging favours some clients: yes, in turns, no, or not known."""
    objectives = audit.objectives
    found = favours_clients(objectives, audit.forgetting)
    averaging = "averaging with the weights in the log" if has_own_weights(audit) else "averaging"
    if found is None:
        return f"not enough rounds to tell whether {averaging} favours some clients beyond chance"
    if not found and objectives.in_force.l1_skew < _ROUNDING:
        return "no: every client has the influence that it should have"
    if not found and objectives.in_force.interval[0] < _NO_SKEW:
        return "no: chance can explain that some clients have more influence than they should"
    if not found:
        return f"no: {averaging} favours some clients beyond chance, but only a little"
    if is_biased(objectives.in_force.correctable):
        return f"yes: {averaging} favours some clients beyond chance"
    recent = objectives.recent
    if recent is not None and is_biased(recent.objective.correctable):
        last = "round" if recent.window == 1 else quantify(recent.window, "round")
        return f"yes: in the last {last}, {averaging} favours some clients beyond chance"
    skews = [objectives.in_force.skew, *([] if recent is None else [recent.objective.skew])]
    if any(map(is_biased, skews)):
        return (
            f"yes, as {_describe_never(audit)} and have no influence; differences between the "
            "others are small, or chance can explain them"
        )
    half = audit.forgetting.halving_window
    fades = "" if half is None else f" (half as much in windows of {count_busy(audit.log, half)})"
    return (
        f"in turns: {averaging} favours different clients at different times, beyond chance{fades}"
    )


def _describe_never(audit: Audit) -> str:
    """Return how many of the clients that should have influence never took part."""
    wanted = int((audit.objectives.wanted[audit.coverage.never] > 0).sum())
    return (
        f"{quantify(wanted, 'client')} never took part"
        if audit.selection is None
        else f"{quantify(wanted, 'client')} {'was' if wanted == 1 else 'were'} never used"
    )


def describe_objective(audit: Audit) -> list[str]:
    """Return sentences on whose objective is minimised, overall and now, and on unseen clients.

    The first says whether averaging favours some clients beyond chance.
    """
    objective = audit.objectives.in_force
    recorded = has_own_weights(audit)
    averaging = "with the weights in the log" if recorded else "averaging over each round's clients"
    misplaced = f"{objective.total_variation:.0%} of the influence"
    verb = f"{misplaced} is misplaced" if recorded else f"misplaces {misplaced}"
    weights = np.sort(objective.weights)[::-1]
    half = int(np.searchsorted(np.cumsum(weights), 0.5 - _ROUNDING)) + 1
    sentences = [
        describe_verdict(audit),
        f"over the whole log, {averaging}{',' if recorded else ''} {verb}, "
        f"{_AIMS[audit.wanted_source]}: {_format_with_chance(objective)}",
        f"{half:,} of {quantify(audit.log.size, 'client')} "
        f"{'has' if half == 1 else 'have'} half of the influence",
    ]
    if now := describe_now(audit):
        sentences.append(now)
    sentences += [
        f"{swing}, so a model forgets clients that it no longer trains on"
        for swing in describe_swing(audit.log, audit.forgetting)
    ]
    if audit.unseen is not None and audit.unseen.interval[0] > 0:
        sentences.append(f"{describe_unseen(audit.unseen)}; they have no influence")
    return sentences


def describe_now(audit: Audit) -> str:
    """Return the objective in force in the last rounds; empty if the log is too short."""
    recent = audit.objectives.recent
    if recent is None or len(audit.forgetting.windows) == 0:
        return ""
    last = "round" if recent.window == 1 else quantify(recent.window, "round")
    misplaced = f"{recent.objective.total_variation:.0%} is misplaced"
    return f"now, in the last {last}, {misplaced}: {_format_with_chance(recent.objective)}"


def describe_forgetting(audit: Audit) -> str:
    """Return how far the objective in force swings."""
    forgetting = audit.forgetting
    if len(forgetting.windows) == 0:
        return (
            "the log is too short, or clients come back too rarely, to tell how far the objective "
            "in force swings"
        )
    if forgetting.p_value >= _SURE:
        first, last = forgetting.windows[0], int(forgetting.windows[-1])
        return (
            f"no clear swing of the influence shows in windows of {first:,} to "
            f"{count_busy(audit.log, last)} ({format_p_value(forgetting.p_value)}); a swing among "
            "clients that come only a few times in a window may not show"
        )
    text = (
        f"the influence in {count_busy(audit.log, forgetting.window)} in a row differs from that "
        f"in the whole log, chance deducted, by {forgetting.describe()} "
        f"({format_p_value(forgetting.p_value)})"
    )
    if forgetting.halving_window is not None:
        half = count_busy(audit.log, forgetting.halving_window)
        text += f"; it is half as large in windows of {half}"
    return text


def describe_history(audit: Audit) -> str:
    """Return what the figure over time shows."""
    recent = audit.objectives.recent
    assert recent is not None
    return (
        f"each point is the L1 skew in a window of {quantify(recent.window, 'round')}; chance "
        f"alone would give about {recent.chance[-1]:.2f}"
    )


def has_own_weights(audit: Audit) -> bool:
    """Return whether the log's weights give another objective than averaging over the cohort."""
    given, plain = audit.objectives.given, audit.objectives.plain
    return given is not None and float(np.abs(given.weights - plain.weights).sum()) > _SAME


def has_unequal_shares(audit: Audit) -> bool:
    """Return whether clients are to have unequal weights."""
    return float(np.ptp(audit.objectives.wanted)) > _ROUNDING


def describe_plain_average(audit: Audit) -> str:
    """Return the skew of averaging over the cohort if the log has other weights; else empty."""
    if not has_own_weights(audit):
        return ""
    plain = audit.objectives.plain
    return (
        f"averaging over each round's clients, without these weights, would misplace "
        f"{plain.total_variation:.0%}: {_format_with_chance(plain)}"
    )


def describe_clients(audit: Audit) -> list[str]:
    """Return how many clients there are, how many took part, and how many were not seen."""
    unseen, never = audit.unseen, len(audit.coverage.never)
    known = quantify(audit.log.size, "client")
    if unseen is None:
        share = f"of which {audit.log.size - never:,}" if never else "and every one"
        return [f"{known}, {share} took part"]
    lines = [f"{known} in the log, which may not be all"]
    if never:
        lines.append(f"{never:,} of them {'was' if never == 1 else 'were'} never used")
    if unseen.once == 0:
        return [*lines, "each came more than once, so nothing suggests clients that never came"]
    return [*lines, describe_unseen(unseen), _describe_coverage_of_sample(unseen)]


def describe_unseen(unseen: UnseenClients) -> str:
    """Return the estimated number of clients that the log has not seen."""
    low, high = unseen.interval
    if np.isinf(high):
        return (
            "the log does not tell how many clients never came: some came once, none exactly twice"
        )
    if low == 0:
        return (
            "nothing in the log suggests clients that never came; there may be up to "
            f"{high:,.0f} (95%) if rare clients come independently and equally often"
        )
    return (
        f"if clients come independently of each other and of their past, at least {low:,.0f} never "
        f"came (97.5%), and {unseen.estimate:,.0f} (95%: {low:,.0f} to {high:,.0f}) if rare "
        "clients also come equally often"
    )


def _describe_coverage_of_sample(unseen: UnseenClients) -> str:
    low, high = unseen.coverage_interval
    visit = "participation" if unseen.link == 0 else "visit"
    text = (
        f"{unseen.once:,} came once and {unseen.twice:,} twice, so the next {visit} is by a client "
        f"of this log with probability {format_percent(unseen.coverage)} (95%: "
        f"{format_percent(low)} to {format_percent(high)})"
    )
    if unseen.link:
        text += f"; participations up to {quantify(unseen.link, 'round')} apart are one visit"
    return text


def describe_rounds(audit: Audit) -> list[str]:
    """Return the rounds, cohort sizes and absences."""
    coverage, log = audit.coverage, audit.log
    smallest, largest = coverage.cohort["smallest"], coverage.cohort["largest"]
    mean, last = coverage.cohort["mean"], log.first_round + log.length - 1
    span = f"round {last:,}" if log.length == 1 else f"rounds {log.first_round:,} to {last:,}"
    size = (
        f"{quantify(int(largest), 'client')} in each"
        if smallest == largest
        else f"{smallest:,.0f} to {largest:,.0f} clients in each (mean {mean:,.1f})"
    )
    lines = [
        f"{quantify(log.length, 'round')} ({span}), {quantify(len(log.clients), 'update')}, {size}"
    ]
    if coverage.empty_rounds:
        lines.append(f"{quantify(coverage.empty_rounds, 'round')} without participants")
    if coverage.longest_absence:
        lines.append(
            f"longest absence {quantify(coverage.longest_absence, 'round')}, median absence "
            f"{coverage.typical_absence:g}"
        )
    return lines


def describe_rates(audit: Audit) -> str:
    """Return the distribution of the rates."""
    rates = audit.rates
    seen = rates.estimate[rates.estimate > 0]
    low, middle, high = np.quantile(seen, [0.1, 0.5, 0.9])
    text = (
        f"{middle:.3g} for all clients that took part"
        if seen.min() == seen.max()
        else f"median {middle:.3g}; 10% of the clients below {low:.3g}, 10% above {high:.3g}"
    )
    if has_own_weights(audit):  # else the sentence on half of the influence says the same
        text += (
            f"; half of all updates are from {rates.clients_for_half:,} of "
            f"{quantify(audit.log.size, 'client')}"
        )
    return text if rates.reason is None else f"{text}; no intervals: {rates.reason}"


def describe_churn(audit: Audit) -> list[str]:
    """Return who stopped coming and who joined late."""
    churn = audit.churn
    if not churn.tested:
        return ["too few clients came back after a silence to tell who left or joined late"]
    if not len(churn.gone) and not len(churn.late):
        return ["no client is known to have stopped coming or joined late"]
    lines = []
    for clients, rounds, verb, word in (
        (churn.gone, churn.last, "stopped coming", "last seen"),
        (churn.late, churn.first, "joined late", "first seen"),
    ):
        if len(clients):
            listed = [
                f"{audit.log.show_name(n)} in round {rounds[n] + audit.log.first_round:,}"
                for n in clients
            ]
            lines.append(
                f"{quantify(len(clients), 'client')} {verb}, {word}: {list_some(listed, _LISTED)}"
            )
    return [
        *lines,
        "in a log without churn in which all clients stay away in similar ways, the probability of "
        "any such finding is at most 0.01",
    ]


def describe_availability(audit: Audit) -> list[str]:
    """Return the bias of availability alone; empty if the log does not say who was available."""
    availability = audit.availability
    if availability is None:
        return []
    objective = availability.objective
    weighting = describe_weighting(audit, availability.weighted)
    # A uniform draw has the same weights on average only if clients are not weighted by samples.
    drawn = "" if availability.weighted else "or over as many drawn uniformly from them, "
    return [
        f"averaging over all available clients, {weighting and weighting + ', '}{drawn}would "
        f"misplace {objective.total_variation:.0%} of the influence: "
        f"{_format_with_chance(objective)}"
    ]


def describe_selection(audit: Audit) -> list[str]:
    """Return what selection and dropout add; empty if the log has no stage but "used"."""
    selection = audit.selection
    if selection is None:
        return []
    unweighted = " if averaged without the weights" if has_own_weights(audit) else ""
    lines = [
        f"{what} {describe_shift(shift, unweighted)}"
        for shift, what in (
            (selection.selecting, "the choice among the available clients"),
            (selection.dropping, "the loss of selected clients (dropout, refusals)"),
        )
        if shift is not None
    ]
    if selection.alternatives:
        reached = ", ".join(f"{name} {skew:.2f}" for name, skew in selection.alternatives.items())
        drops = selection.dropping is not None
        weighting = describe_weighting(audit, selection.weighted)
        lines.append(
            f"expected L1 skew of other selections from these clients{weighting and ', '}"
            f"{weighting}{', if all reported' if drops else ''}: {reached}"
        )
    return lines


def describe_refusals(audit: Audit) -> list[str]:
    """Return why clients were left out of rounds, and which ones most often; empty: no reasons."""
    refusals = audit.log.refusals
    if refusals is None:
        return []
    clients = [
        f"{audit.log.show_name(n)} in {quantify(rounds, 'round')} (used in {audit.log.counts[n]:,})"
        for n, rounds in refusals.rank_clients()[:_LISTED]
    ]
    return [
        f"a client was left out of a round {quantify(int(refusals.counts.sum()), 'time')} for a "
        "known reason: "
        f"{format_reasons(refusals.total(), most=4)}",
        f"most often {', '.join(clients)}",
    ]


def describe_weighting(audit: Audit, by_samples: bool) -> str:
    """Return how the clients of a stage are weighted; empty if the log's weights change nothing."""
    if by_samples:
        return "weighted by samples"
    return "without the weights in the log" if has_own_weights(audit) else ""


def describe_shift(shift: StageShift, condition: str = "") -> str:
    """Return how far a choice moves the influence, and whether it may be uniform."""
    low, high = shift.distance.interval
    moved = f"moves {shift.distance.corrected / 2:.0%} of the influence{condition}"
    if np.isfinite([low, high]).all():
        moved += f" (95%: {low / 2:.0%} to {high / 2:.0%})"
    if shift.p_value > _SURE:
        level = "" if shift.p_value > _LIKELY else f", above the level {_SURE}"
        p_value = format_p_value(shift.p_value)
        return f"{moved}, which a uniform draw can explain ({p_value}{level})"
    return f"{moved}; it is not uniform ({format_p_value(shift.p_value)})"


def describe_groups(groups: GroupInfluence) -> list[str]:
    """Return the influence of the groups, those furthest from their share first."""
    lines = []
    with_share = np.flatnonzero(groups.wanted > 0)
    distances = np.abs(np.log(np.maximum(groups.ratios[with_share], 1e-9)))
    for g in with_share[np.argsort(-distances)][:_GROUPS]:
        ratio, wanted = groups.ratios[g], groups.wanted[g]
        low, high = groups.low[g] / wanted, groups.high[g] / wanted
        fair = low <= 1 <= high and 0.9 < ratio < 1.1
        known = np.isfinite([low, high]).all()
        lines.append(
            f"{printable(groups.grouping, 40)} {printable(groups.names[g], 80)} has "
            f"{'about' if fair else format_ratio(ratio)} its share of the influence "
            + (f"(95%: {low:.2f} to {high:.2f})" if known else "(no interval)")
        )
    return lines


def describe_pattern(audit: Audit) -> str:
    """Return the pattern in a sentence: its test, or what the log excludes."""
    text, idle = _describe_family(audit.pattern), audit.pattern.idle_rounds
    if not idle:
        return text
    verb = "is" if idle == 1 else "are"
    return f"{text}; {quantify(idle, 'round')} without participants {verb} left out"


def _describe_family(pattern: Pattern) -> str:
    parameters = pattern.parameters
    if pattern.family == "undecided":
        return f"undecided: {pattern.reason}"
    if pattern.family == "always":
        return f"always: {pattern.find_evidence(PRESENCE).result}"
    if pattern.family == "independent":
        ratio = pattern.find_evidence(SLOW_DISPERSION)
        return (
            f"independent: correlation between neighbouring rounds {_format_neighbours(pattern)}; "
            f"{ratio.result}"
        )
    if pattern.family == "drifting":
        drift = pattern.find_evidence(DRIFT)
        return f"drifting ({format_p_value(drift.p_value)}): {drift.result}"
    if pattern.family == "markov":
        neighbours = pattern.find_evidence(NEIGHBOURS)
        return (
            f"markov ({format_p_value(neighbours.p_value)}): clients take part in bursts, "
            f"{neighbours.result}; over clients, the median frequency of off → on is "
            f"{parameters['off_on']:.3g}, of on → off {parameters['on_off']:.3g}"
        )
    if pattern.family == "regularized":
        dispersion = pattern.find_evidence(DISPERSION)
        return (
            f"regularized ({format_p_value(dispersion.p_value)}): turns are evened out, "
            f"{dispersion.result}; the mean distance between turns is "
            f"{parameters['everyone_within']} rounds"
        )
    text = (
        f"cyclic ({format_p_value(pattern.find_evidence(PERIOD).p_value)}): participation repeats "
        f"every {pattern.period} rounds"
    )
    if parameters.get("on_fraction"):
        text += f"; clients are on for {parameters['on_fraction']:.0%} of the cycle"
        phases = parameters["phases"]
        text += f", in {phases} groups of equal phase" if phases > 1 else ""
    return text


def describe_window(audit: Audit) -> str:
    """Return the shortest windows as even as the log, and the advised amplification period."""
    windows = audit.regularity
    if windows.period is None:
        return (
            "no window of up to half of the log is about as even as the whole log (irregularity "
            f"within {windows.tolerance:g})" + _describe_period(audit)
        )
    single = windows.period == 1
    text = "single rounds" if single else f"windows of {quantify(windows.period, 'round')}"
    if windows.floor > windows.tolerance:
        cause = "unequal shares" if has_unequal_shares(audit) else "unequal rates"
        cause = "the skew of its weights" if has_own_weights(audit) else cause
        text += (
            f" are about as even as the whole log (irregularity within {windows.tolerance:g} of "
            f"{windows.floor:.2f}, which is due to {cause} and remains in any window)"
        )
    else:
        text += f" are even (irregularity at most {windows.floor + windows.tolerance:.2g})"
    return text + _describe_period(audit)


def _describe_period(audit: Audit) -> str:
    """Return the end of a sentence: the periods that are advised for amplified methods."""
    found = {one.parameters["period"] for one in audit.advice if "period" in one.parameters}
    periods, shortest, cycle = sorted(found), audit.regularity.period, audit.pattern.period
    if not periods:
        return ""
    if periods == [shortest]:
        return ": the period advised for amplified methods"
    reason = "" if shortest in found else ", to average over the swings of the objective"
    if cycle and not any(period % cycle for period in periods):
        reason = ", one cycle" if periods == [cycle] else ", whole cycles"
    *others, last = [f"{period:,}" for period in periods]
    listed = f"{', '.join(others)} or {last}" if others else last
    return f"; the period advised for amplified methods is {listed} rounds{reason}"


def describe_advice(audit: Audit) -> list[str]:
    """Return what no method corrects, and which methods the replay puts hardly behind the first."""
    lines = [*_rank_averaging(audit), *_compare_replays(audit)]
    unreachable = 2 * float(audit.objectives.wanted[audit.coverage.never].sum())
    if unreachable < _SHOWN:
        return lines
    return [
        f"whatever the method, {unreachable:.2f} of the remaining L1 skew is due to clients that "
        f"{'never took part' if audit.selection is None else 'were never used'}",
        *lines,
    ]


def _rank_averaging(audit: Audit) -> list[str]:
    """Return why averaging is not first, if it favours no clients; at most one sentence."""
    first = audit.advice[0].simulated
    if favours_clients(audit.objectives, audit.forgetting) is not False:
        return []
    return [
        f"averaging can stay: it is number {rank} only because of its replay "
        f"({one.simulated[0]:.1%}; the first: {first[0]:.1%}), not because it favours clients"
        for rank, one in enumerate(audit.advice, start=1)
        if one.algorithm == "fedavg" and not one.parameters and not one.tied
    ]


def _compare_replays(audit: Audit) -> list[str]:
    first, *others = audit.advice
    name = format_method(first)
    tied = [format_method(one) for one in others if one.tied and first.tied]
    equal = dict.fromkeys(format_short(one) for one in others if one.equivalent and not one.tied)
    lines = []
    if tied:
        average_over_turns = first.algorithm == "amplified-scaffold" and "scaffold" in tied
        reason = "its windows average over the swings" if average_over_turns else "it is simpler"
        if first.algorithm == "auto":
            reason = "it has no settings"
        alike = ", ".join(tied)
        lines.append(f"{name} is tied in the replay with {alike}; it comes first because {reason}")
    if equal and first.equivalent:
        lines.append(f"hardly behind {name} in the replay: {', '.join(equal)}")
    if first.privacy is not None:
        lines.append(
            "the replay has neither clipping nor noise, which cost methods with large weights most"
        )
    if audit.left_out:
        left_out = dict.fromkeys(map(format_method, audit.left_out))
        lines.append(f"left out because the privacy mechanism refuses them: {', '.join(left_out)}")
    return lines


def _format_with_chance(objective: EffectiveObjective) -> str:
    """Return a skew with its interval, and whether chance alone can explain it."""
    explained = objective.interval[0] < _NO_SKEW and objective.l1_skew >= _ROUNDING
    return format_skew(objective.skew) + (", which chance alone can explain" if explained else "")


def format_influence(audit: Audit, client: int) -> str:
    """Return a client's influence relative to its share, with its 95% interval."""
    objectives = audit.objectives
    share = float(objectives.wanted[client])
    low, high = objectives.low[client] / share, objectives.high[client] / share
    ratio = f"{objectives.ratios[client]:.2f}"
    return f"{ratio} ({low:.2f} to {high:.2f})" if np.isfinite([low, high]).all() else ratio


def _format_neighbours(pattern: Pattern) -> str:
    """Return the largest correlation of neighbouring rounds that is not excluded."""
    interval = pattern.find_evidence(NEIGHBOURS).interval
    assert interval is not None
    return f"within ±{format_bound(max(abs(end) for end in interval))} (95%)"
