"""Makes a training's estimators: settings become a TPUEstimator with the strategy that its slice needs."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.waiting import said_while_waiting
from tfx_tpu_trainer.components.inputs import vocabulary_sizes
from tfx_tpu_trainer.components.trainer.settings import TrainSettings
from tfx_tpu_trainer.components.trainer.train_job import TrainJob
from tfx_tpu_trainer.components.user_module._module import UserModule
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator.extending import emulates

# A training is most likely to be interrupted in its first ten minutes.
_FIRST_CHECKPOINT_SECS = 60


def model_params(job: TrainJob, module: UserModule) -> dict[str, Any]:
    """Gathers the params for model_fn, except the engine's own."""
    return {
        "vocabulary_sizes": vocabulary_sizes(job.transform_graph_path),
        **module.params_for(job.fn_args),
        **job.settings.params,
        **job.hyperparameters,
    }


def make_estimator(
    job: TrainJob,
    module: UserModule,
    settings: TrainSettings,
    model_dir: str,
    *,
    tf_config: Mapping[str, Any] | None = None,
    save_input_position: bool = False,
) -> tpu.TPUEstimator:
    """Makes an estimator."""
    config = run_config(settings, model_dir=model_dir, tf_config=tf_config)
    return tpu.TPUEstimator(
        model_fn=module.model_fn,
        config=config.replace(save_input_position=save_input_position),
        params=model_params(job, module),
        use_tpu=settings.use_tpu,
        eval_on_tpu=settings.use_tpu,
        train_batch_size=settings.train_batch_size,
        eval_batch_size=settings.rows_per_eval_batch,
        predict_batch_size=settings.rows_per_predict_batch,
        export_to_cpu=settings.export_to_cpu,
        export_to_tpu=settings.export_to_tpu is not False,
        export_saved_model_api_version=settings.export_saved_model_api_version,
        # These are initial values. A session that finds a checkpoint restores that instead, so that a resumed attempt
        # does not return to the base model.
        warm_start_from=module.warm_start_from or job.base_model,
    )


def seeded(settings: TrainSettings, step: int) -> TrainSettings:
    """Returns the settings to resume from a step with the input's beginning.

    The same seed would draw the same rows again.
    """
    if settings.tf_random_seed is None:
        return settings
    return settings.model_copy(update={"tf_random_seed": settings.tf_random_seed + step})


def run_config(
    settings: TrainSettings, *, model_dir: str, tf_config: Mapping[str, Any] | None = None
) -> tpu.RunConfig:
    """Makes a run's configuration."""
    optional: Mapping[str, Any] = {
        "master": settings.master,
        "save_checkpoints_steps": settings.save_checkpoints_steps,
        "tf_random_seed": settings.tf_random_seed,
    }
    return tpu.RunConfig(
        model_dir=model_dir,
        tf_config=tf_config,
        keep_checkpoint_max=settings.keep_checkpoint_max,
        save_summary_steps=settings.save_summary_steps,
        log_step_count_steps=settings.log_step_count_steps,
        gradient_norms=settings.gradient_norms,
        histograms=settings.histograms,
        profile_steps=settings.profile_steps,
        first_checkpoint_secs=_FIRST_CHECKPOINT_SECS,
        stall_timeout_secs=settings.stall_timeout_secs or None,
        session_creation_timeout_secs=settings.start_timeout_secs,
        tpu_config=tpu.TPUConfig(
            iterations_per_loop=settings.iterations_per_loop,
            num_shards=settings.num_shards,
            num_cores_per_replica=settings.num_cores_per_replica,
        ),
        **strategies(settings),
        **{name: value for name, value in optional.items() if value is not None},
    )


def strategies(settings: TrainSettings) -> dict[str, tf.distribute.Strategy]:
    """Returns the strategies of training and evaluation for RunConfig.

    Sessions are reported to crash on the runtimes of v5e and newer, so these slices train under `TPUStrategy`. With a
    master or emulated cores, a session is used.
    """
    tpu = settings.tpu
    if tpu is None or not settings.use_tpu or settings.master or emulates(""):
        return {}
    if tpu.tpu_slice.chip.session_training:
        return {}
    strategy = _local_strategy(tpu.slice_name)
    if strategy.num_replicas_in_sync != settings.num_shards:
        raise RuntimeError(
            f"tpu={tpu.slice_name!r} has {settings.num_shards} replicas, but the TPU of this "
            f"machine has {strategy.num_replicas_in_sync}: set tpu to the name of that slice"
        )
    return {"train_distribute": strategy, "eval_distribute": strategy}


def draws_elsewhere(settings: TrainSettings) -> bool:
    """Returns whether the training's input is drawn in another process: on the TPU's own host."""
    if not settings.use_tpu or emulates(settings.master or ""):
        return False
    tpu = settings.tpu
    return settings.master is not None or tpu is None or tpu.tpu_slice.chip.session_training


@functools.lru_cache(maxsize=1)
def _local_strategy(slice_name: str) -> Any:
    """Makes the strategy of this machine's TPU; initializing the TPU twice would lose its variables."""
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver("local")
    try:
        with said_while_waiting(
            f"the TPU of this machine ({slice_name}) to initialize",
            change="This has no time limit: a slice of several hosts waits for all of them to start.",
        ):
            tf.tpu.experimental.initialize_tpu_system(resolver)
    except tf.errors.OpError as error:
        raise RuntimeError(
            f"tpu={slice_name!r}, but this machine has no TPU that TensorFlow can use "
            f"({error.message.split(':')[0].rstrip('.')}). Run on a node with that slice and an image "
            "with tensorflow-tpu, or emulate its cores with master='emulated' or the environment "
            "variable TFX_TPU_TRAINER_EMULATE=1"
        ) from None
    return tf.distribute.TPUStrategy(resolver)
