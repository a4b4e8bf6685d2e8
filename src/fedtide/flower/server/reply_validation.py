"""What a reply says, and whether it may be believed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedtide.algorithms import ClientUpdates
from fedtide.flower.protocol import vector_of
from fedtide.flower.server.pending import Owed
from fedtide.problems.layout import Layout


class RejectedReplyError(Exception):
    """A reply that is not used; its text says why."""


class DeclinedReplyError(Exception):
    """A client says that it does not take part in this round."""


@dataclass(frozen=True)
class Report:
    """What one client sent, checked.

    Args:
        client: its number.
        asked: the round in which it was asked.
        update: Δ_n, shape (d,).
        samples: how many samples it holds.
        lr: γ; 0 where it does not say.
        steps: I_n; 0 where it does not say.
        gradients: ∇F_n at the model that it was sent, shape (d,); None where not asked for.
        metrics: further figures.
    """

    client: int
    asked: int
    update: Tensor
    samples: int
    lr: float
    steps: int
    gradients: Tensor | None = None
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplyValidator:
    """Reads replies.

    Args:
        layout: of the model.
        names: of the clients by number.
        reads_steps: whether the method needs the learning rate and the number of steps.
    """

    layout: Layout
    names: list[str]
    reads_steps: bool

    def report(self, reply: Message, owed: Owed, sent: Tensor) -> Report:
        """Return what a reply says.

        Args:
            reply: to the message of `owed`.
            owed: what was asked.
            sent: the model that was sent, shape (d,).

        Raises:
            DeclinedReplyError: the client does not take part.
            RejectedReplyError: an error, a false claim, or content that cannot be used.
        """
        _check_sender(reply, owed)
        try:
            self._check_claims(reply.content, owed)
            return self._read(reply.content, owed, sent)
        except (DeclinedReplyError, RejectedReplyError):
            raise
        except Exception as error:  # whatever a client may have put into its records
            raise RejectedReplyError(f"it sent {error}") from error

    def _check_claims(self, content: RecordDict, owed: Owed) -> None:
        assert owed.client is not None
        told: Any = content.config_records.get("config", {})
        name = self.names[owed.client]
        if told.get("client", name) != name:
            raise RejectedReplyError(f"it claims to be {told['client']!r}")
        if told.get("server-round", owed.round + 1) != owed.round + 1:
            raise RejectedReplyError(f"it claims to answer round {told['server-round']}")
        if told.get("declined"):
            raise DeclinedReplyError
        if told.get("lost"):
            raise RejectedReplyError("its memory of its last report is lost; restore its folder")
        if not owed.plain and not told.get("followed"):
            raise RejectedReplyError(
                "it does not follow the method's instructions; see fedtide.flower.client"
            )

    def _read(self, content: RecordDict, owed: Owed, sent: Tensor) -> Report:
        metrics = _numbers(_only(content.metric_records, "metrics"))
        samples = metrics.pop("num-examples", 0.0)
        if not (samples >= 1 and samples == int(samples)):
            raise RejectedReplyError(f"its num-examples is {samples:g}")
        lr, steps = metrics.pop("lr", 0.0), metrics.pop("steps", 0.0)
        if self.reads_steps and not (0 < lr < math.inf and steps >= 1 and steps == int(steps)):
            raise RejectedReplyError(
                f"the method needs lr and steps, and they are {lr:g} and {steps:g}"
            )
        gradients = content.array_records.get("gradients")
        assert owed.client is not None
        return Report(
            client=owed.client,
            asked=owed.round,
            update=self._update(content, sent),
            samples=int(samples),
            lr=lr,
            steps=int(steps),
            gradients=None if gradients is None else vector_of(gradients, self.layout, sent),
            metrics=metrics,
        )

    def _update(self, content: RecordDict, sent: Tensor) -> Tensor:
        """Return Δ_n, which fedtide's clients send, or y_n - x, for others send their model."""
        if "update" in content.array_records:
            return vector_of(content.array_records["update"], self.layout, sent)
        arrays = _only(content.array_records, "arrays")
        return vector_of(arrays, self.layout, sent) - sent


def stacked(reports: list[Report], like: Tensor) -> ClientUpdates:
    """Return reports of one learning rate as an algorithm takes them; weights are filled in later.

    Args:
        reports: at least one, sorted by client.
        like: the model.
    """
    gradients = [r.gradients for r in reports if r.gradients is not None]
    return ClientUpdates(
        clients=torch.tensor([r.client for r in reports]),
        weights=like.new_ones(len(reports)),
        updates=torch.stack([r.update for r in reports]),
        lr=reports[0].lr,
        steps=torch.tensor([r.steps for r in reports]),
        samples=torch.tensor([r.samples for r in reports]),
        gradients=torch.stack(gradients) if len(gradients) == len(reports) else None,
    )


def figures(reply: Message) -> tuple[int, dict[str, float]] | None:
    """Return a client's samples and figures in answer to an evaluation; None: unusable."""
    try:
        found = _numbers(_only(reply.content.metric_records, "metrics"))
        samples = int(found.pop("num-examples"))
    except Exception:  # whatever a client may have put into its records
        return None
    return (samples, found) if samples >= 1 else None


def mean_figures(parts: list[tuple[int, dict[str, float]]]) -> MetricRecord | None:
    """Return the mean of each figure, weighted by samples, over the clients that give it."""
    totals: dict[str, float] = {}
    weights: dict[str, int] = {}
    for samples, found in parts:
        for name, value in found.items():
            totals[name] = totals.get(name, 0.0) + samples * value
            weights[name] = weights.get(name, 0) + samples
    means = MetricRecord({name: total / weights[name] for name, total in totals.items()})
    means["clients"] = len(parts)
    return means if parts else None


def _check_sender(reply: Message, owed: Owed) -> None:
    if reply.has_error():
        raise RejectedReplyError(f"error {reply.error.code}: {_first_line(reply.error.reason)}")
    if reply.metadata.src_node_id != owed.node:
        raise RejectedReplyError(
            f"node {reply.metadata.src_node_id} answers what node {owed.node} was asked"
        )


def _first_line(text: str | None) -> str:
    lines = [line for line in (text or "").splitlines() if line.strip()]
    return lines[0][:200] if lines else ""


def _only(records: Any, usual: str) -> Any:
    """Return the record of the usual name, or the only one there is."""
    if usual in records:
        return records[usual]
    found: list[ArrayRecord | MetricRecord] = list(records.values())
    if len(found) != 1:
        raise RejectedReplyError(f"it sent {len(found)} records where {usual!r} was expected")
    return found[0]


def _numbers(metrics: MetricRecord) -> dict[str, float]:
    """Return the figures that are single finite numbers."""
    singles = {name: v for name, v in metrics.items() if isinstance(v, int | float)}
    return {name: float(v) for name, v in singles.items() if math.isfinite(v)}
