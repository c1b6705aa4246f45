"""Makes a training's estimators: settings, and Keras callbacks in their place, become a TPUEstimator."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer._support.waiting import said_while_waiting
from tfx_tpu_trainer.components.inputs import vocabulary_sizes
from tfx_tpu_trainer.components.trainer import preconditions
from tfx_tpu_trainer.components.trainer.settings import TrainSettings, broken_rule
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
        # These are initial values. A session that finds a checkpoint restores that instead, so a resumed attempt
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


_SCHEDULE = (
    "give the optimizer in compile a schedule as its learning rate, such as "
    "keras.optimizers.schedules.CosineDecay"
)
_INSTEAD = {
    "BackupAndRestore": "leave it out: a retry resumes by itself (setting resume)",
    "CSVLogger": "leave it out: the run's page, run.json and the events in ModelRun have all numbers",
    "LearningRateScheduler": _SCHEDULE,
    "ProgbarLogger": "leave it out: a run shows its progress by itself",
    "ReduceLROnPlateau": _SCHEDULE,
    "TensorBoard": "leave it out: events are in ModelRun, and the settings histograms, gradient_norms, "
    "profile_steps and save_summary_steps select them",
    "TerminateOnNaN": "leave it out: a loss that is not finite ends the training by itself",
}
_OTHERWISE = (
    "a session runs many steps at once and no Python in between; leave it out, or write a model_fn, whose "
    "TPUEstimatorSpec takes training_hooks"
)
# Arguments without a setting, and their neutral values.
_UNKNOWN = {
    "min_delta": 0,
    "baseline": None,
    "start_from_epoch": 0,
    "initial_value_threshold": None,
}


def with_callbacks(job: TrainJob, module: UserModule) -> TrainJob:
    """Returns the job with the settings that correspond to its module's callbacks."""
    if module.callbacks is None:
        return job
    preconditions.check_transform_graph(job.transform_graph_path)
    where = f"callbacks of module {module.name!r}"
    listed = module.callbacks(model_params(job, module))
    if not isinstance(listed, (list, tuple)):
        raise ValueError(f"{where} returned {listed!r}; let it return a list of Keras callbacks")
    settings = job.settings
    for callback in listed:
        for name, value in _settings_of(where, callback).items():
            given = getattr(settings, name)
            default = type(settings).model_fields[name].default
            if given not in (default, value):
                raise ValueError(
                    f"{where}: {type(callback).__name__} sets {name}={value!r}, but {name}={given!r} is set; "
                    "leave one of them out"
                )
            settings = settings.model_copy(update={name: value})
    if problem := broken_rule(settings):
        raise ValueError(f"{where}: {problem}")
    return dataclasses.replace(job, settings=settings)


def _settings_of(where: str, callback: Any) -> dict[str, Any]:
    kind = type(callback)
    name = kind.__name__
    is_keras = kind.__module__.partition(".")[0] in ("keras", "tf_keras")
    if not is_keras or name not in ("EarlyStopping", "ModelCheckpoint"):
        fix = _INSTEAD.get(name, _OTHERWISE) if is_keras else _OTHERWISE
        raise ValueError(f"{where}: TpuTrainer has no {name}: {fix}")
    for argument, nothing in _UNKNOWN.items():
        value = getattr(callback, argument, nothing)
        if value != nothing:
            raise ValueError(
                f"{where}: {name} has {argument}={value!r}, for which TpuTrainer has no setting; leave it out"
            )
    if name == "ModelCheckpoint" and not callback.save_best_only:
        raise ValueError(
            f"{where}: TpuTrainer saves checkpoints by itself, every save_checkpoints_steps; leave ModelCheckpoint "
            "out, or give it save_best_only=True to export the best one"
        )
    watched = str(callback.monitor)
    if not watched.startswith("val_"):
        raise ValueError(
            f"{where}: {name} has monitor={watched!r}, a metric of the training; TpuTrainer measures on the eval "
            f"split: give monitor={f'val_{watched}'!r}"
        )
    goal = {"best_metric": watched.removeprefix("val_"), "best_metric_mode": _mode(where, callback)}
    if name == "ModelCheckpoint":
        return goal
    # Keras stops at the first evaluation without improvement for a patience of 0, and also of 1.
    return {**goal, "early_stopping_patience": max(1, int(callback.patience))}


def _mode(where: str, callback: Any) -> str:
    name, metric = type(callback).__name__, str(callback.monitor)
    grows = metric.endswith(("acc", "accuracy", "auc"))
    compares, mode = getattr(callback, "monitor_op", None), getattr(callback, "mode", "auto")
    if compares is not None:
        mode = "min" if compares in (np.less, np.less_equal) else "max"
    elif mode not in ("min", "max"):
        # Keras 3 reads the compiled metrics.
        mode = "max" if grows else "min" if "loss" in metric else "auto"
    # ModelCheckpoint's meaning of "auto" for an AUC.
    if mode == "auto" or (mode == "min" and grows):
        raise ValueError(
            f"{where}: {name} has mode={mode!r} for monitor={metric!r}; give it mode='max' or mode='min', as the "
            "metric is better"
        )
    return str(mode)
