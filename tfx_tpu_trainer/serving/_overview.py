"""Describes an exported model as JSON values, without loading it."""

import collections
import os
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.file_systems import is_local, local_path
from tfx_tpu_trainer.serving._check import read_serving_check
from tfx_tpu_trainer.serving._inspect import SignatureDescription, describe_meta_graph, place_ops
from tfx_tpu_trainer.serving._requests import read_warmup
from tfx_tpu_trainer.serving._saved_model_file import (
    check_variables,
    find_saved_model,
    read_saved_model,
)


def overview(path: str | bytes | os.PathLike[str]) -> dict[str, Any]:
    """Describes the SavedModel at a path.

    Args:
        path: As in `find_saved_model`.

    Returns:
        `path` (of the SavedModel), `bytes` (of its files), `files`, `meta_graphs` (each with
        `tags`, `signatures`, `ops` by place, `batch_sizes`), `warmup` (records by signature and
        rows) and `check` (the report of `serving_check.json`, `None` without one).

    Raises:
        FileNotFoundError: If the folder does not exist or has no SavedModel.
        ValueError: If the file is not a SavedModel, variables are missing, or its warm-up requests or its report can't
            be read.
    """
    found = find_saved_model(path)
    saved_model = read_saved_model(found)
    check_variables(found, saved_model)
    sizes = dict(_file_sizes(found))
    return {
        "path": found,
        "bytes": sum(sizes.values()),
        "files": sizes,
        "meta_graphs": [_meta_graph(each) for each in saved_model.meta_graphs],
        "warmup": _warmup(found),
        "check": _check(found),
    }


def _meta_graph(meta_graph: tf.compat.v1.MetaGraphDef) -> dict[str, Any]:
    description, placement = describe_meta_graph(meta_graph), place_ops(meta_graph)
    return {
        "tags": list(description.tags),
        "signatures": {
            name: _signature(signature) for name, signature in description.signatures.items()
        },
        "num_nodes": description.num_ops,
        "ops": {
            "on_tpu": dict(placement.on_tpu),
            "outside_compilation": dict(placement.outside_compilation),
            "host": dict(placement.before),
            "host_after_tpu": list(placement.after),
            "host_beside_tpu": list(placement.beside),
            "refused_by_tpu": list(placement.refused),
        },
        "batch_sizes": list(placement.batch_sizes),
    }


def _signature(signature: SignatureDescription) -> dict[str, Any]:
    return {
        "method": signature.method_name,
        **{
            side: {key: tensor._asdict() for key, tensor in getattr(signature, side).items()}
            for side in ("inputs", "outputs")
        },
    }


def _warmup(path: str) -> list[dict[str, Any]]:
    records: collections.Counter[tuple[str, int]] = collections.Counter()
    for log in read_warmup(path):
        request = log.predict_log.request
        shapes = [tensor.tensor_shape.dim for tensor in request.inputs.values()]
        rows = {shape[0].size for shape in shapes if shape}
        records[request.model_spec.signature_name, max(rows, default=0)] += 1
    return [
        {"signature": signature, "rows": rows, "records": count}
        for (signature, rows), count in sorted(records.items())
    ]


def _check(path: str) -> dict[str, Any] | None:
    # The report is at the root of the Model artifact, one level up.
    local = "://" not in path
    report = read_serving_check(os.path.dirname(os.path.abspath(path) if local else path))
    return None if report is None else report.to_json()


def _file_sizes(path: str) -> Iterator[tuple[str, int]]:
    path = local_path(path)
    seen: set[str] = set()
    for folder, inside, names in _walk(path):
        # A link may lead back up.
        real = os.path.realpath(folder)
        if real in seen:
            inside.clear()
            continue
        seen.add(real)
        for name in names:
            file = os.path.join(folder, name)
            try:
                yield os.path.relpath(file, path), tf.io.gfile.stat(file).length
            except tf.errors.OpError as error:
                raise ValueError(
                    f"{file} can't be read ({error.message.rpartition('; ')[2]}): copy the model's folder again."
                ) from None


def _walk(path: str) -> Iterator[tuple[str, list[str], list[str]]]:
    # TensorFlow's own walk follows links forever, but it reads other file systems.
    return os.walk(path, followlinks=True) if is_local(path) else tf.io.gfile.walk(path)
