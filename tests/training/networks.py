"""Networks of all kinds on random data of uneven clients, and a plain PyTorch loop over them."""

import copy
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from fedtide.population import Population
from fedtide.problems.base import Evaluation, Problem, Task
from fedtide.problems.layout import Layout
from fedtide.problems.models import FunctionalModel

SIZES = np.array([3, 7, 16, 6, 11])
"""The samples of each client."""


class Normalised(nn.Sequential):
    """A perceptron with batch normalisation; one layer stands in it twice."""

    def __init__(self, **options):
        norm = nn.BatchNorm1d(4, **options)
        super().__init__(
            nn.Linear(5, 4), norm, nn.ReLU(), nn.Linear(4, 4), norm, nn.Tanh(), nn.Linear(4, 1)
        )


class Convolutional(nn.Sequential):
    """A convolution with batch normalisation."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(2, 3, 3, padding=1),
            nn.BatchNorm2d(3, momentum=None, affine=False),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(48, 1),
        )


class Pooled(nn.Sequential):
    """Convolutions, one of them by channel, whose limited outputs are averaged over all pixels."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(2, 3, 3, padding=1),
            nn.ReLU6(),
            nn.Conv2d(3, 3, 3, padding=1, groups=3),
            nn.ReLU6(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(3, 1),
        )


class Frozen(nn.Module):
    """A frozen first layer, and a learnt factor that is a single number."""

    def __init__(self):
        super().__init__()
        self.frozen, self.norm, self.last = nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)
        self.factor = nn.Parameter(torch.tensor(0.7))
        self.norm.weight.requires_grad_(False)
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)

    def forward(self, x):
        return self.factor * self.last(self.norm(self.frozen(x)).relu())


class Recurrent(nn.Module):
    """A recurrent layer of any kind, and a linear one of its last output."""

    def __init__(self, kind, **options):
        super().__init__()
        self.layer = kind(2, 3, batch_first=True, **options)
        width = (options.get("proj_size") or 3) * (2 if options.get("bidirectional") else 1)
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        return self.last(self.layer(x)[0][:, -1])


class Tied(nn.Module):
    """Next-token prediction on padded sequences; embedding and output share their weight."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.embedding = nn.Embedding(9, 6)
        self.encoder = nn.TransformerEncoderLayer(6, 2, 8, dropout, batch_first=True)
        self.output = nn.Linear(6, 9, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens, *, mask):
        causal = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
        states = self.encoder(self.embedding(tokens), causal, mask.logical_not(), is_causal=True)
        return self.output(states)


class Functions(nn.Module):
    """Attention and dropout by functions instead of layers, as transformers have them."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.parts, self.output = nn.Linear(5, 24), nn.Linear(8, 1)
        self.dropout = dropout

    def forward(self, x):
        p = self.dropout if self.training else 0.0
        q, k, v = self.parts(x).view(-1, 3, 4, 2).unbind(1)
        states = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        return self.output(nn.functional.dropout(states.flatten(1), p))


class Branching(nn.Linear):
    """A linear layer whose output depends on a value that is only known when it runs."""

    def __init__(self):
        super().__init__(5, 1)

    def forward(self, x):
        return super().forward(x) if x.sum().item() > 0 else super().forward(2 * x)


class _Reverse(torch.autograd.Function):
    """Turns gradients around, written as in older versions of PyTorch."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -0.5 * gradient


class Reversing(nn.Sequential):
    """Two layers, the first of which gets a gradient that is turned around."""

    def __init__(self):
        super().__init__(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x):
        return self[2](_Reverse.apply(self[1](self[0](x))))


def squares(outputs, target):
    """Return the squared error of each sample."""
    return (outputs - target).square().flatten(1).mean(1)


def next_token(outputs, target):
    """Return the mean cross-entropy of each sequence."""
    return nn.functional.cross_entropy(outputs.transpose(1, 2), target, reduction="none").mean(1)


class NetworkTask(Task):
    """A network on random data.

    Args:
        network: any network.
        inputs: the arguments of its `forward` for all samples.
        target: of all samples.
        loss: of each sample.
        names: of the arguments.
    """

    def __init__(self, network, inputs, target, loss, names=None):
        self.network, self.inputs, self.target, self.losses = network, inputs, target, loss
        self.model = FunctionalModel(network, tuple(x[:2] for x in inputs), names)
        self.is_recurrent = self.model.is_recurrent
        self.population = Population(len(SIZES), samples=SIZES)
        self.layout = Layout.from_params(self.model.params)
        self.start = self.layout.flatten(self.model.params)
        if self.model.buffers:
            self.buffer_layout = Layout.from_params(self.model.buffers)
            self.start_buffers = self.buffer_layout.flatten(self.model.buffers)

    def loss(self, params, *batch):
        return self.loss_and_buffers(params, self.model.buffers, *batch)[0]

    def loss_and_buffers(self, params, buffers, *batch):
        *parts, key = batch
        *inputs, target = parts[: len(self.inputs) + 1]
        real = parts[-1] if len(parts) > len(self.inputs) + 1 else None
        outputs = self.model(params, tuple(inputs), key, real, buffers)
        if self.model.buffers:
            outputs, buffers = outputs
        losses = self.losses(outputs, target)
        return losses.mean() if real is None else (losses * real).sum() / real.sum(), buffers

    def batch_inputs(self, plan):
        samples = torch.tensor((np.cumsum(SIZES) - SIZES)[plan.clients][:, None] + plan.positions)
        masks = [] if plan.mask is None else [torch.tensor(plan.mask)]
        return samples, *masks, torch.tensor(plan.keys)

    def batch(self, *inputs):
        samples, *rest = inputs
        return (*(x[samples] for x in self.inputs), self.target[samples], *rest)

    def evaluate(self, x, clients=True, buffers=None):
        if buffers is not None and buffers.dim() == 2:
            buffers = buffers.mean(0)
        network = self.model.module(self.layout.unflatten(x), self.unflatten_buffers(buffers))
        with torch.no_grad():
            losses = self.losses(network(*self.inputs), self.target)
        own = np.array([part.mean() for part in losses.split(SIZES.tolist())])
        return Evaluation({"loss": float(losses.mean())}, {"loss": own})


def network_task(kind, seed=0):
    """Return the task of a network by its name in `KINDS`."""
    torch.manual_seed(seed)
    draw, count = torch.Generator().manual_seed(1), int(SIZES.sum())
    features = torch.randn(count, 5, generator=draw, dtype=torch.float64)
    target = torch.randn(count, 1, generator=draw, dtype=torch.float64)
    if kind.startswith("tokens"):
        tokens = torch.randint(9, (count, 4), generator=draw)
        mask = torch.arange(4) < torch.randint(1, 5, (count, 1), generator=draw)
        network = Tied(0.4 if kind == "tokens with dropout" else 0.0).double()
        return NetworkTask(network, (tokens, mask), tokens.roll(1, 1), next_token, (None, "mask"))
    if kind == "functions with dropout":
        return NetworkTask(Functions(0.4).double(), (features,), target, squares)
    if kind in ("convolutional", "pooled"):
        features = torch.randn(count, 2, 4, 4, generator=draw, dtype=torch.float64)
    if kind == "lstm with dropout":
        network = Recurrent(nn.LSTM, num_layers=2, proj_size=2, dropout=0.4).double()
        sequences = torch.randn(count, 4, 2, generator=draw, dtype=torch.float64)
        return NetworkTask(network, (sequences,), target, squares)
    if kind in RECURRENT:
        features = torch.randn(count, 4, 2, generator=draw, dtype=torch.float64)
    return NetworkTask(KINDS[kind]().double(), (features,), target, squares)


RECURRENT = {
    "lstm": partial(Recurrent, nn.LSTM, num_layers=2, proj_size=2),
    "gru": partial(Recurrent, nn.GRU, bidirectional=True),
    "elman": partial(Recurrent, nn.RNN, nonlinearity="relu", bias=False),
}

KINDS = {
    "linear": lambda: nn.Linear(5, 1),
    "branching": Branching,
    "reversing": Reversing,
    "normalised": Normalised,
    "without statistics": partial(Normalised, track_running_stats=False),
    "convolutional": Convolutional,
    "pooled": Pooled,
    "frozen": Frozen,
    "tokens": Tied,
    "functions": Functions,
    **RECURRENT,
}
"""The networks that a plain loop can follow (dropout draws other masks there)."""


@dataclass(frozen=True)
class NetworkProblem(Problem):
    """A network by its name in `KINDS`, whose buffers are averaged or kept by each client."""

    kind: str
    buffers: str = "average"

    def prepare(self, seed, device, dtype):
        task = network_task(self.kind)
        task.buffer_mode = self.buffers
        return task


def plain_loop(task, local, plan, x, buffers=None, correction=None, mu=0.0, lr=0.05):
    """Return each client's update and state dict after training the network itself.

    Args:
        task: a NetworkTask.
        local: what a client does in a round.
        plan: the minibatches.
        x: the start model, (d,).
        buffers: where each client's buffers start, (S, d_b).
        correction: added to every gradient, (S, d).
        mu: the proximal weight.
        lr: γ.
    """
    results = []
    for s, steps in enumerate(plan.steps):
        network = copy.deepcopy(task.network).train()
        trained = {n: p for n, p in network.named_parameters() if p.requires_grad}
        _load(network, task.layout.unflatten(x))
        if buffers is not None:
            _load(network, task.buffer_layout.unflatten(buffers[s]))
        optimizer = _optimizer(list(trained.values()), local, lr)
        start = {name: p.detach().clone() for name, p in trained.items()}
        for step, (*parts, _) in enumerate(list(task.batches(plan))[:steps]):
            optimizer.zero_grad()
            real = slice(None) if plan.mask is None else plan.mask[min(step, len(plan.mask) - 1), s]
            *given, target = (part[s][real] for part in parts[: len(task.inputs) + 1])
            named = {n: part for n, part in zip(task.model._names, given, strict=True) if n}
            outputs = network(*given[: len(given) - len(named)], **named)
            task.losses(outputs, target).mean().backward()
            added = None if correction is None else task.layout.unflatten(correction[s])
            for name, p in trained.items():
                p.grad += mu * (p.detach() - start[name])
                p.grad += 0 if added is None else added[name]
            optimizer.step()
        y = task.layout.flatten({name: p.detach() for name, p in trained.items()})
        results.append((y - x, network.state_dict()))
    return results


def _optimizer(parameters, local, lr):
    if local.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr, local.momentum, weight_decay=local.weight_decay)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[local.optimizer]
    return kind(parameters, lr, local.betas, local.eps, local.weight_decay)


@torch.no_grad()
def _load(network, values):
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    for name, value in values.items():
        tensors[name].copy_(value)
