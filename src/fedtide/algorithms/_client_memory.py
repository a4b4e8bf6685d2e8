"""Memory of single clients: a row of d numbers for each client that ever needed one."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import NamedTemporaryFile

import torch
from torch import Tensor

from fedtide.errors import InvalidInputError


@dataclass(frozen=True)
class ClientMemory:
    """Rows of length d, one for each client that was ever written; the others read as zeros.

    A population of N costs 4 N bytes plus the rows of those seen. Rows lie in RAM, growing by
    doubling, or in a file without a name in a folder, where the disk holds what RAM cannot; the
    file vanishes with the process, checkpoints keep the rows.

    `write` reuses the rows of the memory that it is given.

    Args:
        places: which row belongs to each client, -1 for none, shape (N,), int32.
        rows: shape (capacity, d), those of seen clients first.
        seen: how many clients have a row.
        folder: of the file in which the rows lie; None: in RAM (or on the device).

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

    @classmethod
    def empty(cls, clients: int, like: Tensor, folder: str | None = None) -> ClientMemory:
        """Return the memory of N clients before anything is written.

        Args:
            clients: N.
            like: a model, shape (d,), whose length, dtype and device the rows take.
            folder: where the file lies; None keeps the rows in RAM (or on the device).

        Raises:
            InvalidInputError: a folder in which no file can be made.
        """
        places = torch.full((clients,), -1, dtype=torch.int32, device=like.device)
        if folder is None:
            return cls(places, like.new_empty(0, len(like)))
        return cls(places, _file_rows(clients, like, folder), folder=folder)

    @property
    def clients(self) -> int:
        """N."""
        return len(self.places)

    def read(self, clients: Tensor) -> Tensor:
        """Return a copy of the rows of these clients, shape (S, d), zeros for those never seen."""
        if not self.seen:
            return self.rows.new_zeros(len(clients), self.rows.shape[1]).to(clients.device)
        places = self.places[clients].to(self.rows.device, torch.int64)
        rows = self.rows.index_select(0, places.clamp(min=0))
        rows[places < 0] = 0
        return rows.to(clients.device)

    def write(self, clients: Tensor, rows: Tensor) -> ClientMemory:
        """Return the memory with these rows, shape (S, d), each client at most once.

        Raises:
            InvalidInputError: the disk of the file has no room for the rows of clients not seen before.
        """
        memory = self._with_room_for(clients[self.places[clients] < 0])
        places = memory.places[clients].to(memory.rows.device, torch.int64)
        memory.rows[places] = rows.to(memory.rows.device)
        return memory

    def cleared(self) -> ClientMemory:
        """Return the memory with nobody seen, keeping the room."""
        self.places.fill_(-1)
        return replace(self, seen=0)

    def packed(self) -> dict[str, Tensor]:
        """Return what must survive: whose the rows are, and the rows."""
        return {"places": self.places, "rows": self.rows[: self.seen]}

    def unpacked(self, packed: Mapping[str, Tensor]) -> ClientMemory:
        """Return the memory with what `packed` returned, in RAM or in a file as this one is."""
        places, rows = packed["places"].to(self.places.device), packed["rows"]
        seen = len(rows)
        if self.folder is not None:
            self._reserve(seen)
            self.rows[:seen] = rows
            rows = self.rows
        return replace(self, places=places, rows=rows.to(self.rows.device), seen=seen)

    def _with_room_for(self, new: Tensor) -> ClientMemory:
        """Return the memory in which these clients, none of them seen, have rows."""
        seen = self.seen + len(new)
        self._reserve(len(new))
        self.places[new] = torch.arange(self.seen, seen, dtype=torch.int32, device=new.device)
        rows = self.rows
        if seen > len(rows):
            capacity = min(self.clients, max(seen, 2 * len(rows)))
            rows = rows.new_empty(capacity, rows.shape[1])
            rows[: self.seen] = self.rows[: self.seen]
        return replace(self, rows=rows, seen=seen)

    def _reserve(self, rows: int) -> None:
        """Refuse rows that the disk has no room for: writing them would end the process at once."""
        if self.folder is None or not rows:
            return
        needed = rows * self.rows.shape[1] * self.rows.element_size()
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise InvalidInputError(
                f"memory_folder: {self.folder} has {free:,} bytes left and the memory of {rows} "
                f"more clients needs {needed:,}; make room and resume"
            )


def _file_rows(clients: int, like: Tensor, folder: str) -> Tensor:
    """Return room for all clients in a sparse file: the disk holds only what is written."""
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
