"""FedStale: a blend of fresh updates and each client's latest one, both weighted by 1 / p_n."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedtide.algorithms._latest_updates import LatestUpdates, LatestUpdatesState
from fedtide.algorithms.base import ClientUpdates, RoundInfo
from fedtide.algorithms.fedau import IntervalStatistics, MeanInterval
from fedtide.algorithms.fedvarp import EmptyRounds
from fedtide.algorithms.known_rates import KnownRates, KnownRatesState
from fedtide.client_values import Name
from fedtide.device_copies import to_device_of
from fedtide.population import Population
from fedtide.spec import Positive, Within, spec

Source = Literal["estimated", "known"]


@dataclass(frozen=True)
class FedStaleState(LatestUpdatesState):
    """The state of FedStale.

    Args:
        fresh: Σ ω_n (Δ_n - β h_n) over this round's updates so far, shape (d,).
        weights: their ω_n, shape (S,).
        intervals: of participation, from which ω is estimated; None: rates are known.
        known: the state with the known rates; None: rates are estimated.
    """

    fresh: Tensor
    weights: Tensor
    intervals: IntervalStatistics | None
    known: KnownRatesState | None


@spec
class FedStale(LatestUpdates[FedStaleState]):
    """A convex combination of fresh and stale updates (Rodio & Neglia 2024, arXiv 2405.04171).

        x ← x + η/N [ Σ_{n in S_t} ω_n Δ_n + β ( Σ_n h_n - Σ_{n in S_t} ω_n h_n ) ],
        then h_n ← Δ_n  for n in S_t,        h_n = 0 at first,        ω_n = 1 / p_n

    β = 0 is averaging with known (or estimated) rates, β = 1 FedVARP with such weights; in between,
    the step is the convex combination of the two. With known rates the step is unbiased for every
    β. The authors find stale updates more useful the more the clients' data differ, and less useful
    the more their rates differ; their experiments with unknown rates use β = 0.5.

    Written from the authors' program (github.com/arodio/FedStale at de3c12e); of the paper only the
    abstract was read. The program estimates ω_n as FedAU does without a cutoff, from the rounds
    before t; counts clients by their samples (here: `objective: samples`); and leaves x where it is
    in rounds without updates.

    Args:
        server_lr: η > 0.
        beta: β in [0, 1].
        rates: "estimated", "known" for those of the participation process, or p_n in (0, 1] as a
            list or by name.
        empty_rounds: "skip" rounds without updates, or "memory": make the step with S_t empty.
        memory_folder: folder for a file with the memory; None: in RAM.

    Raises:
        InvalidInputError: η not positive, β outside [0, 1], rates that `KnownRates` refuses, or a
            folder that cannot be written.

    >>> method = FedStale(beta=0.5, rates=[0.5, 1.0])
    >>> state = method.init(torch.zeros(1), Population(2))
    >>> for client in [0, 1]:
    ...     updates = ClientUpdates(torch.tensor([client]), torch.ones(1), torch.ones(1, 1), 0.1,
    ...                             torch.ones(1))
    ...     state, info = method.step(method.absorb(state, updates), lr=0.1)
    ...     print(info.direction)  # 2 / 2, then (1 + 1/2) / 2
    tensor([1.])
    tensor([0.7500])
    """

    server_lr: Annotated[float, Positive] = 1.0
    beta: Annotated[float, Within(0, 1, "[]", "0.5 is half and half")] = 0.5
    rates: Source | Sequence[float] | Mapping[Name, float] = "estimated"
    empty_rounds: EmptyRounds = "skip"
    memory_folder: str | None = None

    def init(self, model: Tensor, population: Population) -> FedStaleState:
        """Return the state before round 0, with the known rates or with no client seen."""
        given = None if isinstance(self.rates, str) else self.rates
        estimated = isinstance(self.rates, str) and self.rates == "estimated"
        empty = model.new_zeros(0)  # only its rates are used, not the model
        return FedStaleState.initial(
            model,
            population,
            self.memory_folder,
            fresh=torch.zeros_like(model),
            weights=torch.zeros(0, dtype=model.dtype),
            intervals=MeanInterval.empty(population.clients, 0) if estimated else None,
            known=None if estimated else KnownRates(rates=given).init(empty, population),
        )

    def absorb(self, state: FedStaleState, updates: ClientUpdates) -> FedStaleState:
        """Add ω (Δ - β h) of this chunk, and remember its updates."""
        weights = self._client_weights(state, updates).to(state.model.dtype)
        fresh = state.memory.read(updates.clients).mul_(-self.beta).add_(updates.deltas)
        return replace(
            state.store(updates.clients, updates.deltas),
            fresh=state.fresh + to_device_of(weights, fresh) @ fresh,
            weights=torch.cat([state.weights, weights]),
        )

    def step(self, state: FedStaleState, lr: float) -> tuple[FedStaleState, RoundInfo]:
        """Move the model by the blend, and record who took part."""
        scale = self.server_lr / state.population
        direction = scale * (state.fresh + self.beta * state.total)
        if len(state.clients) == 0 and self.empty_rounds == "skip":
            direction = torch.zeros_like(direction)
        intervals = state.intervals
        if intervals is not None:
            intervals = intervals.record(state.round, state.clients)
        state, info = replace(state, intervals=intervals).finish_round(
            direction, scale * state.weights
        )
        return replace(state, fresh=torch.zeros_like(state.fresh), weights=state.weights[:0]), info

    def add_clients(self, state: FedStaleState, first: int) -> FedStaleState:
        """Count the intervals of new clients from this round on."""
        if state.intervals is None:
            return state
        return replace(state, intervals=state.intervals.add_clients(first, state.round))

    def _client_weights(self, state: FedStaleState, updates: ClientUpdates) -> Tensor:
        """Return ω_n of each update, shape (S,)."""
        if state.known is not None:
            return KnownRates().client_weights(state.known, updates)
        assert state.intervals is not None, "rates are known or estimated"
        return state.intervals.mean_interval(state.round, updates.clients)
