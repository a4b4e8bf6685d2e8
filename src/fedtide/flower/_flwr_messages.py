"""Sends messages over Flower's grid and pulls the replies, each on its own and within limits.

Besides `_flwr_private`, only this module relies on undocumented parts of Flower (as of 1.42):

- the calls of `HttpGrid._runtime_client`, and the functions and classes with which
  `HttpGrid.pull_messages` fetches the objects of a reply and decodes it;
- the form of these objects: a head of text, a zero byte, a body, which for an array is JSON;
- the function `bytearray` by which `flwr.app.message.array` joins the chunks of an array.

If one of them is missing after an upgrade of Flower, we log one warning and continue without it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from threading import Lock
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, Error, Message, Metadata
from flwr.serverapp import Grid

from fedtide.errors import first_line
from fedtide.flower._flwr_private import SuperLinkError, describe_failure, warn_once

T = TypeVar("T")
ResultT = TypeVar("ResultT")

OBJECT_BYTES = 1000
"""A reply may have one object per this many bytes of the limit: each takes a call to fetch."""
_VALUE_BYTES = 8
"""Bytes that a byte of a record may take once decoded: Flower makes lists of Python objects."""
_MOST_MISSING = 16
"""After this many objects of a reply that are not uploaded yet, a pull asks for no more: senders
upload objects in order, so the later ones will be missing, too."""
_USED = (
    "ConfirmMessageReceivedRequest",
    "ErrorCode",
    "ObjectPullError",
    "PullAppMessagesRequest",
    "inflate_object_from_contents",
    "iterate_object_tree",
    "make_message",
    "make_pull_object_fn_protobuf",
    "pull_objects",
)
"""The names that a pull uses from the module that defines `HttpGrid`."""
_joining = Lock()
"""Held while Flower's `bytearray` is replaced: several strategies may run as threads of one app."""


def push_messages(grid: Grid, messages: Sequence[Message]) -> set[str]:
    """Send messages and return the ids of those that the SuperLink accepted.

    The SuperLink may fail at a whole call because of one message, for example if a client has
    registered the hash of one of the message's objects as an object with other parts. The messages
    are then sent in halves, recursively.

    Raises:
        SuperLinkError: it fails at each of them. Any other exception of the grid propagates.
    """
    results, failed = _call_in_halves(lambda part: list(grid.push_messages(part)), messages)
    if failed and not results:
        raise SuperLinkError(failed[-1][1])
    return {message_id for ids in results for message_id in ids if message_id}


def _call_in_halves(
    call: Callable[[Sequence[T]], ResultT], items: Sequence[T]
) -> tuple[list[ResultT], list[tuple[T, str]]]:
    """Call with all items, or recursively with each half of them if the SuperLink fails.

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
    """Return the result of a call, or None and how the SuperLink failed.

    The exception itself is not kept: its frames would hold the models that were to be sent.
    """
    try:
        return call(items), ""
    except Exception as error:
        failure = describe_failure(error)
        if not failure:
            raise
        return None, failure


@dataclass
class PulledReplies:
    """The result of one pull from the SuperLink.

    Args:
        messages: the replies that could be decoded; an error in place of one that is gone.
        unreadable: why others cannot be decoded, by the id of the request that each answers.
        failing: how the SuperLink fails at single replies, by the id of the request: it cannot
            deliver this reply, or none for the moment, as while its disk is full.
        failure: how the SuperLink failed at all of them, which can be pulled again; "": it did not.
    """

    messages: list[Message] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    failing: dict[str, str] = field(default_factory=dict)
    failure: str = ""


@dataclass
class PartialReply:
    """A reply that its sender has announced but not completely uploaded.

    Args:
        envelope: Flower's message without content.
        tree: Flower's tree of its objects.
        contents: the objects that have arrived, by id.
    """

    envelope: Any
    tree: Any
    contents: dict[str, bytes] = field(default_factory=dict)

    @property
    def reply_id(self) -> str:
        """Its id, which is also that of the object with its head."""
        return str(self.envelope.metadata.message_id)

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

    This takes the steps of `HttpGrid.pull_messages`, with these differences:

    - That method waits for unfinished uploads, for minutes if a sender withholds an object. Here
      each object is asked for once, and missing ones are left to the next call.
    - The SuperLink deletes replies when they are pulled, and that method raises at the first that
      it cannot decode, which would lose all others. Here each reply is decoded on its own. Its
      sender and the request that it answers are those that the SuperLink checked, not those in the
      reply's body, which the sender writes.
    - The SuperLink fails at a whole call because of one reply with, for example, NaN as its time to
      live. Here the ids are then pulled in halves, recursively; a single reply at which it fails is
      in `failing`. If it fails even without any id, the replies can be pulled again.

    Any other exception of the grid itself, such as a lost connection, propagates.

    Args:
        grid: Flower's.
        ids: of the requests.
        partial: replies that earlier calls could not complete, by their own ids; updated.
        largest: the largest size of a reply in bytes. Of a larger one, nothing is kept, and nothing
            is fetched but objects already under way. A reply that would be larger once decoded, or
            has more than `largest / OBJECT_BYTES` objects, is not decoded. Grids other than
            `HttpGrid` have no limit.
    """
    pull = None
    try:
        flower = import_module("flwr.superlink.grid.http_grid")
        if isinstance(grid, flower.HttpGrid):
            pull = _Pull(grid, flower, {} if partial is None else partial, largest)
    except Exception as error:
        warn_once("HttpGrid.pull_messages", error, "one malformed reply may lose others")
    return PulledReplies(list(grid.pull_messages(ids))) if pull is None else pull.run(ids)


class _Pull:
    """One pull from an `HttpGrid`.

    Args:
        grid: the grid.
        flower: the module that defines it, with everything that `HttpGrid.pull_messages` uses.
        partial: see `pull_replies`.
        largest: see `pull_replies`.
    """

    def __init__(
        self, grid: Any, flower: Any, partial: dict[str, PartialReply], largest: float
    ) -> None:
        self._client, self._node, self._run_id = grid._runtime_client, grid.node, grid.run.run_id
        self._flower = SimpleNamespace(**{name: getattr(flower, name) for name in _USED})
        self._pull, self._confirm = self._client.PullMessages, self._client.ConfirmMessageReceived
        self._partial, self._largest = partial, largest
        errors = import_module("flwr.supercore.inflatable.inflatable_utils")
        self._unavailable = errors.ObjectUnavailableError
        self._ask_for_object = flower.make_pull_object_fn_protobuf(
            pull_object_protobuf=self._client.PullObject, node=self._node, run_id=self._run_id
        )
        self._pulled = PulledReplies()

    def run(self, ids: Sequence[str]) -> PulledReplies:
        """Return the replies to these requests that are complete."""
        for reply_id, reply in list(self._partial.items()):
            if reply.request not in ids:  # it was given up
                del self._partial[reply_id]
        # The SuperLink forgets a request once it has delivered the envelope of the reply.
        announced = {reply.request for reply in self._partial.values()}
        self._pull_envelopes([one for one in ids if one not in announced])
        # Not a list of the replies themselves, so that each is freed when it is done.
        for reply_id in list(self._partial):
            self._receive(self._partial[reply_id])
        return self._pulled

    def _pull_envelopes(self, ids: Sequence[str]) -> None:
        """Add the replies that have arrived to the partial ones, without their objects."""
        for response in self._pull_parts(ids) if ids else ():
            trees = response.message_object_trees
            for envelope, tree in zip(response.messages_list, trees, strict=True):
                reply = PartialReply(envelope, tree)
                self._partial.setdefault(reply.reply_id, reply)

    def _pull_parts(self, ids: Sequence[str]) -> list[Any]:
        """Return the responses; record the requests whose reply the SuperLink cannot deliver.

        If it fails even when no reply is asked for, as while its database is locked, no reply is to
        blame, and the next pull asks for all of them again.
        """
        response, _ = _attempt_call(self._call_pull, ids)
        if response is not None:
            return [response]
        response, self._pulled.failure = _attempt_call(self._call_pull, [])
        if response is None:
            return []
        parts, failed = _call_in_halves(self._call_pull, ids)
        self._pulled.failing |= dict(failed)
        return parts

    def _call_pull(self, ids: Sequence[str]) -> Any:
        return self._pull(self._flower.PullAppMessagesRequest(message_ids=ids))

    def _receive(self, reply: PartialReply) -> None:
        """Fetch the missing objects of a reply; decode it if it is complete."""
        objects = [one.object_id for one in self._flower.iterate_object_tree(reply.tree)]
        if OBJECT_BYTES * len(objects) > self._largest:
            defect = f"it has {len(objects):,} objects"
        else:
            download = _Download(
                reply.contents, self._ask_for_object, self._unavailable, self._largest
            )
            missing = [one for one in objects if one not in reply.contents]
            try:
                self._flower.pull_objects(missing, download.pull)
            except self._flower.ObjectPullError:  # for good: the SuperLink gave up its upload
                del self._partial[reply.reply_id]
                self._pulled.messages.append(self._build_error(reply))
                return
            if download.missing and not download.is_too_large:
                return
            defect = self._find_defect(download)
        del self._partial[reply.reply_id]
        confirmation = self._flower.ConfirmMessageReceivedRequest(
            node=self._node, run_id=self._run_id, message_object_id=reply.reply_id
        )
        self._confirm(confirmation)
        self._decode(reply, defect)

    def _build_error(self, reply: PartialReply) -> Message:
        """Return an error in place of a reply whose objects are gone, as Flower does."""
        sent = reply.envelope.metadata
        metadata = Metadata(
            run_id=self._run_id,
            message_id="",
            src_node_id=sent.src_node_id,
            dst_node_id=sent.dst_node_id,
            reply_to_message_id=reply.request,
            group_id="",
            created_at=0.0,
            ttl=0.0,
            message_type=sent.message_type,
        )
        error = Error(self._flower.ErrorCode.MESSAGE_UNAVAILABLE)
        message: Message = self._flower.make_message(metadata=metadata, error=error)
        return message

    def _find_defect(self, download: _Download) -> str:
        """Return why the objects of a reply must not be decoded; "": they may be."""
        try:
            too_large = download.is_too_large or (
                _can_measure() and _decodes_to_more(download.contents, self._largest)
            )
        except Exception as error:  # objects may hold anything
            return first_line(error, with_type=True)
        return f"it is larger than {self._largest / 1e6:,.0f} MB" if too_large else ""

    def _decode(self, reply: PartialReply, defect: str) -> None:
        """Decode a reply unless it has a defect; record why if it cannot be read."""
        if not defect:
            try:
                with _chunks_joined_once():
                    message = self._flower.inflate_object_from_contents(
                        reply.reply_id, reply.contents
                    )
                message.metadata.__dict__["_message_id"] = reply.reply_id
                _check_envelope(message, reply.envelope.metadata)
            except Exception as error:  # the body may hold anything
                defect = first_line(error, with_type=True)
        if defect:
            self._pulled.unreadable[reply.request] = defect
        else:
            self._pulled.messages.append(message)


class _Download:
    """The objects of one reply, which Flower pulls in several threads.

    Args:
        contents: the objects that have arrived, by id; added to.
        pull_object: Flower's function that asks for one object.
        unavailable: what that raises for an object that has not been uploaded.
        largest: the largest size of a reply in bytes; beyond it, nothing more is asked for.

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
        """Whether the objects so far have more bytes than a reply may have."""
        return self._size > self._largest

    def pull(self, object_id: str) -> bytes:
        """Ask for one object and keep it here; Flower gets no content.

        This does not raise: Flower would repeat the call, and lose the other objects.
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

    An array may name one chunk any number of times, and takes its memory as often.
    """
    arrays, size = [], 0
    for content in contents.values():
        end = content.find(b"\0")
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
        warn_once("Array.deflate", error, "a reply may take more memory than its size on the wire")
        return False
    return True


class _Chunks:
    """Replaces the `bytearray` with which Flower joins chunks: copies values once, not twice.

    `Array.inflate` does `buffer = bytearray()`, `buffer += chunk` and `bytes(buffer)`.
    """

    def __init__(self) -> None:
        self._parts: list[Any] = []

    def __iadd__(self, part: Any) -> _Chunks:
        self._parts.append(part)
        return self

    def __bytes__(self) -> bytes:
        return b"".join(self._parts)


@contextmanager
def _chunks_joined_once() -> Iterator[None]:
    """Make Flower hold the values of a reply twice while decoding it, not three times."""
    if _can_join_once():
        with _bytearray_replaced():
            yield
    else:
        yield


@contextmanager
def _bytearray_replaced() -> Iterator[None]:
    module: Any = import_module("flwr.app.message.array")
    with _joining:
        module.bytearray = _Chunks  # instead of Python's own
        try:
            yield
        finally:
            del module.bytearray


@cache
def _can_join_once() -> bool:
    """Return whether Flower decodes an array to the same bytes with `_Chunks`."""
    try:
        array = Array(np.arange(3.0))
        with _bytearray_replaced():
            found = Array.inflate(array.deflate(), array.children)
        if found.data != array.data:
            raise ValueError("an array is decoded to other bytes")
    except Exception as error:
        warn_once("Array.inflate", error, "decoding a reply takes more memory")
        return False
    return True


def _check_envelope(message: Any, envelope: Any) -> None:
    """Raise ValueError unless a decoded reply matches what its sender declared to the SuperLink."""
    if not isinstance(message, Message):
        raise ValueError(f"a {type(message).__name__} instead of a message")
    for name in ("src_node_id", "dst_node_id", "reply_to_message_id", "message_type", "run_id"):
        if getattr(message.metadata, name) != getattr(envelope, name):
            raise ValueError(f"its body claims another {name} than its sender declared")
