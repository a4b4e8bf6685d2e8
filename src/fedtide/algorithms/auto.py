"""Auto: averaging that keeps an account of how much every client has moved the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from fedtide.algorithms._client_memory import ClientMemory
from fedtide.algorithms._weighted_sum import WeightedSum, WeightedSumState
from fedtide.algorithms.averaged import last_share
from fedtide.algorithms.base import ClientUpdates, RoundInfo, Traits, empty_sum
from fedtide.algorithms.scaled import scales
from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.spec import Positive, spec

_SHARE = (5**0.5 - 1) / 2
"""ρ, the share of its debt with which a client enters a round: the golden ratio.

docs/auto-evidence.md says why.
"""

_POWER = 2
"""The weights of the iterates in the output grow as t², see `Averaged`."""

_LARGEST_STEP = 1.1
"""The largest Σ a_n / N: more than 1, so that debts can be paid (docs/auto-evidence.md)."""


@dataclass(frozen=True)
class ControlVariates:
    """The latest update of every client, in the role of control variates.

    Args:
        rows: h_n.
        mean: h, the mean of all h_n before this round, shape (d,), float64.
        change: Σ (new h_n - old h_n) over this round's updates so far, shape (d,), float64.
    """

    rows: ClientMemory
    mean: Tensor
    change: Tensor

    @classmethod
    def initial(cls, model: Tensor, population: Population, folder: str | None) -> ControlVariates:
        """Return them before round 0, all zero."""
        rows = ClientMemory.empty(population.clients, model, folder)
        mean = torch.zeros_like(model, dtype=torch.float64)
        return cls(rows, mean, empty_sum(mean))

    def store(self, updates: ClientUpdates) -> ControlVariates:
        """Return the same with new updates of these clients."""
        change = self.rows.change_to(updates.deltas, updates.clients).add_(self.change)
        return replace(self, rows=self.rows.write(updates.clients, updates.deltas), change=change)

    def finish_round(self) -> ControlVariates:
        """Return the same with a mean that contains the new updates."""
        mean = self.mean + self.change / self.rows.clients
        return replace(self, mean=mean, change=empty_sum(mean))


@dataclass(frozen=True)
class AutoState(WeightedSumState):
    """The state of Auto.

    Args:
        paid: c_n, the sum of the weights that each client has had, less the excess that it was
            forgiven, shape (N,), float64.
        seen: M, how many updates have been used.
        used_rounds: t, the number of rounds with updates.
        squares: v, the sum of the squares of the steps before they were scaled, shape (d,); None
            without scaling.
        mean: of x_1, x_2, ..., x_r with the weights 1·2, 2·3, ..., r (r + 1), shape (d,); float64,
            so that late iterates still count; x_0 before round 0.
        latest: the control variates; None without them.
    """

    paid: Tensor
    seen: int
    used_rounds: int
    squares: Tensor | None
    mean: Tensor
    latest: ControlVariates | None


@spec
class Auto(WeightedSum[AutoState]):
    """Federated averaging with nothing to choose: every client is owed one weight a round.

    In a round with updates, after M updates in t such rounds, with c_n = 0 at first and
    ρ = (√5 - 1) / 2:

        owed = t + 1 + (N / ρ) max(t, 1) / max(M, 1)
        debt_n = max(0, owed - c_n)
        a_n = ρ debt_n min(1, 1.1 N / Σ_{m in S} ρ debt_m)
        c_n ← owed - debt_n + a_n                                                   for n in S
        D = η / N Σ_{n in S} a_n Δ_n
        v ← v + D²,    s = √(v / mean(v)),    P = min(10, c / (s + 1/10))        elementwise
        x ← x + P D

    with v = 0 at first and c such that the mean of (c s / (s + 1/10))² is 1. The output is the mean
    of the iterates x_1, x_2, ... after all rounds, also those without updates, with the weights
    1·2, 2·3, 3·4, ... (Shamir and Zhang, 2013).

    S is the cohort. The account c_n is the sum of the weights that client n has had, less what it
    was forgiven; an absent client builds up a debt, which its next updates pay off. So the method
    need not know or estimate how often clients take part: over any stretch of rounds every client
    moves the model as much as every other one, up to the change of its debt, for any pattern of
    participation. The last term of `owed` is a credit of 1/ρ mean intervals between a client's
    rounds, so that the first rounds have full steps. It is a guess at first, so a client that has
    had more than it is owed is forgiven the excess. The factor 1.1 limits a step to 1.1 mean
    updates; what it cuts off remains a debt.

    P lets all coordinates move about equally far, as in AdaGrad (Duchi et al., 2011), and together
    as far as without it, unless few have moved much farther than all others. It changes slowly, so
    shares stay even.

    docs/auto-evidence.md has the derivation and the proofs.

    With control variates, the server also keeps each client's latest update h_n, and

        D = η / N [ Σ_{n in S} a_n (Δ_n - h_n) + Σ_n h_n ],
        then h_n ← Δ_n  for n in S,        h_n = 0 at first

    so absent clients move the model by their last updates, and a debt only weights what has changed
    since.

    A round costs O(cohort), and each client takes 8 bytes of memory; with control variates, also
    the memory of a model.

    Args:
        server_lr: η > 0.
        preconditioned: whether to scale the coordinates; without, P = 1.
        control_variates: whether to keep the latest updates.
        memory_folder: folder for a file with the latest updates; None: in RAM.

    Raises:
        InvalidInputError: η not positive, or a folder that is not writable or not needed.

    >>> method = Auto()
    >>> state = method.init(torch.zeros(1), Population(2))
    >>> for cohort in [[0], [0], [0], [0, 1]]:
    ...     ids = torch.tensor(cohort)
    ...     ones = torch.ones(len(ids))
    ...     state = method.absorb(state, ClientUpdates(ids, ones, ones[:, None], 0.1, ids))
    ...     state, info = method.step(state, lr=0.1)
    >>> info.weights * 2  # client 1 was away for three rounds
    tensor([0.4431, 1.7569])
    """

    server_lr: Annotated[float, Positive] = 1.0
    preconditioned: bool = True
    control_variates: bool = False
    memory_folder: str | None = None

    def __post_init__(self) -> None:
        if self.memory_folder is not None and not self.control_variates:
            raise InvalidInputError(
                "memory_folder: without control variates no updates are kept; leave it out, or "
                "give control_variates: true"
            )

    @property
    def traits(self) -> Traits:
        """With control variates, the latest updates count, and late ones are newer than those."""
        return Traits(
            averages_updates=not self.control_variates,
            scales_coordinates=self.preconditioned,
            uses_absent_clients=self.control_variates,
            accepts_stale_updates=self.control_variates,
        )

    def init(self, model: Tensor, population: Population) -> AutoState:
        paid = torch.zeros(population.clients, dtype=torch.float64)
        squares = torch.zeros_like(model) if self.preconditioned else None
        latest = None
        if self.control_variates:
            latest = ControlVariates.initial(model, population, self.memory_folder)
        return AutoState.initial(
            model,
            population,
            paid=paid,
            seen=0,
            used_rounds=0,
            squares=squares,
            mean=model.to(torch.float64, copy=True),
            latest=latest,
        )

    def weigh(self, state: AutoState, updates: ClientUpdates) -> Tensor | None:
        """Return ρ debt_n; None with control variates, which need all updates."""
        return None if self.control_variates else self._weights(state, updates)

    def absorb(self, state: AutoState, updates: ClientUpdates) -> AutoState:
        """Add Σ a_n Δ_n of this chunk, or with control variates Σ a_n (Δ_n - h_n)."""
        latest = state.latest
        if latest is None:
            return super().absorb(state, updates)
        changes = latest.rows.subtracted_from(updates.deltas, updates.clients)
        state = super().absorb(state, replace(updates, deltas=changes))
        return replace(state, latest=latest.store(updates))

    def client_weights(self, state: AutoState, updates: ClientUpdates) -> Tensor:
        """Return ρ debt_n: `normaliser` bounds the sum of a round."""
        return _SHARE * self.debt(state, updates.clients)

    def normaliser(self, state: AutoState) -> Tensor:
        return (state.weights.sum() / _LARGEST_STEP).clamp(min=state.population)

    def debt(self, state: AutoState, clients: Tensor) -> Tensor:
        """Return the weights that these clients, shape (S,), are owed in this round, (S,)."""
        return (_owed(state) - state.paid[clients]).clamp(min=0)

    def step(self, state: AutoState, lr: float) -> tuple[AutoState, RoundInfo]:
        """Move the model, enter the weights into the accounts, and update the mean."""
        before = _owed(state) - self.debt(state, state.clients)
        moved, info = super().step(state, lr)
        weights = info.weights.to(torch.float64) * (state.population / self.server_lr)
        moved.paid[info.clients] = before + weights
        if state.latest is not None and len(info.clients):
            direction = info.direction + self.server_lr * state.latest.mean
            info = replace(info, direction=direction.to(state.model.dtype))
            model = state.model + info.direction
            moved = replace(moved, model=model, latest=state.latest.finish_round())
        if state.squares is not None:
            squares = state.squares + info.direction.square()
            info = replace(info, direction=info.direction * scales(squares))
            moved = replace(moved, squares=squares, model=state.model + info.direction)
        mean = _lerp(state.mean, moved.model, moved.round)
        updates = len(info.clients)
        used_rounds = moved.used_rounds + bool(updates)
        return replace(moved, seen=moved.seen + updates, used_rounds=used_rounds, mean=mean), info

    def add_clients(self, state: AutoState, first: int) -> AutoState:
        """Owe new clients nothing for the rounds without them; their h_n = 0 count in h."""
        state.paid[first:] = state.used_rounds
        latest = state.latest
        if latest is not None:
            latest = replace(latest, mean=latest.mean * (first / state.population))
        return replace(state, latest=latest)

    def with_model(self, state: AutoState, model: Tensor) -> AutoState:
        """Replace the last iterate, also in the mean."""
        share = last_share(max(state.round, 1), _POWER)
        mean = state.mean + share * (model.double() - state.model)
        return replace(state, model=model, mean=mean)

    def with_step(self, before: AutoState, after: AutoState, model: Tensor) -> AutoState:
        """Replace the last iterate, which the mean before that step does not contain."""
        mean = _lerp(before.mean, model, after.round)
        return replace(after, model=model, mean=mean)

    def output(self, state: AutoState) -> Tensor:
        """Return the weighted mean of the iterates."""
        return state.mean.to(state.model.dtype)


def _lerp(mean: Tensor, model: Tensor, rounds: int) -> Tensor:
    """Return the mean, in float64, after this many rounds, the last of which led to `model`."""
    return mean.double().lerp(model.double(), last_share(rounds, _POWER))


def _owed(state: AutoState) -> float:
    """Return what every client has been owed up to this round, with its credit."""
    interval = state.population * max(state.used_rounds, 1) / max(state.seen, 1)
    return state.used_rounds + 1 + interval / _SHARE
