"""FedPBC: clients train in every round and mix their models in those in which they report."""

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
class FedPBCState(State):
    """The state of FedPBC.

    Args:
        local: x_n - x_0, how far every client's model has moved.
        start: x_0, shape (d,).
        mixed: the last round in which each client reported, -1: never, shape (N,), int32.
        reported: Σ (x_n - x_0) over the clients that reported in this round so far, shape (d,).
        clients: ids of the clients absorbed in this round so far, shape (S,).
        present: whether each of them reports, shape (S,).
    """

    local: ClientMemory
    start: Tensor
    mixed: Tensor
    reported: Tensor
    clients: Tensor
    present: Tensor


@spec
class FedPBC(Algorithm[FedPBCState]):
    """Federated postponed broadcast (Xiang et al., arXiv 2404.10091).

        x_n ← x_n + η Δ_n                 for all N clients: I local steps from their own models
        x ← 1/|S_t| Σ_{n in S_t} x_n      over the clients that report
        x_n ← x  for n in S_t             (the others keep theirs)

    with x_n = x_0 at first; a round without reports leaves x where it is. The method is for
    unreliable uplinks: **all clients train in every round**, those of the cohort report and get the
    average at the end of the round. Mixing does not change the mean of all models, which therefore
    moves by η/N Σ Δ_n over all clients whatever the rates. For clients that are away and cannot
    train, the same authors' method is `FedAWE`.

    The output, which is evaluated, is the mean 1/N Σ x_n of all clients' models, as in the authors'
    program (github.com/mingxiang12/FedPBC at 2f6770c), from which this is written; of the paper
    only the abstract was read.

    The server keeps a model for each of the N clients, and trains N clients a round: together if
    they share a model, otherwise one by one.

    Args:
        server_lr: η > 0.
        memory_folder: folder for a file with the x_n; None: in RAM.

    Raises:
        InvalidInputError: η not positive, or a folder that cannot be written.

    >>> method = FedPBC()
    >>> state = method.init(torch.zeros(1), Population(2))
    >>> cohort = method.choose_cohort(state, Cohort.uniform(torch.tensor([1])))
    >>> updates = ClientUpdates(cohort.clients, cohort.weights, torch.tensor([[4.0], [2.0]]), 0.1,
    ...                         torch.ones(2))
    >>> state, info = method.step(method.absorb(state, updates), lr=0.1)
    >>> state.model, method.output(state)
    (tensor([2.]), tensor([3.]))
    """

    server_lr: Annotated[float, Positive] = 1.0
    memory_folder: str | None = None

    traits = Traits(
        uses_absent_clients=True,
        clients_keep_models=True,
        simulation_only="its clients train in rounds in which they do not report",
    )

    def init(self, model: Tensor, population: Population) -> FedPBCState:
        """Return the state before round 0, in which all clients have x_0."""
        clients = no_updates(model)[0]
        return FedPBCState(
            model=model,
            round=0,
            local=ClientMemory.empty(population.clients, model, self.memory_folder),
            start=model.clone(),
            mixed=torch.full((population.clients,), -1, dtype=torch.int32),
            reported=torch.zeros_like(model),
            clients=clients,
            present=clients.bool(),
        )

    def choose_cohort(self, state: FedPBCState, cohort: Cohort) -> Cohort:
        """Return all clients; those that do not report have the weight -1.

        The first ones are those that reported in the last round, which have the same model.
        """
        weights = cohort.weights.new_full((len(state.mixed),), -1)
        weights[cohort.clients] = cohort.weights
        clients = (state.mixed != state.round - 1).int().argsort(stable=True)
        return Cohort(clients, weights[clients])

    def instruct(self, state: FedPBCState, clients: Tensor) -> Instructions:
        """Return how to train: every client starts from its own model."""
        starts = torch.where(state.mixed[clients] == state.round - 1, -1, clients)
        return Instructions(state.start + state.local.read(clients), starts=starts)

    def absorb(self, state: FedPBCState, updates: ClientUpdates) -> FedPBCState:
        """Move the models of these clients, and add those of the clients that report."""
        local = state.local.read(updates.clients).add_(updates.deltas, alpha=self.server_lr)
        present = updates.weights >= 0
        reporting = to_device_of(present.nonzero().flatten(), local)
        return replace(
            state,
            local=state.local.write(updates.clients, local),
            reported=state.reported + local.index_select(0, reporting).sum(dim=0),
            clients=torch.cat([state.clients, updates.clients]),
            present=torch.cat([state.present, present]),
        )

    def step(self, state: FedPBCState, lr: float) -> tuple[FedPBCState, RoundInfo]:
        """Average the models of the clients that report, and give them the average."""
        reported = state.clients[state.present]
        model, local, count = state.model, state.local, max(1, len(reported))
        if len(reported):
            moved = state.reported / count
            model = state.start + moved
            local = local.write(reported, moved.expand(count, -1))
            state.mixed[reported] = state.round
        weights = self.server_lr / count * state.present.to(model.dtype)
        info = RoundInfo(state.clients, weights, model - state.model)
        return replace(
            state,
            model=model,
            round=state.round + 1,
            local=local,
            reported=torch.zeros_like(model),
            clients=state.clients[:0],
            present=state.present[:0],
        ), info

    def with_model(self, state: FedPBCState, model: Tensor) -> FedPBCState:
        """Return the state with another model, also for the clients of the last round.

        Before round 0 these are all clients.
        """
        if state.round == 0:
            return replace(state, model=model, start=model.clone())
        clients = (state.mixed == state.round - 1).nonzero().flatten()
        moved = (model - state.start).expand(len(clients), -1)
        return replace(state, model=model, local=state.local.write(clients, moved))

    def output(self, state: FedPBCState) -> Tensor:
        """Return the mean of all clients' models.

        It is summed from scratch, which costs no more than a step of every client: a mean that is
        kept from round to round would accumulate rounding errors.
        """
        return state.start + state.local.sum() / len(state.mixed)
