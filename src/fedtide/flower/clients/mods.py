"""Flower's mods on a client: whether they may change its updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod

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
        self._mods = mods
        self._made: dict[str, dict[str, bytes]] = {}

    def check_request(self, request: TrainRequest) -> None:
        """Raise InvalidInputError if a mod is known to change updates, but must not."""
        self._made = {}
        reason = _find_reason(request)
        if reason is None:
            return
        for mod in self._mods:
            if isinstance(mod, LocalDpMod) or mod in (adaptiveclipping_mod, fixedclipping_mod):
                raise InvalidInputError(
                    f"mods: {_name(mod)} changes updates, and the server's method {reason}; "
                    "remove it, or run FedAvg, FedAU or MIFA"
                )

    def remember(self, content: RecordDict) -> None:
        """Remember the arrays of a reply before any mod has seen it."""
        self._made = _list_arrays(content)

    def check_reply(self, request: TrainRequest, reply: Message) -> None:
        """Raise InvalidInputError if a mod has changed the update, but must not."""
        reason = _find_reason(request)
        if reason is None or not self._mods or not reply.has_content():
            return
        if _list_arrays(reply.content) != self._made:
            raise InvalidInputError(
                f"mods: one of {', '.join(map(_name, self._mods))} changed the update, and the "
                f"server's method {reason}; remove it, or run FedAvg, FedAU or MIFA"
            )


def _find_reason(request: TrainRequest) -> str | None:
    """Return why mods must not change the update; None: they may."""
    needs = {
        "has clients remember them": bool(request.form),
        "derives gradients from them": request.requires_plain_sgd,
        "needs gradients too": request.gradients,
        "sends corrections": request.correction is not None,
    }
    return next((reason for reason, needed in needs.items() if needed), None)


def _list_arrays(content: RecordDict) -> dict[str, dict[str, bytes]]:
    """Return the bytes of all arrays, by record and array name, without copying them."""
    records = select_records(content, ArrayRecord).items()
    return {name: {key: array.data for key, array in record.items()} for name, record in records}


def _name(mod: Mod) -> str:
    return getattr(mod, "__name__", type(mod).__name__)
