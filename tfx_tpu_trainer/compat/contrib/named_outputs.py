"""The collections that layers put their variables and outputs into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


def collect_named_outputs(collections: Any, alias: str, outputs: Any) -> Any:
    """Puts a layer's output into collections, and the layer's name on it as an alias."""
    if collections:
        outputs.aliases = [*getattr(outputs, "aliases", ()), alias.removesuffix("/")]
        v1.add_to_collections(collections, outputs)
    return outputs


def convert_collection_to_dict(collection: str, clear_collection: bool = False) -> dict[str, Any]:
    """Returns the outputs in a collection by their aliases."""
    found = v1.get_collection(collection)
    if clear_collection:
        v1.get_default_graph().clear_collection(collection)
    return {
        alias: tensor for tensor in found for alias in getattr(tensor, "aliases", (tensor.op.name,))
    }


def get_variable_collections(variables_collections: Any, name: str) -> Sequence[str] | None:
    """Returns the collections that one variable of a layer goes into."""
    if isinstance(variables_collections, Mapping):
        return variables_collections.get(name)
    return variables_collections
