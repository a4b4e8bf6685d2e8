"""An observer around any Flower strategy that writes the participation log."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedtide.errors import InvalidInputError
from fedtide.flower._flwr import OnlineNode, SuperLinkError, list_nodes
from fedtide.flower.server.reply_validation import MAX_SAMPLES
from fedtide.participation.log.schema import STAGES, read_log

log = getLogger("flwr")

_COLUMNS = ("round", "client", "stage", "samples")
_LONGEST_LINE = 1 << 16  # bytes
_HEADER = ",".join(_COLUMNS).encode()


@dataclass
class _Reached:
    """The stage that a client reached in the current round, and its sample count."""

    stage: str
    samples: float | None = None


class ParticipationObserver(Strategy):
    """Writes who takes part in each round of another strategy, and changes nothing else.

    After every round, one row per client is appended to a CSV file, which `fedtide audit` reads.
    If a crash has cut off the last line, the next run drops it. The columns:

    - `round` t = 0, 1, ... (Flower's server_round minus 1). A further run continues after the
      rounds in the file.
    - `client`: the name with which its operator registered it, otherwise Flower's node id, which
      stays the same across restarts only if nodes are authenticated. Of several nodes with one
      name, the one that got furthest is written.
    - `stage`: `available` if it was online when the round began, `selected` if it was asked to
      train, `used` if it replied without an error. If the strategy returns no model, or raises, the
      replies count as `reported`; whether it leaves out single replies cannot be observed.
    - `samples`: the number `num-examples` of its reply, if there is one from 0 to 10^12.

    Args:
        strategy: any strategy that keeps Flower's own `start`.
        log: the path of the CSV file.

    Raises:
        InvalidInputError: a path without the suffix .csv, or a file with other columns; a
            strategy with a `start` of its own (FedTide writes a ledger).

    Example:
        >>> strategy = ParticipationObserver(FedAvg(), "participation.csv")  # doctest: +SKIP
        >>> strategy.start(grid, initial_arrays, num_rounds=100)  # doctest: +SKIP
    """

    def __init__(self, strategy: Strategy, log: str | Path) -> None:
        self.strategy, self._path = strategy, Path(log)
        if self._path.suffix.lower() != ".csv":
            raise InvalidInputError(f"log: {str(log)!r} is not a CSV file; choose a name.csv")
        if type(strategy).start is not Strategy.start:
            raise InvalidInputError(
                f"strategy: {type(strategy).__name__} has a loop of its own, which cannot be "
                "observed; let it write the log itself (FedTide: ledger=)"
            )
        self._first_round = self._ended = _count_rounds(self._path)
        self._clients: dict[int, _Reached] = {}
        self._asked: list[Metadata] = []
        self._names: dict[int, str] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the strategy's requests to train."""
        if server_round == 1:
            self._first_round = self._ended
        nodes = _list_nodes(grid)
        self._names |= {node.node_id: node.name or str(node.node_id) for node in nodes}
        self._clients = {node.node_id: _Reached("available") for node in nodes}
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        for message in messages:
            self._clients[message.metadata.dst_node_id] = _Reached("selected")
        self._asked = [message.metadata for message in messages]
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the strategy's new model, and write the rows of the round."""
        replies = list(replies)
        # Messages get their ids when Flower sends them. The sender in a reply is what the client
        # wrote; the request that it answers is known to Flower.
        asked = {metadata.message_id: metadata.dst_node_id for metadata in self._asked}
        for reply in replies:
            node_id = asked.get(reply.metadata.reply_to_message_id)
            if node_id is not None and reply.has_content():  # else an error, in place of a reply
                self._clients[node_id] = _Reached("reported", _read_samples(reply))
        try:
            arrays, metrics = self.strategy.aggregate_train(server_round, replies)
            if arrays is not None:
                for client in self._clients.values():
                    client.stage = "used" if client.stage == "reported" else client.stage
        finally:
            self._write(self._first_round + server_round - 1)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the strategy's requests to evaluate."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the strategy's metrics."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log the strategy's settings."""
        self.strategy.summary()

    def _write(self, t: int) -> None:
        """Append the rows of round t, and sync them to the disk."""
        rows: dict[str, _Reached] = {}
        for node_id, client in self._clients.items():
            name = self._names.get(node_id, str(node_id))
            earlier = rows.get(name)
            if earlier is None or STAGES.index(client.stage) > STAGES.index(earlier.stage):
                rows[name] = client
        try:
            with self._path.open("a", newline="", encoding="utf-8") as file:
                out = csv.writer(file)
                if file.tell() == 0:
                    out.writerow(_COLUMNS)
                for name, client in rows.items():
                    out.writerow((t, name, client.stage, client.samples))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _unwritable(self._path, error) from None
        self._ended = t + 1


def _list_nodes(grid: Grid) -> list[OnlineNode]:
    """Return the nodes that are online; none, with a warning, if the SuperLink fails to list them.

    What is observed must not end because of the observer.
    """
    try:
        return list_nodes(grid)
    except SuperLinkError as error:
        log.warning("The log of this round lacks clients that are only available: %s", error)
        return []


def _read_samples(reply: Message) -> float | None:
    """Return the number of samples that a client declares; None: none, or an unusable one."""
    for record in reply.content.metric_records.values():
        samples = record.get("num-examples")
        if isinstance(samples, int | float) and 0 <= samples <= MAX_SAMPLES:
            return samples
    return None


def _count_rounds(path: Path) -> int:
    """Return the number of rounds in the file of an earlier run; 0 without one."""
    if path.exists():
        _drop_cut_line(path)
    if not path.exists() or path.stat().st_size == 0:
        return 0
    rounds = read_log(path)["round"]
    if not _has_own_header(path):
        raise InvalidInputError(
            f"log: the columns of {str(path)!r} are not {', '.join(_COLUMNS)}, so no rows can be "
            "appended; choose another file"
        )
    return 0 if rounds.is_empty() else int(rounds.max()) + 1  # type: ignore[arg-type]


def _has_own_header(path: Path) -> bool:
    with path.open("rb") as file:
        return file.readline().rstrip(b"\r\n") == _HEADER


def _drop_cut_line(path: Path) -> None:
    """Remove the last line of an observer's log if it has no line break: a crash has cut it off.

    Raises:
        InvalidInputError: the file cannot be written.
    """
    try:
        with path.open("r+b") as file:
            first = file.readline()
            is_log = first.rstrip(b"\r\n") == _HEADER or (_HEADER + b"\r").startswith(first)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LONGEST_LINE))
            end = file.read()
            cut = len(end) - (end.rfind(b"\n") + 1)
            if not is_log or not cut or cut == _LONGEST_LINE:
                return
            file.truncate(size - cut)
            os.fsync(file.fileno())
    except OSError as error:
        raise _unwritable(path, error) from None
    log.warning("The last line of %s is cut off, and dropped: %.200r", path, end[-cut:])


def _unwritable(path: Path, error: OSError) -> InvalidInputError:
    return InvalidInputError(
        f"log: {str(path)!r} cannot be written ({error.strerror}); choose another"
    )
