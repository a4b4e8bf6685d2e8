"""Methods that keep per-client memory on the clients' own disks: O(d) on the server."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedtide.algorithms.base import Algorithm, ClientUpdates, RoundInfo, State, Traits, empty_sum
from fedtide.algorithms.fedau import FedAU
from fedtide.algorithms.fedlaavg import FedLaAvg
from fedtide.algorithms.mifa import MIFA
from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.spec import spec


@dataclass(frozen=True)
class ClientSideMemoryState(State):
    """The state of ClientSideMemory.

    Args:
        population: N.
        total: Σ h_n over all clients before this round, shape (d,), float64; zero for FedAU.
        change: the sum of this round's updates so far, shape (d,), float64.
        clients: ids of the clients absorbed in this round so far, shape (S,).
    """

    population: int
    total: Tensor
    change: Tensor
    clients: Tensor


@spec
class ClientSideMemory(Algorithm[ClientSideMemoryState]):
    """A method whose per-client memory is stored by the clients; the server keeps only sums.

        MIFA, FedLaAvg:  client n sends h_n new - h_n old and keeps h_n new; the server adds it to
                         Σ h_n and steps along that sum, as in Yan et al. 2020 (FedLaAvg);
        FedAU:           client n sends ω_t^n Δ_n, with ω from the rounds in which it took part,
                         which it counts itself; the server steps along η/N Σ ω_t^n Δ_n.

    With h_n = Δ_n for MIFA and Δ_n / γ for FedLaAvg, the models are those of the plain methods.
    The server's memory is O(d) instead of O(N d), and the FedAU form needs no more than secure
    aggregation of sums. This is for deployments; in a simulation, run the plain method.

    The server tells each client which of its updates was the last to be used, so a lost update does
    no harm: the client continues from the last used one. A client that lost its disk says so. With
    MIFA and FedLaAvg the server then uses none of its updates until its folder is restored; its
    last used one continues to count, like that of a client that does not return. With FedAU it
    continues like a new client from the last round in which its update was used.

    Args:
        method: MIFA with `unseen="zero"`, FedLaAvg, or FedAU with a plain mean and no groups.

    Raises:
        InvalidInputError: another method.

    >>> ClientSideMemory(FedAU(cutoff=20)).traits.client_form
    'fedau-20'
    """

    method: MIFA | FedLaAvg | FedAU

    def __post_init__(self) -> None:
        method = self.method
        fits = (
            isinstance(method, FedLaAvg)
            or (isinstance(method, MIFA) and method.unseen == "zero")
            or (isinstance(method, FedAU) and method.average == "mean" and method.groups is None)
        )
        if not fits:
            raise InvalidInputError(
                f"method: {method} needs information that only the server has; give it without "
                "ClientSideMemory"
            )

    @property
    def traits(self) -> Traits:
        """Those of the method; the form is "mifa", "fedlaavg", or "fedau-K" (K = 0: ∞)."""
        form = "mifa" if isinstance(self.method, MIFA) else "fedlaavg"
        if isinstance(self.method, FedAU):
            form = f"fedau-{self.method.cutoff or 0}"
        return replace(self.method.traits, averages_updates=False, client_form=form)

    def init(self, model: Tensor, population: Population) -> ClientSideMemoryState:
        return ClientSideMemoryState(
            model=model,
            round=0,
            population=population.clients,
            total=torch.zeros_like(model, dtype=torch.float64),
            change=empty_sum(model, torch.float64),
            clients=torch.zeros(0, dtype=torch.int64),
        )

    def add_clients(self, state: ClientSideMemoryState, first: int) -> ClientSideMemoryState:
        """Return the state as it is; refuse new clients of FedAU, whose clients count rounds."""
        if isinstance(self.method, FedAU):
            raise InvalidInputError(
                "algorithm: the clients count their absences from round 0, so none can be added "
                "later; keep the number of clients, or use plain fedau, which counts on the server"
            )
        return state

    def absorb(self, state: ClientSideMemoryState, updates: ClientUpdates) -> ClientSideMemoryState:
        return replace(
            state,
            change=state.change + updates.deltas.sum(dim=0, dtype=torch.float64),
            clients=torch.cat([state.clients, updates.clients]),
        )

    def step(
        self, state: ClientSideMemoryState, lr: float
    ) -> tuple[ClientSideMemoryState, RoundInfo]:
        rate = lr if isinstance(self.method, FedLaAvg) else self.method.server_lr
        weight = rate / state.population
        remembers = not isinstance(self.method, FedAU)
        total = state.total + state.change
        weights = torch.full((len(state.clients),), weight, dtype=state.model.dtype)
        info = RoundInfo(state.clients, weights, (weight * total).to(state.model.dtype))
        return replace(
            state,
            model=state.model + info.direction,
            round=state.round + 1,
            total=total if remembers else state.total,
            change=empty_sum(state.model, torch.float64),
            clients=state.clients[:0],
        ), info
