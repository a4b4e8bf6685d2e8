"""The contract of an algorithm: a state machine over the updates that arrive.

An algorithm does not know who runs it. In every round its driver (see `RoundDriver`)

1. passes the clients that take part to `choose_cohort`,
2. asks `instruct` how they should train (each part of `split_by_start`),
3. passes their updates to `absorb`, in as many chunks as it likes,
4. calls `step` once, even if nobody reported.

`init`, `choose_cohort`, `split_by_start`, `instruct` and `output` are pure functions. `absorb` and
`step` return the next state and may reuse memory of the state that they are given: of per-client
rows, because copying N × d numbers in every round would cost O(N), and of sums over the updates of
the round that is under way, because models may be large. All else that a state holds when a round
begins, above all the model, is never changed in place.

What has d numbers lies on the device of the model. What says who takes part, with which weight and
after how many steps, lies in the computer's memory on every device: so no round waits for a GPU to
tell what is known before it trains.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar, cast

import torch
from torch import Tensor

from fedtide.device_copies import to_device_of
from fedtide.errors import InvalidInputError
from fedtide.import_paths import is_own
from fedtide.population import Population
from fedtide.validation import require_positive


class AlgorithmState(Protocol):
    """Everything of an algorithm that must survive a crash: tensors, numbers and further states.

    A state is a frozen dataclass. It belongs to its driver: once it was passed to `absorb` or
    `step`, use the state that they return; to go back later, keep a deep copy.
    """

    @property
    def model(self) -> Tensor:
        """x_t, shape (d,); never changed in place."""

    @property
    def round(self) -> int:
        """t, the number of completed rounds."""


StateT = TypeVar("StateT", bound=AlgorithmState)

SPLITS_COHORTS = "its clients do not all start alike"
"""Why a deployment, which sends all clients of a round the same, refuses what splits cohorts."""


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
        clients: their ids, sorted, shape (S,), int64.
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

    def split(self, size: int | None) -> Iterator[Cohort]:
        """Yield the cohort in consecutive parts of at most `size` clients; None: in one part."""
        size = size or max(1, len(self))
        if 0 < len(self) <= size:
            yield self
            return
        for first in range(0, len(self), size):
            yield self.select(slice(first, first + size))


@dataclass(frozen=True)
class Instructions:
    """How a cohort of S clients should train.

    Args:
        model: x, where the local steps start, shape (d,).
        correction: what is added to every local gradient of each client, shape (S, d); None: zero.
        mu: μ, the proximal weight: μ (y - x) is added to every local gradient.
        gradients_at_start: take every gradient at x itself, so that Δ_n = -γ Σ_k g_k(x).
        full_batch: use all of a client's samples in every step, whatever the batch size.
        gradients: also report ∇F_n(x), over all of a client's samples and without correction.
        end_gradients: also report ∇F_n(y_n), the same where the local steps end; not together with
            `gradients`.
    """

    model: Tensor
    correction: Tensor | None = None
    mu: float = 0.0
    gradients_at_start: bool = False
    full_batch: bool = False
    gradients: bool = False
    end_gradients: bool = False

    def select(self, positions: Any) -> Instructions:
        """Return the instructions of the clients at these positions of the cohort."""
        if self.correction is None:
            return self
        return replace(self, correction=self.correction[positions])


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
class Amplification:
    """Steps that multiply what a period of rounds has changed.

    Args:
        field: the path of the factor among the fields of the algorithm, such as "inner.factor".
        period: P, in rounds.
        start: the round from which periods are counted.
    """

    field: str
    period: int
    start: int = 0

    def prefixed(self, field: str) -> Amplification:
        """Return the same steps as seen by the algorithm that has theirs in `field`."""
        return replace(self, field=f"{field}.{self.field}")


class Algorithm(ABC, Generic[StateT]):
    """How updates become the next model: a frozen dataclass of hyper-parameters.

    The properties tell drivers what an algorithm needs; most algorithms keep the defaults.
    """

    @property
    def centralised(self) -> bool:
        """Whether the data of all clients are pooled: the reference without federation.

        The pooled data belong to client 0, who takes as many local steps as the whole cohort.
        """
        return False

    @property
    def requires_plain_sgd(self) -> bool:
        """Whether the method recovers mean gradients from updates (`ClientUpdates.mean_gradients`).

        That is possible with plain local SGD only: without projection and without momentum.
        """
        return False

    @property
    def uses_local_lr(self) -> bool:
        """Whether the method divides updates by the local learning rate γ."""
        return self.requires_plain_sgd

    @property
    def keeps_gradients(self) -> bool:
        """Whether the method keeps gradients of its clients, which an update alone would not show.

        They are recovered from updates or reported beside them (control variates), so bounding
        updates does not bound what such a method remembers.
        """
        return self.requires_plain_sgd

    @property
    def averages_updates(self) -> bool:
        """Whether a step is Σ a_n Δ_n over the round's updates, with the weights of `RoundInfo`.

        Nothing else of the updates may be kept. The coordinates of the sum may be scaled by what
        follows from such sums, see `scales_coordinates`.
        """
        return False

    @property
    def scales_coordinates(self) -> bool:
        """Whether a step is not the sum of `averages_updates` itself, but that sum scaled."""
        return False

    @property
    def weights_follow_updates(self) -> bool:
        """Whether the weights of updates depend on what clients send, not on who took part alone.

        That is, on the updates or on how many steps each client took: a report then cannot tell
        how much clients count from a log.
        """
        return False

    @property
    def uses_absent_clients(self) -> bool:
        """Whether clients that do not take part in a round count in it, too.

        They do by what is kept of them (latest updates, control variates, models of their own), if
        they train all the same, or if the data are pooled. The weights of `RoundInfo` then do not
        tell how much each client counts.
        """
        return self.keeps_gradients or self.centralised

    @property
    def accepts_stale_updates(self) -> bool:
        """Whether an update is used that arrives after the round in which it was requested.

        Methods that keep the latest update of every client can: a late one is newer than the one
        they have. Averages of updates from this round's model cannot.
        """
        return False

    @property
    def clients_keep_models(self) -> bool:
        """Whether clients start from models of their own, of which `with_model` moves only some.

        What a wrapper adds to the model would be lost where the others take part next, so wrappers
        that move the model refuse such methods.
        """
        return False

    @property
    def simulation_only(self) -> str:
        """What the method needs of its clients that a deployment does not offer; "": nothing.

        A deployment sends all clients of a round the same, so it refuses what splits a cohort.
        """
        splits = type(self).split_by_start is not Algorithm.split_by_start
        return SPLITS_COHORTS if splits else ""

    @property
    def client_form(self) -> str:
        """In which form clients send their updates (see `ClientSideMemory`); "": Δ_n itself."""
        return ""

    @property
    def message_vectors(self) -> int:
        """How many vectors of d numbers a participant receives and sends in a round, together.

        That is 2, a model and an update, and more if `instruct` sends corrections or asks for
        gradients. The data of a centralised method do not count.
        """
        return 2

    @property
    def amplification(self) -> Amplification | None:
        """The steps that amplify the change of a period, which may make a run diverge, if any."""
        return None

    @abstractmethod
    def init(self, model: Tensor, population: Population) -> StateT:
        """Return the state before round 0, with `model` of shape (d,) as x_0.

        Raises:
            InvalidInputError: a hyper-parameter that does not fit the population.
        """

    def choose_cohort(self, state: StateT, cohort: Cohort) -> Cohort:
        """Return the clients that train in this round, given those that take part.

        All methods except those that wait train exactly the given cohort.
        """
        return cohort

    def split_by_start(self, state: StateT, cohort: Cohort) -> Iterator[Cohort]:
        """Yield the cohort in parts whose clients start from the same model; each is instructed.

        With all methods but those whose clients keep models of their own, that is the whole cohort.
        """
        yield cohort

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

        None, unless `absorb` needs nothing but Σ a_n Δ_n of the updates: then `absorb_total` takes
        the sum instead, so that clients trained on another machine send one model, not S.

        Args:
            state: of the current round; it does not matter which of its chunks were absorbed.
            updates: of the chunk, with `deltas` of shape (S, 0).
        """
        return None

    def absorb_total(self, state: StateT, total: WeightedTotal) -> StateT:
        """Fold in a chunk by its sum, as `absorb` would by its updates; only after `weigh`.

        May reuse memory of `state`, as the module says, and that of the sum.
        """
        raise NotImplementedError(f"{type(self).__name__} needs every update")

    @abstractmethod
    def step(self, state: StateT, lr: float) -> tuple[StateT, RoundInfo]:
        """End the round, also an empty one: move the model and say what happened.

        May reuse memory of `state`, as the module says.

        Args:
            state: with all of the round's updates folded in.
            lr: γ_t, the local learning rate of this round, for methods that keep gradients.
        """

    def advance(self, state: StateT, lr: float) -> StateT:
        """End the round as `step` does, to the same bits, for a driver that needs no `RoundInfo`.

        Methods whose models may be large override it: without the direction, a model less is held.
        """
        return self.step(state, lr)[0]

    def add_clients(self, state: StateT, first: int) -> StateT:
        """Return the state of a training that has got further clients, between two rounds.

        They begin as all clients did before round 0. A method overrides it whose state depends on N
        or on the round otherwise than by values for each client and N itself: by a mean over all
        clients, say, or by the round in which each client was last seen.

        Args:
            state: of all clients, with what `init` gives them for the new ones; may be reused.
            first: the ids of the new clients begin here.

        Raises:
            InvalidInputError: a method of the user's own does not override it, or the method cannot
                have further clients.
        """
        owner = next(cls for cls in type(self).__mro__ if "add_clients" in vars(cls))
        if is_own(type(self)) and not is_own(owner):
            raise InvalidInputError(
                f"algorithm: {type(self).__name__} has no add_clients, which says how clients "
                "begin that were not there in round 0; define it, or keep the number of clients"
            )
        return state

    def with_model(self, state: StateT, model: Tensor) -> StateT:
        """Return the state with another model, for wrappers that move the model themselves."""
        moved: StateT = replace(cast("Any", state), model=model)
        return moved

    def with_step(self, before: StateT, after: StateT, model: Tensor) -> StateT:
        """Return the state `after` a step from `before` as if that had led to `model`.

        For wrappers that replace a step because it may lead anywhere: nothing is left of it.
        """
        return self.with_model(after, model)

    def is_finished(self, state: StateT) -> bool:
        """Return whether no update can enter the model any more, whichever clients take part."""
        return False

    def output(self, state: StateT) -> Tensor:
        """Return the model that the algorithm recommends so far, shape (d,)."""
        return state.model


def no_updates(model: Tensor) -> tuple[Tensor, Tensor]:
    """Return the empty (clients, weights) with which a round begins."""
    return torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=model.dtype)


def empty_sum(model: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return zeros of the model's shape, with which a sum begins, in the memory of one.

    Args:
        model: shape (d,).
        dtype: of the sum; None: that of the model.
    """
    return model.new_zeros((), dtype=dtype).expand_as(model)
