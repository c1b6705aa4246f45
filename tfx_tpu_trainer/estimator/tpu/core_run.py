"""One call of train, evaluate or predict on TPU cores: its layout, its batch sizes, its trace."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine import tf_private
from tfx_tpu_trainer.engine.feeding.core_feed import CoreFeed
from tfx_tpu_trainer.engine.feeding.core_layout import (
    BatchSizes,
    CoreLayout,
    InputMode,
    batch_sizes,
    number_of_sources,
    row_slices,
)
from tfx_tpu_trainer.engine.feeding.input_pipeline import InputTensors, as_input_tensors
from tfx_tpu_trainer.engine.feeding.short_batches import FiniteFeed
from tfx_tpu_trainer.engine.reporting.summary_hooks import HostCallHook
from tfx_tpu_trainer.engine.sessions.guarded_hooks import keep_from_hooks
from tfx_tpu_trainer.engine.sessions.tpu_system import TPUSystem
from tfx_tpu_trainer.engine.template import ModelTemplate
from tfx_tpu_trainer.estimator import spec_checks
from tfx_tpu_trainer.estimator.mode_keys import ModeKeys
from tfx_tpu_trainer.estimator.tpu.host_scaffold import make_host_scaffold
from tfx_tpu_trainer.estimator.tpu.input_partitions import check_input_partitions
from tfx_tpu_trainer.estimator.tpu.padding import with_padding
from tfx_tpu_trainer.estimator.tpu.run_config import RunConfig
from tfx_tpu_trainer.estimator.tpu.run_place import emulated_replicas
from tfx_tpu_trainer.estimator.tpu.tpu_config import TPUConfig
from tfx_tpu_trainer.estimator.tpu.tpu_context import TPUContext
from tfx_tpu_trainer.estimator.tpu.tpu_estimator_spec import TPUEstimatorSpec

v1 = tf.compat.v1
_logger = tf.get_logger()

# One call of input_fn feeds all cores of all hosts.
_READ_ONCE = (InputMode.BROADCAST, InputMode.SLICED)
_CALLS = {ModeKeys.TRAIN: "train", ModeKeys.EVAL: "evaluate", ModeKeys.PREDICT: "predict"}
_BATCH_SIZE_NAMES = {
    ModeKeys.TRAIN: "train_batch_size",
    ModeKeys.EVAL: "eval_batch_size",
    ModeKeys.PREDICT: "predict_batch_size",
}

CallInputFn = Callable[[dict[str, Any]], Any]
"""Calls input_fn with what is to be added to its params."""

CallModelFn = Callable[[Any, Any, dict[str, Any]], Any]
"""Calls model_fn with features, labels and what is to be added to its params."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoreRun:
    """How a call runs on cores.

    Attributes:
        mode: One of `ModeKeys`.
        layout: Replicas, cores and hosts.
        input_mode: How the rows of the input travel to the replicas.
        sizes: Batch sizes that input_fn and model_fn see.
        batch_axis: The axis of each input tensor to split, or `None`.
        input_partition_dims: How a replica's input is cut over its cores, or `None`.
        system: The TPU; `None` where its cores are emulated.
    """

    mode: str
    layout: CoreLayout
    input_mode: InputMode
    sizes: BatchSizes
    batch_axis: Sequence[int | None] | None
    input_partition_dims: Sequence[Any] | None = None
    system: TPUSystem | None = None

    @property
    def cores(self) -> int:
        """Number of replicas."""
        return self.layout.num_replicas

    @property
    def broadcast(self) -> bool:
        """Whether every replica has the whole batch."""
        return self.input_mode is InputMode.BROADCAST


@dataclasses.dataclass(frozen=True)
class CoreTrace:
    """A model traced for cores.

    Attributes:
        template: The model.
        feed: Returns each core its rows; in training a `CoreFeed`, else a `FiniteFeed`.
        is_padding: In mode `"infer"` the placeholder of which rows are padding.
        hooks: What the session needs for the input and the host_call.
    """

    template: ModelTemplate
    feed: Any
    is_padding: tf.Tensor | None
    hooks: list[v1.train.SessionRunHook]


def plan_core_run(
    mode: str,
    *,
    config: RunConfig,
    global_batch_size: int | None,
    batch_axis: Sequence[int | None] | None,
    system: TPUSystem | None = None,
) -> CoreRun:
    """Works out how a call runs on cores.

    Args:
        mode: One of `ModeKeys`.
        config: The configuration of the run; emulated, `emulated_replicas()` where it names no
            `num_shards`.
        global_batch_size: Rows of a step over all replicas.
        batch_axis: What the estimator was given; used with PER_HOST_V1 only.
        system: The TPU. Defaults to `None`: its cores are emulated.

    Returns:
        The run.

    Raises:
        ValueError: If there is no batch size, or the replicas do not divide it, or a replica is
            wider than a host, or the TPU has not the cores that the configuration counts on.
        RuntimeError: If the replicas do not use up the TPU's cores.
        TypeError: If predict is given a `batch_axis` with PER_HOST_V1.
    """
    tpu_config = config.tpu_config
    input_mode = _input_mode(mode, config)
    # An input that is read to its end must be read by one host: two would each read all of it.
    one_host = mode != ModeKeys.TRAIN and input_mode not in _READ_ONCE
    if system is None:
        layout = CoreLayout(
            tpu_config.num_shards or emulated_replicas(),
            tpu_config.num_cores_per_replica or 1,
            model_parallelism=bool(tpu_config.num_cores_per_replica),
            one_host=one_host,
        )
    else:
        layout = _layout_of(system, tpu_config, one_host=one_host)
    per_host_v1 = input_mode is InputMode.PER_HOST_V1
    if mode == ModeKeys.PREDICT and per_host_v1 and batch_axis is not None:
        raise TypeError("For mode PREDICT, batch_axis is not supported yet: leave it out.")
    if (
        layout.num_cores_per_replica > layout.cores_per_host
        and tpu_config.per_host_input_for_training != InputMode.PER_HOST_V2
    ):
        raise ValueError(
            "Except the PER_HOST_V2 mode, the num of cores required by model parallelism specified "
            "by TPUConfig.num_cores_per_replica should be less than or equal to the "
            f"num_cores_per_host. num_cores_per_replica: {layout.num_cores_per_replica}, "
            f"num_cores_per_host: {layout.cores_per_host}. The input mode is {input_mode.name}: "
            "choose another one with TPUConfig(per_host_input_for_training=...)."
        )
    name = _BATCH_SIZE_NAMES[mode]
    if global_batch_size is None:
        raise ValueError(
            f"{name} in TPUEstimator constructor cannot be `None` if .{_CALLS[mode]} is running on "
            "TPU."
        )
    if input_mode not in _READ_ONCE and global_batch_size % layout.num_replicas:
        raise ValueError(
            f"{name.replace('_', ' ')} {global_batch_size} must be divisible by number of replicas "
            f"{layout.num_replicas}: {layout.num_replicas * (global_batch_size // layout.num_replicas)}"
            f" and {layout.num_replicas * (global_batch_size // layout.num_replicas + 1)} are."
        )
    return CoreRun(
        mode=mode,
        layout=layout,
        input_mode=input_mode,
        sizes=batch_sizes(input_mode, layout, global_batch_size),
        batch_axis=batch_axis if per_host_v1 else None,
        input_partition_dims=tpu_config.input_partition_dims,
        system=system,
    )


def trace_on_cores(
    run: CoreRun, *, call_input_fn: CallInputFn, call_model_fn: CallModelFn
) -> CoreTrace:
    """Calls the user's functions in the default graph, model_fn on one replica's placeholders.

    Args:
        run: How the call runs.
        call_input_fn: Calls input_fn, once for each source.
        call_model_fn: Calls model_fn, once.

    Returns:
        The trace.

    Raises:
        TypeError: If input_fn returns what its mode does not take.
        RuntimeError: If model_fn returns another spec than the mode needs.
        ValueError: If the input's shapes do not hold, or model_fn makes summaries of the v1 API.
    """
    sources = [
        _source(run, call_input_fn, i) for i in range(number_of_sources(run.input_mode, run.layout))
    ]
    slices = row_slices(run.input_mode, run.layout)
    if run.mode == ModeKeys.TRAIN:
        feed = CoreFeed(sources, slices, batch_axes=run.batch_axis)
    else:
        feed = FiniteFeed(
            sources,
            slices,
            batch_axes=run.batch_axis,
            batch_size=run.sizes.input_fn,
            padded=run.mode == ModeKeys.PREDICT,
        )
    features, is_padding = feed.features, None
    if run.mode == ModeKeys.PREDICT:
        is_padding = v1.placeholder(tf.bool, [run.sizes.model_fn], name="is_padding")
        features = with_padding(features, is_padding)
    check_input_partitions(
        run.input_partition_dims,
        features=feed.features,
        labels=feed.labels,
        num_cores_per_replica=run.layout.num_cores_per_replica,
    )
    if v1.get_collection(v1.GraphKeys.QUEUE_RUNNERS):
        _logger.warning(
            "Input pipeline contains one or more QueueRunners. It could be slow and not scalable. "
            "Please consider converting your input pipeline to use `tf.data` instead (see "
            "https://www.tensorflow.org/guide/datasets for instructions.)"
        )
    added = {
        "batch_size": run.sizes.model_fn,
        "use_tpu": True,
        "context": TPUContext(run.layout, run.input_mode, job=_job(run)),
    }
    of_input = {summary.name for summary in v1.get_collection(v1.GraphKeys.SUMMARIES)}
    with tf_private.replicas(run.cores):
        spec = _call_for_spec(call_model_fn, features, feed.labels, added, run.mode)
    _check_no_v1_summaries(of_input)
    template = spec.as_template(mode=run.mode, features=features, labels=feed.labels)
    make_scaffold = v1.train.Scaffold
    if isinstance(spec, TPUEstimatorSpec) and spec.scaffold_fn is not None:
        make_scaffold = functools.partial(
            make_host_scaffold, spec.scaffold_fn, [*feed.placeholders, is_padding]
        )
    template = dataclasses.replace(template, make_scaffold=make_scaffold)
    keep_from_hooks([*feed.placeholders, *([] if is_padding is None else [is_padding])])
    hooks = [hook for source in sources for hook in source.hooks]
    # Summary writers need opening wherever they were made: in host_call or in model_fn itself.
    hooks.append(HostCallHook([]))
    return CoreTrace(template, feed, is_padding, hooks)


def share_of_replica(
    global_batch_size: int | None, *, replicas: int, use_tpu: bool
) -> dict[str, Any]:
    """Returns what the params of input_fn and model_fn say under a `tf.distribute` strategy.

    Args:
        global_batch_size: Rows of a step over all replicas, or `None`.
        replicas: Number of replicas.
        use_tpu: What the estimator was told.

    Returns:
        The batch size of one replica, and with `use_tpu` the context; each replica reads its own
        batches, as with PER_HOST_V2.

    Raises:
        ValueError: If the replicas do not divide the batch size.
    """
    added: dict[str, Any] = {"use_tpu": use_tpu}
    if use_tpu:
        added["context"] = TPUContext(
            CoreLayout(replicas, one_host=True), InputMode.PER_HOST_V2, invocation=0
        )
    if global_batch_size is None:
        return added
    share, rest = divmod(global_batch_size, replicas)
    if rest:
        raise ValueError(
            f"The batch size {global_batch_size} must be divisible by the number of replicas of "
            f"the tf.distribute strategy, {replicas}."
        )
    return {**added, "batch_size": share}


def _layout_of(system: TPUSystem, tpu_config: TPUConfig, *, one_host: bool) -> CoreLayout:
    """Returns the layout that a TPU has: its cores say how many replicas there are."""
    per_replica = tpu_config.num_cores_per_replica or 1
    if per_replica > system.num_cores:
        raise ValueError(
            "The num of cores required by the model parallelism, specified by "
            "TPUConfig.num_cores_per_replica, is larger than the total num of TPU cores in the "
            f"system. num_cores_per_replica: {per_replica}, num cores in the system: "
            f"{system.num_cores}."
        )
    num_replicas, rest = divmod(system.num_cores, per_replica)
    if rest:
        raise RuntimeError(
            f"The num of cores in the system ({system.num_cores}) is not divisible by the num of "
            f"cores ({per_replica}) required by the model parallelism, specified by "
            "TPUConfig.num_cores_per_replica: choose a number that divides it."
        )
    if tpu_config.num_shards not in (None, num_replicas):
        raise ValueError(
            "TPUConfig.num_shards is not set correctly. According to TPU system metadata for "
            f"Tensorflow master ({system.master}): num_replicas should be ({num_replicas}), got "
            f"({tpu_config.num_shards}): the TPU has {system.num_cores} cores, and a replica "
            f"{per_replica}. Set it to that number or leave it out."
        )
    if per_replica > 1:
        raise ValueError(
            f"num_cores_per_replica={per_replica} on TPU hardware is not supported: a replica "
            "runs on one core. Leave it out, or emulate with RunConfig(master='emulated')."
        )
    return CoreLayout(
        num_replicas,
        per_replica,
        one_host=one_host,
        cores_per_host=system.num_cores // system.num_hosts,
    )


def _job(run: CoreRun) -> str | None:
    return None if run.system is None else run.system.job


def _input_mode(mode: str, config: RunConfig) -> InputMode:
    trained = InputMode(config.tpu_config.per_host_input_for_training)
    if mode == ModeKeys.TRAIN:
        return trained
    evaluated = InputMode(config.tpu_config.eval_training_input_configuration)
    if evaluated is InputMode.SLICED:
        return evaluated
    # PER_SHARD_V1 is of training only.
    return InputMode.PER_HOST_V1 if trained is InputMode.PER_SHARD_V1 else trained


def _source(run: CoreRun, call_input_fn: CallInputFn, index: int) -> InputTensors:
    context = TPUContext(run.layout, run.input_mode, invocation=index, job=_job(run))
    with _input_scope(run, index, context):
        returned = call_input_fn({"batch_size": run.sizes.input_fn, "context": context})
    is_dataset = isinstance(returned, tf.data.Dataset)
    if run.input_mode is InputMode.PER_SHARD_V1 and is_dataset:
        raise TypeError(
            "`input_fn` returning `Dataset`  is not yet supported in per-Core input pipeline "
            "deployment yet. Please set TPUConfig.per_host_input_for_training to True or return "
            "`features` and `labels` from `input_fn`."
        )
    if run.input_mode is InputMode.PER_HOST_V2 and not is_dataset:
        raise TypeError(
            "`input_fn` must return a `Dataset` for the PER_HOST_V2 input pipeline configuration; "
            f"got {returned!r}."
        )
    if run.mode == ModeKeys.PREDICT and not is_dataset:
        raise TypeError(
            "For mode PREDICT, `input_fn` must return `Dataset` instead of `features` and "
            f"`labels`: only a dataset tells where it ends; got {returned!r}."
        )
    if run.mode == ModeKeys.PREDICT and _has_features_alone(returned):
        returned = returned.map(lambda features: features)
    return as_input_tensors(returned).with_tensors()


def _has_features_alone(dataset: tf.data.Dataset) -> bool:
    """Tells whether the elements are tuples of one, which the original takes to predict from."""
    return type(dataset.element_spec) is tuple and len(dataset.element_spec) == 1


def _input_scope(
    run: CoreRun, index: int, context: TPUContext
) -> contextlib.AbstractContextManager[Any]:
    """Returns the name scope of a call of input_fn; names of the original's graphs."""
    if run.input_mode in _READ_ONCE:
        return contextlib.nullcontext()
    scope = f"input_pipeline_task{context.current_host}/"
    if run.input_mode is InputMode.PER_SHARD_V1:
        scope += f"ordinal_{index % run.layout.replicas_per_host}/"
    return v1.name_scope(scope)


def _call_for_spec(
    call_model_fn: CallModelFn, features: Any, labels: Any, added: dict[str, Any], mode: str
) -> Any:
    try:
        spec = call_model_fn(features, labels, added)
    except spec_checks.NoSpecError as error:
        if mode == ModeKeys.TRAIN:
            raise
        # In the original this is an error of the spec's type, whatever it is.
        _check_spec(error.returned, mode)
        raise
    _check_spec(spec, mode)
    return spec


def _check_spec(spec: Any, mode: str) -> None:
    if isinstance(spec, TPUEstimatorSpec):
        return
    if mode != ModeKeys.TRAIN:
        raise RuntimeError(
            f"estimator_spec used by TPU {'evaluation' if mode == ModeKeys.EVAL else 'prediction'}"
            f" must have type`TPUEstimatorSpec`. Got {type(spec)}. The metrics and the scaffold of "
            "any other can't be taken from the cores."
        )
    if spec.training_chief_hooks:
        raise ValueError(
            "training_chief_hooks returned by EstimatorSpec is not supported in TPUEstimator. If "
            "you want to pass training hooks, please pass via training_hooks."
        )
    _logger.warning(
        "EstimatorSpec.Scaffold is ignored by TPU train/eval. Please use TPUEstimatorSpec."
    )


def _check_no_v1_summaries(of_input: Collection[str]) -> None:
    """Checks that model_fn made none; input_fn may, as queues do, on its host."""
    for summary in v1.get_collection(v1.GraphKeys.SUMMARIES):
        if summary.name not in of_input:
            raise ValueError(
                f"model_fn makes a summary of the v1 API ({summary.op.name}), which can't be read "
                "from TPU cores: write it in host_call, with tf.summary of TensorFlow 2."
            )
