"""A ranking of methods for a log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedtide.auditing.recommend.advice import Advice, Memory
from fedtide.auditing.recommend.findings import Findings
from fedtide.auditing.recommend.log_replay import Script, Settings
from fedtide.auditing.recommend.replay_problem import ReplayedLoss, measure_losses

_TOLERANCE = 0.1
"""Losses that differ by less than this share are equivalent."""
_FLOOR = 0.01
"""So are those that differ by less than this share of the loss at the start."""
_CLOSE = {"light": 0.25, "heavy": 0.6}
"""Methods within this part of that tolerance are tied with the best, by memory: a light one must be
nearly as good as the best, while heavy ones hardly differ in cost."""
_ERRORS = 2.0
"""So are those within that tolerance whose distance is less than this many standard errors."""
_TRUSTED = 3.0
"""Auto comes before light methods whose loss in the replay is lower by up to this factor. Where
training shows that it deserves to (docs/audit-methods.md), the factor is at most 2.1."""
_PLAIN: Settings = {"type": "fedavg"}
"""Averaging over the cohort, with which the methods are compared."""
_MOST_FLOATS = 1e10
"""A memory of more numbers than this (40 GB) puts a method behind the light ones."""


def rank_methods(
    variants: Sequence[Sequence[Advice]], findings: Findings, script: Script
) -> list[Advice]:
    """Return the methods, best first, by the loss with which they end in the replay.

    Of a method with several settings the first is taken, unless another ends clearly lower. Losses
    are equivalent if they differ by less than a tenth, or by less than a hundredth of the loss at
    the start. Averaging over the cohort comes first if nothing speaks against it and it is
    equivalent to the best. Methods that are tied with the best (`_is_tied`) follow in the order of
    `list_variants`, the simplest first, with two exceptions: averaging is the last of them if
    something speaks against it; and where the objective in force swings, the windows of Amplified
    SCAFFOLD come before SCAFFOLD, whose control variates are those of the end of a client's turn
    (Crawshaw & Liu 2024). What the replay cannot know is the price of memory: methods that store
    more than 10¹⁰ numbers follow all others. Of the light methods that are not tied with the best,
    Auto is the first, after averaging where nothing speaks against that, and after those whose loss
    is far lower: the replay leaves out that it scales the coordinates and that its output is a
    mean, and in training it is nearly always the best of them (docs/audit-methods.md).

    Args:
        variants: the methods in the order of `list_variants`, each with its possible settings.
        findings: the audit.
        script: of the replay.
    """
    methods = [one.settings for group in variants for one in group]
    replayed = methods if _PLAIN in methods else [*methods, _PLAIN]
    results = measure_losses(script, replayed)
    plain, losses = results[replayed.index(_PLAIN)], iter(results)
    found = [_choose_setting([(one, next(losses)) for one in group]) for group in variants]
    affordable = [loss for one, loss in found if one.memory_floats <= _MOST_FLOATS]
    best = min(affordable, key=lambda loss: loss.mean)
    listed = [_report(one, loss, best, plain, findings) for one, loss in found]
    simplicity = _order_by_simplicity(listed, bool(findings.swing))

    def rank(place: int) -> tuple[bool, bool, bool, float]:
        advice = listed[place]
        dear = advice.memory_floats > _MOST_FLOATS
        if not advice.tied:
            return dear, True, False, advice.simulated[0]
        unfair = _is_average(advice) and not _is_right_average(advice, findings)
        return dear, False, unfair, simplicity[place]

    ranked = [listed[place] for place in sorted(range(len(listed)), key=rank)]
    return _compare_memories(_put_auto_first(ranked, findings))


def _put_auto_first(ranked: list[Advice], findings: Findings) -> list[Advice]:
    """Return the methods with Auto before those light ones that are not far ahead in the replay."""
    auto = next((one for one in ranked if one.algorithm == "auto"), None)
    if auto is None:  # refused by a privacy mechanism
        return ranked
    loss_of_auto, _ = auto.simulated

    def gives_way(other: Advice) -> bool:
        if other.memory == "heavy" or other.tied or _is_right_average(other, findings):
            return False
        loss, _ = other.simulated
        return loss_of_auto <= max(_TRUSTED * loss, loss + _FLOOR)

    before = ranked[: ranked.index(auto)]
    place = next((place for place, other in enumerate(before) if gives_way(other)), len(before))
    return [*before[:place], auto, *before[place:], *ranked[len(before) + 1 :]]


def _order_by_simplicity(listed: list[Advice], swings: bool) -> list[float]:
    """Return the place of each method among tied ones; Amplified SCAFFOLD's depends on swings."""
    names = [one.algorithm for one in listed]
    places = [float(place) for place in range(len(names))]
    if swings and {"scaffold", "amplified-scaffold"}.issubset(names):
        places[names.index("amplified-scaffold")] = names.index("scaffold") - 0.5
    return places


def _choose_setting(variants: list[tuple[Advice, ReplayedLoss]]) -> tuple[Advice, ReplayedLoss]:
    """Return the first setting, or the best if that is clearly better."""
    best = min(variants, key=lambda one: one[1].mean)
    first = variants[0]
    return first if _is_tied(first[1], best[1], "light") else best


def _is_tied(loss: ReplayedLoss, best: ReplayedLoss, memory: Memory) -> bool:
    """Return whether a loss is nearly the best, or equivalent to it and within its error."""
    gap = loss.mean - best.mean
    if gap <= _CLOSE[memory] * _tolerance(best):
        return True
    return _is_equivalent(loss, best) and gap <= _ERRORS * loss.error_of_gap(best)


def _is_equivalent(loss: ReplayedLoss, best: ReplayedLoss) -> bool:
    return loss.mean - best.mean <= _tolerance(best)


def _tolerance(best: ReplayedLoss) -> float:
    return max(_TOLERANCE * best.mean, _FLOOR)


def _is_average(advice: Advice) -> bool:
    """Return whether a method averages over the cohort, by number or by samples."""
    return advice.algorithm == "fedavg" and advice.parameters.get("weights", "data") == "data"


def _is_right_average(advice: Advice, findings: Findings) -> bool:
    """Return whether a method averages, by number or by samples, and nothing speaks against it."""
    if not _is_average(advice):
        return False
    objectives, source = findings.objectives, findings.wanted_source
    if "weights" in advice.parameters:
        return source == "samples" and not findings.objections(objectives.in_force)
    return not (findings.objections(objectives.plain) if source == "equal" else findings.swing)


def _report(
    advice: Advice,
    loss: ReplayedLoss,
    best: ReplayedLoss,
    plain: ReplayedLoss,
    findings: Findings,
) -> Advice:
    """Return the advice with its result in the replay."""
    text = f"in the replay it ends with {loss.mean:.1%} of the loss at the start"
    if advice.settings != _PLAIN:
        text += f", averaging over the cohort with {plain.mean:.1%}"
    equivalent = _is_equivalent(loss, best)
    is_right = _is_right_average(advice, findings)
    return replace(
        advice,
        reasons=[*advice.reasons, text],
        simulated=(loss.mean, loss.error_of_gap(best)),
        equivalent=equivalent,
        tied=equivalent if is_right else _is_tied(loss, best, advice.memory),
    )


def _compare_memories(ranked: list[Advice]) -> list[Advice]:
    """Return the advice; the first method names the first one of the other memory.

    A heavy one always does, a light one if the other ends lower by over two standard errors.
    """
    first, *others = ranked
    other = next((one for one in others if one.memory != first.memory), None)
    if other is None:
        return ranked
    if first.memory == "heavy":
        text = (
            f"it stores {first.memory_floats:,} numbers; the first method without such a memory is "
            f"{other.algorithm}"
        )
    elif first.simulated[0] - other.simulated[0] > _ERRORS * first.simulated[1] > 0:
        text = (
            f"with a memory of {other.memory_floats:,} numbers, {other.algorithm} ends with "
            f"{other.simulated[0]:.1%} of the loss at the start"
        )
    else:
        return ranked
    return [replace(first, reasons=[*first.reasons, text]), *others]
