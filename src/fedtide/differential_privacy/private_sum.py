"""Client-level differential privacy for methods built on weighted sums, as a wrapper."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from fedtide.algorithms import Algorithm, ClientUpdates, Clipped, Cohort, RoundInfo
from fedtide.algorithms._weighted_sum import SumT, WeightedSum, WeightedSumState
from fedtide.algorithms._wrapper import Wrapper, WrapperState
from fedtide.differential_privacy.mechanisms import Mechanism, require_mechanism
from fedtide.differential_privacy.noise_source import add_noise, standard_normals
from fedtide.errors import InvalidInputError, error_prefix
from fedtide.population import Population

_NEVER = -(2**31)
_LEAST, _MOST = math.log(sys.float_info.min), math.log(sys.float_info.max)
_BELOW, _ROUNDED = 1 - 2e-6, 1 + 1e-6
"""Clipped norms stay below the bound by more than the rounding of weights and norms in float32."""


def make_private(
    algorithm: Algorithm[Any], mechanism: Mechanism, seed: int | None
) -> Algorithm[Any]:
    """Return a method with clipping and noise for the weighted sum that it is built on.

    Wrappers that see only the direction of the steps, not the updates, are applied after the noise:
    Amplified amplifies private steps, FedAdam adapts to them, at no further cost in privacy.

    Args:
        algorithm: a weighted sum, or such wrappers around one.
        mechanism: clipping and noise.
        seed: of the noise; None: the noise is secret, for deployments.

    Raises:
        InvalidInputError: something other than a mechanism; a method that uses more than a weighted
            sum, such as its clients' earlier updates; a user's class that overrides a function that
            sees updates, such as `absorb`.
    """
    require_mechanism(mechanism)
    if isinstance(algorithm, Wrapper) and algorithm.uses_directions_only:
        _require_inherited(algorithm, Wrapper, ("absorb", "absorb_total", "weigh"))
        inner = make_private(algorithm.inner, mechanism, seed)
        changed: Algorithm[Any] = replace(cast("Any", algorithm), inner=inner)
        return changed
    name = type(algorithm).__name__
    only_sums = isinstance(algorithm, WeightedSum) and algorithm.traits.averages_updates
    if not only_sums or algorithm.traits.centralised:
        hint = "; the mechanism itself clips, with clip and quantile: leave clipped out"
        raise InvalidInputError(
            f"algorithm: {name} uses more of its clients' updates than one weighted sum in each "
            "round (memory, order, norms or control variates), which noise on that sum does not "
            "hide; give fedau, known-rates, or fedavg with weights 'all', alone or within "
            "amplified, averaged, fedadam, fedyogi or fedavgm"
            + (hint if isinstance(algorithm, Clipped) else "")
        )
    return PrivateSum(mechanism, cast("WeightedSum[Any]", algorithm), seed)


def _require_inherited(algorithm: Algorithm[Any], base: type, functions: Sequence[str]) -> None:
    """Raise InvalidInputError if a class may use more than a weighted sum.

    Args:
        algorithm: the method.
        base: the class from which these functions must come.
        functions: those that see updates, or their sum without noise.
    """
    kind = type(algorithm)
    for name in functions:
        if getattr(kind, name) is not getattr(base, name):
            raise InvalidInputError(
                f"algorithm: {kind.__name__} has its own {name}, which may use more of the updates "
                "than one weighted sum with noise; leave it out, and override client_weights or "
                "another function that sees no updates"
            )


def shut_out(algorithm: Algorithm[Any], state: Any) -> frozenset[int]:
    """Return the clients that `PrivateSum.shut_out` names; none if the method is not private."""
    for private, own in _find_private(algorithm, state):
        return frozenset(private.shut_out(own).nonzero().flatten().tolist())
    return frozenset()


def largest_epsilon(algorithm: Algorithm[Any], state: Any) -> float | None:
    """Return the largest ε that a client has lost so far; None if the method is not private.

    Raises:
        MissingExtraError: dp-accounting is not installed.
    """
    for private, own in _find_private(algorithm, state):
        lost = float(own.lost.max()) / private.mechanism.variance
        return private.mechanism.epsilon(lost)
    return None


def _find_private(
    algorithm: Algorithm[Any], state: Any
) -> Iterator[tuple[PrivateSum, PrivateSumState]]:
    """Yield the private sum in a method, if it has one, and its state."""
    while isinstance(algorithm, Wrapper):
        if isinstance(algorithm, PrivateSum):
            yield algorithm, state
        algorithm, state = algorithm.inner, state.inner


def _hide(inner: SumT) -> SumT:
    """Return the state with zeros for the sum and the model, which weights must not depend on."""
    zeros = torch.zeros_like(inner.model)
    return replace(inner, total=zeros, model=zeros)


@dataclass(frozen=True)
class PrivateSumState(WrapperState):
    """The state of PrivateSum.

    Args:
        lost: Σ (a_t^n / A)² of each client, which is z² μ², shape (N,), float64.
        rounds: how often each client has taken part, shape (N,), int64.
        last: the round of its last participation, shape (N,), int64.
        noise: the last rows of L⁻¹ Z, newest first, shape (b - 1, d), float64; (b - 1, d + 1) if
            the clipping norm follows a quantile, the last column for its count.
        clip: C_t.
        exceeded: for each of this round's updates so far, 1.0 if its norm exceeds C_t, else 0.0,
            shape (S,); stays empty if the clipping norm is fixed.
    """

    lost: Tensor
    rounds: Tensor
    last: Tensor
    noise: Tensor
    clip: float
    exceeded: Tensor


@dataclass(frozen=True)
class PrivateSum(Wrapper[PrivateSumState]):
    """A weighted sum whose updates are clipped, with noise on the sum (see `Gaussian`).

        x ← x + η / N ( Σ_{n in S_t} a_t^n clip(Δ_n) + z A C (L⁻¹ Z)_t )

    The noise depends neither on the updates nor on who sent them: it is the same if half of the
    cohort, or all of it, goes missing. The sum is divided by N, which is public, never by the
    number of replies. Updates that are not finite count as zeros. If the mechanism has a quantile,
    C follows it (see `Gaussian`).

    A client is not chosen for a round if its participations would be too close together or too
    many, or could exceed its budget. When no client may ever take part again, the model stays as it
    is.

    Args:
        mechanism: clipping and noise.
        inner: the method.
        seed: of the noise; None: it comes from the operating system's cryptographic random source.

    Raises:
        InvalidInputError: (`init`) a method that may use more than a weighted sum, or whose weights
            have no bound that is known in advance, a budget below the cost of the cheapest update,
            so much noise on the count that the clipping norm would follow nothing else, or a model
            of float16 or bfloat16, in which a clipped update may be longer than C.
    """

    mechanism: Mechanism
    inner: WeightedSum[Any]
    seed: int | None

    def init(self, model: Tensor, population: Population) -> PrivateSumState:
        if torch.finfo(model.dtype).eps > torch.finfo(torch.float32).eps:
            raise InvalidInputError(
                f"privacy: the model is {str(model.dtype).removeprefix('torch.')}, in which "
                "rounding lets clipped updates exceed their bound; give a model in float32 or "
                "float64"
            )
        with error_prefix("algorithm"):
            inner = self.inner.init(model, population)
        clients = population.clients
        memory = len(self.mechanism.coefficients) - 1
        adaptive = self.mechanism.quantile is not None
        self._check_noise_on_count(inner)
        _require_inherited(self.inner, WeightedSum, ("absorb", "absorb_total", "step"))
        start = PrivateSumState(
            inner=inner,
            lost=torch.zeros(clients, dtype=torch.float64),
            rounds=torch.zeros(clients, dtype=torch.int64),
            last=torch.full((clients,), _NEVER, dtype=torch.int64),
            noise=torch.zeros(memory, len(model) + adaptive, dtype=torch.float64),
            clip=float(self.mechanism.clip),
            exceeded=torch.zeros(0, dtype=torch.float64, device=model.device),
        )
        if self.is_finished(start):
            raise InvalidInputError(
                f"privacy: one update already costs more than the budget of ε = "
                f"{self.mechanism.budget:g}; raise noise_multiplier or the budget"
            )
        return start

    def choose_cohort(self, state: PrivateSumState, cohort: Cohort) -> Cohort:
        """Leave out the clients that may not take part."""
        shares = _ROUNDED * self.shares(state, cohort)
        allowed = self._may_take_part(state, cohort.clients.cpu(), shares)
        return self.inner.choose_cohort(state.inner, cohort.select(allowed))

    def absorb(self, state: PrivateSumState, updates: ClientUpdates) -> PrivateSumState:
        """Pass on the clipped updates, with zeros for those that are not finite."""
        norms = torch.linalg.vector_norm(updates.deltas, dim=1, dtype=torch.float64)
        factors = (state.clip * _BELOW / norms).clamp(max=1.0)
        # In float32, the effect of one update on a sum of many would depend on rounding.
        deltas = updates.deltas.to(torch.float64, copy=True).mul_(factors.unsqueeze(1))
        deltas[~norms.isfinite()] = 0.0  # no factor makes them shorter
        clipped = replace(updates, deltas=deltas)
        self._check_weights(state.inner, clipped)
        exceeded = state.exceeded
        if self.mechanism.quantile is not None:
            exceeded = torch.cat([exceeded, (norms > state.clip).double()])
        return replace(state, inner=self.inner.absorb(state.inner, clipped), exceeded=exceeded)

    def step(self, state: PrivateSumState, lr: float) -> tuple[PrivateSumState, RoundInfo]:
        """Step as the inner method does, add the noise, and record the clients' privacy losses."""
        t, start = state.round, state.model
        assert isinstance(state.inner, WeightedSumState)
        total, before = state.inner.total, _hide(state.inner)
        over = not len(before.clients) and self.is_finished(state)
        scale = self.inner.server_lr / before.population
        clients, bound = before.clients.cpu(), self._bound(before)
        shares = before.weights.double().cpu() / bound
        self._check_clients(state, clients, shares)
        self._check_normaliser(before)
        inner, info = self.inner.step(before, lr)
        if over:  # an empty round
            return replace(state, inner=self.inner.with_model(inner, start)), info
        row = self._next_noise(state, t)
        deviation = self.mechanism.noise_on_sum * bound * state.clip
        direction = total.mul_(scale) if len(clients) else info.direction
        direction = add_noise(direction, deviation * scale, row[: len(start)]).to(start.dtype)
        state.lost[clients] += shares**2
        state.rounds[clients] += 1
        state.last[clients] = t
        state = replace(
            state,
            inner=self.inner.with_model(inner, start + direction),
            noise=torch.cat([row.unsqueeze(0), state.noise[:-1]])
            if len(state.noise)
            else state.noise,
            clip=self._next_clip(state, before.weights, bound, scale, row),
            exceeded=state.exceeded[:0],
        )
        return state, replace(info, direction=direction)

    def add_clients(self, state: PrivateSumState, first: int) -> PrivateSumState:
        """Refuse new clients."""
        raise InvalidInputError(
            "privacy: clients' losses are computed from a log as if all had been there from "
            "round 0, so none can be added later; keep the number of clients"
        )

    def is_finished(self, state: PrivateSumState) -> bool:
        """Return whether no client may ever take part again."""
        return bool(self.shut_out(state).all())

    def shut_out(self, state: PrivateSumState) -> Tensor:
        """Return which clients may not take part again unless others do before, (N,), bool.

        Clients whose last participation is merely too recent are not among them.
        """
        most = self.mechanism.participations
        shut = torch.zeros_like(state.rounds, dtype=torch.bool)
        if most is not None:
            shut = state.rounds >= most
        if self.mechanism.budget is not None:
            shut = shut | (state.lost + self._least_shares(state) ** 2 > self._limit)
        return shut

    def _least_shares(self, state: PrivateSumState) -> Tensor:
        """Return a lower bound of a_t^n / A from now on, while nobody takes part, (N,).

        The factor is that of `choose_cohort`.
        """
        least = torch.as_tensor(self.inner.least_weights(state.inner), dtype=torch.float64)
        return _ROUNDED / self._bound(state.inner) * least.cpu().expand(state.lost.shape)

    def _may_take_part(self, state: PrivateSumState, clients: Tensor, shares: Tensor) -> Tensor:
        """Return which clients may take part in this round with these a_t^n / A, (S,), bool."""
        allowed = state.round - state.last[clients] >= self.mechanism.separation
        if self.mechanism.participations is not None:
            allowed &= state.rounds[clients] < self.mechanism.participations
        return allowed & (state.lost[clients] + shares**2 <= self._limit)

    @property
    def _limit(self) -> float:
        """The z² μ² that a client may lose."""
        if self.mechanism.budget is None:
            return math.inf
        return self.mechanism.limit * self.mechanism.noise_multiplier**2

    def _next_clip(
        self, state: PrivateSumState, weights: Tensor, bound: float, scale: float, row: Tensor
    ) -> float:
        """Return C_{t+1}.

        Args:
            state: of round t, with all of its updates.
            weights: a_t^n of the updates, shape (S,).
            bound: A.
            scale: η / N.
            row: row t of L⁻¹ Z, shape (d + 1,), or (d,) if C is fixed.
        """
        if self.mechanism.quantile is None:
            return state.clip
        surplus = state.exceeded.cpu() - (1 - self.mechanism.quantile)
        count = weights.double().cpu() @ surplus
        count = add_noise(count, self.mechanism.noise_on_count * bound, row[-1])
        logarithm = math.log(state.clip) + self.mechanism.clip_rate * scale * float(count)
        return math.exp(min(max(logarithm, _LEAST), _MOST))

    def _check_clients(self, state: PrivateSumState, clients: Tensor, shares: Tensor) -> None:
        """Refuse updates that this round's noise and accounting do not cover.

        Args:
            state: with all updates of the round.
            clients: who sent them, shape (S,).
            shares: their a_t^n / A, shape (S,).

        Raises:
            InvalidInputError: a weight above A, or an update of a client that may not take part.
        """
        if len(shares) and not float(shares.abs().max()) <= _ROUNDED:
            bound = self._bound(state.inner)
            raise InvalidInputError(
                f"algorithm: {self.inner} gave an update the weight "
                f"{shares[shares.abs().argmax()] * bound:g}, more "
                f"than its weight_bound of {bound:g}; correct the method"
            )
        if not bool(self._may_take_part(state, clients, shares).all()):
            raise InvalidInputError(
                "updates: one is from a client that may not take part; ask only those that "
                "choose_cohort returns"
            )

    def _check_normaliser(self, inner: WeightedSumState) -> None:
        """Refuse a method that divides the sum by anything other than N."""
        if not len(inner.clients):
            return
        divisor = float(self.inner.normaliser(inner))
        if divisor != inner.population:
            raise InvalidInputError(
                f"algorithm: {self.inner} divides the sum by {divisor:g}, not by N = "
                f"{inner.population}, which the noise does not follow; correct its normaliser"
            )

    def _check_weights(self, inner: Any, updates: ClientUpdates) -> None:
        """Refuse weights that depend on the updates or the model."""
        found = self.inner.client_weights(inner, updates).double().cpu()
        blind = self._weights(_hide(inner), Cohort(updates.clients, updates.weights))
        if not torch.allclose(found, blind, rtol=_ROUNDED - 1):
            raise InvalidInputError(
                f"algorithm: {self.inner} weights updates by what they are, or by the model, which "
                "neither noise nor accounts cover; let client_weights depend on who took part alone"
            )

    def _check_noise_on_count(self, inner: Any) -> None:
        """Refuse a clipping norm that noise alone would change by a factor of e in every round.

        Raises:
            InvalidInputError: it would.
        """
        scale = self.inner.server_lr / inner.population * self._bound(inner)
        mechanism = self.mechanism
        deviation = mechanism.clip_rate * scale * mechanism.noise_on_count
        if mechanism.quantile is not None and deviation > 1:
            raise InvalidInputError(
                f"privacy: noise alone would change the logarithm of the clipping norm by "
                f"{deviation:.2g} in every round; lower clip_rate or count_noise, or keep clip "
                "fixed by leaving quantile out"
            )

    def _bound(self, inner: Any) -> float:
        """Return A.

        Raises:
            InvalidInputError: there is none.
        """
        bound = self.inner.weight_bound(inner)
        if bound is None or not math.isfinite(bound):
            raise InvalidInputError(
                f"algorithm: an update may enter a step of {self.inner} with any weight, or one "
                "that depends on the number of replies; give fedau with a cutoff, known-rates, or "
                "fedavg with weights 'all' and a server_lr of N over the usual cohort size"
            )
        return bound

    def shares(self, state: PrivateSumState, cohort: Cohort) -> Tensor:
        """Return a_t^n / A of these clients, if they take part now, shape (S,), float64."""
        return self._weights(state.inner, cohort) / self._bound(state.inner)

    def _weights(self, inner: Any, cohort: Cohort) -> Tensor:
        """Return a_t^n of these clients if their updates are zeros, shape (S,), float64."""
        zeros = torch.zeros_like(inner.model[:1]).expand(len(cohort), len(inner.model))
        ones = torch.ones(len(cohort))
        asked = ClientUpdates(cohort.clients, cohort.weights, zeros, 0.0, ones, samples=ones)
        return self.inner.client_weights(inner, asked).double().cpu()

    def _next_noise(self, state: PrivateSumState, t: int) -> Tensor:
        """Return the row t of L⁻¹ Z: (Z_t - Σ_{j >= 1} c_j row_{t-j}) / c_0.

        Its shape is (d,), or (d + 1,) if C follows a quantile.
        """
        size = state.noise.shape[1]
        if self.mechanism.noise_multiplier == 0:
            return torch.zeros(size, dtype=torch.float64)
        c = torch.from_numpy(self.mechanism.coefficients)
        fresh = standard_normals(size, t, self.seed)
        return (fresh - c[1:] @ state.noise) / c[0]
