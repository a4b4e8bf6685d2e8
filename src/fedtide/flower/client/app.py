"""The client side: a Flower ClientApp that trains as the strategy asks."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from fedtide.errors import InvalidInputError
from fedtide.flower.client.store import LostMemoryError, remembered
from fedtide.flower.client.task import ClientTask, Loss, cross_entropies
from fedtide.flower.protocol import (
    TrainRequest,
    Update,
    declined_content,
    lost_content,
    name_content,
    params_of,
    read_train,
    update_content,
)
from fedtide.problems.layout import Params
from fedtide.training import LocalTraining
from fedtide.training.minibatches import MinibatchPlanner
from fedtide.training.trainers.base import RoundContext
from fedtide.training.trainers.reference import ReferenceTrainer

Data = tuple[Tensor, Tensor]
"""Features (n, ...) and targets (n, ...)."""

TrainFunction = Callable[[Params, TrainRequest], Update]
"""From the model and the instructions to what is sent back."""

Available = Callable[[int, Context], bool]
"""Whether the client takes part in round t."""


def client(
    model: Callable[[], nn.Module],
    data: Callable[[Context], Data],
    local: LocalTraining,
    *,
    loss: Loss = cross_entropies,
    available: Available | None = None,
    memory: Callable[[Context], Path] | None = None,
    mods: list[Any] | None = None,
) -> ClientApp:
    """Return an app that trains a PyTorch model on this client's data, by any of the methods.

    Nothing is kept on the client between rounds: corrections, and where its shuffled epochs go on,
    come with the instructions.

    Args:
        model: makes the network; a class will do.
        data: returns this client's samples; `context.node_config` says which client it is.
        local: steps, batch size and learning rate; an "lr" in the run's train_config goes before
            its learning rate.
        loss: of each sample; by default the cross-entropy of logits and classes.
        available: whether the client takes part in round t (absolute, from 0); None: always.
        memory: returns the folder in which this client remembers, for methods that `ClientSideMemory`
            runs; one folder for each federation.
        mods: Flower's, for all messages.

    A client that the operator did not register with a name calls itself by the "name" in its node
    config, else by its "partition-id".

    >>> from fedtide.training import LocalTraining
    >>> app = client(
    ...     model=lambda: nn.Linear(4, 3),
    ...     data=lambda context: torch.load(context.node_config["data"]),
    ...     local=LocalTraining(steps=5, lr=0.1, batch_size=16),
    ... )
    """

    def training(context: Context) -> _OwnTraining:
        return _OwnTraining(ClientTask(model(), *data(context), loss), local)

    app = custom_client(
        lambda context: training(context).train, available=available, memory=memory, mods=mods
    )

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        own = training(context)
        figures = own.evaluate(params_of(message.content.array_records["arrays"]))
        return Message(RecordDict({"metrics": figures}), reply_to=message)

    return app


def custom_client(
    train: Callable[[Context], TrainFunction],
    *,
    available: Available | None = None,
    memory: Callable[[Context], Path] | None = None,
    mods: list[Any] | None = None,
) -> ClientApp:
    """Return an app that trains in a way of its own.

    Args:
        train: returns the function that trains this client: it is given the model by name and the
            instructions, which it must follow (correction, μ and so on), and returns an `Update`.
        available: whether the client takes part in round t (absolute, from 0); None: always.
        memory: returns the folder in which this client remembers, for methods that `ClientSideMemory`
            runs; one folder for each federation.
        mods: Flower's, for all messages.
    """
    app = ClientApp(mods=mods)

    @app.query("fedtide_name")
    def tell_name(message: Message, context: Context) -> Message:
        return Message(name_content(name_of(context)), reply_to=message)

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        model, asked = read_train(message.content)
        if available is not None and not available(asked.round, context):
            return Message(declined_content(asked), reply_to=message)
        update = train(context)(model, asked)
        if asked.form:
            if memory is None:
                raise InvalidInputError("memory: the method needs a folder on the client; give one")
            try:
                update = remembered(update, asked, memory(context) / quote(asked.client, ""))
            except LostMemoryError:
                return Message(lost_content(asked), reply_to=message)
        return Message(update_content(update, asked), reply_to=message)

    return app


def name_of(context: Context) -> str:
    """Return what this client calls itself."""
    config = context.node_config
    return str(config.get("name", config.get("partition-id", f"node-{context.node_id}")))


class _OwnTraining:
    """Trains and evaluates on one client's data.

    Args:
        task: its problem.
        local: how it trains.
    """

    def __init__(self, task: ClientTask, local: LocalTraining) -> None:
        self._task, self._local = task, local
        self._samples = int(task.population.samples[0])  # type: ignore[index]

    def train(self, model: Params, asked: TrainRequest) -> Update:
        """Return Δ, and ∇F(x) where that is asked for."""
        local = self._local
        if asked.requires_plain_sgd and (local.momentum or local.projection is not None):
            raise InvalidInputError(
                "local: the method reads gradients off updates; leave out momentum and projection"
            )
        lr = float(asked.config.get("lr", local.rate(asked.round)))
        x, only = self._flat(model), np.zeros(1, dtype=np.int64)
        feed = MinibatchPlanner(
            self._task.population, local, seed=zlib.crc32(asked.client.encode())
        )
        feed.steps_taken[:] = asked.taken
        plan = feed.plan(only, asked.full_batch)
        correction = None if asked.correction is None else self._flat(asked.correction)[None]
        shared = RoundContext(x, lr, asked.mu, asked.gradients_at_start)
        delta = ReferenceTrainer(self._task, local).train(shared, plan, correction)[0]
        return Update(
            update=self._task.layout.unflatten(delta),
            samples=self._samples,
            lr=lr,
            steps=int(plan.steps[0]),
            gradients=self._gradient(x, feed) if asked.gradients else None,
        )

    def evaluate(self, model: Params) -> MetricRecord:
        """Return the figures of a model on this client's samples."""
        figures = MetricRecord(dict(self._task.evaluate(self._flat(model)).metrics))
        figures["num-examples"] = self._samples
        return figures

    def _gradient(self, x: Tensor, feed: MinibatchPlanner) -> Params:
        """Return ∇F(x) over all samples."""
        one_step = ReferenceTrainer(self._task, LocalTraining(steps=1, lr=1.0))
        whole = feed.full_batch_plan(np.zeros(1, dtype=np.int64))
        return self._task.layout.unflatten(
            -one_step.train(RoundContext(x, 1.0, gradients_at_start=True), whole)[0]
        )

    def _flat(self, params: Params) -> Tensor:
        layout = self._task.layout
        if params.keys() != layout.shapes.keys():
            raise InvalidInputError(
                f"model: the strategy sends {sorted(params)}, and the model of this client has "
                f"{sorted(layout.shapes)}; give both the same (see initial_arrays)"
            )
        return layout.flatten(params).to(self._task.start)
