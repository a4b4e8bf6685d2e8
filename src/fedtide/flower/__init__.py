"""fedtide's methods on Flower: a strategy, the client side, and state that survives crashes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedtide.errors import MissingExtra

if TYPE_CHECKING:
    from fedtide.flower.apps import client, custom_client
    from fedtide.flower.messages import Asked, Update, initial_arrays
    from fedtide.flower.on_clients import OnClients
    from fedtide.flower.strategy import FedTide

_WHERE = {
    "FedTide": "strategy",
    "client": "apps",
    "custom_client": "apps",
    "Asked": "messages",
    "Update": "messages",
    "initial_arrays": "messages",
    "OnClients": "on_clients",
}

__all__ = ["Asked", "FedTide", "OnClients", "Update", "client", "custom_client", "initial_arrays"]


def __getattr__(name: str) -> Any:
    """Import what is asked for: Flower comes with an extra, and takes its time."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"fedtide.flower.{_WHERE[name]}")
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] == "fedtide":
            raise
        raise MissingExtra("flower", "flower") from error
    return getattr(module, name)
