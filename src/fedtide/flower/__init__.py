"""fedtide's methods on Flower: a strategy, the client side, and state that survives crashes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedtide.errors import MissingExtraError

if TYPE_CHECKING:
    from fedtide.flower.arrays import initial_arrays
    from fedtide.flower.client_side_memory import ClientSideMemory
    from fedtide.flower.clients.app import client, custom_client
    from fedtide.flower.protocol import TrainRequest, Update
    from fedtide.flower.server.observer import ParticipationObserver
    from fedtide.flower.server.strategy import FedTide

_MODULES = {
    "FedTide": "fedtide.flower.server.strategy",
    "ParticipationObserver": "fedtide.flower.server.observer",
    "client": "fedtide.flower.clients.app",
    "custom_client": "fedtide.flower.clients.app",
    "TrainRequest": "fedtide.flower.protocol",
    "Update": "fedtide.flower.protocol",
    "initial_arrays": "fedtide.flower.arrays",
    "ClientSideMemory": "fedtide.flower.client_side_memory",
}

__all__ = [
    "ClientSideMemory",
    "FedTide",
    "ParticipationObserver",
    "TrainRequest",
    "Update",
    "client",
    "custom_client",
    "initial_arrays",
]


def __getattr__(name: str) -> Any:
    """Import a name on first use: Flower is an optional dependency and slow to import."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(_MODULES[name])
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] == "fedtide":
            raise
        raise MissingExtraError("flower", "flower") from error
    return getattr(module, name)
