"""`keras_to_estimator`: a compiled Keras model as a TPUEstimator."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

from tfx_tpu_trainer.estimator.keras.to_estimator import make_parts
from tfx_tpu_trainer.estimator.tpu.run_config import RunConfig
from tfx_tpu_trainer.estimator.tpu.tpu_estimator import TPUEstimator


def keras_to_estimator(
    keras_model: Any = None,
    keras_model_path: str | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    model_dir: str | os.PathLike[str] | None = None,
    config: RunConfig | None = None,
    checkpoint_format: str | None = "checkpoint",
    metric_names_map: Mapping[str, str] | None = None,
    export_outputs: Mapping[str, Any] | None = None,
    *,
    use_tpu: bool = True,
    train_batch_size: int | None = None,
    eval_batch_size: int | None = None,
    predict_batch_size: int | None = None,
    **options: Any,
) -> TPUEstimator:
    """Makes a TPUEstimator of a compiled Keras model; ours, the original has none.

    Its optimizer puts the gradients of the cores together: averaged where the losses are means over
    rows, as Keras's are by default, and summed where they have `reduction="sum"`. So a step on
    several cores is the step of one core with all rows, but for what looks at the other rows of
    its batch, such as a batch norm that is trained.

    Example:
    ```python
    config = RunConfig(master="emulated", tpu_config=TPUConfig(num_shards=4))
    estimator = keras_to_estimator(model, config=config, train_batch_size=64)
    estimator.train(lambda params: dataset.batch(params["batch_size"]), max_steps=1000)
    ```

    Args:
        keras_model: As in `model_to_estimator`, like all arguments up to `export_outputs`.
        keras_model_path: See there.
        custom_objects: See there.
        model_dir: See there.
        config: Configuration of the runs. Defaults to `None`, a `RunConfig()` of
            `estimator.tpu`.
        checkpoint_format: See there.
        metric_names_map: See there.
        export_outputs: See there.
        use_tpu: Whether the model runs on TPU cores. Defaults to `True`: emulated ones with
            `RunConfig(master="emulated")` or TFX_TPU_TRAINER_EMULATE=1 in the environment.
        train_batch_size: Global batch size of training.
        eval_batch_size: Global batch size of evaluation.
        predict_batch_size: Global batch size of prediction.
        **options: What else `TPUEstimator` takes: `params`, `eval_on_tpu`, `export_to_tpu` ...

    Returns:
        The estimator.

    Raises:
        ValueError: If an argument does not hold.
        TypeError: If a batch size is no integer.
    """
    config = RunConfig() if config is None else config
    if not isinstance(config, RunConfig):
        raise ValueError(
            "`config` should be a RunConfig of tfx_tpu_trainer.estimator.tpu, which a TPUEstimator "
            f"needs; got {config!r}."
        )
    parts = make_parts(
        keras_model,
        keras_model_path,
        custom_objects=custom_objects,
        model_dir=model_dir,
        config=config,
        checkpoint_format=checkpoint_format,
        metric_names_map=metric_names_map,
        export_outputs=export_outputs,
    )
    given = {"warm_start_from": parts.warm_start_from, **options}
    return TPUEstimator(
        parts.model_fn.for_tpu_estimator(),
        config=cast(RunConfig, parts.config),
        use_tpu=use_tpu,
        train_batch_size=train_batch_size,
        eval_batch_size=eval_batch_size,
        predict_batch_size=predict_batch_size,
        **given,
    )
