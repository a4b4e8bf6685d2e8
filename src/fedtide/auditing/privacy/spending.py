"""The privacy that a participation log has cost every client."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import torch

from fedtide.algorithms import Algorithm, ClientUpdates, Cohort, FedAU, FedAvg, RoundDriver
from fedtide.algorithms._weighted_sum import WeightedSum
from fedtide.algorithms._wrapper import Wrapper
from fedtide.auditing.log.client_table import ClientTable
from fedtide.auditing.log.participation_log import (
    Floats,
    Ints,
    ParticipationLog,
    find_first_entries,
    find_gaps,
)
from fedtide.auditing.log.reader import read_participation_log
from fedtide.auditing.privacy.sampling_laws import LawCheck, SamplingLaw
from fedtide.differential_privacy import (
    Gaussian,
    Mechanism,
    PrivateSum,
    loss_of_epsilon,
    make_private,
)
from fedtide.differential_privacy.mechanisms import relative_losses, require_mechanism
from fedtide.errors import InvalidInputError, list_names, quantify
from fedtide.participation.log.opening import LogSource
from fedtide.population import Population
from fedtide.validation import require_positive

_DISTINCT = 2000
_MOST_BEFORE = 100_000
"""Rounds before the log that are replayed, in about a minute."""
_CUTOFFS = 12
_BY_DEFAULT = FedAvg(weights="all")


@dataclass(frozen=True, eq=False)
class Spent:
    """What a log has cost, if its method ran with a mechanism.

    ε is that of the published models, for an observer who knows everything but a client's updates:
    who took part, in which rounds, and all other updates. Sampling does not reduce it, because who
    takes part is visible. What clients lost in rounds before the first one of the log is not
    counted.

    Args:
        mechanism: clipping and noise.
        algorithm: the method.
        log: the participation log.
        losses: μ² of each client, shape (N,).
        next_losses: μ² of each client if it also takes part in the next round, shape (N,).
        law: what contradicts the declared sampling law; None if none was declared.
        declared: the ε that the declared law promises an observer who does not learn who took part;
            None without one, or where no accountant gives it.
        target: the ε that should have been met; None: none.
        noise_needed: the least noise_multiplier that meets the target on this log.
        cutoff_needed: the largest cutoff that was tried and meets the target with the same noise in
            the model; 0 if none does, None if the method has no cutoff.
    """

    mechanism: Mechanism
    algorithm: Algorithm[Any]
    log: ParticipationLog
    losses: Floats
    next_losses: Floats
    law: LawCheck | None = None
    declared: float | None = None
    target: float | None = None
    noise_needed: float | None = None
    cutoff_needed: int | None = None

    @cached_property
    def worst(self) -> int:
        """The position of the client with the largest ε."""
        return int(self.losses.argmax())

    @cached_property
    def epsilon(self) -> float:
        """ε of the client that lost most, at the mechanism's δ."""
        return self.mechanism.epsilon(float(self.losses.max()))

    @cached_property
    def separations(self) -> Ints:
        """The least number of rounds between two participations, 0 with fewer than two, (N,)."""
        starts, never = self.log.client_starts, self.log.length
        gaps = find_gaps(self.log.rounds, starts, first=never)
        least = np.full(self.log.size, never)
        least[self.log.counts > 0] = np.minimum.reduceat(gaps, find_first_entries(starts))
        return np.where(least < never, least, 0)

    @cached_property
    def violators(self) -> Ints:
        """The clients that took part too often or too soon for the mechanism, by position."""
        most, apart = self.mechanism.participations, self.mechanism.separation
        soon = (self.separations > 0) & (self.separations < apart)
        often = np.zeros(self.log.size, dtype=bool) if most is None else self.log.counts > most
        return np.flatnonzero(soon | often)

    @cached_property
    def clients(self) -> pl.DataFrame:
        """One row per client: participations, separation, ε, and ε after one more participation.

        With more than 2,000 different losses, ε is rounded up by less than 0.1 %.
        """
        apart = pl.Series(self.separations)
        return pl.DataFrame(
            {
                "client": self.log.names,
                "participations": self.log.counts,
                "separation": apart.set(apart == 0, None),
                "epsilon": self._epsilons(self.losses),
                "epsilon_next": self._epsilons(self.next_losses),
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        law = self.law
        return {
            "mechanism": repr(self.mechanism),
            "algorithm": repr(self.algorithm),
            "rounds": [self.log.first_round, self.log.first_round + self.log.length - 1],
            "delta": self.mechanism.delta,
            "epsilon": _finite(self.epsilon),
            "worst_client": self.log.names[self.worst],
            "violations": [self.log.names[int(n)] for n in self.violators],
            "law": None
            if law is None
            else {"contradictions": list(law.contradictions), "p_value": law.p_value},
            "declared_epsilon": self.declared,
            "target": self.target,
            "noise_needed": self.noise_needed,
            "cutoff_needed": self.cutoff_needed,
            "clients": [
                {name: _finite(value) for name, value in row.items()}
                for row in self.clients.iter_rows(named=True)
            ],
        }

    def _epsilons(self, losses: Floats) -> Floats:
        """Return ε of each loss; equal losses are converted once."""
        distinct, where = np.unique(losses, return_inverse=True)
        if len(distinct) > _DISTINCT:
            positive = distinct > 0
            step = math.log1p(5e-4)
            levels = np.ceil(np.log(distinct[positive]) / step) * step
            rounded = np.minimum(np.exp(levels), distinct[-1])
            distinct[positive] = np.maximum(rounded, distinct[positive])
            distinct, level = np.unique(distinct, return_inverse=True)
            where = level[where]
        return np.array([self.mechanism.epsilon(float(v)) for v in distinct])[where]


def spent(
    log: LogSource | ParticipationLog,
    mechanism: Mechanism,
    algorithm: Algorithm[Any] = _BY_DEFAULT,
    *,
    law: SamplingLaw | None = None,
    target: float | None = None,
    horizon: int | None = None,
    clients: int | None = None,
    roster: ClientTable | None = None,
    columns: Mapping[str, str] | None = None,
    stages: Mapping[str, str] | None = None,
    where: Mapping[str, str] | None = None,
    ignore: Sequence[str] = (),
) -> Spent:
    """Return the ε that training on a log has cost each client, as the log happened.

    Weights are those of the method, replayed from round 0 on, so a log must have all rounds;
    participations missing from it are not counted.

    Args:
        log: as for `audit`; also the URL of the ledger of a live federation.
        mechanism: clipping and noise.
        algorithm: the method; a weighted sum that `privacy=` accepts. Where the log's clients have
            names, its rates or groups are a mapping by name.
        law: the declared sampling law, to be checked against the log.
        target: an ε; the noise and the cutoff that would meet it are determined.
        horizon: how many rounds will ever be released; None: unknown, which correlated noise treats
            as endless.
        clients: N.
        roster: all clients.
        columns: the log's names of its columns.
        stages: as for `audit`, as are `where` and `ignore`.
        where: see there.
        ignore: see there.

    Raises:
        InvalidInputError: a log, a method or a number that cannot be used; a log that begins after
            round 100,000.
        MissingExtraError: dp-accounting is not installed.

    >>> log = pl.DataFrame({"round": [0, 0, 1, 2], "client": ["ann", "bob", "ann", "ann"]})
    >>> found = spent(log, Gaussian(clip=1.0, noise_multiplier=2.0, delta=1e-5))
    >>> found.clients.select("client", "participations", pl.col("epsilon").round(3)).rows()
    [('ann', 3, 3.709), ('bob', 1, 1.993)]
    """
    require_mechanism(mechanism)
    if target is not None:
        require_positive("target", target)
    if not isinstance(log, ParticipationLog):
        log = read_participation_log(
            log, clients, roster, columns, stages=stages, where=where, ignore=ignore
        )
    if log.weightless:  # the method gives such an update a weight of its own
        raise InvalidInputError(
            f"log: in {quantify(log.weightless, 'row')} the weight or sample count is 0; leave "
            "these out if their clients sent no update, else leave out the column"
        )
    if horizon is not None and horizon < log.first_round + log.length:
        raise InvalidInputError(
            f"horizon: the log has rounds up to {log.first_round + log.length - 1}; give a larger "
            "number"
        )
    shares, upcoming = replay_shares(log, algorithm)
    own = longer = _count_losses(log, mechanism, horizon, shares)
    if horizon is None or log.first_round + log.length < horizon:
        longer = _count_losses(log, mechanism, horizon, shares, upcoming)
    noise = cutoff = None
    if target is not None:
        allowed = loss_of_epsilon(target, mechanism.delta)
        noise = math.sqrt(float(own.max()) / allowed)
        cutoff = _find_cutoff(log, mechanism, algorithm, horizon, allowed)
    with np.errstate(over="ignore"):  # without noise, everything is lost
        losses, next_losses = own / mechanism.variance, longer / mechanism.variance
    return Spent(
        mechanism=mechanism,
        algorithm=algorithm,
        log=log,
        losses=losses,
        next_losses=next_losses,
        law=None if law is None else law.check(log),
        declared=None if law is None else law.declared_epsilon(mechanism, log.length),
        target=target,
        noise_needed=noise,
        cutoff_needed=cutoff,
    )


def _count_losses(
    log: ParticipationLog,
    mechanism: Mechanism,
    horizon: int | None,
    shares: Floats,
    upcoming: Floats | None = None,
) -> Floats:
    """Return z² μ² of each client, shape (N,).

    Args:
        log: the participation log.
        mechanism: clipping and noise.
        horizon: how many rounds will ever be released; None: unknown.
        shares: a_t^n / A of every participation, by client, (E,).
        upcoming: a_t^n / A of each client in the next round, in which all take part, (N,); None:
            the losses are those of the log alone.
    """
    clients = np.repeat(np.arange(log.size), log.counts)
    rounds = log.rounds.astype(np.int64) + log.first_round
    if upcoming is not None:
        ends = log.client_starts[1:]
        clients = np.insert(clients, ends, np.arange(log.size))
        rounds = np.insert(rounds, ends, log.first_round + log.length)
        shares = np.insert(shares, ends, upcoming)
    found = relative_losses(mechanism.coefficients, clients, rounds, shares, horizon)
    return np.pad(found, (0, log.size - len(found)))


def replay_shares(log: ParticipationLog, algorithm: Algorithm[Any]) -> tuple[Floats, Floats]:
    """Return a_t^n / A of every participation, by client, (E,), and those of the next round, (N,).

    Raises:
        InvalidInputError: a method that cannot be private, values for clients that the log does
            not tell apart by name, or, if weights depend on the rounds before, a log that begins
            after round 100,000.
    """
    private = find_sum(make_private(algorithm, Gaussian(1.0, 0.0, 0.5), seed=0))
    for name in ("rates", "groups"):
        _require_names(name, getattr(private.inner, name, None), log.names)
    kind = type(private.inner)
    remembers = kind.record_cohort is not WeightedSum.record_cohort
    before = log.first_round if remembers else 0
    if before > _MOST_BEFORE:
        raise InvalidInputError(
            f"round: the log begins in round {before:,}, and the weights of {kind.__name__} depend "
            "on all rounds before; give the log from round 0, the first one of the training"
        )
    model = torch.zeros(1, dtype=torch.float64)
    population = Population(log.size, names=log.names.to_numpy())
    driver = RoundDriver(private, model, population)
    shares = np.zeros(len(log.clients))
    for t in range(-before, log.length):
        part = slice(*log.starts[t : t + 2]) if t >= 0 else slice(0, 0)
        cohort = Cohort.uniform(torch.from_numpy(log.clients[part].astype(np.int64)))
        shares[part] = private.shares(driver.state, cohort).numpy()
        driver.run(cohort, 1.0, _no_change)
    everyone = Cohort.uniform(torch.arange(log.size))
    upcoming = private.shares(driver.state, everyone).numpy()
    return log.sort_by_client(shares), upcoming


def _require_names(field: str, values: Any, names: pl.Series) -> None:
    """Raise InvalidInputError unless it is clear which value belongs to which client of a log.

    A list follows the order of the clients where the method ran. A log has that order only if
    clients are numbered: names may be in another order here, such as "10" before "2".
    """
    if isinstance(values, Mapping):
        absent = sorted({str(name) for name in values} - set(names.cast(pl.String)))
        if absent:
            raise InvalidInputError(
                f"algorithm.{field}: {list_names(absent)} never took part in this log; name all "
                "clients of the federation (roster= or --roster), or correct the names"
            )
    elif values is not None and not names.dtype.is_integer():
        raise InvalidInputError(
            f"algorithm.{field}: a list does not say which client of this log has which value; "
            "give a mapping by the clients' names"
        )


def find_sum(algorithm: Algorithm[Any]) -> PrivateSum:
    """Return the private sum within a method that `make_private` returned."""
    while not isinstance(algorithm, PrivateSum):
        assert isinstance(algorithm, Wrapper)
        algorithm = algorithm.inner
    return algorithm


def _no_change(_: object, cohort: Cohort) -> ClientUpdates:
    zeros = torch.zeros(len(cohort), 1, dtype=torch.float64)
    return ClientUpdates(cohort.clients, cohort.weights, zeros, 1.0, torch.ones(len(cohort)))


def _find_cutoff(
    log: ParticipationLog,
    mechanism: Mechanism,
    algorithm: Algorithm[Any],
    horizon: int | None,
    allowed: float,
) -> int | None:
    """Return the largest cutoff, of twelve up to that of the method, that keeps the allowed loss.

    The noise in the model stays as it is, z K C: a smaller cutoff lowers what an update can change.
    `allowed` is the largest μ² that any client may lose.
    """
    inner = find_sum(make_private(algorithm, mechanism, seed=0)).inner
    if not isinstance(inner, FedAU) or inner.cutoff is None:
        return None
    tried = np.unique(np.geomspace(1, inner.cutoff, _CUTOFFS).round().astype(int))
    for cutoff in map(int, tried[::-1]):
        shares, _ = replay_shares(log, replace(inner, cutoff=cutoff))
        losses = _count_losses(log, mechanism, horizon, shares * cutoff / inner.cutoff)
        if losses.max() / mechanism.variance <= allowed:
            return cutoff
    return 0


def _finite(value: Any) -> Any:
    """Return the value; None for an infinite number, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
