"""What kind of coming and going it is: the family, by tests that each say what they found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.auditing.log.participation_log import Floats, ParticipationLog
from fedtide.auditing.statistics.autocorrelation import Correlation, correlate
from fedtide.auditing.statistics.change import Drift, compare_halves
from fedtide.auditing.statistics.distributions import normal_above, normal_point
from fedtide.auditing.statistics.periodicity import Period, find_period
from fedtide.auditing.statistics.profile import Profile, fold
from fedtide.auditing.statistics.runs_test import Runs, count_runs, dependence_tests, memory_test

Family = Literal[
    "always", "independent", "markov", "cyclic", "regularized", "drifting", "undecided"
]

LEVEL = 0.001
"""The probability with which each test calls a log without the effect one with it, at most."""
DRIFT_LEVEL = 0.002
"""The same for drift, whose test leans on an estimate; 0.01 is what is promised."""


@dataclass(frozen=True)
class Evidence:
    """One test.

    Args:
        test: its name.
        found: what it found, in a sentence.
        p_value: how probable that, or more, is where the effect is absent.
    """

    test: str
    found: str
    p_value: float


@dataclass(frozen=True, eq=False)
class Pattern:
    """How the clients come and go.

    Args:
        family: "always" (everyone seen is there in every round), "independent" (of the rounds
            before), "markov" (a two-state chain), "cyclic" (it repeats), "regularized" (evened out:
            counts in a window vary less than chance), "drifting" (rates change), or "undecided".
        confidence: one minus the p-value of the test that decided; for "independent" the power
            against a correlation of 0.1 between neighbouring rounds.
        period: in rounds, where it is cyclic.
        parameters: of the family.
        mixing_time: (τ + 1) / 2 rounds, 1 / (1 − ρ) for a Markov chain; None where it never mixes.
        evidence: every test that was made.
        clients: the family of each client, "never" for those who never came, shape (N,).
        correlation: pooled over clients; None for "always".
        drift: the comparison of the halves; None for "always".
        runs: each client's counts of patterns.
        profile: how the clients lie in the cycle, where it is cyclic.
    """

    family: Family
    confidence: float
    period: int | None
    parameters: dict[str, Any]
    mixing_time: float | None
    evidence: list[Evidence]
    clients: NDArray[np.str_]
    runs: Runs
    correlation: Correlation | None = None
    drift: Drift | None = None
    profile: Profile | None = None


@dataclass(eq=False)
class _Tests:
    """Everything that was measured, before a family is named."""

    log: ParticipationLog
    runs: Runs
    correlation: Correlation
    dependence: Floats
    lag_one: float
    memory: tuple[float, float]
    period: Period | None
    drift: Drift
    dispersion: tuple[float, float]
    window: int
    evidence: list[Evidence] = field(default_factory=list)


def find_pattern(log: ParticipationLog) -> Pattern:
    """Return the pattern of a log.

    The order of the decisions: cyclic, drifting, regularized, then by the dependence on the round
    before Markov or independent, each at the level 0.001 (drift: 0.002) and with an effect that
    matters; a dependence that reaches back further than one round, or too little data to exclude a
    correlation of 0.1, is "undecided".
    """
    runs = count_runs(log)
    correlation = correlate(log)
    if correlation is None:
        clients = np.where(log.counts > 0, "always", "never")
        return Pattern("always", 1.0, None, {"rate": 1.0}, 1.0, [], clients, runs)
    tests = _measure(log, runs, correlation)
    family, confidence = _decide(tests)
    profile = None
    if family == "cyclic" and tests.period is not None:
        profile = fold(log, tests.period.rounds)
    return Pattern(
        family=family,
        confidence=min(confidence, 0.9999),
        period=tests.period.rounds if profile is not None and tests.period else None,
        parameters=_parameters(family, tests, profile),
        mixing_time=_mixing_time(family, correlation),
        evidence=tests.evidence,
        clients=_each(family, tests, profile),
        runs=runs,
        correlation=correlation,
        drift=tests.drift,
        profile=profile,
    )


def _measure(log: ParticipationLog, runs: Runs, correlation: Correlation) -> _Tests:
    period = find_period(correlation)
    cyclic = period is not None and _repeats(period)
    if cyclic and period is not None:
        drift = compare_halves(log, correlation, np.ones(log.size), period.rounds)
    else:
        times = (1 + runs.correlation) / (1 - runs.correlation)
        drift = compare_halves(log, correlate(log, pieces=2) or correlation, times)
    dependence, lag_one = dependence_tests(runs)
    rate = len(log.clients) / (log.length * max(1, int((log.counts > 0).sum())))
    window = int(np.clip(2 / rate, 4, max(4, log.length // 4)))
    tests = _Tests(
        log=log,
        runs=runs,
        correlation=correlation,
        dependence=dependence,
        lag_one=lag_one,
        memory=memory_test(runs),
        period=period,
        drift=drift,
        dispersion=correlation.dispersion(window),
        window=window,
    )
    tests.evidence = _evidence(tests)
    return tests


def _repeats(period: Period) -> bool:
    return period.p_value < LEVEL and period.strength > 0.005


def _decide(tests: _Tests) -> tuple[Family, float]:
    r1 = float(tests.correlation.values[1]) if tests.correlation.length > 1 else 0.0
    ratio, noise = tests.dispersion
    z, effect = tests.memory
    if tests.drift.p_value < DRIFT_LEVEL and tests.drift.change > 0.1:
        return "drifting", 1 - tests.drift.p_value
    if tests.period is not None and _repeats(tests.period):
        return "cyclic", 1 - tests.period.p_value
    if ratio < 0.7 and (p := _below(ratio, noise)) < LEVEL:
        return "regularized", 1 - p
    p = _two_sided(tests.lag_one)
    if p < LEVEL and abs(r1) > 0.02:
        beyond = abs(z) > 4 and abs(effect) > 0.05
        return ("undecided", _two_sided(z)) if beyond else ("markov", 1 - p)
    pairs = tests.correlation.clients * tests.correlation.length
    power = float(normal_above(normal_point(LEVEL / 2) - 0.1 * np.sqrt(pairs)))
    return ("independent", power) if power > 0.5 else ("undecided", power)


def _evidence(tests: _Tests) -> list[Evidence]:
    r1 = float(tests.correlation.values[1]) if tests.correlation.length > 1 else 0.0
    ratio, noise = tests.dispersion
    z, effect = tests.memory
    found = [
        Evidence(
            "lag-1 runs test",
            f"neighbouring rounds correlate by {r1:+.3f} (z = {tests.lag_one:+.1f})",
            _two_sided(tests.lag_one),
        ),
        Evidence(
            "second-order test",
            f"beyond one round back, the correlation is {effect:+.3f} (z = {z:+.1f})",
            _two_sided(z),
        ),
        Evidence(
            "dispersion of counts",
            f"counts in {tests.window} rounds vary {ratio:.2f} times as much as by chance",
            min(1.0, 2 * min(_below(ratio, noise), _below(2 - ratio, noise))),
        ),
        Evidence(
            "first half against second",
            f"they differ by {tests.drift.ratio:.2f} times what a steady log shows",
            tests.drift.p_value,
        ),
    ]
    if tests.period is not None:
        c, strength = tests.period.rounds, tests.period.strength
        found.append(
            Evidence(
                "periodicity",
                f"the best period is {c} rounds, which repeats {max(strength, 0):.0%} of the "
                "variation",
                tests.period.p_value,
            )
        )
    return found


def _parameters(family: Family, tests: _Tests, profile: Profile | None) -> dict[str, Any]:
    seen = tests.log.counts > 0
    rate = float(tests.log.counts[seen].mean() / tests.log.length)
    if family == "markov":
        moving = seen & (tests.runs.ones > 2)
        a, b = tests.runs.chances
        chosen = moving if moving.any() else seen
        off_on, on_off = float(np.median(a[chosen])), float(np.median(b[chosen]))
        return {
            "off_on": off_on,
            "on_off": on_off,
            "correlation": float(tests.correlation.short[0])
            if len(tests.correlation.short)
            else 0.0,
        }
    if profile is not None:
        return profile.summary()
    if family == "regularized":
        return {"dispersion": tests.dispersion[0], "everyone_within": round(1 / rate)}
    if family == "drifting":
        return {"relative_change": tests.drift.change, "rate": rate}
    return {"rate": rate}


def _mixing_time(family: Family, correlation: Correlation) -> float | None:
    if family in ("cyclic", "drifting"):
        return None
    return max(1.0, (correlation.time + 1) / 2)


def _each(family: Family, tests: _Tests, profile: Profile | None) -> NDArray[np.str_]:
    """Return the family of each client, by its own tests, Holm's step-down over all clients."""
    counts, length = tests.log.counts, tests.log.length
    families = np.full(len(counts), "undecided", dtype="<U12")
    enough = (counts >= 5) & (length - counts >= 5)
    families[enough] = "regularized" if family == "regularized" else "independent"
    families[enough & _rejected(tests.dependence, enough)] = (
        family if family in ("regularized", "undecided") else "markov"
    )
    if profile is not None:
        families[enough & profile.repeats] = "cyclic"
    families[enough & _rejected(tests.drift.clients, enough)] = "drifting"
    families[counts == length] = "always"
    families[counts == 0] = "never"
    return families


def _rejected(p_values: Floats, among: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return where the hypothesis falls at family-wise level 0.01 (Holm 1979)."""
    places = np.flatnonzero(among)
    order = places[np.argsort(p_values[places])]
    steps = p_values[order] * np.arange(len(order), 0, -1)
    fallen = np.maximum.accumulate(steps) < 0.01
    rejected = np.zeros(len(p_values), dtype=bool)
    rejected[order[fallen]] = True
    return rejected


def _two_sided(z: float) -> float:
    return float(2 * normal_above(abs(z)))


def _below(ratio: float, noise: float) -> float:
    return float(normal_above((1 - ratio) / noise))
