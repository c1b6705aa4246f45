"""Lowers one core's steps of the engine: training, evaluation and prediction, as a TPU runs them.

A model is traced as the engine traces it for cores, through the calls of `TPUEstimator`, and a core fetches the same
tensors as in `estimator/tpu/cores/`. The bodies of host_call and eval_metrics run on the host and are left out; their
tensors leave the TPU and are included.
"""

import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator import ModeKeys
from tfx_tpu_trainer.estimator.extending import (
    CoreTrace,
    HostFunction,
    ModelTemplate,
    TPUCallSettings,
    TPUEstimatorCalls,
    call_graph,
    check_predictions,
    check_training_on_cores,
    input_partitions,
    named_leaves,
    source_line,
)
from tfx_tpu_trainer.estimator.tpu import RunConfig
from tfx_tpu_trainer.preflight._lowering import lower
from tfx_tpu_trainer.preflight._report import bytes_text
from tfx_tpu_trainer.preflight._results import Finding, LoweredStep
from tfx_tpu_trainer.preflight._step_graph import StepGraph, without_outside_ops

v1 = tf.compat.v1

STEP_NAMES = {ModeKeys.TRAIN: "train", ModeKeys.EVAL: "eval", ModeKeys.PREDICT: "predict"}

InputFn = Callable[..., Any]


def input_fn_of_specs(features: Any, labels: Any = None) -> InputFn:
    """Returns an input function of zeros, for a model whose data is not available.

    Args:
        features: Nested structure of `tf.TensorSpec`s of one row, without the batch axis.
        labels: The labels, in the same form. Defaults to `None`, no labels.

    Returns:
        An input function: full batches of `params["batch_size"]` rows.
    """

    def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
        structure = features if labels is None else (features, labels)
        row = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), structure)
        rows = tf.data.Dataset.from_tensors(row).repeat()
        return rows.batch(params["batch_size"], drop_remainder=True)

    return input_fn


def lower_engine_step(
    model_fn: Callable[..., Any],
    input_fn: InputFn,
    mode: str,
    *,
    batch_size: int,
    num_replicas: int,
    params: Mapping[str, Any] | None = None,
    config: RunConfig | None = None,
    batch_axis: Sequence[int] | None = None,
    embedding_config_spec: Any = None,
) -> LoweredStep:
    """Traces a model as `TPUEstimator` does for cores, and lowers the step of one core."""
    config = _config_of(config or RunConfig(), num_replicas)
    calls = TPUEstimatorCalls(
        model_fn,
        config=config,
        params=params or {},
        settings=TPUCallSettings(
            on_cores=dict.fromkeys(STEP_NAMES, True),
            batch_sizes=dict.fromkeys(STEP_NAMES, batch_size),
            batch_axis=batch_axis,
            embedding_config_spec=embedding_config_spec,
            report_period=None,
            report_steps=None,
        ),
        export_options={},
    )
    with call_graph(config) as graph:
        # Emulated cores run the same step as a TPU's.
        trace = calls.on_emulated_cores(input_fn, mode).trace()
        _check(trace.template, num_replicas)
        return lower(_step_of(graph, trace))


def _config_of(config: RunConfig, num_replicas: int) -> RunConfig:
    tpu_config = config.tpu_config._replace(num_shards=num_replicas)
    # A model may use its name in paths; nothing is written there.
    model_dir = config.model_dir or os.path.join(tempfile.gettempdir(), "preflight")
    return config.replace(tpu_config=tpu_config, model_dir=model_dir)


def _check(template: ModelTemplate, num_replicas: int) -> None:
    """Makes the checks that the places make before they run a template on cores."""
    if template.mode == ModeKeys.TRAIN:
        check_training_on_cores(template, cores=num_replicas, only_outside=True)
    elif template.mode == ModeKeys.PREDICT:
        check_predictions(template.predictions)


def _step_of(graph: tf.Graph, trace: CoreTrace) -> StepGraph:
    template, run = trace.template, trace.run
    embeddings = trace.embeddings
    received = {} if embeddings is None else embeddings.received
    placeholders = list(trace.feed.placeholders)
    if trace.is_padding is not None:
        placeholders.append(trace.is_padding)
    host_functions = [template.host_call]
    if template.mode == ModeKeys.EVAL:
        host_functions.append(template.eval_metrics)
    outputs: list[tf.Tensor] = []
    if template.mode == ModeKeys.PREDICT:
        outputs += tf.nest.flatten(template.predictions)
    elif template.loss is not None:
        outputs.append(template.loss)
    for function in host_functions:
        outputs += [] if function is None else tf.nest.flatten(function.tensors)
    outputs += [] if embeddings is None else embeddings.sent.values()
    leaves = named_leaves(trace.feed.features, trace.feed.labels)
    called = {placeholder.name: name for name, placeholder in leaves.items()}
    called |= {tensor.name: f"embedded {name!r}" for name, tensor in received.items()}
    given = [*placeholders, *received.values()]
    on_tpu = without_outside_ops(graph, [tensor.name for tensor in outputs])
    step = StepGraph(
        name=STEP_NAMES[template.mode],
        graph_def=on_tpu.graph_def,
        inputs={each.name: _full_spec(each, run.sizes.model_fn) for each in given},
        outputs=[on_tpu.replaced.get(tensor.name, tensor.name) for tensor in outputs],
        targets=[on_tpu.stand_ins.get(name, name) for name in _targets(template)],
        num_replicas=run.cores,
        num_partitions=run.layout.num_cores_per_replica,
        input_partitions=input_partitions(
            run.input_partition_dims, features=trace.feed.features, labels=trace.feed.labels
        ),
        rows=run.sizes.model_fn,
        input_names=[called.get(each.name, each.op.name) for each in given],
        sources={op.name: source_line(op) for op in graph.get_operations()},
        trained={variable.op.name for variable in v1.trainable_variables()},
        findings=tuple(
            _host_finding(function)
            for function in host_functions
            if function is not None and tf.nest.flatten(function.tensors)
        )
        + (() if on_tpu.finding is None else (on_tpu.finding,))
        + _table_findings(trace, cores=run.cores * run.layout.num_cores_per_replica),
    )
    return step if trace.embeddings is None else step.without_unused_inputs()


def _table_findings(trace: CoreTrace, *, cores: int) -> tuple[Finding, ...]:
    """Reports the embedding tables' HBM, which adds to the program's."""
    if trace.embeddings is None:
        return ()
    before = {variable.ref() for variable in v1.global_variables()}
    if trace.template.table_update is not None:
        # Called for its side effect of making the optimizers' slots.
        trace.template.table_update()
    tables = [
        *trace.embeddings.tables.values(),
        *(variable for variable in v1.global_variables() if variable.ref() not in before),
    ]
    size = sum(math.prod(each.shape.as_list()) * each.dtype.size for each in tables)
    return (
        Finding(
            kind="embedding",
            message=(
                "The tables of embedding_config_spec and their optimizer slots take "
                f"{bytes_text(size)}: {bytes_text(size / cores)} on each of the {cores} TPU "
                "devices that share them, in addition to the HBM of this step."
            ),
        ),
    )


def _targets(template: ModelTemplate) -> list[str]:
    train_op = template.train_op
    if train_op is None:
        return []
    return [train_op.op.name if isinstance(train_op, tf.Tensor) else train_op.name]


def _full_spec(placeholder: tf.Tensor, rows: int) -> tf.TensorSpec:
    """Returns the spec of a full batch; if short batches may come, the batch size is open."""
    sizes = [rows if size is None else size for size in placeholder.shape.as_list()]
    return tf.TensorSpec(sizes, placeholder.dtype)


def _host_finding(function: HostFunction) -> Finding:
    number = len(tf.nest.flatten(function.tensors))
    return Finding(
        kind="host_op",
        message=(
            f"{function.name} runs on the host: {number} tensor{'s' if number > 1 else ''} per "
            "core must leave the TPU for it."
        ),
    )
