"""The undocumented parts of Flower (as of 1.42) that we use, except those in `_flwr_messages`.

- `Grid.get_nodes` returns protobuf messages of `flwr.proto`; we read `name`, which the operator
  gave at registration, and `last_activated_at`;
- the client with which `flwr` lists the nodes of a SuperLink (the command leaves out their names);
- `Grid.run.run_id`;
- the exceptions that the grid raises, and their HTTP status;
- the numbers of errors in `flwr.common.constant.ErrorCode`;
- the dictionary in which records keep their values, `_data`;
- an environment variable of Flower's SuperExec.

If one of them fails in any way after an upgrade of Flower, we log one warning and use a fallback;
only the list of nodes has none.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from importlib import import_module
from logging import getLogger
from typing import Any, TypeVar

from flwr.app import ConfigRecord, Error, RecordDict
from flwr.serverapp import Grid

from fedtide.errors import InvalidInputError, first_line

log = getLogger("flwr")

T = TypeVar("T")
RecordT = TypeVar("RecordT", ConfigRecord, RecordDict)

FAST_POLLING = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5"}
"""Environment that makes a SuperExec look for work every 0.5 s; ignored if Flower drops it."""

_APP_RAISED, _MESSAGE_UNAVAILABLE, _REPLY_UNAVAILABLE = 2, 3, 4  # of ErrorCode in flwr 1.42
_NODE_UNAVAILABLE, _MOD_REFUSED = 5, 6
_FAILURES = (413, 500)
"""The HTTP statuses for a call that is too large, and for a failure of the SuperLink; after others,
Flower repeats the call, or ends."""
_CHANGED = (AttributeError, ImportError, LookupError, NotImplementedError, TypeError, ValueError)
"""What a call of a private part raises if Flower has changed it."""
_warned: set[str] = set()


class SuperLinkError(Exception):
    """The SuperLink failed; the text says how."""


@dataclass(frozen=True)
class OnlineNode:
    """A SuperNode that is connected now.

    Args:
        node_id: Flower's id.
        name: the name with which the operator registered it; "": none.
        activated_at: when it last connected, in seconds since 1970; 0: unknown.
    """

    node_id: int
    name: str = ""
    activated_at: float = 0.0


def list_nodes(grid: Grid) -> list[OnlineNode]:
    """Return the nodes that are online, sorted by id.

    Without `get_nodes`, nodes are anonymous: each is asked for its name, as without registration.

    Raises:
        SuperLinkError: the SuperLink fails. Any other exception of the call itself propagates.
    """
    try:
        described = {info.node_id: info for info in grid.get_nodes()}
    except _CHANGED as error:
        ids = sorted(grid.get_node_ids())
        warn_once("Grid.get_nodes", error, "names that the operator registered are unknown")
        return [OnlineNode(node_id) for node_id in ids]
    except Exception as error:
        if failure := describe_failure(error):
            raise SuperLinkError(failure) from error
        raise
    return [_describe(described[node_id]) for node_id in sorted(described)]


def describe_failure(error: Exception) -> str:
    """Return how the SuperLink failed at a call that raised this; "": it did not fail itself."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return first_line(error) if status in _FAILURES else ""


def list_registered_names(superlink: str) -> dict[str, list[int]]:
    """Return the names of the keys that are registered with a SuperLink, with the nodes' ids.

    There is no fallback: without this list nobody can say whether a name is free.

    Args:
        superlink: the name of a connection in Flower's config.toml.

    Raises:
        InvalidInputError: no such connection, the SuperLink does not answer, or Flower has changed.
    """
    try:
        names = ("cli.flower_config", "cli.utils", "proto.control_pb2", "supercore.constant")
        config, utils, control, constant = (import_module(f"flwr.{name}") for name in names)
        connection = config.read_superlink_connection(superlink)
        with utils.init_http_client_from_connection(connection) as client:
            nodes = client.ListNodes(control.ListNodesRequest()).nodes_info
        former, found = constant.NodeStatus.UNREGISTERED, dict[str, list[int]]()
        for node in nodes:
            if node.name and node.status != former:
                found.setdefault(node.name, []).append(node.node_id)
        return found
    except Exception as error:
        raise InvalidInputError(
            f"superlink: {superlink!r} does not tell which names are taken ({error})"
        ) from error


def copy_with(record: RecordT, values: Mapping[str, Any]) -> RecordT:
    """Return a copy of a record with further values, which must be of types that it takes.

    Setting values one by one checks each, which takes longer than the rest of a request.
    """
    copy = record.copy()
    try:
        copy.__dict__["_data"].update(values)
        if not values.keys() <= copy.keys():
            raise TypeError("a record keeps its values elsewhere")
    except Exception as error:
        warn_once("TypedDict._data", error, "requests to many clients take longer to make")
        for name, value in values.items():
            copy[name] = value
    return copy


def get_run_id(grid: Grid) -> int:
    """Return Flower's id of the run; if Flower does not tell, a random one, as for a new run."""
    return _attempt(
        "Grid.run.run_id",
        lambda: int(grid.run.run_id),
        secrets.randbits(62),
        "replies to an earlier submission in the same run are dropped",
    )


def is_app_error(error: Error) -> bool:
    """Return whether a client's app raised, or one of its mods refused a message.

    They do so at messages that they do not know.
    """
    raised = _has_code(error, "CLIENT_APP_RAISED_EXCEPTION", _APP_RAISED)
    return raised or _has_code(error, "MOD_FAILED_PRECONDITION", _MOD_REFUSED)


def is_unanswered(error: Error) -> bool:
    """Return whether the SuperLink reports that a message or its reply expired or was lost."""
    lost = _has_code(error, "MESSAGE_UNAVAILABLE", _MESSAGE_UNAVAILABLE)
    return lost or _has_code(error, "REPLY_MESSAGE_UNAVAILABLE", _REPLY_UNAVAILABLE)


def is_node_unavailable(error: Error) -> bool:
    """Return whether the node went offline before it answered."""
    return _has_code(error, "NODE_UNAVAILABLE", _NODE_UNAVAILABLE)


def _has_code(error: Error, name: str, default: int) -> bool:
    def load_code() -> int:
        return int(getattr(import_module("flwr.common.constant").ErrorCode, name))

    code = _attempt("ErrorCode", load_code, default, f"{name} = {default} is assumed")
    return error.code == code


def _describe(info: Any) -> OnlineNode:
    """Return the content of a NodeInfo, without what cannot be read (logged once)."""
    return OnlineNode(info.node_id, _read_name(info), _read_activation(info))


@lru_cache(maxsize=2**16)
def _parse_time(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp() if moment else 0.0


def _read_name(info: Any) -> str:
    def read() -> str:
        if not isinstance(info.name, str):
            raise TypeError(f"{info.name!r} is not a string")
        return info.name

    return _attempt("NodeInfo.name", read, "", "names that the operator registered are unknown")


def _read_activation(info: Any) -> float:
    return _attempt(
        "NodeInfo.last_activated_at",
        lambda: _parse_time(info.last_activated_at),
        0.0,
        "messages to a node that restarts stay pending until their ttl ends",
    )


def _attempt(part: str, read: Callable[[], T], fallback: T, consequence: str) -> T:
    """Return what `read` returns, or the fallback and one warning, whatever it raises."""
    try:
        return read()
    except Exception as error:
        warn_once(part, error, consequence)
        return fallback


def warn_once(part: str, error: Exception, consequence: str) -> None:
    """Log the first failure of a part of Flower."""
    if part not in _warned:
        _warned.add(part)
        log.warning(
            "%s fails with this version of Flower (%s: %s); %s",
            part,
            type(error).__name__,
            error,
            consequence,
        )
