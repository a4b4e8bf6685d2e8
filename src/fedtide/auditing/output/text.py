"""The audit in sentences, for the terminal and the page."""

from __future__ import annotations

import numpy as np

from fedtide.auditing.api import Audit
from fedtide.auditing.recommend.ranking import Advice
from fedtide.auditing.statistics.influence import GroupShares
from fedtide.auditing.statistics.skew import Skew

_NAMES = {
    "fedavg": "FedAvg",
    "fedau": "FedAU",
    "known-rates": "KnownRates",
    "amplified": "Amplified",
    "amplified-scaffold": "Amplified SCAFFOLD",
    "mifa": "MIFA",
    "fedvarp": "FedVARP",
}


def verdict(audit: Audit) -> str:
    """Return whose model the log trains, in a sentence or two."""
    plain = audit.objectives.plain
    said = (
        f"Averaging over each round's participants puts {plain.total_variation:.0%} of the "
        f"influence in the wrong place: {skew(plain.skew)}"
    )
    if plain.interval[0] < 0.02:
        return f"{said}, which chance alone can explain."
    return f"{said}. {concentration(audit)}"


def skew(found: Skew) -> str:
    """Return an L1 skew with what the log says of the process behind it.

    >>> skew(Skew(0.19, 0.021, (0.0, 0.06)))
    'L1 skew 0.190, 0.021 without what chance adds (95%: 0.000 to 0.060)'
    """
    low, high = found.interval
    said = f"L1 skew {found.found:.3f}"
    if abs(found.found - found.likely) >= 0.001:
        said += f", {found.likely:.3f} without what chance adds"
    return f"{said} (95%: {low:.3f} to {high:.3f})"


def concentration(audit: Audit) -> str:
    """Return how many clients carry half of the influence."""
    weights = np.sort(audit.objectives.plain.weights)[::-1]
    half = int(np.searchsorted(np.cumsum(weights), 0.5)) + 1
    return f"{half:,} of {audit.log.size:,} clients carry half of it."


def given(audit: Audit) -> str:
    """Return what the log's own weights make of it; nothing where it has none."""
    own = audit.objectives.given
    return "" if own is None else f"with those of the log, {skew(own.skew)}"


def coverage(audit: Audit) -> list[str]:
    """Return what the log covers."""
    found, log = audit.coverage, audit.log
    never = len(found.never)
    rounds = f"rounds {log.first:,} to {log.first + log.length - 1:,}"
    said = [
        f"{log.size:,} clients, {log.length:,} rounds ({rounds}), {len(log.clients):,} updates, "
        f"cohorts of {found.cohort['smallest']:.0f} to {found.cohort['largest']:.0f} "
        f"(mean {found.cohort['mean']:.1f})",
        f"{never:,} clients never came" if never else "every client came at least once",
        f"the longest absence was {found.longest_absence:,} rounds, the median one "
        f"{found.typical_absence:g}",
    ]
    if found.empty_rounds:
        said.append(f"nobody came in {found.empty_rounds:,} rounds")
    return said


def rates(audit: Audit) -> str:
    """Return how the rates spread."""
    found = audit.rates
    seen = found.estimate[found.estimate > 0]
    low, middle, high = np.quantile(seen, [0.1, 0.5, 0.9])
    return (
        f"rates: 10% of the clients below {low:.3g}, half below {middle:.3g}, 10% above "
        f"{high:.3g}; {found.half:,} clients make half of all updates"
    )


def groups(shares: GroupShares, most: int = 3) -> list[str]:
    """Return which groups count too much or too little, the farthest from their share first."""
    said = []
    order = np.argsort(-np.abs(np.log(np.maximum(shares.ratios, 1e-9))))
    for g in order[:most]:
        ratio, wanted = shares.ratios[g], shares.wanted[g]
        low, high = shares.low[g] / wanted, shares.high[g] / wanted
        fair = low <= 1 <= high and 0.9 < ratio < 1.1
        said.append(
            f"{shares.grouping} {shares.names[g]} counts "
            f"{'about' if fair else times(ratio)} its share (95%: {low:.2f} to {high:.2f})"
        )
    return said


def times(ratio: float) -> str:
    """Return a ratio as people say it.

    >>> times(3.14), times(0.254), times(12.3)
    ('3.1 times', '0.25 times', '12 times')
    """
    digits = 0 if ratio >= 10 else 1 if ratio >= 2 else 2
    return f"{ratio:,.{digits}f} times"


def pattern(audit: Audit) -> str:
    """Return the pattern in a sentence."""
    found = audit.pattern
    details = {
        "always": "everyone who came was there in every round",
        "independent": "each round is independent of the rounds before",
        "markov": "clients come in bursts: off → on with probability {off_on:.3g}, on → off with "
        "{on_off:.3g}",
        "cyclic": "it repeats every {period} rounds",
        "regularized": "turns are evened out: everyone comes within about {everyone_within} rounds",
        "drifting": "rates change in the course of the log, by {relative_change:.0%} of their mean",
        "undecided": "none of the families fits, or the log is too short to tell",
    }
    text = details[found.family].format(**{**found.parameters, "period": found.period})
    if found.family == "cyclic" and found.parameters.get("on_fraction"):
        text += f", clients being on for {found.parameters['on_fraction']:.0%} of it"
        phases = found.parameters["phases"]
        text += f", in {phases} groups in phase" if phases > 1 else ""
    return f"{found.family} ({sure(found.confidence)}): {text}"


def sure(confidence: float) -> str:
    """Return a confidence as people say it.

    >>> sure(0.9734), sure(0.9999)
    ('97.3% sure', 'over 99.9% sure')
    """
    return "over 99.9% sure" if confidence > 0.999 else f"{confidence:.1%} sure"


def sentence(text: str) -> str:
    """Return the text with a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + "."


def window(audit: Audit) -> str:
    """Return the amplification period in a sentence."""
    found = audit.regularity
    if found.period is None:
        return f"no window up to half of the log is even within {found.tolerance:g} of the whole"
    said = f"windows of {found.period:,} rounds are even within {found.tolerance:g}"
    if found.floor > found.tolerance:
        said += f" of what the unequal rates leave ({found.floor:.2f}), which no window mends"
    return said


def method(advice: Advice) -> str:
    """Return a method with its parameters.

    >>> method(Advice("fedau", {"cutoff": 50}, [], "light", 0, 0, 0.0))
    'FedAU(cutoff=50)'
    """
    shown = []
    for name, value in advice.parameters.items():
        if name == "rates":
            shown.append("rates=those of this audit")
        elif isinstance(value, dict):
            inner = {key: v for key, v in value.items() if key != "type"}
            plain = Advice(value["type"], inner, [], "light", 0, 0, 0.0)
            shown.append(method(plain))
        else:
            shown.append(f"{name}={value}")
    inside = ", ".join(shown)
    return _NAMES[advice.algorithm] + (f"({inside})" if inside else "")


def name(advice: Advice) -> str:
    """Return a method without its parameters."""
    return _NAMES[advice.algorithm]


def comparison(audit: Audit) -> str:
    """Return what the replay says about the first advice against others of its memory class."""
    first = audit.advice[0]
    if first.simulated is None:
        return ""
    others = [a for a in audit.advice[1:] if a.memory == first.memory and a.simulated is not None]
    closer = [a for a in others if a.simulated and a.simulated[0] < first.simulated[0]]
    if not closer:
        return f"replayed, {method(first)} ends nearest to the wanted optimum of its memory class"
    best = min(closer, key=lambda a: a.simulated[0] if a.simulated else 0.0)
    assert best.simulated is not None
    gap = first.simulated[0] - best.simulated[0]
    error = 1.96 * float(np.hypot(first.simulated[1], best.simulated[1]))
    if gap <= error:
        return f"replayed, {method(first)} and {method(best)} are within each other's error"
    return f"replayed, {method(best)} ends nearer to the wanted optimum than {method(first)}"


def amount(count: float) -> str:
    """Return a large number as people say it.

    >>> amount(51_000_000), amount(250)
    ('51 M', '250')
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= 10 * size or (count >= size and unit != "k"):
            return f"{count / size:.3g} {unit}"
    return f"{count:,.0f}"
