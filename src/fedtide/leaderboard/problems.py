"""The problems of the leaderboard: client n holds mostly class ⌊10 n / N⌋ of ten."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedtide.population import Population
from fedtide.problems import Evaluation, Problem, Task
from fedtide.problems.base import BatchInputs, BatchPlan
from fedtide.problems.datasets.catalogue import load
from fedtide.problems.layout import Layout, Params
from fedtide.randomness import extend_hash, generator, uniforms
from fedtide.spec import AtLeast, Positive, spec

CLASSES = 10
_HELD_OUT = 0.2  # of the training samples, on which settings are chosen
_SAME_CLASS = 0.95  # of a client's samples


def _class_of(clients: int) -> NDArray[np.int64]:
    """Return the class of each client, shape (N,)."""
    return np.arange(clients) * CLASSES // clients


@spec
class NoisyQuadratic(Problem):
    """F_n(x) = ½ (x − e_n)ᵀ A_n (x − e_n); gradients have Gaussian noise.

    A_n has log-uniform eigenvalues from 0.1 to 1 in a random basis; e_n is normal with standard
    deviation 0.3 around the center of its class, which is normal with mean 0.5 and deviation 1.
    x_0 = 0. The metric `excess` is 100 [F(x) − F(x*)] / [F(x_0) − F(x*)], with F = mean F_n.

    Args:
        clients: N.
        dimension: d.
        noise: the standard deviation in each coordinate of a gradient.
    """

    clients: Annotated[int, Positive] = 50
    dimension: Annotated[int, Positive] = 10
    noise: Annotated[float, AtLeast(0)] = 0.5

    def prepare(self, seed: int, device: torch.device, dtype: torch.dtype) -> QuadraticTask:
        random, d = generator(seed, "leaderboard-quadratic"), self.dimension
        bases = np.linalg.qr(random.normal(size=(self.clients, d, d)))[0]
        values = np.exp(random.uniform(np.log(0.1), 0, (self.clients, d)))
        centers = random.normal(0.5, 1.0, (CLASSES, d))[_class_of(self.clients)]
        centers = random.normal(centers, 0.3)
        matrices = np.einsum("nij,nj,nkj->nik", bases, values, bases)
        own, e = (torch.from_numpy(part).to(device, dtype) for part in (matrices, centers))
        return QuadraticTask(own, e, self.noise)


class QuadraticTask(Task):
    """Quadratic clients.

    Args:
        matrices: A_n, shape (N, d, d).
        centers: e_n, shape (N, d).
        noise: the standard deviation in each coordinate of a gradient.
    """

    def __init__(self, matrices: Tensor, centers: Tensor, noise: float) -> None:
        clients, dimension = centers.shape
        self.matrices, self.centers, self.noise = matrices, centers, noise
        self.population = Population(clients, class_shares=np.eye(CLASSES)[_class_of(clients)])
        self.layout = Layout({"x": (dimension,)})
        self.start = torch.zeros_like(centers[0])
        self.seed_family = ("leaderboard-quadratic", dimension, centers.dtype, centers.device)
        self._mean = matrices.mean(dim=0)
        slope = torch.einsum("nij,nj->i", matrices, centers) / clients
        self._best = torch.linalg.solve(self._mean, slope)

    def loss(self, params: Params, *batch: Tensor) -> Tensor:
        """Return F_n(x) + ξᵀ x, with the batch (A, e, ξ)."""
        matrix, center, noise = batch
        offset = params["x"] - center
        value: Tensor = 0.5 * offset @ matrix @ offset + noise @ params["x"]
        return value

    def batch_inputs(self, plan: BatchPlan) -> BatchInputs:
        """Return A (1, S, d, d), e (1, S, d), and the noise of each step; 0 for all of F_n."""
        coordinates = np.arange(self.layout.size)
        keys = extend_hash(plan.keys.view(np.uint64)[..., None], coordinates)
        u, v = (uniforms(0, name, keys) for name in ("radius", "angle"))
        normal = np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * np.pi * v)
        noise = torch.as_tensor(normal * (self.noise if _is_training(plan) else 0.0))
        clients = torch.as_tensor(plan.clients)
        return self.matrices[clients][None], self.centers[clients][None], noise.to(self.start)

    def evaluate(
        self, x: Tensor, clients: bool = True, buffers: Tensor | None = None
    ) -> Evaluation:
        """Return `loss`, which is F(x), and `excess`."""
        offsets, gap = x - self.centers, x - self._best
        losses = 0.5 * torch.einsum("ni,nij,nj->n", offsets, self.matrices, offsets)
        excess = 100 * (gap @ self._mean @ gap) / (self._best @ self._mean @ self._best)
        metrics = {"loss": float(losses.mean()), "excess": float(excess)}
        return Evaluation(metrics, {"loss": losses.numpy()}, frozenset({"excess", "loss"}))


def _is_training(plan: BatchPlan) -> bool:
    """Return whether a plan is of local steps, and not of a gradient over all samples."""
    return bool((plan.step_index >= 0).all())


@spec
class ImageClasses(Problem):
    """Softmax regression, or a network with one hidden layer, on images of ten classes.

    95 % of a client's samples are of its class, and minibatches are drawn with replacement. A fifth
    of the training samples is held out; `validation_error` is the error on these, `test_error`
    that on the test samples, both in %.

    Args:
        dataset: a name of a data set.
        clients: N.
        samples: how many training samples are used.
        batch: of a local step.
        hidden: rectified units; 0: none.
        pool: the edge of the squares of pixels that are averaged.
    """

    dataset: str = "digits"
    clients: Annotated[int, Positive] = 50
    samples: Annotated[int, Positive] = 1437
    batch: Annotated[int, Positive] = 8
    hidden: Annotated[int, AtLeast(0)] = 0
    pool: Annotated[int, Positive] = 1

    def prepare(self, seed: int, device: torch.device, dtype: torch.dtype) -> ImageTask:
        return ImageTask(self, seed, device, dtype)


class ImageTask(Task):
    """Clients with images.

    Args:
        problem: what is learnt.
        seed: of the partition and the initial model.
        device, dtype: of the data and the model.
    """

    def __init__(
        self, problem: ImageClasses, seed: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._batch, clients = problem.batch, problem.clients
        data = load(problem.dataset, samples=problem.samples)
        random, labels = generator(seed, "leaderboard-partition"), data.train.labels
        self._inputs = _pixels(data.train.features, problem.pool).to(device, dtype)
        self._targets = torch.from_numpy(labels).to(device)
        chosen, kept = np.split(random.permutation(len(labels)), [int(_HELD_OUT * len(labels))])
        owners = _owners(labels[kept], clients, random)
        held = [kept[owners == n] for n in range(clients)]
        sizes = np.array([len(samples) for samples in held])
        counts = [np.bincount(labels[samples], minlength=CLASSES) for samples in held]
        self.population = Population(
            clients, samples=sizes, class_shares=np.array(counts) / sizes[:, None]
        )
        self._held = np.stack([np.resize(samples, sizes.max()) for samples in held])
        test = _pixels(data.test.features, problem.pool).to(device, dtype)
        self._judged = {
            "validation_error": (self._inputs[chosen], self._targets[chosen]),
            "test_error": (test, torch.from_numpy(data.test.labels).to(device)),
        }
        width, start = self._inputs.shape[1], []
        shapes: dict[str, tuple[int, ...]] = {}
        for name, outputs in (("hidden", problem.hidden), ("out", CLASSES)):
            if not outputs:
                continue
            shapes |= {f"{name}.weight": (width, outputs), f"{name}.bias": (outputs,)}
            size = (width + 1) * outputs
            uniform = random.uniform(-1, 1, size) / width**0.5 if problem.hidden else np.zeros(size)
            start.append(uniform)
            width = outputs
        self.layout = Layout(shapes)
        self.start = torch.as_tensor(np.concatenate(start), dtype=dtype, device=device)
        self.seed_family = ("leaderboard-images", str(shapes), dtype, device)

    def loss(self, params: Params, *batch: Tensor) -> Tensor:
        """Return the weighted cross-entropy, with the batch (inputs, targets, weights)."""
        inputs, targets, weights = batch
        losses = functional.cross_entropy(_outputs(params, inputs), targets, reduction="none")
        return weights @ losses

    def batch_inputs(self, plan: BatchPlan) -> BatchInputs:
        """Return the inputs, targets and weights of minibatches, or of all samples of a client."""
        if _is_training(plan):
            sizes = self.population.samples
            assert sizes is not None
            keys = extend_hash(plan.keys.view(np.uint64)[..., None], np.arange(self._batch))
            places = (uniforms(0, "sample", keys) * sizes[plan.clients][:, None]).astype(np.int64)
            weights = torch.full(places.shape, 1 / self._batch)
        else:
            assert plan.positions is not None
            places = plan.positions
            used = torch.ones(places.shape) if plan.mask is None else torch.as_tensor(plan.mask)
            weights = used / used.sum(dim=-1, keepdim=True)
        rows = torch.from_numpy(self._held[plan.clients[:, None], places])
        return self._inputs[rows], self._targets[rows], weights.to(self.start)

    def evaluate(
        self, x: Tensor, clients: bool = True, buffers: Tensor | None = None
    ) -> Evaluation:
        """Return the two errors, in %; infinite if an output is not finite."""
        params, metrics = self.layout.unflatten(x), {}
        for name, (inputs, targets) in self._judged.items():
            outputs = _outputs(params, inputs)
            wrong = 100 * (outputs.argmax(dim=1) != targets).double().mean()
            metrics[name] = float(wrong) if outputs.isfinite().all() else float("inf")
        return Evaluation(metrics, {}, frozenset(metrics))


def _outputs(params: Params, inputs: Tensor) -> Tensor:
    """Return the outputs of one network, shape (B, 10)."""
    if "hidden.weight" in params:
        inputs = (inputs @ params["hidden.weight"] + params["hidden.bias"]).relu()
    return inputs @ params["out.weight"] + params["out.bias"]


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
