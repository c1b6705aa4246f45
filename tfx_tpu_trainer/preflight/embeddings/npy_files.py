"""Rows of .npy files."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True)
class NpyFile:
    """An array of integers in a file, of which rows are read.

    Not mapped: what is read of a mapped file counts as memory of the process, page by page.

    Attributes:
        path: The file.
        shape: `[rows]` or `[rows, ids]`.
        dtype: Of its integers.
        offset: Bytes before the first.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int

    @classmethod
    def open(cls, path: str) -> NpyFile:
        """Reads the head of a file."""
        try:
            with open(path, "rb") as file:
                version = np.lib.format.read_magic(file)
                read = {
                    (1, 0): np.lib.format.read_array_header_1_0,
                    (2, 0): np.lib.format.read_array_header_2_0,
                }[version]
                shape, by_column, dtype = read(file)
                offset = file.tell()
                size = file.seek(0, 2)
        except OSError as error:
            raise ValueError(f"{path} can't be read: {error.strerror}.") from None
        except (ValueError, KeyError, EOFError) as error:
            raise ValueError(
                f"{path} is not a .npy file ({error}): write it with np.save."
            ) from None
        if dtype.kind not in "iu":
            raise ValueError(f"{path} contains {dtype}; ids must be integers.")
        if len(shape) not in (1, 2) or (by_column and len(shape) == 2):
            raise ValueError(
                f"{path} contains an array of shape {list(shape)}{' by columns' * by_column}: give "
                "[rows] or [rows, ids], by rows."
            )
        needed = offset + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if size < needed:
            raise ValueError(
                f"{path} ends after {size:,} of {needed:,} bytes: it is incomplete; write it again."
            )
        return cls(path, shape, dtype, offset)

    def read(self, first: int, count: int) -> npt.NDArray[Any]:
        """Reads rows from the first on."""
        of_row = self.shape[1] if len(self.shape) == 2 else 1
        values = np.fromfile(
            self.path,
            self.dtype,
            count * of_row,
            offset=self.offset + first * of_row * self.dtype.itemsize,
        )
        return values.reshape(count, *self.shape[1:])
