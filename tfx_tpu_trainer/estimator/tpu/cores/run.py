"""Configures how a call runs on TPU cores: layout, input mode, batch sizes, loops."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import (
    LoopLength,
    LoopLengthFromTime,
    Loops,
    TunedLoopLength,
    whole_steps,
)
from tfx_tpu_trainer.estimator._modes import ModeKeys
from tfx_tpu_trainer.estimator._user_calls import BATCH_SIZE_NAMES
from tfx_tpu_trainer.estimator.places.choice import emulated_replicas
from tfx_tpu_trainer.estimator.tpu._run_config import (
    RunConfig,
    TPUConfig,
    parse_iterations_per_loop,
)
from tfx_tpu_trainer.estimator.tpu.cores.layout import (
    BatchSizes,
    CoreLayout,
    InputMode,
    assign_cores,
    batch_sizes,
)
from tfx_tpu_trainer.estimator.tpu.cores.tpu_system import TPUSystem

READ_ONCE = (InputMode.BROADCAST, InputMode.SLICED)
"""One call of input_fn feeds all cores of all hosts."""

# The assumed length of a loop by time, which is unknown; larger than any real one.
_MANY_STEPS = 1 << 32
_CALLS = {ModeKeys.TRAIN: "train", ModeKeys.EVAL: "evaluate", ModeKeys.PREDICT: "predict"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoreRun:
    """How a call runs on cores."""

    mode: str  # One of `ModeKeys`.
    layout: CoreLayout  # Replicas, cores and hosts.
    input_mode: InputMode  # How the rows of the input reach the replicas.
    sizes: BatchSizes  # Batch sizes that input_fn and model_fn see.
    batch_axis: Sequence[int | None] | None  # The axis of each input tensor to split, or `None`.
    # How a replica's input is cut over its cores, or `None`.
    input_partition_dims: Sequence[Any] | None = None
    system: TPUSystem | None = None  # The TPU; `None` if its cores are emulated.
    # The placement of replicas of several cores on those of the TPU; `None` if each runs on one
    # core, or cores are emulated.
    device_assignment: tf.tpu.experimental.DeviceAssignment | None = None

    @property
    def cores(self) -> int:
        """Number of replicas."""
        return self.layout.num_replicas

    @property
    def broadcast(self) -> bool:
        """Whether every replica gets the whole batch."""
        return self.input_mode is InputMode.BROADCAST

    @property
    def job(self) -> str | None:
        """The job of the TPU's workers; `None` if there is none or it is this process."""
        return None if self.system is None else self.system.job


def core_run_of(
    mode: str,
    *,
    config: RunConfig,
    global_batch_size: int | None,
    batch_axis: Sequence[int | None] | None,
    system: TPUSystem | None = None,
) -> CoreRun:
    """Configures a call on cores."""
    tpu_config = config.tpu_config
    input_mode = _input_mode(mode, config)
    # One host must read an input to its end, since two hosts would each read all of it.
    one_host = mode != ModeKeys.TRAIN and input_mode not in READ_ONCE
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
    name = BATCH_SIZE_NAMES[mode]
    if global_batch_size is None:
        raise ValueError(
            f"{name} in TPUEstimator constructor cannot be `None` if .{_CALLS[mode]} is running on "
            "TPU."
        )
    if input_mode not in READ_ONCE and global_batch_size % layout.num_replicas:
        below = global_batch_size - global_batch_size % layout.num_replicas
        above = below + layout.num_replicas
        raise ValueError(
            f"{name.replace('_', ' ')} {global_batch_size} must be divisible by number of replicas "
            f"{layout.num_replicas}: {f'{below} and {above} are' if below else f'{above} is'}."
        )
    return CoreRun(
        mode=mode,
        layout=layout,
        input_mode=input_mode,
        sizes=batch_sizes(input_mode, layout, global_batch_size),
        batch_axis=batch_axis if per_host_v1 else None,
        input_partition_dims=tpu_config.input_partition_dims,
        system=system,
        device_assignment=_assignment_of(layout, system),
    )


def loops_of(config: RunConfig, *, log_every_n_steps: int | None) -> Loops:
    """Reads a configuration's loops."""
    meaning = parse_iterations_per_loop(config.tpu_config.iterations_per_loop)
    length: LoopLength | LoopLengthFromTime | TunedLoopLength = LoopLength(meaning.value)
    longest, periods = meaning.value, tuple[int, ...]()
    if meaning.unit != "count":
        longest = _MANY_STEPS
        length = LoopLengthFromTime(meaning.value) if meaning.value else TunedLoopLength()
    if meaning.unit == "auto":
        due = (config.save_checkpoints_steps, config.save_summary_steps, log_every_n_steps)
        periods = tuple(period for period in map(whole_steps, due) if period)
    return Loops(
        length=length,
        longest=longest,
        periods=periods,
        host_call_every_n_steps=config.tpu_config.experimental_host_call_every_n_steps,
    )


def _layout_of(system: TPUSystem, tpu_config: TPUConfig, *, one_host: bool) -> CoreLayout:
    """Returns a TPU's layout: its cores determine the number of replicas."""
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
            f"({tpu_config.num_shards}). For non-model-parallelism, num_replicas should be the "
            "total num of TPU cores in the system. For model-parallelism, the total number of TPU "
            "cores should be num_cores_per_replica * num_replicas. Please set it accordingly or "
            f"leave it as `None`: the TPU has {system.num_cores} cores, and a replica {per_replica}."
        )
    return CoreLayout(
        num_replicas,
        per_replica,
        model_parallelism=bool(tpu_config.num_cores_per_replica),
        one_host=one_host,
        cores_per_host=system.num_cores // system.num_hosts,
    )


def _assignment_of(
    layout: CoreLayout, system: TPUSystem | None
) -> tf.tpu.experimental.DeviceAssignment | None:
    if system is None or system.topology is None or not layout.model_parallelism:
        return None
    return assign_cores(layout, system.topology)


def _input_mode(mode: str, config: RunConfig) -> InputMode:
    trained = InputMode(config.tpu_config.per_host_input_for_training)
    if mode == ModeKeys.TRAIN:
        return trained
    evaluated = InputMode(config.tpu_config.eval_training_input_configuration)
    if evaluated is InputMode.SLICED:
        return evaluated
    # Only training reads an input per core; the original then evaluates and predicts by host.
    return InputMode.PER_HOST_V1 if trained is InputMode.PER_SHARD_V1 else trained
