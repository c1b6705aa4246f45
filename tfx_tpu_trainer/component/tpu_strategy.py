"""The strategy under which a slice trains whose runtime does not train in a session."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.component.trainer_parameters import TrainSettings
from tfx_tpu_trainer.estimator.tpu.run_place import emulates


def strategies(settings: TrainSettings) -> dict[str, tf.distribute.Strategy]:
    """Gives the strategies of training and evaluation, as RunConfig takes them.

    Runtimes of v5e and newer are reported to crash when a session trains on them, so a slice of
    theirs is used through `TPUStrategy`. A program that names a master, and emulated cores, keep
    to their session.

    Args:
        settings: The settings of a training.

    Returns:
        `train_distribute` and `eval_distribute`, or nothing where a session will do.

    Raises:
        RuntimeError: If this machine has not the TPU that the settings count on.
    """
    tpu = settings.tpu
    if tpu is None or not settings.use_tpu or settings.master or emulates(""):
        return {}
    if tpu.tpu_slice.chip.session_training:
        return {}
    strategy = _local_strategy(tpu.slice_name)
    if strategy.num_replicas_in_sync != settings.num_shards:
        raise RuntimeError(
            f"tpu={tpu.slice_name!r} has {settings.num_shards} replicas, but the TPU of this machine "
            f"has {strategy.num_replicas_in_sync}: name the slice that it is"
        )
    return {"train_distribute": strategy, "eval_distribute": strategy}


@functools.lru_cache(maxsize=1)
def _local_strategy(slice_name: str) -> Any:
    """Makes the strategy of this machine's TPU; initialized twice, a TPU would lose its variables."""
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver("local")
    try:
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except tf.errors.OpError as error:
        raise RuntimeError(
            f"tpu={slice_name!r}, but this machine has no TPU that TensorFlow can use "
            f"({error.message.split(':')[0].rstrip('.')}). Run on a node with that slice and an image "
            "with tensorflow-tpu, or emulate its cores with master='emulated' or the environment "
            "variable TFX_TPU_TRAINER_EMULATE=1"
        ) from None
    return tf.distribute.TPUStrategy(resolver)
