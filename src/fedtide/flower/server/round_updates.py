"""The usable updates in the replies of one round."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Set

from flwr.app import Message
from torch import Tensor

from fedtide.flower.server.discovery import Discovery
from fedtide.flower.server.node_registry import NodeRegistry
from fedtide.flower.server.reply_validation import (
    DeclinedReplyError,
    RejectedReplyError,
    ReplyValidator,
)
from fedtide.flower.server.round_log import RoundLog
from fedtide.flower.server.transport import Transport
from fedtide.flower.server.validated_updates import ValidatedUpdate


class UpdateReader:
    """Waits for replies and reads the updates in them.

    Args:
        transport, discovery, validator, registry: of this run.
        accepted_rounds: the round of each client's last update that counted, shape (N,); read
            whenever it is needed.
    """

    def __init__(
        self,
        transport: Transport,
        discovery: Discovery,
        validator: ReplyValidator,
        registry: NodeRegistry,
        accepted_rounds: Tensor,
    ) -> None:
        self._transport, self._discovery, self._validator = transport, discovery, validator
        self._registry, self._accepted_rounds = registry, accepted_rounds

    def wait(self, ids: set[str], deadline: float, wanted: int | None) -> None:
        """Wait until these requests are answered, `wanted` with a usable update, or the deadline.

        Errors, refusals and unreadable replies come fast, and must not end the round before the
        updates arrive.
        """
        usable: dict[str, bool] = {}

        def is_enough() -> bool:
            if wanted is None:
                return False
            for one, reply in self._transport.arrived("train"):
                if one.message_id in ids and one.message_id not in usable:
                    usable[one.message_id] = self._validator.is_usable(reply, one)
            return sum(usable.values()) >= wanted

        self._discovery.await_replies(ids, deadline, is_enough)

    def read(
        self,
        replies: Iterable[Message],
        t: int,
        last_lr: float,
        log: RoundLog,
        quarantined: Set[int],
    ) -> dict[int, ValidatedUpdate]:
        """Return the newest valid update of each client, by client.

        Args:
            replies: those that arrived in round t.
            t: the round.
            last_lr: γ of the last round with updates; 0: none.
            log: of the round; told why others are not used.
            quarantined: clients whose updates are not used.
        """
        updates: dict[int, ValidatedUpdate] = {}
        for reply in replies:
            pending = self._transport.answered[reply.metadata.reply_to_message_id]
            client = pending.client
            assert client is not None
            try:
                if client in quarantined:
                    raise RejectedReplyError("quarantined", "it is quarantined")
                update = self._validator.validate(reply, pending)
                if self._registry.client_at(pending.node_id) != client:
                    raise RejectedReplyError("false claim", "its node is another client by now")
                if update.round <= int(self._accepted_rounds[client]):
                    text = f"it answers round {update.round + 1}; a newer update has been used"
                    raise RejectedReplyError("late", f"{text} already")
            except DeclinedReplyError:
                if pending.round == t:
                    log.remove(client)
            except RejectedReplyError as error:
                log.reject(client, pending.round, error.reason, str(error))
            else:
                earlier = updates.get(client, update)
                updates[client] = max(earlier, update, key=lambda one: one.round)
        if self._validator.reads_steps:
            for client in _find_odd_rates(updates.values(), last_lr):
                asked, text = updates.pop(client).round, "its lr is not that of the other clients"
                log.reject(client, asked, "learning rate", text)
        return updates


def _find_odd_rates(updates: Iterable[ValidatedUpdate], last: float) -> set[int]:
    """Return the clients whose learning rate is not that of the round that they answer.

    A round has one rate. If the server does not request one, it is the most frequent one; of
    equally frequent ones, the nearest to the last one that counted, or else the largest: a small
    rate ruins methods that divide by it.

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
