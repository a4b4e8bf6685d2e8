"""Flower's mods on a client: whether they may change its updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flwr.app import ArrayRecord, Context, Message, RecordDict

from fedtide.errors import InvalidInputError
from fedtide.flower.protocol import TrainRequest, select_records

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]
"""A Flower mod: may change the message, calls the next one, and may change the reply."""


class ModGuard:
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
