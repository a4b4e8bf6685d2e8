"""Everything that we use of Flower's private interfaces, as of flwr 1.41 and 1.42.

pyproject.toml admits no other version. Private are: what `HttpGrid.pull_messages` does inside, with
the form of the objects that it pulls (a head of text, a zero byte, a body, which for an array is
JSON); the numbers of errors; the client with which the command `flwr` lists nodes and runs; its
parsers of settings; and what it sets before it calls a client.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from cryptography import x509
from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message import make_message
from flwr.cli.flower_config import read_superlink_connection
from flwr.cli.utils import init_http_client_from_connection
from flwr.clientapp import ClientApp
from flwr.common.config import get_fused_config_from_dir, get_project_config, parse_config_args
from flwr.common.constant import ErrorCode
from flwr.common.serde_utils import metadata_from_proto
from flwr.proto.control_pb2 import ListNodesRequest, ListRunsRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    PullObjectRequest,
)
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.constant import NodeStatus
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid
from httpx import HTTPStatusError

from fedtide.errors import InvalidInputError, first_line

OBJECT_BYTES = 1000
"""A reply may have one object per this many bytes of its limit: each takes a call to fetch."""
_VALUE_BYTES = 8
"""Bytes that a byte of a record may take once decoded: Flower makes lists of Python objects."""
_AT_A_TIME = 8  # objects that are fetched at a time
_UNREADABLE = -1  # the code of our own errors; Flower's are positive


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


@contextmanager
def superlink_errors() -> Iterator[None]:
    """Turn a failure of the SuperLink, also at a message that is too large, into SuperLinkError.

    After other failures, Flower itself repeats the call, or ends the run.
    """
    try:
        yield
    except HTTPStatusError as error:
        if error.response.status_code not in (413, 500):
            raise
        # not chained: the frames of the exception hold the models that were to be sent
        raise SuperLinkError(first_line(error)) from None


def list_nodes(grid: Grid) -> list[OnlineNode]:
    """Return the nodes that are online, sorted by id.

    Raises:
        SuperLinkError: the SuperLink fails.
    """
    with superlink_errors():
        found = [
            OnlineNode(
                info.node_id,
                info.name,
                datetime.fromisoformat(moment).timestamp() if moment else 0.0,
            )
            for info in grid.get_nodes()
            for moment in [info.last_activated_at]
        ]
    return sorted(found, key=lambda node: node.node_id)


@dataclass
class PartialReply:
    """A reply that its sender has announced but perhaps not completely uploaded.

    Args:
        envelope: what its sender declared to the SuperLink, Flower's metadata.
        objects: the ids of its objects.
        contents: those that have arrived, by id.
    """

    envelope: Any
    objects: list[str]
    contents: dict[str, bytes] = field(default_factory=dict)


def pull_replies(
    grid: Any, ids: Sequence[str], partial: dict[str, PartialReply], largest: int
) -> list[Message]:
    """Return the replies to these requests that have arrived, errors in place of unusable ones.

    `HttpGrid.pull_messages` waits for minutes for an upload that does not end, and raises at the
    first reply that it cannot decode, which loses all others, as the SuperLink deletes what was
    pulled. Here missing objects are left to the next call, and each reply is decoded on its own, if
    it is not too large. Its sender and the request that it answers are those that the SuperLink
    checked, not those in its body, which the sender writes.

    Args:
        grid: Flower's. Other grids than `HttpGrid` decode replies themselves.
        ids: of the requests.
        partial: replies that earlier calls could not complete, by their ids; updated.
        largest: the largest size of a reply in bytes, as sent and as decoded.

    Raises:
        SuperLinkError: the SuperLink fails whatever is asked for; the replies can be pulled later.
    """
    if not isinstance(grid, HttpGrid):
        return list(grid.pull_messages(ids))
    for reply_id, reply in list(partial.items()):
        if reply.envelope.reply_to_message_id not in ids:  # it was given up
            del partial[reply_id]
    # The SuperLink forgets a request once it has delivered the envelope of the reply.
    announced = {reply.envelope.reply_to_message_id for reply in partial.values()}
    for response in _pull_envelopes(grid, [one for one in ids if one not in announced]):
        trees = response.message_object_trees
        for message, tree in zip(response.messages_list, trees, strict=True):
            objects = [one.object_id for one in iterate_object_tree(tree)]
            envelope = message.metadata
            partial.setdefault(envelope.message_id, PartialReply(envelope, objects))
    pulled = []
    for reply_id in list(partial):
        found = _receive(grid, partial[reply_id], largest)
        if found is not None:
            del partial[reply_id]
            pulled.append(found)
    return pulled


def _pull_envelopes(grid: Any, ids: Sequence[str]) -> list[Any]:
    """Return the SuperLink's answers, without those to requests at which it fails alone.

    One reply can make it fail at a whole call, for example by NaN as its time to live.
    """

    def pull(part: Sequence[str]) -> Any:
        with superlink_errors():
            return grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=part))

    def pull_parts(part: Sequence[str]) -> list[Any]:
        try:
            return [pull(part)]
        except SuperLinkError:
            if len(part) == 1:
                return []
        half = len(part) // 2
        return pull_parts(part[:half]) + pull_parts(part[half:])

    if not ids:
        return []
    try:
        return [pull(ids)]
    except SuperLinkError:
        pull([])  # raises if no reply is to blame
    return pull_parts(ids)


def _receive(grid: Any, reply: PartialReply, largest: int) -> Message | None:
    """Fetch what is missing of a reply, and return it; None: it is not complete."""
    if OBJECT_BYTES * len(reply.objects) > largest:
        return _unreadable(reply, f"it has {len(reply.objects):,} objects")
    too_large = f"it is larger than {largest / 1e6:,.0f} MB"
    client, whose = grid._runtime_client, {"node": grid.node, "run_id": grid.run.run_id}

    def fetch(object_id: str) -> Any:
        return client.PullObject(PullObjectRequest(object_id=object_id, **whose))

    missing = [one for one in reply.objects if one not in reply.contents]
    size = sum(map(len, reply.contents.values()))
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        for first in range(0, len(missing), _AT_A_TIME):
            part = missing[first : first + _AT_A_TIME]
            for object_id, answer in zip(part, pool.map(fetch, part), strict=True):
                if not answer.object_found:  # the SuperLink has given up its upload
                    return _error(reply, ErrorCode.MESSAGE_UNAVAILABLE)
                if answer.object_available:
                    reply.contents[object_id] = answer.object_content
                    size += len(answer.object_content)
            if size > largest:
                return _unreadable(reply, too_large)
            if not reply.contents.keys() >= set(part):  # objects are uploaded in this order
                return None
    done = ConfirmMessageReceivedRequest(message_object_id=reply.envelope.message_id, **whose)
    client.ConfirmMessageReceived(done)
    try:
        if _decodes_to_more(reply.contents, largest):
            return _unreadable(reply, too_large)
        return _decode(reply)
    except Exception as error:  # the body may hold anything
        return _unreadable(reply, first_line(error, with_type=True))


def _unreadable(reply: PartialReply, why: str) -> Message:
    return _error(reply, _UNREADABLE, f"it cannot be read: {why}")


def _error(reply: PartialReply, code: int, reason: str | None = None) -> Message:
    """Return the error that takes the place of a reply."""
    metadata = metadata_from_proto(reply.envelope)
    return make_message(metadata=metadata, error=Error(code, reason))


def _decodes_to_more(contents: Mapping[str, bytes], largest: int) -> bool:
    """Return whether the objects of a reply take more bytes than this once decoded.

    An array may name one chunk any number of times, and takes its memory as often.
    """
    size, arrays = 0, []
    for content in contents.values():
        end = content.index(b"\0")
        kind, children, _ = content[:end].decode().split(" ")
        if kind != "ArrayChunk":
            size += _VALUE_BYTES * len(content)
        if kind == "Array":
            arrays.append((children.split(","), content[end + 1 :]))
    if size > largest:  # checked first: JSON takes memory, too
        return True
    for names, body in arrays:
        size += sum(len(contents[names[i]]) for i in json.loads(body)["arraychunk_ids"])
    return size > largest


def _decode(reply: PartialReply) -> Message:
    """Return the message in the objects of a reply, which are freed.

    Raises:
        ValueError: it is not what its sender declared to the SuperLink. Any other exception: it is
            not a message of Flower.
    """
    envelope = reply.envelope
    message = inflate_object_from_contents(envelope.message_id, reply.contents)
    if not isinstance(message, Message):
        raise ValueError(f"a {type(message).__name__} instead of a message")
    message.metadata.__dict__["_message_id"] = envelope.message_id
    for name in ("src_node_id", "dst_node_id", "reply_to_message_id", "message_type", "run_id"):
        if getattr(message.metadata, name) != getattr(envelope, name):
            raise ValueError(f"its body claims another {name} than its sender declared")
    return message


def is_app_error(error: Error) -> bool:
    """Return whether a client's app raised, or one of its mods refused a message.

    They do so at messages that they do not know.
    """
    return error.code in (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ErrorCode.MOD_FAILED_PRECONDITION)


def lacks_query(error: Error) -> bool:
    """Return whether a client's app has no function for a query, as ordinary apps have none."""
    return is_app_error(error) and "No query function registered" in (error.reason or "")


def error_reason(error: Error) -> str:
    """Return what an error in place of a reply means in the ledger, one of REASONS.

    The message or its reply expired or was lost; `pull_replies` could not decode it; its node went
    offline; or its app raised.
    """
    return {
        ErrorCode.MESSAGE_UNAVAILABLE: "no reply",
        ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "no reply",
        _UNREADABLE: "malformed",
        ErrorCode.NODE_UNAVAILABLE: "offline",
    }.get(error.code, "error")


def list_registered_names(superlink: str) -> dict[str, list[int]]:
    """Return the names of the keys that are registered with a SuperLink, with the nodes' ids.

    Args:
        superlink: the name of a connection in Flower's config.toml.

    Raises:
        InvalidInputError: no such connection, or the SuperLink does not answer.
    """
    found: dict[str, list[int]] = {}
    try:
        connection = read_superlink_connection(superlink)
        with init_http_client_from_connection(connection) as client:
            nodes = client.ListNodes(ListNodesRequest()).nodes_info
    except Exception as error:  # Flower's own, of many kinds
        raise InvalidInputError(
            f"superlink: {superlink!r} does not tell which names are taken ({error})"
        ) from error
    for node in nodes:
        if node.name and node.status != NodeStatus.UNREGISTERED:
            found.setdefault(node.name, []).append(node.node_id)
    return found


RUN_FAILED = "finished:failed"
_connection = cache(read_superlink_connection)  # each call prints a line


def run_status(superlink: str, run_id: int | None) -> str:
    """Return Flower's status of a run, None: of the newest, such as "running" or `RUN_FAILED`.

    "unknown": the SuperLink does not answer. A run that it does not know counts as failed.

    Raises:
        InvalidInputError: no such connection in Flower's config.toml.
    """
    connection = _find_connection(superlink)
    try:
        with init_http_client_from_connection(connection) as client:
            runs = client.ListRuns(ListRunsRequest(limit=100)).run_dict
    except Exception:
        return "unknown"
    if run_id is None:
        run_id = max(runs, key=lambda one: str(runs[one].pending_at), default=None)
    if run_id is None:
        return "no run"
    if run_id not in runs:
        return RUN_FAILED
    status = runs[run_id].status
    return ":".join(filter(None, [status.status, status.sub_status]))


def ask_superlink(superlink: str) -> tuple[str, float]:
    """Return the status of the newest run, and when the certificate of the connection expires.

    The latter in seconds since 1970; NaN: it has none.

    Raises:
        InvalidInputError: no such connection in Flower's config.toml, or no such file.
    """
    path, expires = _find_connection(superlink).root_certificates, math.nan
    if path is not None:
        try:
            certificates = x509.load_pem_x509_certificates(Path(path).read_bytes())
        except (OSError, ValueError) as error:
            raise InvalidInputError(f"superlink: {path} cannot be read ({error})") from None
        expires = min(one.not_valid_after_utc.timestamp() for one in certificates)
    return run_status(superlink, None), expires


def _find_connection(superlink: str) -> Any:
    try:
        return _connection(superlink)
    except Exception as error:  # Flower's own, of many kinds
        raise InvalidInputError(f"superlink: {superlink!r} is not usable ({error})") from error


def ask_client(app: Path, node_config: str, message_type: str) -> Message:
    """Return what the client of the app in a folder, run here, replies to an empty message.

    Args:
        app: the folder.
        node_config: as for `--node-config`.
        message_type: of the message.

    Raises:
        ValueError: it has no function for this type of message.
    """
    sys.path.insert(0, str(app))
    components = get_project_config(app)["tool"]["flwr"]["app"]["components"]
    module, _, name = components["clientapp"].partition(":")
    client: ClientApp = getattr(importlib.import_module(module), name)
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    run_config = get_fused_config_from_dir(app, {})
    context = Context(1, 1, parse_config_args([node_config]), RecordDict(), run_config)
    return client(Message(RecordDict(), dst_node_id=1, message_type=message_type), context)
