"""A driver of algorithms for tests: exact local steps on quadratics, nothing of the simulator."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedtide.algorithms import Algorithm, ClientUpdates, Instructions, RoundInfo
from fedtide.population import Population


@dataclass(frozen=True)
class Quadratics:
    """F_n(x) = 1/2 (x - e_n)ᵀ A_n (x - e_n); A (N, d, d), e (N, d)."""

    A: np.ndarray
    e: np.ndarray

    @classmethod
    def random(cls, rng, clients: int, d: int = 3) -> "Quadratics":
        """Eigenvalues between 0.5 and 2."""
        bases = np.linalg.qr(rng.normal(size=(clients, d, d)))[0]
        A = bases * rng.uniform(0.5, 2.0, (clients, 1, d)) @ bases.transpose(0, 2, 1)
        return cls(A, rng.normal(size=(clients, d)))

    @property
    def clients(self) -> int:
        return len(self.e)

    def gradient(self, n: int, x: np.ndarray) -> np.ndarray:
        return self.A[n] @ (x - self.e[n])

    def optimum(self, weights=None) -> np.ndarray:
        """The minimiser of Σ w_n F_n."""
        w = np.ones(self.clients) if weights is None else np.asarray(weights, dtype=float)
        H = np.einsum("n,nij->ij", w, self.A)
        return np.linalg.solve(H, np.einsum("n,nij,nj->i", w, self.A, self.e))

    def pooled(self) -> "Quadratics":
        """One client with the mean of all functions, up to a constant."""
        return Quadratics(self.A.mean(axis=0, keepdims=True), self.optimum()[None])


@dataclass
class Driven:
    """What a driven algorithm did: models x_0, ..., x_T, one RoundInfo a round, and its last state."""

    models: list[torch.Tensor]
    state: Any
    infos: list[RoundInfo] = field(default_factory=list)

    @property
    def iterates(self) -> np.ndarray:
        return np.stack([model.numpy() for model in self.models])


def drive(
    algorithm: Algorithm,
    problem: Quadratics,
    table: np.ndarray,
    lr: float | Callable[[int], float] = 0.1,
    steps: int = 1,
    start: np.ndarray | None = None,
    dtype: torch.dtype = torch.float64,
    chunks: int = 1,
    shuffle: Any = None,
    state: Any = None,
    first: int = 0,
    rates: np.ndarray | None = None,
) -> Driven:
    """Run the rounds of `table`, (T, N) with q_t^n or 0 for absent, from round `first` on."""
    if state is None:
        start = np.zeros(problem.e.shape[1]) if start is None else start
        population = Population(problem.clients, rates=rates)
        state = algorithm.init(torch.as_tensor(start, dtype=dtype), population)
    driven = Driven([state.model], state)
    for t in range(first, len(table)):
        rate = lr(t) if callable(lr) else lr
        present = torch.from_numpy(np.flatnonzero(table[t]))
        cohort = algorithm.cohort(driven.state, present).numpy()
        if shuffle is not None:
            cohort = shuffle.permutation(cohort)
        taken, task = steps, problem
        if algorithm.centralised:
            taken, task = steps * len(cohort), problem.pooled()
            cohort = np.zeros(min(len(cohort), 1), dtype=np.int64)
        for part in np.array_split(cohort, chunks):
            reports = train(algorithm, driven.state, task, part, table[t], rate, taken, dtype)
            driven.state = algorithm.absorb(driven.state, reports)
        driven.state, info = algorithm.step(driven.state, rate)
        driven.models.append(driven.state.model)
        driven.infos.append(info)
    return driven


def train(algorithm, state, problem, part, q, lr, steps, dtype) -> ClientUpdates:
    """Let a part of the cohort train as the algorithm instructs."""
    ids = torch.from_numpy(part)
    asked: Instructions = algorithm.instruct(state, ids)
    x = asked.model.double().numpy()
    correction = None if asked.correction is None else asked.correction.double().numpy()
    updates, gradients = np.zeros((len(part), len(x))), np.zeros((len(part), len(x)))
    for s, n in enumerate(part):
        y = x.copy()
        for _ in range(steps):
            g = problem.gradient(n, x if asked.gradients_at_start else y) + asked.mu * (y - x)
            y = y - lr * (g if correction is None else g + correction[s])
        updates[s], gradients[s] = y - x, problem.gradient(n, x)
    return ClientUpdates(
        clients=ids,
        weights=torch.as_tensor(q[part], dtype=dtype),
        updates=torch.as_tensor(updates, dtype=dtype),
        lr=lr,
        steps=torch.full((len(part),), steps),
        gradients=torch.as_tensor(gradients, dtype=dtype) if asked.gradients else None,
    )


def random_table(rng, rounds: int, clients: int) -> np.ndarray:
    """Arbitrary weights with absences, empty rounds, and clients that come back late or never."""
    rates = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0], size=clients)
    present = rng.random((rounds, clients)) < rates
    present[rng.random(rounds) < 0.2] = False
    return present * rng.uniform(0.1, 1.0, (rounds, clients))
