"""FedAWE: clients continue from the model of their last round and make up for missed rounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from fedtide.algorithms._client_memory import ClientMemory
from fedtide.algorithms.base import (
    Algorithm,
    ClientUpdates,
    Cohort,
    Instructions,
    RoundInfo,
    State,
    Traits,
    no_updates,
)
from fedtide.device_copies import to_device_of
from fedtide.population import Population
from fedtide.spec import Positive, spec


@dataclass(frozen=True)
class FedAWEState(State):
    """The state of FedAWE.

    Args:
        start: x_0, the model of the clients that never took part, shape (d,).
        local: x_n, the model of every client that took part.
        last: τ_n, the round in which each client last took part, -1: never, shape (N,), int32.
        mean: 1/N Σ x_n over all clients before this round, shape (d,), float64.
        innovation: Σ (t - τ_n) Δ_n over this round's updates so far, shape (d,).
        left: Σ x_n of the same clients, shape (d,), float64.
        clients: ids of the clients absorbed in this round so far, shape (S,).
        echoes: their t - τ_n, shape (S,).
    """

    start: Tensor
    local: ClientMemory
    last: Tensor
    mean: Tensor
    innovation: Tensor
    left: Tensor
    clients: Tensor
    echoes: Tensor

    def local_models(self, clients: Tensor) -> Tensor:
        """Return x_n of these clients, shape (S, d)."""
        local = self.local.read(clients)
        never = to_device_of(self.last[clients] < 0, local)
        return torch.where(never.unsqueeze(1), self.start, local)


@spec
class FedAWE(Algorithm[FedAWEState]):
    """Federated agile weight re-equalization (Xiang et al., NeurIPS 2024, Algorithm 1).

        y_n = x_n + Δ_n                        I local steps from the client's own model x_n
        x ← 1/|S_t| Σ_{n in S_t} ( x_n + η (t - τ_n) Δ_n )
        x_n ← x,  τ_n ← t  for n in S_t        (the others keep theirs)

    with x_n = x_0 and τ_n = -1 at first; an empty round leaves x where it is. The update of a
    client is multiplied by the number of rounds since it last took part, so that all clients have
    then counted equally often (Proposition 1: "echoing"). The server sends its model at the end of
    a round and only to those who took part, so that clients mix evenly whatever their rates
    ("implicit gossiping"). Rates may differ and change; the method needs no knowledge of them.

    The output, which is evaluated, is the mean 1/N Σ x_n of all clients' models, for which the
    paper proves convergence (Corollary 1) and which the authors' program evaluates
    (github.com/mingxiang12/FedAWE at e0b8538). That program also clips the mean innovation
    1/|S_t| Σ (t - τ_n) Δ_n to norm 0.5, as `clip=0.5` does here; the paper speaks of gradients
    clipped to norm 0.5, and its Algorithm 1 clips nothing. `Clipped` around this method bounds
    every Δ_n instead.

    In a deployment every client would keep its own model, and the server only x; here the server
    keeps the models of all clients that took part. Clients that start from the same model train
    together, so a cohort whose members were last seen in many different rounds trains in as many
    chunks. Wrappers that move the model (Amplified, FedAvgM, FedAdam, FedYogi) refuse this method:
    they would only move the models of the last round's clients.

    Args:
        server_lr: η > 0.
        clip: the largest norm of the mean innovation, before it is multiplied by η; None: no limit.
        memory_folder: folder for a file with the x_n; None: in RAM.

    Raises:
        InvalidInputError: η or `clip` not positive, or a folder that cannot be written.

    >>> method = FedAWE()
    >>> state = method.init(torch.zeros(1), Population(2))
    >>> for cohort in [[0], [0, 1]]:
    ...     n, ones = torch.tensor(cohort), torch.ones(len(cohort))
    ...     updates = ClientUpdates(n, ones, ones[:, None], lr=0.1, steps=ones)
    ...     state, info = method.step(method.absorb(state, updates), lr=0.1)
    ...     print(state.model, method.output(state))  # (1 + 1) / 2 and (0 + 2) / 2 in round 1
    tensor([1.]) tensor([0.5000])
    tensor([2.]) tensor([2.])
    """

    server_lr: Annotated[float, Positive] = 1.0
    clip: Annotated[float, Positive] | None = None
    memory_folder: str | None = None

    @property
    def traits(self) -> Traits:
        return Traits(
            uses_absent_clients=True,
            clients_keep_models=True,
            weights_follow_updates=self.clip is not None,
            simulation_only="its clients continue from models of their own",
        )

    def init(self, model: Tensor, population: Population) -> FedAWEState:
        """Return the state before round 0, in which all clients have x_0."""
        clients, echoes = no_updates(model)
        return FedAWEState(
            model=model,
            round=0,
            start=model.clone(),
            local=ClientMemory.empty(population.clients, model, self.memory_folder),
            last=torch.full((population.clients,), -1, dtype=torch.int32),
            mean=model.to(torch.float64, copy=True),
            innovation=torch.zeros_like(model),
            left=torch.zeros_like(model, dtype=torch.float64),
            clients=clients,
            echoes=echoes,
        )

    def choose_cohort(self, state: FedAWEState, cohort: Cohort) -> Cohort:
        """Return the cohort in the order in which its clients last took part, the earliest first.

        Clients that last took part in the same round have the same model.
        """
        return cohort.select(state.last[cohort.clients].argsort(stable=True))

    def instruct(self, state: FedAWEState, clients: Tensor) -> Instructions:
        """Return how to train: every client starts from its own model."""
        return Instructions(state.local_models(clients), starts=state.last[clients])

    def absorb(self, state: FedAWEState, updates: ClientUpdates) -> FedAWEState:
        """Add the models that these clients report."""
        local = state.local_models(updates.clients)
        echoes = (state.round - state.last[updates.clients]).to(local.dtype)
        return replace(
            state,
            innovation=state.innovation + to_device_of(echoes, local) @ updates.deltas,
            left=state.left + local.sum(dim=0, dtype=torch.float64),
            clients=torch.cat([state.clients, updates.clients]),
            echoes=torch.cat([state.echoes, echoes]),
        )

    def step(self, state: FedAWEState, lr: float) -> tuple[FedAWEState, RoundInfo]:
        """Average the reported models, and give the average to those who reported."""
        cohort = len(state.clients)
        if cohort == 0:
            info = RoundInfo(state.clients, state.echoes, torch.zeros_like(state.model))
            return replace(state, round=state.round + 1), info
        scale = self._scale(state.innovation / cohort) / cohort
        model = (state.left / cohort + scale * state.innovation).to(state.model.dtype)
        info = RoundInfo(state.clients, scale.to(state.echoes) * state.echoes, model - state.model)
        state.last[state.clients] = state.round
        return replace(
            state,
            model=model,
            round=state.round + 1,
            local=state.local.write(state.clients, model.expand(cohort, -1)),
            mean=state.mean + (cohort * model.double() - state.left) / len(state.last),
            innovation=torch.zeros_like(model),
            left=torch.zeros_like(state.left),
            clients=state.clients[:0],
            echoes=state.echoes[:0],
        ), info

    def _scale(self, innovation: Tensor) -> Tensor:
        """Return η times the factor that clips this mean innovation."""
        if self.clip is None:  # known on the host, which need not wait for a GPU
            return torch.tensor(self.server_lr, dtype=innovation.dtype)
        one: Tensor = (self.clip / innovation.norm()).clamp(max=1.0).nan_to_num(nan=1.0)  # 0 / 0
        return self.server_lr * one

    def with_model(self, state: FedAWEState, model: Tensor) -> FedAWEState:
        """Return the state with another model, also for the clients of the last round.

        Before round 0 these are all clients.
        """
        clients = (state.last == state.round - 1).nonzero().flatten()
        share = len(clients) / len(state.last)
        mean = state.mean + share * (model.double() - state.model)
        if state.round == 0:
            return replace(state, model=model, start=model.clone(), mean=mean)
        local = state.local.write(clients, model.expand(len(clients), -1))
        return replace(state, model=model, local=local, mean=mean)

    def output(self, state: FedAWEState) -> Tensor:
        """Return the mean of all clients' models."""
        return state.mean.to(state.model.dtype)
