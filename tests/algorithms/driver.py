"""A driver of algorithms for tests: exact local steps on quadratics, nothing of the simulator."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedtide.algorithms import (
    Algorithm,
    ClientUpdates,
    Cohort,
    Instructions,
    RoundDriver,
    RoundInfo,
)
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
    """What a driven algorithm did: models x_0, ..., x_T, one RoundInfo per round, and its state."""

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
    start = np.zeros(problem.e.shape[1]) if start is None else start
    population = Population(problem.clients, rates=rates)
    driver = RoundDriver(algorithm, torch.as_tensor(start, dtype=dtype), population)
    if state is not None:
        driver.state = state
    driven = Driven([driver.state.model], driver.state)
    task = problem.pooled() if algorithm.traits.centralised else problem
    for t in range(first, len(table)):
        rate = lr(t) if callable(lr) else lr
        clients = np.flatnonzero(table[t])
        if shuffle is not None:
            clients = shuffle.permutation(clients)
        cohort = Cohort(torch.from_numpy(clients), torch.from_numpy(table[t][clients]))
        cohort = driver.choose_cohort(cohort)
        taken = steps
        if algorithm.traits.centralised:
            taken = steps * len(cohort)
            cohort = Cohort(torch.zeros_like(cohort.clients[:1]), cohort.weights[:1])
        for chunk in np.array_split(np.arange(len(cohort)), chunks):
            ids, q = cohort.clients[chunk], cohort.weights[chunk].to(dtype)
            instructions = algorithm.instruct(driver.state, ids)
            driver.absorb(train(instructions, task, ids, q, rate, taken, dtype))
        driven.infos.append(driver.step(rate))
        driven.models.append(driver.state.model)
    driven.state = driver.state
    return driven


def train(instructions: Instructions, problem, ids, q, lr, steps, dtype) -> ClientUpdates:
    """Let clients train as the algorithm instructs, one literal step after another."""
    starts = instructions.model.double().expand(len(ids), -1).numpy()
    correction = instructions.correction
    corrections = None if correction is None else correction.double().numpy()
    deltas, gradients = np.zeros(starts.shape), np.zeros(starts.shape)
    for s, n in enumerate(ids.tolist()):
        x = starts[s]
        y = x.copy()
        for _ in range(steps):
            g = problem.gradient(n, x if instructions.gradients_at_start else y)
            g = g + instructions.mu * (y - x)
            y = y - lr * (g if corrections is None else g + corrections[s])
        deltas[s] = y - x
        gradients[s] = problem.gradient(n, y if instructions.end_gradients else x)
    reported = instructions.gradients or instructions.end_gradients
    return ClientUpdates(
        clients=ids,
        weights=q,
        deltas=torch.as_tensor(deltas, dtype=dtype),
        lr=lr,
        steps=torch.full((len(ids),), steps),
        gradients=torch.as_tensor(gradients, dtype=dtype) if reported else None,
    )


def random_table(rng, rounds: int, clients: int) -> np.ndarray:
    """Arbitrary weights with absences, empty rounds, and clients that come back late or never."""
    rates = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0], size=clients)
    present = rng.random((rounds, clients)) < rates
    present[rng.random(rounds) < 0.2] = False
    return present * rng.uniform(0.1, 1.0, (rounds, clients))
