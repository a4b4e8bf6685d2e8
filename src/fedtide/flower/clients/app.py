"""A Flower ClientApp that trains as the strategy asks."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from fedtide.algorithms import Instructions
from fedtide.errors import InvalidInputError
from fedtide.flower.clients.store import LostMemoryError, client_folder, encode_update
from fedtide.flower.clients.task import ClientTask, Loss, cross_entropies
from fedtide.flower.protocol import (
    CHECK_ACTION,
    NAME_ACTION,
    TrainRequest,
    Update,
    build_answer,
    build_reply_content,
    build_update_content,
    draw_nonce,
    read_model,
    read_request,
    read_round,
    select_records,
)
from fedtide.problems.layout import Params
from fedtide.training import LocalTraining
from fedtide.training.devices import require_device
from fedtide.training.minibatches import MinibatchPlanner, check_minibatches
from fedtide.training.trainers.reference import ReferenceTrainer

Data = tuple[Tensor, Tensor]
"""Features (n, ...) and targets (n, ...)."""

TrainFunction = Callable[[Params, TrainRequest], Update]
"""Trains from a model as requested and returns the update."""

Available = Callable[[int, Context], bool]
"""Whether the client takes part in round t."""

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]
"""A Flower mod: may change the message, calls the next one, and may change the reply."""


def client(
    model: Callable[[], nn.Module],
    data: Callable[[Context], Data],
    local: LocalTraining,
    *,
    loss: Loss = cross_entropies,
    test: Callable[[Context], Data] | None = None,
    available: Available | None = None,
    memory: Callable[[Context], Path] | None = None,
    mods: Sequence[Mod] | None = None,
    device: str = "cpu",
) -> ClientApp:
    """Return an app that trains a PyTorch model on this client's data, for any of the methods.

    The client keeps nothing between rounds: corrections, and the position in its shuffled epochs,
    arrive with each request. With each update it reports the metric `train_loss`, the mean loss of
    the samples on which it trained, each with the model at its local step. When asked to evaluate,
    it reports `loss` and, if the targets are classes, `accuracy`.

    Args:
        model: makes the network; may be its class.
        data: returns this client's samples, two tensors; `context.node_config` says which client
            it is.
        local: steps, batch size and learning rate; an "lr" in the run's train_config overrides
            the learning rate.
        loss: of each sample; by default the cross-entropy of logits and classes.
        test: returns the samples on which this client evaluates, two tensors, empty if it has
            none; None: those of `data`.
        available: whether the client takes part in round t (absolute, from 0), or evaluates after
            it; None: always.
        memory: returns the folder for this client's memory, for `ClientSideMemory`; a separate
            folder for each federation.
        mods: Flower's, for training (see `custom_client`).
        device: where this client trains and evaluates, such as "cuda"; its data may stay on the
            CPU, from which minibatches are copied.

    A client that the operator did not register with a name calls itself by the "name" in its node
    config, else by its "partition-id".

    >>> from fedtide.training import LocalTraining
    >>> app = client(
    ...     model=lambda: nn.Linear(4, 3),
    ...     data=lambda context: torch.load(context.node_config["data"]),
    ...     local=LocalTraining(steps=5, lr=0.1, batch_size=16),
    ... )
    """

    def make_trainer(own: Data, local: LocalTraining = local) -> _ClientTrainer:
        require_device(device)
        return _ClientTrainer(ClientTask(model(), *own, loss, device), local)

    app = custom_client(
        lambda context: make_trainer(_require_tensors("data", data(context))).train,
        available=available,
        memory=memory,
        mods=mods,
    )

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        t = read_round(message.content)
        if t is not None and available is not None and not available(t, context):
            return Message(build_answer(declined=True), reply_to=message)
        own = _require_tensors("test" if test else "data", (test or data)(context))
        if test is not None and not len(own[0]):
            return Message(build_answer(declined=True), reply_to=message)
        metrics = make_trainer(own).evaluate(read_model(message.content))
        metrics.update(draw_nonce())
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    @app.query(CHECK_ACTION)
    def try_to_train(message: Message, context: Context) -> Message:
        own = _require_tensors("data", data(context))
        trainer = make_trainer(own, replace(local, steps=1, epochs=None))
        update = trainer.train(trainer.start, TrainRequest(0))
        metrics = MetricRecord({"num-examples": update.samples, **(update.metrics or {})})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def custom_client(
    train: Callable[[Context], TrainFunction],
    *,
    available: Available | None = None,
    memory: Callable[[Context], Path] | None = None,
    mods: Sequence[Mod] | None = None,
) -> ClientApp:
    """Return an app that trains with a function of yours.

    Mods wrap training only. They see the request as it arrives. Unless the method has clients send
    gradients or differences of earlier updates, the reply that they see has exactly one
    ArrayRecord: the trained model, under the names of the one received. A client that declines does
    so before its mods are called. With methods that derive gradients from updates, send
    corrections, or keep earlier updates on the clients, it is an error if the arrays that leave
    the client are not those that it made. Flower's mods leave metrics unchanged.

    Args:
        train: returns this client's training function, which takes the model (tensors by name) and
            the `TrainRequest`, follows that (correction, μ and so on), and returns an `Update`.
        available: whether the client takes part in round t (absolute, from 0); None: always.
        memory: returns the folder for this client's memory, for `ClientSideMemory`; a separate
            folder for each federation.
        mods: Flower's, for training.
    """
    app, mods = ClientApp(), mods or ()
    guard = _ModGuard(mods)

    @app.query(NAME_ACTION)
    def tell_name(message: Message, context: Context) -> Message:
        return Message(build_answer(name=client_name(context)), reply_to=message)

    def check(message: Message, context: Context, call_next: Any) -> Message:
        request = read_request(message.content)
        if available is not None and not available(request.round, context):
            return Message(build_reply_content(request, declined=True), reply_to=message)
        guard.remember(None)
        reply: Message = call_next(message, context)
        guard.check(request, reply)
        return reply

    @app.train(mods=[check, *mods])
    def answer(message: Message, context: Context) -> Message:
        model, request = read_model(message.content), read_request(message.content)
        update = train(context)(model, request)
        if request.form:
            if memory is None:
                raise InvalidInputError("memory: the method needs a folder on the client; give one")
            folder = client_folder(memory(context), request.client)
            try:
                update = encode_update(update, request, folder, model)
            except LostMemoryError:
                return Message(build_reply_content(request, lost=True), reply_to=message)
        content = build_update_content(update, request, model)
        guard.remember(content)
        return Message(content, reply_to=message)

    return app


def _require_tensors(name: str, found: object) -> Data:
    """Return what `data` or `test` returned, (features, targets).

    Raises:
        InvalidInputError: it is something else, such as a Dataset.
    """
    parts = tuple(found) if isinstance(found, tuple | list) else ()
    if len(parts) == 2 and all(isinstance(part, Tensor) and part.dim() for part in parts):
        if len(parts[0]) == len(parts[1]):
            return parts[0], parts[1]
        what = f"{len(parts[0])} features and {len(parts[1])} targets"
    else:
        what = " and ".join(type(part).__name__ for part in parts or [found])
    raise InvalidInputError(
        f"{name}: returned {what}; return (features, targets), two tensors with one row for each "
        "sample, or train with custom_client"
    )


def client_name(context: Context) -> str:
    """Return the name that this client claims."""
    config = context.node_config
    return str(config.get("name", config.get("partition-id", f"node-{context.node_id}")))


class _ModGuard:
    """Keeps mods from changing updates that the server's method needs unchanged.

    Args:
        mods: of a client, around its training.
    """

    def __init__(self, mods: Sequence[Mod]) -> None:
        self._names = ", ".join(getattr(mod, "__name__", type(mod).__name__) for mod in mods)
        self._made: dict[str, dict[str, bytes]] | None = None

    def remember(self, content: RecordDict | None) -> None:
        """Remember the arrays of a reply before any mod has seen it; None: there is no reply."""
        self._made = None if content is None else _list_arrays(content)

    def check(self, request: TrainRequest, reply: Message) -> None:
        """Raise InvalidInputError if a mod has changed the update, but must not."""
        needs = {
            "has clients remember them": bool(request.form),
            "derives gradients from them": request.requires_plain_sgd,
            "needs gradients too": request.gradients,
            "sends corrections": request.correction is not None,
        }
        reasons = [reason for reason, needed in needs.items() if needed]
        if not reasons or self._made is None or not reply.has_content():
            return
        if _list_arrays(reply.content) != self._made:
            raise InvalidInputError(
                f"mods: one of {self._names} changed the update, and the server's method "
                f"{reasons[0]}; remove it, or run FedAvg, FedAU or MIFA"
            )


def _list_arrays(content: RecordDict) -> dict[str, dict[str, bytes]]:
    """Return the bytes of all arrays, by record and array name, without copying them."""
    records = select_records(content, ArrayRecord).items()
    return {name: {key: array.data for key, array in record.items()} for name, record in records}


class _ClientTrainer:
    """Trains and evaluates on one client's data.

    Args:
        task: the client's data as a problem.
        local: how it trains.
    """

    def __init__(self, task: ClientTask, local: LocalTraining) -> None:
        self._task, self._local = task, local
        self._samples = int(task.population.samples[0])  # type: ignore[index]

    @property
    def start(self) -> Params:
        """The network's own parameters."""
        return self._task.layout.unflatten(self._task.start)

    def train(self, model: Params, request: TrainRequest) -> Update:
        """Return Δ, and ∇F(x) if requested."""
        local = self._local
        if request.requires_plain_sgd and not local.is_plain_sgd:
            raise InvalidInputError(
                "local: the method derives gradients from updates, which needs plain SGD; omit "
                "momentum, projection and other optimizers"
            )
        lr = float(request.config.get("lr", local.rate(request.round)))
        x = self._flatten(model)
        seed = zlib.crc32(request.client.encode())
        planner = MinibatchPlanner(self._task.population, local, seed=seed)
        check_minibatches(planner, self._task)
        planner.steps_taken[:] = request.steps_taken
        plan = planner.plan(np.zeros(1, dtype=np.int64), request.full_batch)
        correction = None if request.correction is None else self._flatten(request.correction)[None]
        instructions = Instructions(x, correction, request.mu, request.gradients_at_start)
        delta = ReferenceTrainer(self._task, local).train(instructions, plan, lr).deltas[0]
        return Update(
            update=self._task.layout.unflatten(delta.cpu()),
            samples=self._samples,
            lr=lr,
            steps=int(plan.steps[0]),
            gradients=self._gradient(x, planner) if request.gradients else None,
            metrics={"train_loss": self._task.mean_training_loss()},
        )

    def evaluate(self, model: Params) -> MetricRecord:
        """Return the metrics of a model on this client's samples."""
        metrics = MetricRecord(dict(self._task.evaluate(self._flatten(model)).metrics))
        metrics["num-examples"] = self._samples
        return metrics

    def _gradient(self, x: Tensor, planner: MinibatchPlanner) -> Params:
        """Return ∇F(x) over all samples."""
        plan = planner.full_batch_plan(np.zeros(1, dtype=np.int64))
        return self._task.layout.unflatten(self._task.gradient(x, plan)[0].cpu())

    def _flatten(self, params: Params) -> Tensor:
        layout = self._task.layout
        if params.keys() != layout.shapes.keys():
            raise InvalidInputError(
                f"model: the strategy sends {sorted(params)}, and the model of this client has "
                f"{sorted(layout.shapes)}; give both the same (see initial_arrays)"
            )
        return layout.flatten(params).to(self._task.start)
