"""The problems of the leaderboard, on which many runs can train at the same time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedtide.population import Population
from fedtide.problems.datasets.catalogue import load
from fedtide.randomness import generator

CLASSES = 10
_HELD_OUT = 0.2  # of the training samples, on which settings are chosen
_SAME_CLASS = 0.95  # of a client's samples


class ClientTasks(ABC):
    """A problem drawn with a seed.

    Attributes:
        population: the clients; client n holds mostly class ⌊10 n / N⌋.
        start: x_0, shape (d,).
    """

    population: Population
    start: Tensor

    @abstractmethod
    def draws(self, t: int, steps: int) -> Sequence[Any]:
        """Return the random draws of each local step of round t, for all clients.

        It is a function of the seed and t, so that all methods see the same noise or minibatches.
        """

    @abstractmethod
    def gradients(self, points: Tensor, clients: Tensor, draw: Any | None) -> Tensor:
        """Return the gradient of each model on its client, shape (K, d).

        Args:
            points: the models, shape (K, d).
            clients: the client of each, shape (K,).
            draw: an element of `draws`; None: that of F_n itself.
        """

    def descend(
        self,
        starts: Tensor,
        clients: Tensor,
        lr: Tensor,
        mu: Tensor | None,
        corrections: Tensor | None,
        draws: Sequence[Any],
    ) -> Tensor:
        """Return where y ← y − γ (g(y) + correction + μ (y − x)) ends from y = x, shape (K, d).

        Args:
            starts: x, shape (K, d).
            clients: the client of each, shape (K,).
            lr: γ, shape (K, 1).
            mu: μ, shape (K, 1); None: 0.
            corrections: what is added to the gradients, shape (K, d); None: 0.
            draws: of the steps.
        """
        ends = starts
        for draw in draws:
            slopes = self.gradients(ends, clients, draw)
            if corrections is not None:
                slopes = slopes + corrections
            if mu is not None:
                slopes = slopes + mu * (ends - starts)
            ends = ends - lr * slopes
        return ends

    @abstractmethod
    def figures(self, models: Tensor, tuning: bool) -> NDArray[np.float64]:
        """Return the figure of each model (K, d), lower is better; not finite if it has diverged.

        Args:
            models: the models.
            tuning: measure it on the samples by which settings are chosen.
        """


@dataclass(frozen=True)
class LeaderboardProblem(ABC):
    """A problem, before it is drawn.

    Args:
        title: its name in tables.
        measure: what is compared, lower is better, and its unit.
        lr: the nine local rates γ, in rising order.
        seconds: roughly how long a cell takes on one core, used until some are recorded.
    """

    title: str
    measure: str
    lr: Sequence[float]
    seconds: float

    @abstractmethod
    def draw(self, clients: int, seed: int) -> ClientTasks:
        """Return the problem of a seed."""


@dataclass(frozen=True)
class NoisyQuadratic(LeaderboardProblem):
    """F_n(x) = ½ (x − e_n)ᵀ A_n (x − e_n); gradients have Gaussian noise.

    A_n has log-uniform eigenvalues from 0.1 to 1 in a random basis; e_n is normal with standard
    deviation 0.3 around the center of its class, which is normal with mean 0.5 and deviation 1.
    x_0 = 0. The figure is 100 [F(x) − F(x*)] / [F(x_0) − F(x*)], with F = mean F_n.

    Args:
        dimension: d.
        noise: the standard deviation in each coordinate of a gradient.
    """

    dimension: int = 10
    noise: float = 0.5

    def draw(self, clients: int, seed: int) -> QuadraticTasks:
        random, d = generator(seed, "leaderboard-quadratic"), self.dimension
        bases = np.linalg.qr(random.normal(size=(clients, d, d)))[0]
        values = np.exp(random.uniform(np.log(0.1), 0, (clients, d)))
        centers = random.normal(0.5, 1.0, (CLASSES, d))[_class_of(clients)]
        centers = random.normal(centers, 0.3)
        return QuadraticTasks(bases, values, centers, self.noise, seed)


class QuadraticTasks(ClientTasks):
    """Quadratic clients.

    Args:
        bases: the eigenvectors of A_n, in columns, shape (N, d, d).
        values: its eigenvalues, shape (N, d).
        centers: e_n, shape (N, d).
        noise: the standard deviation in each coordinate of a gradient.
        seed: of the noise.
    """

    def __init__(
        self,
        bases: NDArray[np.float64],
        values: NDArray[np.float64],
        centers: NDArray[np.float64],
        noise: float,
        seed: int,
    ) -> None:
        self._bases, self._values, self._e = map(torch.from_numpy, (bases, values, centers))
        self._noise, self._seed = noise, seed
        shares = np.eye(CLASSES)[_class_of(len(centers))]
        self.population = Population(len(centers), class_shares=shares)
        self.start = torch.zeros(centers.shape[1], dtype=torch.float64)
        matrices = torch.einsum("nij,nj,nkj->nik", self._bases, self._values, self._bases)
        self._mean = matrices.mean(dim=0)
        slope = torch.einsum("nij,nj->i", matrices, self._e) / len(centers)
        self._best = torch.linalg.solve(self._mean, slope)

    def draws(self, t: int, steps: int) -> Sequence[Tensor]:
        """Return the noise, in the bases of the clients, where it has the same distribution."""
        random = generator(self._seed, "leaderboard-noise", t)
        return list(torch.from_numpy(random.normal(0, self._noise, (steps, *self._e.shape))))

    def gradients(self, points: Tensor, clients: Tensor, draw: Tensor | None) -> Tensor:
        slopes = self._values[clients] * self._rotate(points - self._e[clients], clients)
        return self._rotate_back(slopes if draw is None else slopes + draw[clients], clients)

    def descend(
        self,
        starts: Tensor,
        clients: Tensor,
        lr: Tensor,
        mu: Tensor | None,
        corrections: Tensor | None,
        draws: Sequence[Tensor],
    ) -> Tensor:
        """Take the steps in the bases of the clients, where coordinates do not mix."""
        first = self._rotate(starts - self._e[clients], clients)
        decay = self._values[clients] if mu is None else self._values[clients] + mu
        push = 0.0 if mu is None else -mu * first
        if corrections is not None:
            push = push + self._rotate(corrections, clients)
        factor, offset = 1 - lr * decay, lr * push
        end = first
        for draw in draws:
            end = factor * end - lr * draw[clients] - offset
        return starts + self._rotate_back(end - first, clients)

    def _rotate(self, rows: Tensor, clients: Tensor) -> Tensor:
        return (rows[:, None] @ self._bases[clients])[:, 0]

    def _rotate_back(self, rows: Tensor, clients: Tensor) -> Tensor:
        return (self._bases[clients] @ rows[:, :, None])[:, :, 0]

    def figures(self, models: Tensor, tuning: bool) -> NDArray[np.float64]:
        gaps = torch.einsum("ki,ij,kj->k", models - self._best, self._mean, models - self._best)
        return np.asarray(100 * gaps / (self._best @ self._mean @ self._best))


@dataclass(frozen=True)
class ImageClassification(LeaderboardProblem):
    """Softmax regression, or a network with one hidden layer, on images of ten classes.

    95 % of a client's samples are of its class. Settings are chosen on a fifth of the training
    samples, which is held out; the figure is the error, in %.

    Args:
        dataset: a name that `catalogue.load` knows.
        samples: how many training samples are used.
        batch: of a local step.
        hidden: rectified units; 0: none.
        pool: the edge of the squares of pixels that are averaged.
    """

    dataset: str = "digits"
    samples: int = 1437
    batch: int = 8
    hidden: int = 0
    pool: int = 1

    def draw(self, clients: int, seed: int) -> ImageTasks:
        return ImageTasks(self, clients, seed)


class ImageTasks(ClientTasks):
    """Clients with images.

    Args:
        problem: what is learnt.
        clients: N.
        seed: of the partition, the initial model and the minibatches.
    """

    def __init__(self, problem: ImageClassification, clients: int, seed: int) -> None:
        self._problem, self._seed = problem, seed
        data = load(problem.dataset, samples=problem.samples)
        random, labels = generator(seed, "leaderboard-partition"), data.train.labels
        inputs = _pixels(data.train.features, problem.pool)
        order = random.permutation(len(labels))
        chosen, kept = np.split(order, [int(_HELD_OUT * len(labels))])
        owners = _owners(labels[kept], clients, random)
        held = [kept[owners == n] for n in range(clients)]
        sizes = np.array([len(samples) for samples in held])
        counts = [np.bincount(labels[samples], minlength=CLASSES) for samples in held]
        shares = np.array(counts) / sizes[:, None]
        self.population = Population(clients, samples=sizes, class_shares=shares)
        self._inputs, targets = inputs, torch.from_numpy(labels)
        self._targets = functional.one_hot(targets, CLASSES).float()
        self._table = torch.from_numpy(np.stack([np.resize(s, sizes.max()) for s in held]))
        self._in_use = torch.arange(sizes.max()) < torch.from_numpy(sizes)[:, None]
        test = _pixels(data.test.features, problem.pool), torch.from_numpy(data.test.labels)
        self._judged = {True: (inputs[chosen], targets[chosen]), False: test}
        self.start = self._initial(inputs.shape[1], random)

    def _initial(self, inputs: int, random: np.random.Generator) -> Tensor:
        """Return zeros without a hidden layer, else uniform weights within 1/√(inputs)."""
        hidden = self._problem.hidden
        if not hidden:
            return torch.zeros((inputs + 1) * CLASSES)
        first = random.uniform(-1, 1, (inputs + 1) * hidden) / inputs**0.5
        second = random.uniform(-1, 1, (hidden + 1) * CLASSES) / hidden**0.5
        return torch.from_numpy(np.concatenate([first, second])).float()

    def draws(self, t: int, steps: int) -> Sequence[Tensor]:
        sizes = self.population.samples
        assert sizes is not None
        random = generator(self._seed, "leaderboard-batches", t)
        places = random.random((steps, len(sizes), self._problem.batch)) * sizes[:, None]
        return list(torch.from_numpy(places.astype(np.int64)))

    def gradients(self, points: Tensor, clients: Tensor, draw: Tensor | None) -> Tensor:
        samples = self._table[clients]
        if draw is None:  # every sample of a client counts alike, and the padding not at all
            weights = self._in_use[clients] / self._in_use[clients].sum(dim=1, keepdim=True)
        else:
            samples = samples.gather(1, draw[clients])
            weights = torch.full(samples.shape, 1 / samples.shape[1])
        inputs = self._inputs[samples]
        hidden, outputs = self._outputs(points, inputs)
        errors = (outputs.softmax(dim=2) - self._targets[samples]) * weights[:, :, None]
        if hidden is None:
            return _slope(inputs, errors)
        end = (inputs.shape[2] + 1) * self._problem.hidden
        matrix = points[:, end:-CLASSES].view(len(points), -1, CLASSES)
        back = (errors @ matrix.transpose(1, 2)) * (hidden > 0)
        return torch.cat([_slope(inputs, back), _slope(hidden, errors)], dim=1)

    def _outputs(self, points: Tensor, inputs: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return the hidden units and the outputs, (K, B, 10), for inputs (K, B, p) or (B, p)."""
        width, hidden = inputs.shape[-1], self._problem.hidden
        if not hidden:
            return None, _affine(inputs, points, width, CLASSES)
        end = (width + 1) * hidden
        active = _affine(inputs, points[:, :end], width, hidden).relu()
        return active, _affine(active, points[:, end:], hidden, CLASSES)

    def figures(self, models: Tensor, tuning: bool) -> NDArray[np.float64]:
        inputs, labels = self._judged[tuning]
        errors = []
        for model in models:
            outputs = self._outputs(model[None], inputs)[1][0]
            wrong = (outputs.argmax(dim=1) != labels).double().mean().item()
            errors.append(100 * wrong if outputs.isfinite().all() else float("inf"))
        return np.array(errors)


def _affine(inputs: Tensor, weights: Tensor, width: int, outputs: int) -> Tensor:
    matrix = weights[:, : width * outputs].view(-1, width, outputs)
    return inputs @ matrix + weights[:, None, width * outputs :]


def _slope(inputs: Tensor, errors: Tensor) -> Tensor:
    """Return the gradients of a matrix and its offsets, (K, d), from those of their outputs."""
    matrix = (inputs.transpose(1, 2) @ errors).flatten(start_dim=1)
    return torch.cat([matrix, errors.sum(dim=1)], dim=1)


def _class_of(clients: int) -> NDArray[np.int64]:
    """Return the class of each client, shape (N,)."""
    return np.arange(clients) * CLASSES // clients


def _owners(
    labels: NDArray[np.int64], clients: int, random: np.random.Generator
) -> NDArray[np.int64]:
    """Return the client of each sample: one of its class, or sometimes any client."""
    classes = _class_of(clients)
    first = np.searchsorted(classes, labels)
    members = np.searchsorted(classes, labels, side="right") - first
    own = first + (random.random(len(labels)) * members).astype(np.int64)
    anyone = random.random(len(labels)) >= _SAME_CLASS
    return np.where(anyone, random.integers(clients, size=len(labels)), own)


def _pixels(images: NDArray[Any], pool: int) -> Tensor:
    """Return the pixels of images in [0, 1], shape (B, p)."""
    scale = 255 if images.dtype == np.uint8 else 1
    pixels = torch.from_numpy(images).float() / scale
    return functional.avg_pool2d(pixels, pool).flatten(start_dim=1)


PROBLEM_TYPES: dict[str, type[LeaderboardProblem]] = {
    "quadratic": NoisyQuadratic,
    "images": ImageClassification,
}
"""The problems by their `type` in leaderboard.yaml."""
