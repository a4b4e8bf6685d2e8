"""Per-client memory: a row of d numbers for each client written so far."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import NamedTemporaryFile

import torch
from torch import Tensor

from fedtide.device_copies import to_device_of
from fedtide.errors import InvalidInputError, quantify

_BLOCK = 2**16
"""How many numbers of client rows are converted to float64 at a time: they fit the CPU's cache."""


@dataclass(frozen=True)
class ClientMemory:
    """One row of length d per client written so far; other clients read as zeros.

    A population of N costs 4 N bytes plus the rows of the clients seen. Rows are stored in RAM, in
    an array that grows by doubling, or in an unnamed file in a folder, for memories larger than
    RAM. The file disappears with the process; checkpoints contain the rows.

    `write` and `add` reuse the rows of the object.

    Args:
        places: the row of each client, -1: none, shape (N,), int32.
        rows: shape (capacity, d), those of seen clients first.
        seen: how many clients have a row.
        folder: of the file with the rows; None: in RAM (or on the device).
        device: to which rows are read; None: where they are stored.

    >>> memory = ClientMemory.empty(1_000_000, torch.zeros(2))
    >>> memory = memory.write(torch.tensor([7]), torch.tensor([[1.0, 2.0]]))
    >>> memory.read(torch.tensor([3, 7]))
    tensor([[0., 0.],
            [1., 2.]])
    >>> memory.seen
    1
    """

    places: Tensor
    rows: Tensor
    seen: int = 0
    folder: str | None = None
    device: torch.device | None = None

    @classmethod
    def empty(cls, clients: int, like: Tensor, folder: str | None = None) -> ClientMemory:
        """Return the memory of N clients before anything is written.

        Args:
            clients: N.
            like: a model, shape (d,), whose length, dtype and device the rows take.
            folder: for the file; None: in RAM (or on the device).

        Raises:
            InvalidInputError: a folder in which no file can be created.
        """
        places = torch.full((clients,), -1, dtype=torch.int32)
        if folder is None:
            return cls(places, like.new_empty(0, len(like)))
        return cls(places, _file_rows(clients, like, folder), folder=folder, device=like.device)

    @property
    def clients(self) -> int:
        """N."""
        return len(self.places)

    def read(self, clients: Tensor) -> Tensor:
        """Return a copy of the rows of these clients, shape (S, d), zeros for those never seen."""
        if not self.seen:
            return self.rows.new_zeros(len(clients), self.rows.shape[1]).to(self.device)
        rows = self.rows.index_select(0, self._places_of(clients).clamp(min=0))
        unseen = (self.places[clients] < 0).nonzero().flatten()
        if len(unseen):
            rows.index_fill_(0, to_device_of(unseen, rows), 0)
        return rows.to(self.device)

    def subtracted_from(self, values: Tensor, clients: Tensor) -> Tensor:
        """Return `values`, shape (d,) or (S, d), minus the rows of these clients, shape (S, d)."""
        rows = self.read(clients)
        # allocating another large array would take longer than subtracting
        return torch.sub(values, rows, out=rows)

    def change_to(self, rows: Tensor, clients: Tensor) -> Tensor:
        """Return Σ (new row - old row) if these rows, (S, d), were written, shape (d,), float64.

        A running sum over all clients updated by it also sheds a huge row once that is replaced.
        """
        old = self.read(clients)
        if old.dtype == torch.float64:
            return torch.sub(rows, old, out=old).sum(dim=0)
        total = rows.new_empty(rows.shape[1], dtype=torch.float64)
        numbers = _BLOCK if rows.device.type == "cpu" else 64 * _BLOCK  # GPUs prefer few blocks
        width = max(1, numbers // max(1, len(rows)))
        for first in range(0, len(total), width):
            block = slice(first, first + width)
            total[block] = rows[:, block].double().sub_(old[:, block]).sum(dim=0)
        return total

    def sum(self) -> Tensor:
        """Return the sum of the rows of all clients, shape (d,)."""
        return self.rows[: self.seen].sum(dim=0).to(self.device)

    def write(self, clients: Tensor, rows: Tensor) -> ClientMemory:
        """Return the memory with these rows, shape (S, d), each client at most once.

        Raises:
            InvalidInputError: the disk has no room for the rows of clients not seen before.
        """
        memory = self._with_rows_for(clients[self.places[clients] < 0])
        memory.rows.index_copy_(0, memory._places_of(clients), rows.to(memory.rows))
        return memory

    def add(self, clients: Tensor, rows: Tensor) -> ClientMemory:
        """Return the memory with these rows, shape (S, d), added to those of the clients.

        Raises:
            InvalidInputError: the disk has no room for the rows of clients not seen before.
        """
        new = clients[self.places[clients] < 0]
        memory = self._with_rows_for(new)
        if len(new):
            memory.rows[self.seen : memory.seen] = 0
        memory.rows.index_add_(0, memory._places_of(clients), rows.to(memory.rows))
        return memory

    def cleared(self) -> ClientMemory:
        """Return the memory with no client seen, keeping its capacity."""
        self.places.fill_(-1)
        return replace(self, seen=0)

    def to_tensors(self) -> dict[str, Tensor]:
        """Return the tensors to store: the positions of the rows, and the rows in use."""
        return {"places": self.places, "rows": self.rows[: self.seen]}

    def from_tensors(self, stored: Mapping[str, Tensor]) -> ClientMemory:
        """Return the memory with the stored rows, in RAM or in a file like this one."""
        places, rows = stored["places"].to(self.places.device), stored["rows"]
        seen = len(rows)
        if self.folder is not None:
            self._reserve(seen)
            self.rows[:seen] = rows
            rows = self.rows
        return replace(self, places=places, rows=rows.to(self.rows.device), seen=seen)

    def _places_of(self, clients: Tensor) -> Tensor:
        """Return the positions of the rows of these clients, -1 for those never seen."""
        return to_device_of(self.places[clients].long(), self.rows)

    def _with_rows_for(self, new: Tensor) -> ClientMemory:
        """Return the memory with rows for these clients, none of them seen before."""
        seen = self.seen + len(new)
        self._reserve(len(new))
        self.places[new] = torch.arange(self.seen, seen, dtype=torch.int32)
        rows = self.rows
        if seen > len(rows):
            capacity = min(self.clients, max(seen, 2 * len(rows)))
            rows = rows.new_empty(capacity, rows.shape[1])
            rows[: self.seen] = self.rows[: self.seen]
        return replace(self, rows=rows, seen=seen)

    def _reserve(self, rows: int) -> None:
        """Refuse rows that do not fit on the disk: writing them would kill the process."""
        if self.folder is None or not rows:
            return
        needed = rows * self.rows.shape[1] * self.rows.element_size()
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise InvalidInputError(
                f"memory_folder: {self.folder} has {free:,} bytes left, and the memory of "
                f"{quantify(rows, 'more client')} needs {needed:,}; free disk space and resume"
            )


def _file_rows(clients: int, like: Tensor, folder: str) -> Tensor:
    """Return rows for all clients in a sparse file, which takes space only for written rows."""
    if sys.platform == "win32":  # where a memory-mapped file cannot be removed
        raise InvalidInputError("memory_folder: it needs Linux or macOS; leave it out")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder, prefix="fedtide-") as file:
            flat = torch.from_file(
                file.name, shared=True, size=clients * len(like), dtype=like.dtype
            )
    except OSError as error:
        raise InvalidInputError(
            f"memory_folder: {folder} cannot hold a file ({error}); choose another"
        ) from None
    return flat.view(clients, len(like))
