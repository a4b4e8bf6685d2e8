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
ResultT = TypeVar("ResultT")
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
    results, failed = _call_in_halves(lambda part: list(grid.push_messages(part)), messages)
    if failed and not results:
        raise RefusedError(failed[-1][1])
    return {message_id for ids in results for message_id in ids if message_id}


def _call_in_halves(
    call: Callable[[Sequence[T]], ResultT], items: Sequence[T]
) -> tuple[list[ResultT], list[tuple[T, str]]]:
    """Call with all items; with each half of them, and so on, where the SuperLink fails.

    Returns:
        The results of the calls that succeeded, and the items that failed alone, with the reason.
    """
    result, failure = _attempt_call(call, items)
    if result is not None:
        return [result], []
    if len(items) == 1:
        return [], [(items[0], failure)]
    half = len(items) // 2
    results, failed = _call_in_halves(call, items[:half])
    further_results, further_failed = _call_in_halves(call, items[half:])
    return results + further_results, failed + further_failed


def _attempt_call(
    call: Callable[[Sequence[T]], ResultT], items: Sequence[T]
) -> tuple[ResultT | None, str]:
    """Return what a call returns, or None and how the SuperLink failed at it.

    The exception itself is not kept: its frames would hold the models that were to be sent.
    """
    try:
        return call(items), ""
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status != _INTERNAL_ERROR:
            raise
        return None, first_line(error)


@dataclass(frozen=True)
class PulledReplies:
    """What one pull took from the SuperLink.

    Args:
        messages: the replies that could be decoded.
        unreadable: why the others could not, by the id of the request that each answers.
        failing: the requests at whose reply the SuperLink fails alone: it cannot deliver this
            reply, or none for a moment, as while its disk is full.
        failure: how the SuperLink failed at all of them, which can be pulled again; "": it did not.
    """

    messages: list[Message] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    failure: str = ""


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

    @property
    def request(self) -> str:
        """The id of the request that it answers."""
        return str(self.envelope.metadata.reply_to_message_id)


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
    is in `failing`. If it fails without any id, too, the replies can be pulled again.

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
    pull = None
    try:
        module = import_module("flwr.superlink.grid.http_grid")
        if isinstance(grid, module.HttpGrid):
            pull = _Pull(grid, module, {} if partial is None else partial, largest)
    except Exception as error:
        _warn("HttpGrid.pull_messages", error, "one malformed reply may lose others")
    return PulledReplies(list(grid.pull_messages(ids))) if pull is None else pull.run(ids)


class _Pull:
    """One call of `HttpGrid.pull_messages`, for which methods of this class replace Flower's.

    Flower asks the SuperLink for envelopes, then fetches and decodes the replies one by one. What
    it raises meanwhile would lose all of them, so the methods in its place note what they do not
    raise: `_pull_envelopes` (in place of `PullMessages`), `_fetch_once` (`pull_objects`), and
    `_decode_guarded` (`inflate_object_from_contents`).

    Args:
        grid: an `HttpGrid`.
        module: the one that defines it.
        partial: see `pull_replies`.
        largest: see `pull_replies`.
    """

    def __init__(
        self, grid: Any, module: Any, partial: dict[str, PartialReply], largest: float
    ) -> None:
        errors = import_module("flwr.supercore.inflatable.inflatable_utils")
        self._unavailable, self._failed = errors.ObjectUnavailableError, errors.ObjectPullError
        self._grid, self._module = grid, module
        self._partial, self._largest = partial, largest
        self._envelopes: dict[str, Any] = {}  # the metadata that the SuperLink checked
        self._refused: dict[str, str] = {}  # why a reply is not decoded, by its id
        self._unreadable: dict[str, str] = {}
        self._failing: set[str] = set()
        self._failure = ""
        with _decoding:  # else they may be those of a pull in another thread
            self._client = grid._runtime_client
            self._pull, self._fetch = self._client.PullMessages, module.pull_objects
            self._decode = module.inflate_object_from_contents

    def run(self, ids: Sequence[str]) -> PulledReplies:
        """Return the replies to these requests that are complete."""
        for reply_id, reply in list(self._partial.items()):
            if reply.request not in ids:  # it was given up
                del self._partial[reply_id]
        # The SuperLink knows a request no longer once it has delivered the envelope of the reply.
        announced = self._list_incomplete()
        with (
            _decoding,
            _replaced(self._client, "PullMessages", self._pull_envelopes),
            _replaced(self._module, "pull_objects", self._fetch_once),
            _replaced(self._module, "inflate_object_from_contents", self._decode_guarded),
            _chunks_joined_once(),
        ):
            found = self._grid.pull_messages([one for one in ids if one not in announced])
        # Flower puts an error in the place of a reply that is incomplete.
        incomplete = self._list_incomplete()
        messages = [
            message
            for message in found
            if isinstance(message, Message)
            and message.metadata.reply_to_message_id not in incomplete
        ]
        return PulledReplies(messages, self._unreadable, self._failing, self._failure)

    def _list_incomplete(self) -> set[str]:
        """Return the requests whose reply has been announced and is not complete."""
        return {reply.request for reply in self._partial.values()}

    def _pull_envelopes(self, request: Any) -> Any:
        """Return the envelopes that have arrived, and those of replies that are incomplete."""
        response = self._module.PullAppMessagesResponse()
        if request.message_ids:
            for part in self._pull_parts(list(request.message_ids)):
                response.MergeFrom(part)
        for reply in self._partial.values():
            response.messages_list.append(reply.envelope)
            response.message_object_trees.append(reply.tree)
        trees = response.message_object_trees
        for envelope, tree in zip(response.messages_list, trees, strict=True):
            reply_id = envelope.metadata.message_id
            self._envelopes[reply_id] = envelope.metadata
            self._partial.setdefault(reply_id, PartialReply(envelope, tree))
        return response

    def _pull_parts(self, ids: Sequence[str]) -> list[Any]:
        """Return the responses, and note the requests whose reply the SuperLink cannot deliver.

        If it fails even when no reply is asked for, as while its database is locked, none is to
        blame: they are asked for again at the next pull.
        """
        response, _ = _attempt_call(self._pull_part, ids)
        if response is not None:
            return [response]
        response, self._failure = _attempt_call(self._pull_part, [])
        if response is None:
            return []
        parts, failed = _call_in_halves(self._pull_part, ids)
        self._failing |= {request_id for request_id, _ in failed}
        return parts

    def _pull_part(self, ids: Sequence[str]) -> Any:
        return self._pull(self._module.PullAppMessagesRequest(message_ids=ids))

    def _fetch_once(
        self, object_ids: list[str], pull_object_fn: Callable[[str], bytes], **named: Any
    ) -> Any:
        """Return the objects of a reply, each of which is asked for once.

        Raises:
            ObjectPullError: some have not been uploaded; what came stays in the partial reply.
        """
        reply_id = next((one for one in object_ids if one in self._envelopes), None)
        if reply_id is None:  # another thread pulls with Flower's own method
            return self._fetch(object_ids=object_ids, pull_object_fn=pull_object_fn, **named)
        if OBJECT_BYTES * len(object_ids) > self._largest:
            return self._refuse(reply_id, f"it has {len(object_ids):,} objects")
        # Not there: a reply that the SuperLink delivered twice.
        reply = self._partial.get(reply_id)
        contents = {} if reply is None else reply.contents
        download = _Download(contents, pull_object_fn, self._unavailable, self._largest)
        asked = [one for one in object_ids if one not in contents]
        try:
            self._fetch(object_ids=asked, pull_object_fn=download.pull, **named)
        except self._failed:  # for good, such as three minutes after the envelope
            self._partial.pop(reply_id, None)
            raise
        if download.missing and not download.is_too_large:
            raise self._failed(min(download.missing), "its sender has not uploaded it yet")
        if reason := self._find_defect(download):
            contents.clear()
            return self._refuse(reply_id, reason)
        self._partial.pop(reply_id, None)
        return contents

    def _refuse(self, reply_id: str, reason: str) -> dict[str, bytes]:
        """Keep a reply from being decoded; return its objects: none."""
        self._refused[reply_id] = reason
        self._partial.pop(reply_id, None)
        return {}

    def _find_defect(self, download: _Download) -> str:
        """Return why the objects of a reply are not decoded; "": they are."""
        try:
            too_large = download.is_too_large or (
                _can_measure() and _decodes_to_more(download.contents, self._largest)
            )
        except Exception as error:  # objects may hold anything
            return first_line(error, with_type=True)
        return f"it is larger than {self._largest / 1e6:,.0f} MB" if too_large else ""

    def _decode_guarded(self, object_id: str, *arguments: Any, **named: Any) -> Any:
        """Return the reply, or what Flower takes for one if it cannot be decoded."""
        envelope = self._envelopes.get(object_id)
        if envelope is None:  # another thread pulls with Flower's own method
            return self._decode(object_id, *arguments, **named)
        reason = self._refused.get(object_id)
        if reason is None:
            try:
                message = self._decode(object_id, *arguments, **named)
                _check_envelope(message, envelope)
                return message
            except Exception as error:  # the body may hold anything
                reason = first_line(error, with_type=True)
        self._unreadable[envelope.reply_to_message_id] = reason
        return SimpleNamespace(metadata=SimpleNamespace())


class _Download:
    """The objects of one reply, which Flower pulls in several threads.

    Args:
        contents: the objects that have arrived, by id; added to.
        pull_object: Flower's, which asks for one object.
        unavailable: what that raises for an object that has not been uploaded.
        largest: the most bytes of a reply; beyond it nothing more is asked for.

    Attributes:
        missing: objects that have not been uploaded.
    """

    def __init__(
        self,
        contents: dict[str, bytes],
        pull_object: Callable[[str], bytes],
        unavailable: type[Exception],
        largest: float,
    ) -> None:
        self.contents, self.missing = contents, set[str]()
        self._pull_object, self._unavailable, self._largest = pull_object, unavailable, largest
        self._size, self._counting = sum(map(len, contents.values())), Lock()

    @property
    def is_too_large(self) -> bool:
        """Whether the objects so far have more bytes than a reply may."""
        return self._size > self._largest

    def pull(self, object_id: str) -> bytes:
        """Ask for one object and keep it here.

        Flower, which gets nothing, would repeat a call that raises, and lose the others.
        """
        if self.is_too_large or len(self.missing) >= _MOST_MISSING:
            return b""
        try:
            content = self._pull_object(object_id)
        except self._unavailable:
            self.missing.add(object_id)
            return b""
        with self._counting:
            self.contents[object_id] = content
            self._size += len(content)
        return b""


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
