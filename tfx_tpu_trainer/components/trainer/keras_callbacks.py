"""Turns a Keras program's callbacks into settings; rejects by name those without one."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tfx_tpu_trainer.components.trainer import preconditions
from tfx_tpu_trainer.components.trainer.estimators import model_params
from tfx_tpu_trainer.components.trainer.settings import broken_rule
from tfx_tpu_trainer.components.trainer.train_job import TrainJob
from tfx_tpu_trainer.components.user_module._module import UserModule

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
    """Returns the job with the settings that its module's callbacks stand for."""
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
