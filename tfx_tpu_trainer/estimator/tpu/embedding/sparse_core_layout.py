"""Where the rows of tables are on SparseCores, for values that come from and go to checkpoints.

`TPUEmbeddingV2` stacks tables of one width and optimizer, pads them, and spreads each over all
SparseCores of a slice: row i of a table is on SparseCore (i + rotation) mod count, and the rows of
one SparseCore stand table after table. A device has the rows of its SparseCores, one after the other.
The layout itself is TensorFlow's: this module is given it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class TablePlace:
    """A table's place in a stack.

    Attributes:
        rows: Rows without padding.
        dim: Width without padding.
        padded_rows: Rows with padding, a multiple of the number of SparseCores.
        offset: Rows of the tables before it in the stack.
        rotation: By how many SparseCores its rows are shifted.
    """

    rows: int
    dim: int
    padded_rows: int
    offset: int
    rotation: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackLayout:
    """A stack of tables on SparseCores.

    Attributes:
        tables: Name of a table -> its place.
        padded_dim: Width of all tables, with padding.
        cores: Number of SparseCores.
    """

    tables: Mapping[str, TablePlace]
    padded_dim: int
    cores: int

    @property
    def rows(self) -> int:
        """Rows of the stack, with padding."""
        return sum(place.padded_rows for place in self.tables.values())

    def pack(self, values: Mapping[str, np.ndarray], *, devices: int) -> list[np.ndarray]:
        """Lays tables, or slots of theirs, out for devices."""
        stack = np.zeros((self.cores, self.rows // self.cores, self.padded_dim), np.float32)
        for name, value in values.items():
            core, place = self._where(name)
            stack[core, place, : self.tables[name].dim] = value
        return np.split(stack.reshape(self.rows, self.padded_dim), devices)

    def unpack(self, parts: Sequence[np.ndarray], name: str) -> np.ndarray:
        """Collects a table, or a slot of it, from the parts of the devices."""
        stack = np.concatenate(parts).reshape(self.cores, -1, self.padded_dim)
        core, place = self._where(name)
        return stack[core, place, : self.tables[name].dim]

    def _where(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns for each row of a table its SparseCore, and its place there."""
        table = self.tables[name]
        rows = np.arange(table.rows)
        return (rows + table.rotation) % self.cores, (table.offset + rows) // self.cores
