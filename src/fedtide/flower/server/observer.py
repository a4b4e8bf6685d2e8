"""An observer around any Flower strategy that writes the participation log."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from logging import getLogger
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedtide.errors import InvalidInputError
from fedtide.flower._flwr import SuperLinkError, list_nodes
from fedtide.flower.server.reply_validation import MAX_SAMPLES
from fedtide.participation.log.schema import STAGES

log = getLogger("flwr")

_COLUMNS = ("round", "client", "stage", "samples")
_HEADER = ",".join(_COLUMNS).encode() + b"\r\n"


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
        self._stages: dict[int, str] = {}
        self._samples: dict[int, float | None] = {}
        self._asked: list[Metadata] = []
        self._names: dict[int, str] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the strategy's requests to train."""
        if server_round == 1:
            self._first_round = self._ended
        try:
            nodes = list_nodes(grid)
        except SuperLinkError as error:  # what is observed must not end because of the observer
            log.warning("The log of this round lacks clients that are only available: %s", error)
            nodes = []
        self._names |= {node.node_id: node.name or str(node.node_id) for node in nodes}
        self._stages = {node.node_id: "available" for node in nodes}
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        self._asked, self._samples = [message.metadata for message in messages], {}
        self._stages |= {metadata.dst_node_id: "selected" for metadata in self._asked}
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
                self._stages[node_id] = "reported"
                self._samples[node_id] = _read_samples(reply)
        try:
            arrays, metrics = self.strategy.aggregate_train(server_round, replies)
            if arrays is not None:
                used = {n: "used" for n, stage in self._stages.items() if stage == "reported"}
                self._stages |= used
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
        furthest: dict[str, int] = {}  # of several nodes with one name
        for node_id, stage in self._stages.items():
            name = self._names.get(node_id, str(node_id))
            earlier = self._stages[furthest.setdefault(name, node_id)]
            if STAGES.index(stage) > STAGES.index(earlier):
                furthest[name] = node_id
        try:
            with self._path.open("a", newline="", encoding="utf-8") as file:
                out = csv.writer(file)
                if file.tell() == 0:
                    out.writerow(_COLUMNS)
                for name, node_id in furthest.items():
                    out.writerow((t, name, self._stages[node_id], self._samples.get(node_id)))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InvalidInputError(
                f"log: {str(self._path)!r} cannot be written ({error.strerror}); choose another"
            ) from None
        self._ended = t + 1


def _read_samples(reply: Message) -> float | None:
    """Return the number of samples that a client declares; None: none, or an unusable one."""
    for record in reply.content.metric_records.values():
        samples = record.get("num-examples")
        if isinstance(samples, int | float) and 0 <= samples <= MAX_SAMPLES:
            return samples
    return None


def _count_rounds(path: Path) -> int:
    """Return the number of rounds in the file of an earlier run; 0 without one.

    A last line that a crash has cut off is dropped.
    """
    content = path.read_bytes() if path.exists() else b""
    lines = content.splitlines(keepends=True)
    cut = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
    header = lines[0] if lines else _HEADER if _HEADER.startswith(cut) else cut
    if header != _HEADER:
        raise InvalidInputError(
            f"log: the columns of {str(path)!r} are not {', '.join(_COLUMNS)}, so no rows can be "
            "appended; choose another file"
        )
    if cut:
        log.warning("The last line of %s is cut off, and dropped: %.200r", path, cut)
        os.truncate(path, len(content) - len(cut))
    return max((int(line.partition(b",")[0]) for line in lines[1:]), default=-1) + 1
