"""Checks clients' replies: what is used, and why the rest is not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedtide.algorithms import ClientUpdates
from fedtide.flower._flwr_private import is_node_unavailable
from fedtide.flower.protocol import arrays_to_vector
from fedtide.flower.server.transport import PendingReply
from fedtide.problems.layout import Layout

_MAX_SAMPLES = 10**12
_MAX_STEPS = 10**9
_RATES = (1e-9, 1e6)
"""The least and the largest local learning rate; outside, mean gradients lose all digits."""
_MAX_METRICS, _MAX_METRIC = 100, 1e100
_LONGEST_TEXT = 200


class RejectedReplyError(Exception):
    """A reply that is not used; the message says why, in one line of printable text.

    It may quote what a client sent, which could forge lines of a log or control a terminal.

    Args:
        reason: for the ledger, one of REASONS.
        text: for the log.
    """

    def __init__(self, reason: str, text: str) -> None:
        self.reason = reason
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
        super().__init__(text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…")


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
        check_sender(reply, pending.node_id)
        try:
            self._check_claims(reply.content, pending)
            return self._read(reply.content, pending, sent)
        except (DeclinedReplyError, RejectedReplyError):
            raise
        except Exception as error:  # records may contain anything
            reason = "not finite" if isinstance(error, FloatingPointError) else "malformed"
            raise RejectedReplyError(reason, f"it sent {error}") from None

    def _check_claims(self, content: RecordDict, pending: PendingReply) -> None:
        assert pending.client is not None
        config: Any = content.config_records.get("config", {})
        name, server_round = self.names[pending.client], pending.round + 1
        if config.get("client", name) != name:
            raise RejectedReplyError("false claim", f"it claims to be {config['client']!r}")
        if config.get("server-round", server_round) != server_round:
            text = f"it claims to answer round {config['server-round']!r}"
            raise RejectedReplyError("false claim", text)
        if config.get("declined"):
            raise DeclinedReplyError
        if config.get("lost"):
            text = "it lost its memory of its last update; restore its folder"
            raise RejectedReplyError("lost memory", text)
        if not pending.plain and not config.get("followed"):
            text = "it does not follow the method's instructions; see fedtide.flower.client"
            raise RejectedReplyError("not followed", text)

    def _read(self, content: RecordDict, pending: PendingReply, sent: Tensor) -> ValidatedUpdate:
        metrics = _finite_numbers(_find_record(content.metric_records, "metrics"))
        samples = _pop_count(metrics, "num-examples", 1, _MAX_SAMPLES)
        steps = _pop_count(metrics, "steps", 1 if self.reads_steps else 0, _MAX_STEPS)
        lr = self._pop_rate(metrics, pending.lr)
        if len(metrics) > _MAX_METRICS:
            text = f"it sent {len(metrics)} metrics, more than {_MAX_METRICS}"
            raise RejectedReplyError("invalid", text)
        gradients = content.array_records.get("gradients")
        assert pending.client is not None
        return ValidatedUpdate(
            client=pending.client,
            round=pending.round,
            update=self._read_update(content, sent),
            samples=samples,
            lr=lr,
            steps=steps,
            gradients=None if gradients is None else arrays_to_vector(gradients, self.layout, sent),
            metrics=metrics,
        )

    def _pop_rate(self, metrics: dict[str, float], requested: float) -> float:
        """Return γ: what the server requested, or else what the client says; 0: not needed."""
        reported = metrics.pop("lr", 0.0)
        if not self.reads_steps:
            return 0.0
        if requested:
            if not math.isclose(reported, requested, rel_tol=1e-6):
                text = f"it trained at lr {reported:g}; the server requested {requested:g}"
                raise RejectedReplyError("learning rate", text)
            return requested
        low, high = _RATES
        if not low <= reported <= high:
            text = f"the method needs lr, and it is {reported:g}"
            raise RejectedReplyError("learning rate", text)
        return reported

    def _read_update(self, content: RecordDict, sent: Tensor) -> Tensor:
        """Return Δ_n of a fedtide client, or y_n - x of another, which sends its model."""
        if "update" in content.array_records:
            return arrays_to_vector(content.array_records["update"], self.layout, sent)
        arrays = _find_record(content.array_records, "arrays")
        return arrays_to_vector(arrays, self.layout, sent) - sent


def find_odd_rates(updates: Iterable[ValidatedUpdate], last: float) -> set[int]:
    """Return the clients whose learning rate is not that of the others that answer the same round.

    One rate belongs to one round. Where the server does not request it, the most frequent one
    counts; of equally frequent ones, the nearest to the last one that counted, or else the largest:
    a method that divides by a rate is ruined by a small one.

    Args:
        updates: of one round of the server, which may answer several rounds.
        last: γ of the last round with updates; 0: none.
    """
    updates, odd = list(updates), set()
    for t in {update.round for update in updates}:
        rates = Counter(update.lr for update in updates if update.round == t)

        def preference(rate: float, rates: Counter[float] = rates) -> tuple[float, float]:
            near = -abs(math.log(rate / last)) if last and rate else rate
            return rates[rate], near

        agreed = max(rates, key=preference)
        odd |= {u.client for u in updates if u.round == t and u.lr != agreed}
    return odd


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
        samples = _pop_count(metrics, "num-examples", 1, _MAX_SAMPLES)
    except Exception:  # records may contain anything
        return None
    return (samples, metrics) if len(metrics) <= _MAX_METRICS else None


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


def check_sender(reply: Message, node_id: int) -> None:
    """Raise RejectedReplyError for an error, and for a reply of another node than was asked."""
    if reply.has_error():
        lines = [line for line in (reply.error.reason or "").splitlines() if line.strip()]
        reason = "offline" if is_node_unavailable(reply.error) else "error"
        text = f"error {reply.error.code}: {lines[0] if lines else ''}"
        raise RejectedReplyError(reason, text)
    sender = reply.metadata.src_node_id
    if sender != node_id:
        text = f"node {sender} answers a message to node {node_id}"
        raise RejectedReplyError("false claim", text)


def _find_record(records: Any, name: str) -> Any:
    """Return the record of this name, or else the only one."""
    if name in records:
        return records[name]
    found: list[ArrayRecord | MetricRecord] = list(records.values())
    if len(found) != 1:
        text = f"it sent {len(found)} records where {name!r} was expected"
        raise RejectedReplyError("malformed", text)
    return found[0]


def _pop_count(metrics: dict[str, float], name: str, low: int, high: int) -> int:
    """Remove a metric that counts something and return it; missing: 0."""
    value = metrics.pop(name, 0.0)
    if not (low <= value <= high and value == int(value)):
        text = f"its {name} is {value:g}; it must be {low} to {high:,}"
        raise RejectedReplyError("invalid", text)
    return int(value)


def _finite_numbers(metrics: MetricRecord) -> dict[str, float]:
    """Return the metrics that are single numbers of reasonable size."""
    numbers = {name: v for name, v in metrics.items() if isinstance(v, int | float)}
    return {name: float(v) for name, v in numbers.items() if abs(v) <= _MAX_METRIC}
