"""What a SavedModel says of itself, as plain JSON values: tags, signatures, op types."""

import os
from collections.abc import Iterator
from typing import Any

from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

TPU_CALL = "TPUPartitionedCall"
BATCH_FUNCTION = "BatchFunction"
BATCH_NUMBERS = (
    "num_batch_threads",
    "max_batch_size",
    "batch_timeout_micros",
    "max_enqueued_batches",
)


def read_facts(path: str) -> list[dict[str, Any]]:
    """Facts of the SavedModel under `path`; one dict a metagraph, in the file's order."""
    return [_meta_graph_facts(meta_graph) for meta_graph in read_saved_model(path).meta_graphs]


def read_saved_model(path: str) -> saved_model_pb2.SavedModel:
    """Reads `saved_model.pb` as it stands."""
    saved_model = saved_model_pb2.SavedModel()
    with open(os.path.join(path, "saved_model.pb"), "rb") as file:
        saved_model.ParseFromString(file.read())
    return saved_model


def _meta_graph_facts(meta_graph: Any) -> dict[str, Any]:
    nodes = meta_graph.graph_def.node
    library = {f.signature.name: f for f in meta_graph.graph_def.library.function}
    batch_functions = [node for node in nodes if node.op == BATCH_FUNCTION]
    in_batches = [n for node in batch_functions for n in _nodes_of(_function(node), library)]
    calls = [node for node in [*nodes, *in_batches] if node.op == TPU_CALL]
    behind = [node for call in calls for node in _nodes_of(_function(call), library)]
    return {
        "tags": list(meta_graph.meta_info_def.tags),
        "signatures": {
            name: {
                "method": signature.method_name,
                "inputs": _tensors(signature.inputs),
                "outputs": _tensors(signature.outputs),
            }
            for name, signature in sorted(meta_graph.signature_def.items())
        },
        "ops": sorted({node.op for node in nodes}),
        "tpu_calls": len(calls),
        "tpu_call_ops": sorted({node.op for node in behind}),
        "outside_compiled_ops": sorted(
            {n.op for n in behind if "_xla_outside_compilation" in n.attr}
        ),
        "replicated_ops": sorted({n.op for n in behind if "_tpu_replicate" in n.attr}),
        "batch_functions": [_batch_facts(node) for node in batch_functions],
        "default_attributes": any("container" in node.attr for node in nodes),
        "assets": sorted(_asset_names(meta_graph)),
        "collections": sorted(meta_graph.collection_def),
    }


def _function(node: Any) -> str:
    return node.attr["f"].func.name


def _batch_facts(node: Any) -> dict[str, Any]:
    """What a BatchFunction was told; an attribute that is not there has its default value."""
    attributes = {name: node.attr[name].i for name in BATCH_NUMBERS if name in node.attr}
    attributes["allowed_batch_sizes"] = list(node.attr["allowed_batch_sizes"].list.i)
    return attributes


def _asset_names(meta_graph: Any) -> Iterator[str]:
    """The files that a v1 metagraph reads; they stand in a collection, not in asset_file_def."""
    for packed in meta_graph.collection_def["saved_model_assets"].any_list.value:
        asset = meta_graph_pb2.AssetFileDef()
        packed.Unpack(asset)
        yield asset.filename


def _nodes_of(name: str, library: dict[str, Any]) -> Iterator[Any]:
    """The nodes of a function and of the functions that it calls."""
    for node in library[name].node_def:
        yield node
        for attr in node.attr.values():
            if attr.HasField("func") and attr.func.name in library:
                yield from _nodes_of(attr.func.name, library)


def _tensors(infos: Any) -> dict[str, Any]:
    facts = {}
    for key, info in sorted(infos.items()):
        shape = None if info.tensor_shape.unknown_rank else [d.size for d in info.tensor_shape.dim]
        facts[key] = [info.dtype, shape]
    return facts
