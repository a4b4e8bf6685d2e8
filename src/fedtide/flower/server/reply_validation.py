"""Checks clients' replies: which are used, and why the others are not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from torch import Tensor

from fedtide.errors import printable
from fedtide.flower._flwr import error_reason
from fedtide.flower.arrays import arrays_to_vector
from fedtide.flower.protocol import ECHO, NONCE, is_name, select_records
from fedtide.flower.server.transport import PendingReply
from fedtide.flower.server.validated_updates import (
    MAX_METRICS,
    SAMPLES,
    Metrics,
    ValidatedUpdate,
)
from fedtide.problems.layout import Layout

Records = dict[str, Any]
"""The records of a reply by name."""

MAX_SAMPLES = 10**12
_MAX_STEPS = 10**9
_RATES = (1e-9, 1e6)
"""The smallest and the largest local learning rate; beyond, mean gradients lose all precision."""
_LONGEST_TEXT = 200
_LONGEST, _STEEPEST = 1e9, 1e15
"""The largest norms of an update, and of its mean gradient or ∇F_n. Otherwise methods that add a
client's stored values in every round would overflow long after the reply."""
_MAX_NUMBERS, _MAX_METRIC = 10_000, 1e100
NO_ANSWER = "it did not answer in time"


class RejectedReplyError(Exception):
    """A reply that is not used; the message says why, in one line of printable text.

    Args:
        reason: for the ledger, one of REASONS.
        text: for the log.
    """

    def __init__(self, reason: str, text: str) -> None:
        self.reason = reason
        super().__init__(printable(text, _LONGEST_TEXT))


class DeclinedReplyError(Exception):
    """The client does not take part in this round."""


@dataclass(frozen=True)
class ReplyValidator:
    """Reads the replies of clients.

    Args:
        layout: of the model.
        names: of the clients by number.
        reads_steps: whether the method needs the learning rate and the number of steps.
        sent_models: by round, the model that was sent, shape (d,); for rounds that have ended, only
            if the method uses late updates.
    """

    layout: Layout
    names: list[str]
    reads_steps: bool
    sent_models: Mapping[int, Tensor]
    _echoing: set[int] = field(default_factory=set)

    def validate(self, reply: Message, pending: PendingReply) -> ValidatedUpdate:
        """Return the content of a reply to a request to train.

        Args:
            reply: to the message of `pending`.
            pending: the request.

        Raises:
            DeclinedReplyError: the client does not take part.
            RejectedReplyError: an error, a false claim, or unusable content.
        """
        with _rejecting_errors():
            check_sender(reply, pending.node_id)
            content = dict(reply.content.items())
            config = self._read_claims(content, pending)
            if not pending.plain and not config.get("followed"):
                text = "it does not follow the method's instructions; see fedtide.flower.client"
                raise RejectedReplyError("not followed", text)
            sent = self.sent_models.get(pending.round)
            if sent is None:
                text = f"it answers round {pending.round + 1}, which has ended"
                raise RejectedReplyError("late", text)
            update = self._read(content, pending, sent)
        largest = update.largest_norm
        if update.norm > _LONGEST or largest > _STEEPEST:
            text = f"its update or gradient is too large: norm {largest:.2g}"
            raise RejectedReplyError("not finite", text)
        return update

    def is_usable(self, reply: Message, pending: PendingReply) -> bool:
        """Return whether `validate` would accept a reply."""
        try:
            self.validate(reply, pending)
        except (DeclinedReplyError, RejectedReplyError):
            return False
        return True

    def read_metrics(self, reply: Message, pending: PendingReply) -> tuple[int, Metrics]:
        """Return a client's samples and metrics in reply to an evaluation.

        Args:
            reply: to the message of `pending`.
            pending: the request.

        Raises:
            DeclinedReplyError: the client does not evaluate now.
            RejectedReplyError: an error, a false claim, or unusable content.
        """
        with _rejecting_errors():
            check_sender(reply, pending.node_id)
            content = dict(reply.content.items())
            self._read_claims(content, pending)
            metrics = _read_metrics(content)
            samples = _pop_count(metrics, SAMPLES, 1, MAX_SAMPLES)
        return samples, metrics

    def _read_claims(self, content: Records, pending: PendingReply) -> Mapping[str, Any]:
        """Return the config of a reply.

        The app of an ordinary Flower client repeats no nonce; one that has done so always does.

        Raises:
            DeclinedReplyError: the client does not take part.
            RejectedReplyError: it claims another client or another round, or may not know the
                request.
        """
        assert pending.client is not None
        config: Mapping[str, Any] = select_records(content, ConfigRecord).get("config") or {}
        name, server_round = self.names[pending.client], pending.round + 1
        echo = config.get(ECHO)
        if pending.nonce and (echo is not None or pending.client in self._echoing):
            if echo != pending.nonce:
                text = "it does not repeat the number in its request; another node may have sent it"
                raise RejectedReplyError("false claim", text)
            self._echoing.add(pending.client)
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
        return config

    def _read(self, content: Records, pending: PendingReply, sent: Tensor) -> ValidatedUpdate:
        metrics = _read_metrics(content)
        samples = _pop_count(metrics, SAMPLES, 1, MAX_SAMPLES)
        steps = _pop_count(metrics, "steps", 1 if self.reads_steps else 0, _MAX_STEPS)
        lr = self._pop_rate(metrics, pending.lr)
        arrays, gradients = select_records(content, ArrayRecord), None
        if "update" in arrays:  # Δ_n itself
            update = arrays_to_vector(arrays["update"], self.layout, sent)
        else:  # y_n, so that Δ_n = y_n - x
            own = _find_record(arrays, "arrays")
            update = arrays_to_vector(own, self.layout, sent, origin=sent)
        if pending.gradients:
            if "gradients" not in arrays:
                text = "it sent no gradients, which the method asked for"
                raise RejectedReplyError("malformed", text)
            gradients = arrays_to_vector(arrays["gradients"], self.layout, sent)
        assert pending.client is not None
        return ValidatedUpdate(
            pending.client, pending.round, update, samples, lr, steps, gradients, metrics
        )

    def _pop_rate(self, metrics: Metrics, requested: float) -> float:
        """Return γ: what the server requested, or else what the client says; 0: not needed."""
        reported = _pop_number(metrics, "lr")
        if not self.reads_steps:
            return 0.0
        if requested and math.isclose(reported, requested, rel_tol=1e-6):
            return requested
        if requested or not _RATES[0] <= reported <= _RATES[1]:
            needed = f"the server requested {requested:g}" if requested else "the method needs it"
            text = f"its learning rate is {reported:g}; {needed}"
            raise RejectedReplyError("learning rate", text)
        return reported


def check_sender(reply: Message, node_id: int) -> None:
    """Raise RejectedReplyError for an error, or a reply from another node than the one asked."""
    if reply.has_error():
        error, lines = reply.error, (reply.error.reason or "").splitlines()
        text = next((line for line in lines if line.strip()), "")
        reason = error_reason(error)
        said = {"no reply": NO_ANSWER, "malformed": text or "it cannot be read"}
        raise RejectedReplyError(reason, said.get(reason, f"error {error.code}: {text}"))
    sender = reply.metadata.src_node_id
    if sender != node_id:
        text = f"node {sender} answers a message to node {node_id}"
        raise RejectedReplyError("false claim", text)


@contextmanager
def _rejecting_errors() -> Iterator[None]:
    """Turn any exception into a rejection of the reply, whose records may contain anything."""
    try:
        yield
    except (DeclinedReplyError, RejectedReplyError):
        raise
    except Exception as error:
        reason = "not finite" if isinstance(error, FloatingPointError) else "malformed"
        raise RejectedReplyError(reason, f"it sent {error}") from None


def _find_record(records: Any, name: str) -> Any:
    """Return the record of this name, or else the only one."""
    if name in records:
        return records[name]
    found: list[ArrayRecord | MetricRecord] = list(records.values())
    if len(found) != 1:
        text = f"it sent {len(found)} records where {name!r} was expected"
        raise RejectedReplyError("malformed", text)
    return found[0]


def _pop_number(metrics: Metrics, name: str) -> float:
    """Remove a metric that is a single number and return it; missing: 0."""
    value = metrics.pop(name, 0.0)
    return 0.0 if isinstance(value, list) else value


def _pop_count(metrics: Metrics, name: str, low: int, high: int) -> int:
    """Remove a metric that counts something and return it; missing: 0."""
    if low and not isinstance(metrics.get(name), float):
        raise RejectedReplyError("invalid", f"its {name} is missing, or not a single finite number")
    value = _pop_number(metrics, name)
    if not (low <= value <= high and value == int(value)):
        text = f"its {name} is {value:g}; it must be {low} to {high:,}"
        raise RejectedReplyError("invalid", text)
    return int(value)


def _read_metrics(content: Records) -> Metrics:
    """Return the metrics whose numbers are all of reasonable size, without the nonce.

    Raises:
        RejectedReplyError: there are too many, or a name cannot be shown.
    """
    found: Metrics = {}
    metrics: MetricRecord = _find_record(select_records(content, MetricRecord), "metrics")
    count = len(metrics.keys() - {SAMPLES, NONCE})
    numbers = sum(len(value) if isinstance(value, list) else 1 for value in metrics.values())
    if count > MAX_METRICS or numbers > _MAX_NUMBERS:
        text = f"it sent {count} metrics with {numbers} numbers, more than {MAX_METRICS} with "
        raise RejectedReplyError("invalid", f"{text}{_MAX_NUMBERS}")
    for name, value in metrics.items():
        if not is_name(name):
            raise RejectedReplyError("invalid", f"it sent a metric with the name {name!r:.60}")
        if name == NONCE:
            continue
        if isinstance(value, list):
            if all(abs(number) <= _MAX_METRIC for number in value):  # not NaN either
                found[name] = [float(number) for number in value]
        elif abs(value) <= _MAX_METRIC:
            found[name] = float(value)
    return found
