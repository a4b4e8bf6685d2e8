"""The only module that relies on undocumented parts of Flower (as of flwr 1.41).

- `Grid.get_nodes` returns protobuf messages of `flwr.proto`; we read `name`, which the operator
  gave at registration, and `last_activated_at`;
- the client with which `flwr` lists the nodes of a SuperLink; its command leaves out their names;
- `Grid.run.run_id`;
- `HttpGrid._runtime_client.PullMessages`, and the functions with which that module fetches the
  objects of a reply and decodes it;
- the HTTP status of the exceptions that the grid raises;
- the form of these objects: a head of text, a zero byte, a body, which for an array is JSON;
- the function `bytearray` by which `flwr.app.message.array` joins the chunks of an array;
- the numbers of errors in `flwr.common.constant.ErrorCode`;
- the dictionary in which records keep their values, `_data`;
- an environment variable of Flower's SuperExec.

If one of them fails after an upgrade of Flower, however it fails, we log one warning and go on with
a fallback; only the list of nodes has none.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, lru_cache
from importlib import import_module
from logging import getLogger
from threading import Lock
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from fedtide.errors import InvalidInputError, first_line

log = getLogger("flwr")

T = TypeVar("T")
RecordT = TypeVar("RecordT", ConfigRecord, RecordDict)

FAST_POLLING = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5"}
"""Environment that makes a SuperExec look for work every 0.5 s; ignored if Flower drops it."""

_APP_RAISED, _MESSAGE_UNAVAILABLE, _REPLY_UNAVAILABLE = 2, 3, 4  # of ErrorCode in flwr 1.41
_NODE_UNAVAILABLE, _MOD_REFUSED = 5, 6
_VALUE_BYTES = 8
"""What a byte of a record may take once it is decoded: Flower makes lists of Python objects."""
OBJECT_BYTES = 1000
"""The bytes of a reply for each of which it may have an object: each takes a call to fetch."""
_MOST_MISSING = 16
"""How many objects of a reply that are not uploaded yet are asked for in one pull, at most: senders
upload them in order, so those after them will be missing, too."""
_INTERNAL_ERROR = 500
"""The HTTP status of a call at which the SuperLink failed; Flower repeats others, or ends."""
_warned: set[str] = set()
_decoding = Lock()
"""Held while Flower's decoding is replaced: several strategies may run as threads of one app."""


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
    """
    try:
        described = {info.node_id: info for info in grid.get_nodes()}
    except Exception as error:
        ids = sorted(grid.get_node_ids())  # raises too if the SuperLink cannot be reached
        _warn("Grid.get_nodes", error, "names that the operator registered are unknown")
        return [OnlineNode(node_id) for node_id in ids]
    return [_describe(described[node_id]) for node_id in sorted(described)]


def list_registered_names(superlink: str) -> set[str]:
    """Return the names of the keys that are registered with a SuperLink.

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
        former = constant.NodeStatus.UNREGISTERED
        return {node.name for node in nodes if node.name and node.status != former}
    except Exception as error:
        raise InvalidInputError(
            f"superlink: {superlink!r} does not tell which names are taken ({error})"
        ) from error


class RefusedError(Exception):
    """The SuperLink failed at each of the messages that it was given; the text says how."""


def push_messages(grid: Grid, messages: Sequence[Message]) -> set[str]:
    """Send messages and return the ids of those that the SuperLink accepted.

    The SuperLink fails at a whole call because of one message, for example if a client has
    registered an object of it, by its hash, as an object with other parts. The messages are then
    sent in halves, and those halves again.

    Raises:
        RefusedError: it fails at each of them. Any other exception of the grid is raised.
    """
    failures: list[str] = []

    def push(part: Sequence[Message]) -> set[str]:
        try:
            return {one for one in grid.push_messages(part) if one}
        except Exception as error:
            if not _is_internal_error(error):
                raise
            if len(part) == 1:
                failures.append(first_line(error))
                return set()
        return push(part[: len(part) // 2]) | push(part[len(part) // 2 :])

    accepted = push(messages)
    if len(failures) == len(messages):
        raise RefusedError(failures[-1])
    return accepted


def _is_internal_error(error: Exception) -> bool:
    response = getattr(error, "response", None)
    return getattr(response, "status_code", None) == _INTERNAL_ERROR


@dataclass(frozen=True)
class PulledReplies:
    """What one pull took from the SuperLink.

    Args:
        messages: the replies that could be decoded.
        unreadable: why the others could not, by the id of the request that each answers.
    """

    messages: list[Message] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)


@dataclass
class PartialReply:
    """A reply whose sender has announced it and not uploaded all of it.

    Args:
        envelope: Flower's message without content.
        tree: Flower's tree of its objects.
        contents: the objects that have arrived, by id.
    """

    envelope: Any
    tree: Any
    contents: dict[str, bytes] = field(default_factory=dict)


def pull_replies(
    grid: Any,
    ids: Sequence[str],
    partial: dict[str, PartialReply] | None = None,
    largest: float = math.inf,
) -> PulledReplies:
    """Return the replies to these requests that have arrived.

    `HttpGrid.pull_messages` waits for uploads that have begun, for minutes if a sender withholds
    an object. Here each object is asked for once, and what is missing is left to the next call.

    The SuperLink deletes replies when they are pulled, and `HttpGrid.pull_messages` raises at the
    first that it cannot decode, which would lose all others. Each reply is therefore decoded on its
    own. Its sender and the request that it answers are those that the SuperLink checked, not those
    in the reply's body, which the sender writes.

    The SuperLink fails at a whole call because of one reply with, for example, NaN as its time to
    live. The ids are then pulled in halves, and those halves again; a reply at which it fails alone
    is unreadable.

    Any other exception of the grid itself, such as a lost connection, is raised.

    Args:
        grid: Flower's.
        ids: of the requests.
        partial: replies that earlier calls could not complete, by their own ids; updated.
        largest: the most bytes of a reply; of one that is larger, nothing is kept, and no more is
            fetched but objects already under way. One that would be larger once it is decoded is
            not decoded, nor one of more than `largest / OBJECT_BYTES` objects. Grids other than
            `HttpGrid` have no limit.
    """
    partial = {} if partial is None else partial
    try:
        decoder = import_module("flwr.superlink.grid.http_grid")
        guarded = isinstance(grid, decoder.HttpGrid)
        with _decoding:
            if guarded:
                client, decode = grid._runtime_client, decoder.inflate_object_from_contents
                pull, fetch = client.PullMessages, decoder.pull_objects
                errors = import_module("flwr.supercore.inflatable.inflatable_utils")
                unavailable, failed = errors.ObjectUnavailableError, errors.ObjectPullError
    except Exception as error:
        _warn("HttpGrid.pull_messages", error, "one malformed reply may lose others")
        guarded = False
    if not guarded:
        return PulledReplies(list(grid.pull_messages(ids)))
    envelopes: dict[str, Any] = {}
    refused: dict[str, str] = {}
    too_large = f"it is larger than {largest / 1e6:,.0f} MB"
    pulled = PulledReplies()
    for reply_id, reply in list(partial.items()):
        if reply.envelope.metadata.reply_to_message_id not in ids:  # its request was given up
            del partial[reply_id]
    # The SuperLink knows a request no longer once it has delivered the envelope of the reply.
    known = {reply.envelope.metadata.reply_to_message_id for reply in partial.values()}
    wanted = [one for one in ids if one not in known]

    def pull_in_parts(requested: Sequence[str]) -> Any:
        response = decoder.PullAppMessagesResponse()
        if not requested:
            return response
        try:
            return pull(decoder.PullAppMessagesRequest(message_ids=requested))
        except Exception as error:
            if not _is_internal_error(error):
                raise
            if len(requested) == 1:
                reason = f"the SuperLink cannot deliver it (HTTP status {_INTERNAL_ERROR})"
                pulled.unreadable[requested[0]] = reason
                return response
        half = len(requested) // 2
        for part in (requested[:half], requested[half:]):
            response.MergeFrom(pull_in_parts(part))
        return response

    def pull_and_keep_envelopes(request: Any) -> Any:
        response = pull_in_parts(list(request.message_ids))
        for reply in partial.values():
            response.messages_list.append(reply.envelope)
            response.message_object_trees.append(reply.tree)
        found = zip(response.messages_list, response.message_object_trees, strict=True)
        for envelope, tree in found:
            reply_id = envelope.metadata.message_id
            envelopes[reply_id] = envelope.metadata
            partial.setdefault(reply_id, PartialReply(envelope, tree))
        return response

    def fetch_once(
        object_ids: list[str], pull_object_fn: Callable[[str], bytes], **named: Any
    ) -> Any:
        reply_id = next((one for one in object_ids if one in envelopes), None)
        if reply_id is None:  # another thread pulls with Flower's own method
            return fetch(object_ids=object_ids, pull_object_fn=pull_object_fn, **named)
        if OBJECT_BYTES * len(object_ids) > largest:
            refused[reply_id] = f"it has {len(object_ids):,} objects"
            partial.pop(reply_id, None)
            return {}
        # Not there: a reply that the SuperLink delivered twice.
        contents = partial[reply_id].contents if reply_id in partial else {}
        size, counting = sum(map(len, contents.values())), Lock()

        def pull_and_keep(object_id: str) -> bytes:
            nonlocal size
            if size > largest or len(missing) >= _MOST_MISSING:
                return b""
            try:
                content = pull_object_fn(object_id)
                with counting:  # Flower pulls in several threads
                    contents[object_id] = content
                    size += len(content)
            except unavailable:
                missing.add(object_id)
            return b""

        missing: set[str] = set()
        try:
            asked = [one for one in object_ids if one not in contents]
            fetch(object_ids=asked, pull_object_fn=pull_and_keep, **named)
        except failed:  # for good, such as three minutes after the envelope
            partial.pop(reply_id, None)
            raise
        if size > largest:
            refused[reply_id] = too_large
        elif missing:
            raise failed(min(missing), "its sender has not uploaded it yet")
        elif _can_measure():
            try:
                if _decodes_to_more(contents, largest):
                    refused[reply_id] = too_large
            except Exception as error:  # objects may hold anything
                refused[reply_id] = first_line(error, with_type=True)
        if reply_id in refused:
            contents.clear()
        partial.pop(reply_id, None)
        return contents

    def decode_guarded(object_id: str, *arguments: Any, **named: Any) -> Any:
        envelope = envelopes.get(object_id)
        if envelope is None:  # another thread pulls with Flower's own method
            return decode(object_id, *arguments, **named)
        if object_id in refused:
            pulled.unreadable[envelope.reply_to_message_id] = refused[object_id]
            return SimpleNamespace(metadata=SimpleNamespace())
        try:
            message = decode(object_id, *arguments, **named)
            _check_envelope(message, envelope)
            return message
        except Exception as error:  # the body may hold anything
            reason = first_line(error, with_type=True)
            pulled.unreadable[envelope.reply_to_message_id] = reason
            return SimpleNamespace(metadata=SimpleNamespace())

    with (
        _decoding,
        _replaced(client, "PullMessages", pull_and_keep_envelopes),
        _replaced(decoder, "pull_objects", fetch_once),
        _replaced(decoder, "inflate_object_from_contents", decode_guarded),
        _chunks_joined_once(),
    ):
        found = grid.pull_messages(wanted)
    incomplete = {reply.envelope.metadata.reply_to_message_id for reply in partial.values()}
    for message in found:
        # Flower puts an error in the place of a reply that is incomplete.
        if isinstance(message, Message) and message.metadata.reply_to_message_id not in incomplete:
            pulled.messages.append(message)
    return pulled


def _decodes_to_more(contents: Mapping[str, bytes], largest: float) -> bool:
    """Return whether the objects of a reply, by id, take more bytes than this once decoded.

    An array may name one chunk any number of times; its values follow in a row in memory.
    """
    arrays, size = [], 0
    for content in contents.values():
        end = content.find(b"\0")
        kind, children, _ = content[:end].decode().split(" ")
        if kind != "ArrayChunk":
            size += _VALUE_BYTES * len(content)
        if kind == "Array":
            arrays.append((children.split(","), content[end + 1 :]))
    if size > largest:  # asked first: JSON takes memory, too
        return True
    for names, body in arrays:
        size += sum(len(contents[names[i]]) for i in json.loads(body)["arraychunk_ids"])
    return size > largest


@cache
def _can_measure() -> bool:
    """Return whether Flower's objects have the form that `_decodes_to_more` reads."""
    try:
        array = Array(np.zeros(10_000))
        objects = {one: chunk.deflate() for one, chunk in array.children.items()}
        objects[array.object_id] = array.deflate()
        if not _decodes_to_more(objects, 80_000) or _decodes_to_more(objects, 90_000):
            raise ValueError("an array has another size")
    except Exception as error:
        _warn("Array.deflate", error, "a reply may take more memory than its size on the wire")
        return False
    return True


class _Chunks:
    """What Flower uses of a `bytearray` to join chunks: values are copied once instead of twice.

    `Array.inflate` does `buffer = bytearray()`, `buffer += chunk` and `bytes(buffer)`.
    """

    def __init__(self) -> None:
        self._parts: list[Any] = []

    def __iadd__(self, part: Any) -> _Chunks:
        self._parts.append(part)
        return self

    def __bytes__(self) -> bytes:
        return b"".join(self._parts)


def _chunks_joined_once() -> AbstractContextManager[None]:
    """Let Flower hold the values of a reply twice while it decodes it, not three times."""
    if not _can_join_once():
        return nullcontext()
    return _replaced(import_module("flwr.app.message.array"), "bytearray", _Chunks)


@cache
def _can_join_once() -> bool:
    """Return whether Flower decodes an array to the same bytes with `_Chunks`."""
    try:
        array = Array(np.arange(3.0))
        with _replaced(import_module("flwr.app.message.array"), "bytearray", _Chunks):
            found = Array.inflate(array.deflate(), array.children)
        if found.data != array.data:
            raise ValueError("an array is decoded to other bytes")
    except Exception as error:
        _warn("Array.inflate", error, "decoding a reply takes more memory")
        return False
    return True


def _check_envelope(message: Any, envelope: Any) -> None:
    """Raise ValueError unless a decoded reply is what its sender declared to the SuperLink."""
    if not isinstance(message, Message):
        raise ValueError(f"a {type(message).__name__} instead of a message")
    for name in ("src_node_id", "dst_node_id", "reply_to_message_id", "message_type", "run_id"):
        if getattr(message.metadata, name) != getattr(envelope, name):
            raise ValueError(f"its body claims another {name} than its sender declared")


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute and restore it at the end; a module may have it from the built-in ones."""
    original, own = getattr(owner, name, None), name in vars(owner)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


def copy_with(record: RecordT, values: Mapping[str, Any]) -> RecordT:
    """Return a copy of a record with further values, which must be of types that it takes.

    A record checks each value that is set, which takes longer than all else about a request.
    """
    copy = record.copy()
    try:
        copy.__dict__["_data"].update(values)
        if not values.keys() <= copy.keys():
            raise TypeError("a record keeps its values elsewhere")
    except Exception as error:
        _warn("TypedDict._data", error, "requests to many clients take longer to make")
        for name, value in values.items():
            copy[name] = value
    return copy


def get_run_id(grid: Grid) -> int:
    """Return Flower's id of the run; a random one, as of a new run, if Flower does not tell."""
    return _attempt(
        "Grid.run.run_id",
        lambda: int(grid.run.run_id),
        secrets.randbits(62),
        "replies to an earlier submission in the same run are dropped",
    )


def is_app_error(error: Error) -> bool:
    """Return whether a client's app raised, or one of its mods refused a message.

    They do so on a message that they do not know.
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
    """Return what a NodeInfo says; what cannot be read is left out, with one warning."""
    with suppress(Exception):
        if isinstance(info.name, str):
            return OnlineNode(info.node_id, info.name, _parse_time(info.last_activated_at))
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
        _warn(part, error, consequence)
        return fallback


def _warn(part: str, error: Exception, consequence: str) -> None:
    if part not in _warned:
        _warned.add(part)
        log.warning(
            "%s fails with this version of Flower (%s: %s); %s",
            part,
            type(error).__name__,
            error,
            consequence,
        )
