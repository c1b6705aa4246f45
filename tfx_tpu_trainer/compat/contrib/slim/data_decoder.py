"""Decoders of a record into items."""

import abc
from collections.abc import Sequence
from typing import Any

__all__ = ["DataDecoder"]


class DataDecoder(abc.ABC):
    """Decodes records to items."""

    @abc.abstractmethod
    def decode(self, data: Any, items: Sequence[str]) -> Sequence[Any]:
        """Decodes a record."""

    @abc.abstractmethod
    def list_items(self) -> Sequence[str]:
        """Returns the names of the items that it can make."""
