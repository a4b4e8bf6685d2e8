"""The contract of an algorithm: a state machine over the updates that arrive.

An algorithm does not know who runs it. In every round its driver (see `RoundDriver`)

1. passes the clients that take part to `choose_cohort`,
2. asks `instruct` how they should train,
3. passes their updates to `absorb`, in as many chunks as it likes,
4. calls `step` once, even if nobody reported.

`init`, `choose_cohort`, `instruct` and `output` are pure functions. `absorb` and
`step` return the next state and may reuse two kinds of memory of the state that they are given:
per-client rows, because copying N × d numbers in every round would cost O(N), and sums over the
updates of the current round, because models may be large. Everything else in the state at the start
of a round, above all the model, is never changed in place.

Tensors of length d live on the model's device. Who takes part, with which weight and after how many
steps, stays in CPU memory on every device, so that no round has to wait for a GPU to find out what
was known before training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar, cast

import torch
from torch import Tensor

from fedtide.device_copies import to_device_of
from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.validation import require_positive


class AlgorithmState(Protocol):
    """Everything in an algorithm that must survive a crash: tensors, numbers and nested states.

    A state is a frozen dataclass. It belongs to its driver: once it has been passed to `absorb` or
    `step`, use the state that they return; to go back later, keep a deep copy.
    """

    @property
    def model(self) -> Tensor:
        """x_t, shape (d,); never changed in place."""

    @property
    def round(self) -> int:
        """t, the number of completed rounds."""


StateT = TypeVar("StateT", bound=AlgorithmState)


@dataclass(frozen=True)
class State:
    """The part of the state that every algorithm has.

    Args:
        model: x_t, shape (d,); never changed in place.
        round: t, the number of completed rounds.
    """

    model: Tensor
    round: int


@dataclass(frozen=True)
class Cohort:
    """The clients that train in a round.

    Args:
        clients: their ids, shape (S,), int64; those that the participation gives are sorted.
        weights: their participation weights q_t^n, shape (S,).
    """

    clients: Tensor
    weights: Tensor

    def __len__(self) -> int:
        return len(self.clients)

    @classmethod
    def uniform(cls, clients: Tensor) -> Cohort:
        """Return the cohort of these clients, shape (S,), with q = 1 / S each."""
        weights = torch.full((len(clients),), 1 / max(1, len(clients)), dtype=torch.float64)
        return cls(clients, weights.to(clients.device))

    def select(self, which: Any) -> Cohort:
        """Return the clients at these positions of the cohort."""
        return Cohort(self.clients[which], self.weights[which])


@dataclass(frozen=True)
class Instructions:
    """How a cohort of S clients should train.

    Args:
        model: x, where the local steps start, shape (d,); or one for each client, shape (S, d).
        correction: added to every local gradient of each client, shape (S, d); None: zero.
        mu: μ, the proximal weight: μ (y - x) is added to every local gradient.
        gradients_at_start: take every gradient at x itself, so that Δ_n = -γ Σ_k g_k(x).
        full_batch: use all of a client's samples in every step, whatever the batch size.
        gradients: also report ∇F_n(x), over all of a client's samples and without correction.
        end_gradients: also report ∇F_n(y_n), the same gradient at the end of the local steps; not
            together with `gradients`.
        starts: with one model for each client, a number for each of them, equal for clients with
            the same model, in CPU memory, shape (S,); None: no two have the same.
    """

    model: Tensor
    correction: Tensor | None = None
    mu: float = 0.0
    gradients_at_start: bool = False
    full_batch: bool = False
    gradients: bool = False
    end_gradients: bool = False
    starts: Tensor | None = None

    def select(self, positions: Any) -> Instructions:
        """Return the instructions of the clients at these positions of the cohort."""
        if self.model.ndim == 1 and self.correction is None:
            return self
        model = self.model if self.model.ndim == 1 else self.model[positions]
        correction = None if self.correction is None else self.correction[positions]
        starts = None if self.starts is None else self.starts[positions]
        return replace(self, model=model, correction=correction, starts=starts)


@dataclass(frozen=True)
class ClientUpdates:
    """What S clients sent back; each client at most once per round.

    Args:
        clients: their ids, shape (S,), int64.
        weights: the participation weights q_t^n, shape (S,).
        deltas: the updates Δ_n = y_n - x, shape (S, d).
        lr: γ, the local learning rate that they used.
        steps: I_n, how many local steps each took, shape (S,).
        samples: how many samples each holds, shape (S,); None where clients hold functions.
        gradients: ∇F_n at the model that was sent, or at y_n, as instructed, shape (S, d); None
            unless asked for.
    """

    clients: Tensor
    weights: Tensor
    deltas: Tensor
    lr: float
    steps: Tensor
    samples: Tensor | None = None
    gradients: Tensor | None = None

    def select(self, which: Tensor) -> ClientUpdates:
        """Return the updates of some of the clients, given by positions or a mask."""
        rows: dict[str, Any] = {
            n: value[to_device_of(which, value)]
            for n, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return replace(self, **rows)

    def mean_gradients(self) -> Tensor:
        """Return -Δ_n / (γ I_n), the mean direction of each client's local steps, shape (S, d).

        With plain local SGD this is the mean of its stochastic gradients plus its correction.

        Raises:
            InvalidInputError: γ is not positive, or a client took no step.
        """
        require_positive("lr", self.lr)
        if len(self.steps) and int(self.steps.min()) < 1:
            raise InvalidInputError("steps: a client took no local step; leave its update out")
        scale = -1.0 / (self.lr * self.steps.double())
        return self.deltas * to_device_of(scale.to(self.deltas.dtype), self.deltas).unsqueeze(1)


@dataclass(frozen=True)
class WeightedTotal:
    """Σ a_n Δ_n over a chunk of S clients, in place of their updates.

    Args:
        clients: their ids, shape (S,), int64.
        weights: a_n, as `Algorithm.weigh` returned them, shape (S,), in the dtype of the model.
        total: the sum, shape (d,).
    """

    clients: Tensor
    weights: Tensor
    total: Tensor


@dataclass(frozen=True)
class RoundInfo:
    """What happened in one round.

    Args:
        clients: ids of the clients whose updates arrived, in order of arrival, shape (S,).
        weights: the factor a_t^n with which each of their updates entered the step of this round,
            shape (S,); 0 if it enters a later one.
        direction: what the round added to the model, shape (d,).
    """

    clients: Tensor
    weights: Tensor
    direction: Tensor


@dataclass(frozen=True)
class Traits:
    """What drivers, wrappers and reports must know about a method; most keep the defaults.

    Args:
        centralised: the data of all clients are pooled: the reference without federation. They
            belong to client 0, who takes as many local steps as the whole cohort.
        requires_plain_sgd: it recovers mean gradients from updates
            (`ClientUpdates.mean_gradients`), which is possible with plain local SGD only: without
            projection and without momentum. Implies the next two.
        uses_local_lr: it divides updates by the local learning rate γ.
        keeps_gradients: it keeps gradients of its clients, recovered from updates or reported
            alongside them (control variates), so bounding updates does not bound what it remembers.
        uses_absent_clients: clients that do not take part in a round still influence it: it
            remembers something of them (latest updates, control variates, models of their own),
            they train anyway, or the data are pooled. The weights of `RoundInfo` then do not tell
            how much each client counts. Implied by `keeps_gradients` and `centralised`.
        averages_updates: a step is Σ a_n Δ_n over the round's updates, with the weights of
            `RoundInfo`, and nothing else is kept of the updates. It may scale the coordinates of
            the sum by factors computed from such sums.
        scales_coordinates: it does.
        weights_follow_updates: the weights of updates depend on what clients send, updates or
            numbers of steps, not only on who took part: a report cannot tell from a log how much
            clients count.
        accepts_stale_updates: an update that arrives after the round in which it was requested can
            be used. Methods that keep the latest update of every client can: it is newer than the
            one they have. Methods that average updates from this round's model cannot.
        clients_keep_models: clients start from models of their own, of which `with_model` moves
            only some, so wrappers that move the model refuse it.
        message_vectors: how many vectors of length d a participant receives and sends in a round:
            2, a model and an update, and one more for each correction or gradient that `instruct`
            sends or asks for. The data of a centralised method do not count.
        amplification: the path of the factor, such as "inner.factor", by which it multiplies the
            change of a period, which may make a run diverge; None: it does not.
        simulation_only: what it needs of its clients that a deployment does not offer; "": nothing.
        client_form: the form in which clients send updates, "": Δ_n itself (see
            `fedtide.flower.ClientSideMemory`).
    """

    centralised: bool = False
    requires_plain_sgd: bool = False
    uses_local_lr: bool = False
    keeps_gradients: bool = False
    uses_absent_clients: bool = False
    averages_updates: bool = False
    scales_coordinates: bool = False
    weights_follow_updates: bool = False
    accepts_stale_updates: bool = False
    clients_keep_models: bool = False
    message_vectors: int = 2
    amplification: str | None = None
    simulation_only: str = ""
    client_form: str = ""

    def __post_init__(self) -> None:
        for cause, effect in _IMPLIED:
            if getattr(self, cause):
                object.__setattr__(self, effect, True)


_IMPLIED = [
    ("requires_plain_sgd", "uses_local_lr"),
    ("requires_plain_sgd", "keeps_gradients"),
    ("keeps_gradients", "uses_absent_clients"),
    ("centralised", "uses_absent_clients"),
]
"""Traits, and others that follow from them."""


class Algorithm(ABC, Generic[StateT]):
    """How updates become the next model: a frozen dataclass of hyper-parameters."""

    @property
    def traits(self) -> Traits:
        """What others must know about the method; a class attribute, or a property."""
        return Traits()

    @abstractmethod
    def init(self, model: Tensor, population: Population) -> StateT:
        """Return the state before round 0, with `model` of shape (d,) as x_0.

        Raises:
            InvalidInputError: a hyper-parameter does not fit the population.
        """

    def choose_cohort(self, state: StateT, cohort: Cohort) -> Cohort:
        """Return the clients that train in this round, given those that take part.

        All methods except those that wait train exactly the given cohort.
        """
        return cohort

    def instruct(self, state: StateT, clients: Tensor) -> Instructions:
        """Return how these clients, shape (S,), should train in this round."""
        return Instructions(state.model)

    @abstractmethod
    def absorb(self, state: StateT, updates: ClientUpdates) -> StateT:
        """Fold in a chunk of this round's updates; the order of chunks affects only rounding.

        May reuse memory of `state`, as the module says.
        """

    def weigh(self, state: StateT, updates: ClientUpdates) -> Tensor | None:
        """Return a_n of a chunk whose clients have not trained yet, shape (S,).

        None, unless Σ a_n Δ_n is all that `absorb` needs of the updates: `absorb_total` can then
        take the sum instead, so that a machine that trains the chunk returns one model, not S.

        Args:
            state: of the current round, whichever of its chunks have been absorbed.
            updates: of the chunk, with `deltas` on the device "meta", which have no values.
        """
        return None

    def absorb_total(self, state: StateT, total: WeightedTotal) -> StateT:
        """Fold in the sum of a chunk, as `absorb` would its updates; only after `weigh`.

        May reuse memory of `state`, as the module says, and that of the sum.
        """
        raise NotImplementedError(f"{type(self).__name__} needs every update")

    @abstractmethod
    def step(self, state: StateT, lr: float) -> tuple[StateT, RoundInfo]:
        """End the round, even an empty one: move the model and return what happened.

        May reuse memory of `state`, as the module says.

        Args:
            state: with all of the round's updates folded in.
            lr: γ_t, the local learning rate of this round, for methods that keep gradients.
        """

    def with_model(self, state: StateT, model: Tensor) -> StateT:
        """Return the state with another model, for wrappers that move the model themselves."""
        moved: StateT = replace(cast("Any", state), model=model)
        return moved

    def output(self, state: StateT) -> Tensor:
        """Return the model that the algorithm recommends so far, shape (d,)."""
        return state.model


def no_updates(model: Tensor) -> tuple[Tensor, Tensor]:
    """Return the empty (clients, weights) with which a round begins."""
    return torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=model.dtype)


def empty_sum(model: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return zeros of the model's shape, to start a sum from, in the memory of a single number.

    Args:
        model: shape (d,).
        dtype: of the sum; None: that of the model.
    """
    return model.new_zeros((), dtype=dtype).expand_as(model)
