"""The part of an audit on privacy: its settings from a file, and its sentences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedtide.algorithms import ALGORITHMS, Algorithm, FedAvg
from fedtide.auditing.log.participation_log import ParticipationLog
from fedtide.auditing.privacy.sampling_laws import SAMPLING_LAWS, SamplingLaw
from fedtide.auditing.privacy.spending import Spent, spent
from fedtide.differential_privacy import MECHANISMS, Mechanism
from fedtide.errors import InvalidInputError, did_you_mean, quantify
from fedtide.simulation.experiment import SWEEP_KEYS
from fedtide.simulation.experiment_files import read_yaml
from fedtide.spec import Builder, spec

_BUILDER = Builder({Algorithm: ALGORITHMS, Mechanism: MECHANISMS, SamplingLaw: SAMPLING_LAWS})
_KEYS = ("privacy", "algorithm", "law", "target", "horizon")
_SHOWN = 5


@spec
class PrivacyFile:
    """What is asked about the privacy of a log.

    Args:
        mechanisms: whose cost is asked for, at least one.
        algorithm: the method.
        law: the declared sampling law; None: none.
        target: an ε that should be met; None: none.
        horizon: how many rounds will ever be released; None: unknown.
    """

    mechanisms: tuple[Mechanism, ...]
    algorithm: Algorithm[Any]
    law: SamplingLaw | None
    target: float | None
    horizon: int | None

    def spent(self, log: ParticipationLog) -> list[Spent]:
        """Return what a log has cost under each mechanism.

        Raises:
            InvalidInputError: the method cannot be private, or the log does not fit the file.
            MissingExtraError: dp-accounting is not installed.
        """
        return [
            spent(log, one, self.algorithm, law=self.law, target=self.target, horizon=self.horizon)
            for one in self.mechanisms
        ]


def read_privacy_file(path: str | Path) -> PrivacyFile:
    """Return what a file asks about the privacy of a log.

    The file is an experiment file with `privacy:`, or one with these keys alone:

        privacy: {type: gaussian, clip: 1.0, noise_multiplier: 1.0, delta: 1.0e-5}   # or a list
        algorithm: {type: fedau, cutoff: 50}      # default: fedavg with weights "all"
        law: {type: poisson, rate: 0.1}           # optional: the declared sampling law
        target: 2.0                               # optional: an ε
        horizon: 400                              # optional: rounds that will ever be released

    Raises:
        InvalidInputError: a file that cannot be read, or anything in it that cannot be used.
    """
    plain = read_yaml(path, "write the mechanism as `privacy: {type: gaussian, ...}`")
    if "problem" not in plain:  # not an experiment file
        for key in plain:
            if key not in _KEYS:
                raise InvalidInputError(f"{key}: unknown key; {did_you_mean(str(key), _KEYS)}")
    for key in ("base", *SWEEP_KEYS):
        if key in plain and key != "seeds":  # seeds do not change the cost
            raise InvalidInputError(
                f"{key}: {path} describes several runs, or builds on another file; give the "
                "experiment.yaml in the folder of the run"
            )
    if not plain.get("privacy"):
        raise InvalidInputError(
            f"privacy: {path} has none; give a mechanism, such as {{type: gaussian, clip: "
            "1.0, noise_multiplier: 1.0, delta: 1.0e-5}"
        )
    listed = plain["privacy"] if isinstance(plain["privacy"], list) else [plain["privacy"]]

    def read(kind: Any, key: str) -> Any:
        return None if plain.get(key) is None else _BUILDER.build(kind, plain[key], key)

    return PrivacyFile(
        mechanisms=tuple(_BUILDER.build(Mechanism, one, "privacy") for one in listed),
        algorithm=read(Algorithm, "algorithm") or FedAvg(weights="all"),
        law=read(SamplingLaw, "law"),
        target=read(float, "target"),
        horizon=read(int, "horizon"),
    )


def report_lines(found: Spent) -> Iterator[str]:
    """Yield what a log has cost, in sentences for the terminal."""
    mechanism, log, worst = found.mechanism, found.log, found.worst
    yield f"privacy: {mechanism}"
    last = log.first_round + log.length - 1
    yield f"method: {found.algorithm}; rounds {log.first_round} to {last}"
    apart = int(found.separations[worst])
    yield (
        f"ε = {found.epsilon:.4g} at δ = {mechanism.delta:g} for the client with the largest ε: "
        f"{log.show_name(worst)}, with {quantify(int(log.counts[worst]), 'participation')}"
        + (f", the closest {quantify(apart, 'round')} apart" if apart else "")
    )
    yield from _caveats(found)
    top = found.clients.sort("epsilon", descending=True).head(_SHOWN)
    which = "all clients" if len(top) == log.size else f"the {len(top)} clients with the largest ε"
    yield f"{which} (client, participations, closest, ε, ε after one more):"
    for name, k, gap, epsilon, upcoming in top.iter_rows():
        yield f"  {name!s:.40}, {k:,}, {'-' if gap is None else gap}, {epsilon:.4g}, {upcoming:.4g}"
    if mechanism.budget is not None:
        over = int((found.clients["epsilon_next"] > mechanism.budget).sum())
        yield (
            f"{over:,} of {log.size:,} clients cannot take part once more within "
            f"ε = {mechanism.budget:g}"
        )
    if len(found.violators):
        yield (
            f"{quantify(len(found.violators), 'client')} took part too soon or too often for the "
            f"mechanism, such as {log.show_name(int(found.violators[0]))}; ε counts that"
        )
    yield from _law_lines(found)
    if found.target is not None:
        yield _judge_target(found, found.target)
    yield (
        "ε is that of the models, for an observer who sees who took part and knows all other "
        "updates; metrics, and participation itself, are not protected"
    )


def _caveats(found: Spent) -> Iterator[str]:
    """Yield reasons why ε says less than it seems to."""
    log, delta = found.log, found.mechanism.delta
    if log.first_round:
        missing = "round 0 is" if log.first_round == 1 else f"rounds 0 to {log.first_round - 1} are"
        yield f"{missing} not in the log: what clients lost there is not counted"
    if delta * log.size >= 1:
        yield (
            f"δ = {delta:g} is not below 1 / N = {1 / log.size:.2g}: even publishing all data of "
            "one client, drawn at random, would satisfy it"
        )


def _law_lines(found: Spent) -> Iterator[str]:
    if found.law is None:
        return
    for text in found.law.contradictions:
        yield f"the declared sampling law was not kept: {text}"
    if not found.law.contradictions:
        yield f"nothing contradicts the declared sampling law (p = {found.law.p_value:.2g})"
    if found.declared is not None:
        yield (
            f"the declared law promises ε = {found.declared:.4g}, if it was kept, to observers who "
            "do not learn who took part; the server does"
        )


def _judge_target(found: Spent, target: float) -> str:
    if found.epsilon <= target:
        return (
            f"the target ε = {target:g} is met; noise_multiplier {found.noise_needed:.4g} would "
            "have been enough"
        )
    needed = f"ε = {target:g} would have needed noise_multiplier {found.noise_needed:.4g}"
    if found.cutoff_needed is None:
        return needed
    if found.cutoff_needed == 0:
        return f"{needed}; with the same noise in the model, no cutoff meets it"
    return f"{needed}, or, with the same noise in the model, a cutoff of {found.cutoff_needed}"
