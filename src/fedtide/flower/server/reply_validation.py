"""Checks clients' replies: what is used, and why the rest is not."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedtide.algorithms import ClientUpdates
from fedtide.flower.protocol import arrays_to_vector
from fedtide.flower.server.transport import PendingReply
from fedtide.problems.layout import Layout


class RejectedReplyError(Exception):
    """A reply that is not used; the message says why."""


class DeclinedReplyError(Exception):
    """The client does not take part in this round."""


@dataclass(frozen=True)
class ValidatedUpdate:
    """What one client sent, checked.

    Args:
        client: its number.
        round: the round of the request that it answers.
        update: Δ_n, shape (d,).
        samples: how many samples it holds.
        lr: γ; 0 if not given.
        steps: I_n; 0 if not given.
        gradients: ∇F_n at the model that it was sent, shape (d,); None unless requested.
        metrics: further numbers.
    """

    client: int
    round: int
    update: Tensor
    samples: int
    lr: float
    steps: int
    gradients: Tensor | None = None
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplyValidator:
    """Reads replies to requests to train.

    Args:
        layout: of the model.
        names: of the clients by number.
        reads_steps: whether the method needs the learning rate and the number of steps.
    """

    layout: Layout
    names: list[str]
    reads_steps: bool

    def validate(self, reply: Message, pending: PendingReply, sent: Tensor) -> ValidatedUpdate:
        """Return the content of a reply.

        Args:
            reply: to the message of `pending`.
            pending: the request.
            sent: the model that was sent, shape (d,).

        Raises:
            DeclinedReplyError: the client does not take part.
            RejectedReplyError: an error, a false claim, or unusable content.
        """
        _check_sender(reply, pending)
        try:
            self._check_claims(reply.content, pending)
            return self._read(reply.content, pending, sent)
        except (DeclinedReplyError, RejectedReplyError):
            raise
        except Exception as error:  # records may contain anything
            raise RejectedReplyError(f"it sent {error}") from error

    def _check_claims(self, content: RecordDict, pending: PendingReply) -> None:
        assert pending.client is not None
        config: Any = content.config_records.get("config", {})
        name, server_round = self.names[pending.client], pending.round + 1
        if config.get("client", name) != name:
            raise RejectedReplyError(f"it claims to be {config['client']!r}")
        if config.get("server-round", server_round) != server_round:
            raise RejectedReplyError(f"it claims to answer round {config['server-round']}")
        if config.get("declined"):
            raise DeclinedReplyError
        if config.get("lost"):
            raise RejectedReplyError("it lost its memory of its last update; restore its folder")
        if not pending.plain and not config.get("followed"):
            raise RejectedReplyError(
                "it does not follow the method's instructions; see fedtide.flower.client"
            )

    def _read(self, content: RecordDict, pending: PendingReply, sent: Tensor) -> ValidatedUpdate:
        metrics = _finite_numbers(_find_record(content.metric_records, "metrics"))
        samples = metrics.pop("num-examples", 0.0)
        if not (samples >= 1 and samples == int(samples)):
            raise RejectedReplyError(f"its num-examples is {samples:g}")
        lr, steps = metrics.pop("lr", 0.0), metrics.pop("steps", 0.0)
        if self.reads_steps and not (0 < lr < math.inf and steps >= 1 and steps == int(steps)):
            raise RejectedReplyError(
                f"the method needs lr and steps, and they are {lr:g} and {steps:g}"
            )
        gradients = content.array_records.get("gradients")
        assert pending.client is not None
        return ValidatedUpdate(
            client=pending.client,
            round=pending.round,
            update=self._read_update(content, sent),
            samples=int(samples),
            lr=lr,
            steps=int(steps),
            gradients=None if gradients is None else arrays_to_vector(gradients, self.layout, sent),
            metrics=metrics,
        )

    def _read_update(self, content: RecordDict, sent: Tensor) -> Tensor:
        """Return Δ_n of a fedtide client, or y_n - x of another, which sends its model."""
        if "update" in content.array_records:
            return arrays_to_vector(content.array_records["update"], self.layout, sent)
        arrays = _find_record(content.array_records, "arrays")
        return arrays_to_vector(arrays, self.layout, sent) - sent


def stack_updates(updates: list[ValidatedUpdate], weight: float, like: Tensor) -> ClientUpdates:
    """Return updates of one learning rate and participation weight as an algorithm takes them.

    Args:
        updates: at least one, sorted by client.
        weight: q_t^n of each.
        like: the model.
    """
    gradients = [u.gradients for u in updates if u.gradients is not None]
    return ClientUpdates(
        clients=torch.tensor([u.client for u in updates]),
        weights=torch.full((len(updates),), weight, dtype=like.dtype, device=like.device),
        deltas=torch.stack([u.update for u in updates]),
        lr=updates[0].lr,
        steps=torch.tensor([u.steps for u in updates]),
        samples=torch.tensor([u.samples for u in updates]),
        gradients=torch.stack(gradients) if len(gradients) == len(updates) else None,
    )


def read_metrics(reply: Message) -> tuple[int, dict[str, float]] | None:
    """Return a client's samples and metrics in reply to an evaluation; None: unusable."""
    try:
        metrics = _finite_numbers(_find_record(reply.content.metric_records, "metrics"))
        samples = int(metrics.pop("num-examples"))
    except Exception:  # records may contain anything
        return None
    return (samples, metrics) if samples >= 1 else None


def average_metrics(parts: list[tuple[int, dict[str, float]]]) -> MetricRecord | None:
    """Return the mean of each metric, weighted by samples, over the clients that give it."""
    totals: dict[str, float] = {}
    weights: dict[str, int] = {}
    for samples, metrics in parts:
        for name, value in metrics.items():
            totals[name] = totals.get(name, 0.0) + samples * value
            weights[name] = weights.get(name, 0) + samples
    means = MetricRecord({name: total / weights[name] for name, total in totals.items()})
    means["clients"] = len(parts)
    return means if parts else None


def _check_sender(reply: Message, pending: PendingReply) -> None:
    if reply.has_error():
        lines = [line for line in (reply.error.reason or "").splitlines() if line.strip()]
        reason = lines[0][:200] if lines else ""
        raise RejectedReplyError(f"error {reply.error.code}: {reason}")
    sender = reply.metadata.src_node_id
    if sender != pending.node_id:
        raise RejectedReplyError(f"node {sender} answers a message to node {pending.node_id}")


def _find_record(records: Any, name: str) -> Any:
    """Return the record of this name, or else the only one."""
    if name in records:
        return records[name]
    found: list[ArrayRecord | MetricRecord] = list(records.values())
    if len(found) != 1:
        raise RejectedReplyError(f"it sent {len(found)} records where {name!r} was expected")
    return found[0]


def _finite_numbers(metrics: MetricRecord) -> dict[str, float]:
    """Return the metrics that are single finite numbers."""
    numbers = {name: v for name, v in metrics.items() if isinstance(v, int | float)}
    return {name: float(v) for name, v in numbers.items() if math.isfinite(v)}
