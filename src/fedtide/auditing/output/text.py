"""The findings of an audit in sentences, for the terminal and the page."""

from __future__ import annotations

import numpy as np

from fedtide.auditing.api import Audit
from fedtide.auditing.recommend.ranking import Advice
from fedtide.auditing.statistics.group_influence import GroupInfluence
from fedtide.auditing.statistics.pattern import (
    DISPERSION,
    DRIFT,
    NEIGHBOURS,
    PERIOD,
    PRESENCE,
    SLOW_DISPERSION,
    Pattern,
)
from fedtide.auditing.statistics.skew import SkewEstimate

_METHOD_NAMES = {
    "fedavg": "FedAvg",
    "fedau": "FedAU",
    "known-rates": "KnownRates",
    "amplified": "Amplified",
    "amplified-scaffold": "Amplified SCAFFOLD",
    "mifa": "MIFA",
    "fedvarp": "FedVARP",
}


def describe_objective(audit: Audit) -> str:
    """Return the skew of averaging over the cohort, in one or two sentences."""
    plain = audit.objectives.plain
    text = (
        f"Averaging over each round's participants misplaces {plain.total_variation:.0%} of the "
        f"influence: {format_skew(plain.skew)}"
    )
    if plain.interval[0] < 0.02:
        return f"{text}, which chance alone can explain."
    weights = np.sort(plain.weights)[::-1]
    half = int(np.searchsorted(np.cumsum(weights), 0.5)) + 1
    return f"{text}. {half:,} of {audit.log.size:,} clients have half of the influence."


def describe_given_weights(audit: Audit) -> str:
    """Return the skew of the weights recorded in the log; empty if it has none."""
    given = audit.objectives.given
    return (
        "" if given is None else f"with the weights recorded in the log: {format_skew(given.skew)}"
    )


def describe_coverage(audit: Audit) -> list[str]:
    """Return what the log covers."""
    coverage, log = audit.coverage, audit.log
    never = len(coverage.never)
    rounds = f"rounds {log.first_round:,} to {log.first_round + log.length - 1:,}"
    lines = [
        f"{log.size:,} clients, {log.length:,} rounds ({rounds}), {len(log.clients):,} updates, "
        f"cohorts of {coverage.cohort['smallest']:.0f} to {coverage.cohort['largest']:.0f} "
        f"(mean {coverage.cohort['mean']:.1f})",
        f"{never:,} of {log.size:,} clients never took part"
        if never
        else "every client took part at least once",
        f"longest absence {coverage.longest_absence:,} rounds, median absence "
        f"{coverage.typical_absence:g}",
    ]
    if coverage.empty_rounds:
        lines.append(f"empty rounds: {coverage.empty_rounds:,}")
    return lines


def describe_rates(audit: Audit) -> str:
    """Return the distribution of the rates."""
    rates = audit.rates
    low, middle, high = np.quantile(rates.estimate[rates.estimate > 0], [0.1, 0.5, 0.9])
    return (
        f"median {middle:.3g}; 10% of the clients below {low:.3g}, 10% above {high:.3g}; "
        f"half of all updates are from {rates.clients_for_half:,} of {audit.log.size:,} clients"
    )


def describe_groups(groups: GroupInfluence, most: int = 3) -> list[str]:
    """Return the influence of the groups, those furthest from their share first."""
    lines = []
    order = np.argsort(-np.abs(np.log(np.maximum(groups.ratios, 1e-9))))
    for g in order[:most]:
        ratio, wanted = groups.ratios[g], groups.wanted[g]
        low, high = groups.low[g] / wanted, groups.high[g] / wanted
        fair = low <= 1 <= high and 0.9 < ratio < 1.1
        lines.append(
            f"{groups.grouping} {groups.names[g]} has "
            f"{'about' if fair else format_ratio(ratio)} its share of the influence "
            f"(95%: {low:.2f} to {high:.2f})"
        )
    return lines


def describe_pattern(audit: Audit) -> str:
    """Return the pattern in a sentence: its test, or what the log excludes."""
    pattern, parameters = audit.pattern, audit.pattern.parameters
    if pattern.family == "undecided":
        return f"undecided: {pattern.reason}"
    if pattern.family == "always":
        return f"always: {pattern.find_evidence(PRESENCE).result}"
    if pattern.family == "independent":
        ratio = pattern.find_evidence(SLOW_DISPERSION)
        return (
            f"independent: correlation between neighbouring rounds {_format_bound(pattern)}; "
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
    """Return the amplification period in a sentence."""
    windows = audit.regularity
    if windows.period is None:
        return (
            f"no window of up to half of the log is within {windows.tolerance:g} of the whole log"
        )
    text = f"windows of {windows.period:,} rounds are regular to within {windows.tolerance:g}"
    if windows.floor > windows.tolerance:
        text += (
            f" of the value for the whole log ({windows.floor:.2f}), which is due to unequal rates "
            "and remains in any window"
        )
    return text


def compare_replays(audit: Audit) -> str:
    """Return how the first method's replay compares with others of its memory class."""
    first = audit.advice[0]
    if first.simulated is None:
        return ""
    others = [a for a in audit.advice[1:] if a.memory == first.memory and a.simulated is not None]
    closer = [a for a in others if a.simulated and a.simulated[0] < first.simulated[0]]
    if not closer:
        return (
            f"in the replay, {format_method(first)} ends nearest to the wanted optimum among "
            f"methods of {first.memory} memory"
        )
    best = min(closer, key=lambda a: a.simulated[0] if a.simulated else 0.0)
    assert best.simulated is not None
    gap = first.simulated[0] - best.simulated[0]
    error = 1.96 * float(np.hypot(first.simulated[1], best.simulated[1]))
    if gap <= error:
        return (
            f"in the replay, {format_method(first)} and {format_method(best)} do not differ "
            "significantly"
        )
    return (
        f"in the replay, {format_method(best)} ends nearer to the wanted optimum than "
        f"{format_method(first)}"
    )


def format_skew(skew: SkewEstimate) -> str:
    """Return an L1 skew with its interval.

    >>> format_skew(SkewEstimate(0.19, 0.021, (0.0, 0.06)))
    'L1 skew 0.190, bias-corrected 0.021 (95%: 0.000 to 0.060)'
    """
    low, high = skew.interval
    text = f"L1 skew {skew.observed:.3f}"
    if abs(skew.observed - skew.corrected) >= 0.001:
        text += f", bias-corrected {skew.corrected:.3f}"
    return f"{text} (95%: {low:.3f} to {high:.3f})"


def format_method(advice: Advice) -> str:
    """Return a method with its parameters.

    >>> format_method(Advice("fedau", {"cutoff": 50}, [], "light", 0, 0, 0.0))
    'FedAU(cutoff=50)'
    """
    return _format_call(advice.algorithm, advice.parameters)


def format_method_name(advice: Advice) -> str:
    """Return a method without its parameters."""
    return _METHOD_NAMES[advice.algorithm]


def format_ratio(ratio: float) -> str:
    """Return a ratio with two significant digits.

    >>> format_ratio(3.14), format_ratio(0.254), format_ratio(12.3)
    ('3.1 times', '0.25 times', '12 times')
    """
    digits = 0 if ratio >= 10 else 1 if ratio >= 2 else 2
    return f"{ratio:,.{digits}f} times"


def format_p_value(p_value: float | None) -> str:
    """Return a p-value; None stands for a test that the log does not allow.

    >>> format_p_value(0.0234), format_p_value(3e-9), format_p_value(None)
    ('p = 0.023', 'p < 0.001', 'not testable')
    """
    if p_value is None:
        return "not testable"
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}"


def format_count(count: float) -> str:
    """Return a count, abbreviated if large.

    >>> format_count(51_000_000), format_count(250)
    ('51 M', '250')
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= 10 * size or (count >= size and unit != "k"):
            return f"{count / size:.3g} {unit}"
    return f"{count:,.0f}"


def to_sentence(text: str) -> str:
    """Return the text with a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + "."


def _format_bound(pattern: Pattern) -> str:
    """Return the largest correlation between neighbouring rounds that is not excluded."""
    interval = pattern.find_evidence(NEIGHBOURS).interval
    assert interval is not None
    return f"within ±{max(abs(end) for end in interval):.3f} (95%)"


def _format_call(algorithm: str, parameters: dict[str, object]) -> str:
    shown = []
    for name, value in parameters.items():
        if name == "rates":
            shown.append("rates=those of this audit")
        elif isinstance(value, dict):
            inner = {key: v for key, v in value.items() if key != "type"}
            shown.append(_format_call(value["type"], inner))
        else:
            shown.append(f"{name}={value}")
    arguments = ", ".join(shown)
    return _METHOD_NAMES[algorithm] + (f"({arguments})" if arguments else "")
