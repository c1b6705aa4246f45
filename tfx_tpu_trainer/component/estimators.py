"""The estimators of a training: how settings become a TPUEstimator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfx_tpu_trainer.component.tpu_strategy import strategies
from tfx_tpu_trainer.component.train_job import TrainJob
from tfx_tpu_trainer.component.trainer_parameters import TrainSettings
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.inputs import vocabulary_sizes
from tfx_tpu_trainer.inputs.user_module import UserModule


def model_params(job: TrainJob, module: UserModule) -> dict[str, Any]:
    """Gathers the params that model_fn gets besides those of the engine.

    Args:
        job: What is asked for.
        module: The user's module.

    Returns:
        `vocabulary_sizes` (name -> entries of Transform's vocabularies), then the module's own
        params, the component's, and the HyperParameters artifact's: later ones win.
    """
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
) -> tpu.TPUEstimator:
    """Makes an estimator.

    Args:
        job: What is asked for.
        module: The user's module.
        settings: The job's settings, or others in their place.
        model_dir: Folder of checkpoints and events.
        tf_config: The cluster. Defaults to `None`: the environment's.

    Returns:
        The estimator.
    """
    return tpu.TPUEstimator(
        model_fn=module.model_fn,
        config=run_config(settings, model_dir=model_dir, tf_config=tf_config),
        params=model_params(job, module),
        use_tpu=settings.use_tpu,
        eval_on_tpu=settings.use_tpu,
        train_batch_size=settings.train_batch_size,
        eval_batch_size=settings.rows_per_eval_batch,
        predict_batch_size=settings.rows_per_predict_batch,
        export_to_cpu=settings.export_to_cpu,
        export_to_tpu=settings.export_to_tpu,
        export_saved_model_api_version=settings.export_saved_model_api_version,
        warm_start_from=job.base_model,
    )


def seeded(settings: TrainSettings, step: int) -> TrainSettings:
    """Gives the settings of a training that goes on from a step.

    Its input begins anew, and with the same seed it would give the same rows again.
    """
    if settings.tf_random_seed is None:
        return settings
    return settings.model_copy(update={"tf_random_seed": settings.tf_random_seed + step})


def run_config(
    settings: TrainSettings, *, model_dir: str, tf_config: Mapping[str, Any] | None = None
) -> tpu.RunConfig:
    """Makes a run's configuration.

    Args:
        settings: The typed parameters.
        model_dir: Folder of checkpoints and events.
        tf_config: The cluster, in the form of TF_CONFIG; `{}` runs in this process alone. Defaults
            to `None`: the environment's.

    Returns:
        The configuration.
    """
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
        tpu_config=tpu.TPUConfig(
            # On the host a session call is one step, and a larger number would only make
            # TPUEstimator report its speed that much more often.
            iterations_per_loop=settings.iterations_per_loop if settings.use_tpu else 1,
            num_shards=settings.num_shards,
            num_cores_per_replica=settings.num_cores_per_replica,
        ),
        **strategies(settings),
        **{name: value for name, value in optional.items() if value is not None},
    )
