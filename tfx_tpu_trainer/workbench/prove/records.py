"""A record: what one side of a proof did, as named arrays.

A folder with `record.json`, which lists the entries in their order, and a file of arrays for each. NumPy alone reads
and writes it: the environment of the original writes records too.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class Entry(NamedTuple):
    """Names some arrays: a key of `comparison.SUBJECTS`, a call such as `"train 1"`, and a global step."""

    subject: str
    call: str = ""
    step: int | None = None


@dataclasses.dataclass
class Record:
    """The record of one side: its entries in their order, with the numbers of their files."""

    folder: str
    entries: dict[Entry, int] = dataclasses.field(default_factory=dict)
    tensorflow: str = ""
    # What could not be held equal, and what was recorded in part.
    unheld: list[str] = dataclasses.field(default_factory=list)
    partly: list[str] = dataclasses.field(default_factory=list)

    @classmethod
    def load(cls, folder: str) -> "Record":
        """Reads a record."""
        with open(os.path.join(folder, "record.json"), encoding="utf-8") as file:
            values = json.load(file)
        entries = {Entry(*each): number for number, each in enumerate(values.pop("entries"))}
        return cls(folder, entries, **values)

    def save(self) -> None:
        """Writes `record.json`; the arrays are written already."""
        values = {**vars(self), "entries": list(self.entries)}
        del values["folder"]
        with open(os.path.join(self.folder, "record.json"), "w", encoding="utf-8") as file:
            json.dump(values, file)

    def add(self, entry: Entry, values: Mapping[str, Any]) -> int:
        """Adds an entry's arrays by name, and returns their size in bytes."""
        arrays, eps = [], []
        for value in map(np.asarray, values.values()):
            # NumPy lacks bfloat16, and objects are strings.
            others = {"bfloat16": np.float32, "object": bytes}
            arrays.append(value.astype(others.get(value.dtype.name, value.dtype)))
            is_float = arrays[-1].dtype.kind in "fc"
            eps.append(np.finfo(arrays[-1].dtype).eps if is_float else 0.0)
            if value.dtype.name == "bfloat16":
                eps[-1] = 2.0**-7
        self.entries.setdefault(entry, len(self.entries))
        np.savez(self._path(entry), np.array([*values], str), np.array(eps, float), *arrays)
        return sum(array.nbytes for array in arrays)

    def read(self, entry: Entry) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """Returns an entry's arrays, and the precision of their types, by name."""
        with np.load(self._path(entry)) as file:
            names, eps, *arrays = (file[key] for key in file.files)
        return dict(zip(names.tolist(), arrays)), dict(zip(names.tolist(), eps.tolist()))

    def _path(self, entry: Entry) -> str:
        return os.path.join(self.folder, f"{self.entries[entry]}.npz")
