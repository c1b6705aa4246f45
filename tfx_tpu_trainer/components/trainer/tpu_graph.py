"""The graph for TPU hosts, checked before the first step: what no TPU can run, and how to mend it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.progress import TRACE, phase
from tfx_tpu_trainer.components.trainer import tpu_serving_check
from tfx_tpu_trainer.components.trainer.settings import TrainSettings
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.serving import Finding, ServingCheckError, check_placement, place_ops

v1 = tf.compat.v1
_logger = logging.getLogger(__name__)


def check_tpu_graph(
    estimator: tpu.TPUEstimator,
    receiver_fn: Callable[[], Any],
    settings: TrainSettings,
) -> Finding | None:
    """Builds the metagraph for TPU hosts, and compiles it as the settings ask for a check of the export."""
    try:
        with phase(TRACE):
            (built,) = estimator.build_graphs(serving_input_receiver_fn=receiver_fn)
    except Exception as error:  # Whatever it is, the graph for CPU hosts has been built.
        if settings.requires_tpu_graph:
            raise
        _leave_out(f"{type(error).__name__}: {error}")
        return None
    if settings.serving_check == "off":
        return Finding("not run", "serving_check='off'")
    definition = built.definition()
    with phase("serving check"):
        found = _check(definition, receiver_fn, settings)
    if found.outcome != "failed":
        return found
    problem = found.detail.rstrip(".")
    if "export_to_tpu=False" not in problem:
        problem += "; or export for CPU hosts only, with export_to_tpu=False"
    if not settings.requires_tpu_graph:
        _leave_out(problem)
        return None
    if settings.serving_check == "error":
        raise ServingCheckError(
            f"Nothing was trained: the exported model would fail its check: {tpu_serving_check.CHECK}: "
            f"{problem}; or let it pass with serving_check='warn'"
        )
    _logger.warning("serving_check='warn': the exported model will fail its check: %s", problem)
    return found


def padded_batch_sizes(meta_graphs: Iterable[v1.MetaGraphDef]) -> tuple[int, ...]:
    """Returns the sizes that a model itself pads its batches to, on any host; none where it does not."""
    placements = map(place_ops, meta_graphs)
    return next((each.batch_sizes for each in placements if each.batch_sizes), ())


def check_compiles(model: str | v1.MetaGraphDef, settings: TrainSettings, rows: int) -> Finding:
    """Compiles the metagraph for TPU hosts for the slice that the settings name."""
    return tpu_serving_check.check_compiles(
        model,
        batch_size=rows,
        target=settings.tpu.slice_name if settings.tpu else tpu_serving_check.DEFAULT_TARGET,
        timeout_seconds=settings.serving_check_timeout,
    )


def _check(
    definition: v1.MetaGraphDef, receiver_fn: Callable[[], Any], settings: TrainSettings
) -> Finding:
    if composite := _composite_features(definition, receiver_fn):
        features = " and ".join(
            f"the {kind} feature{'s' if names[1:] else ''} {', '.join(names)}"
            for kind, names in composite.items()
        )
        cures = ", ".join(_DENSE[kind] for kind in composite)
        return Finding(
            "failed",
            f"a TPU program has static shapes, so it can't take {features}; {cures}, in Transform or "
            "in a serving_input_receiver_fn of the module",
        )
    placed = check_placement(
        place_ops(definition), whole_model=settings.export_saved_model_api_version == 1
    )
    if placed.outcome == "failed":
        return placed
    rows = max(settings.warmup_batch_sizes or padded_batch_sizes([definition]), default=1)
    return check_compiles(definition, settings, rows)


def _leave_out(problem: str) -> None:
    _logger.warning(
        "The model is exported for CPU hosts only, since no TPU can run it: %s. The "
        "settings name no TPU: export_to_tpu=True makes this an error, export_to_tpu=False no warning.",
        problem.rstrip("."),
    )


def _composite_features(
    definition: v1.MetaGraphDef, receiver_fn: Callable[[], Any]
) -> dict[str, list[str]]:
    """Returns which features go into the TPU computation as several tensors, by kind."""
    with tf.Graph().as_default():
        # In a graph of its own a receiver names its tensors as it did in the metagraph's.
        features = receiver_fn().features
    named = features if isinstance(features, Mapping) else {"features": features}
    taken = {
        source.partition(":")[0]
        for node in definition.graph_def.node
        if node.op == "TPUPartitionedCall"
        for source in node.input
    }
    found: dict[str, list[str]] = {}
    for name, feature in sorted(named.items(), key=str):
        parts = tf.nest.flatten(feature, expand_composites=True)
        if not isinstance(feature, tf.Tensor) and taken & {part.op.name for part in parts}:
            kind = "sparse" if isinstance(feature, tf.SparseTensor) else "ragged"
            found.setdefault(kind, []).append(repr(name))
    return found


_DENSE = {
    "sparse": "make sparse ones dense (tft.sparse_tensor_to_dense_with_shape)",
    "ragged": "pad ragged ones (to_tensor(shape=[None, n]))",
}
