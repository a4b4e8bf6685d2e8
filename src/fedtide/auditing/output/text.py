"""The findings of an audit in sentences, for the terminal and the page."""

from __future__ import annotations

import numpy as np

from fedtide.auditing.api import Audit
from fedtide.auditing.recommend.ranking import Advice
from fedtide.auditing.statistics.group_influence import GroupInfluence
from fedtide.auditing.statistics.skew import SkewEstimate

_METHOD_NAMES = {
    "fedavg": "FedAvg",
    "fedau": "FedAU",
    "known-rates": "KnownRates",
    "amplified": "Amplified",
    "amplified-scaffold": "Amplified SCAFFOLD",
    "scaffold": "SCAFFOLD",
    "mifa": "MIFA",
    "fedlaavg": "FedLaAvg",
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
    """Return the pattern in a sentence."""
    pattern = audit.pattern
    details = {
        "always": "every client that took part did so in every round",
        "independent": "each round is independent of the previous rounds",
        "markov": "clients take part in bursts: off → on with probability {off_on:.3g}, on → off "
        "with {on_off:.3g}",
        "cyclic": "participation repeats every {period} rounds",
        "regularized": "turns are evened out: every client takes part within about "
        "{everyone_within} rounds",
        "drifting": "rates change over time, by {relative_change:.0%} of their mean",
        "undecided": "no family fits, or the log is too short to tell",
    }
    parameters = pattern.parameters
    text = details[pattern.family].format(**{**parameters, "period": pattern.period})
    if pattern.family == "cyclic" and parameters.get("on_fraction"):
        text += f"; clients are on for {parameters['on_fraction']:.0%} of the cycle"
        phases = parameters["phases"]
        text += f", in {phases} groups of equal phase" if phases > 1 else ""
    return f"{pattern.family} ({format_confidence(pattern.confidence)}): {text}"


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
    """Return which methods the replay cannot tell from the first; empty if there are none."""
    first, *others = audit.advice
    equal = [format_method(one) for one in others if one.equivalent and first.equivalent]
    if not equal:
        return ""
    return f"equivalent to {format_method(first)} in the replay: {', '.join(equal)}"


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


def format_confidence(confidence: float) -> str:
    """Return a confidence in percent.

    >>> format_confidence(0.9734), format_confidence(0.9999)
    ('97.3% confidence', 'over 99.9% confidence')
    """
    return "over 99.9% confidence" if confidence > 0.999 else f"{confidence:.1%} confidence"


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
