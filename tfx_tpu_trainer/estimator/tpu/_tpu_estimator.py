"""The Estimator with TPU support."""

import enum
import math
import numbers
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import whole_steps
from tfx_tpu_trainer.estimator._estimator import Estimator
from tfx_tpu_trainer.estimator._modes import ModeKeys
from tfx_tpu_trainer.estimator._user_calls import BATCH_SIZE_NAMES, as_params, check_model_fn
from tfx_tpu_trainer.estimator.tpu._calls import TPUCallSettings, TPUEstimatorCalls
from tfx_tpu_trainer.estimator.tpu._run_config import (
    InputPipelineConfig,
    RunConfig,
    check_integer,
    check_positive_integer,
    parse_iterations_per_loop,
)
from tfx_tpu_trainer.estimator.tpu.embedding.spec import check_embeddings

_logger = tf.get_logger()

_RESERVED_PARAMS = ("batch_size", "context")


class ExportSavedModelApiVersion(enum.Enum):
    """Selects whether the engine (V1) or model_fn (V2) puts the TPU computation into an export."""

    V1 = 1
    V2 = 2


class TPUEstimator(Estimator):
    """An `Estimator` with TPU support; mirrors `tf.compat.v1.estimator.tpu.TPUEstimator`.

    Batch sizes are global; input_fn and model_fn read their share from `params["batch_size"]`, and
    `params["use_tpu"]` is whether model_fn runs on cores.

    Examples:
        Two emulated cores, each with half of the four rows of a step:

        >>> from tfx_tpu_trainer.estimator import tpu
        >>> import tensorflow as tf
        >>> def input_fn(params):
        ...     rows = tf.data.Dataset.from_tensors(([1.0], [2.0])).repeat()
        ...     return rows.batch(params["batch_size"], drop_remainder=True)
        >>> def model_fn(features, labels, mode, params):
        ...     print("rows of a core:", params["batch_size"])
        ...     weight = tf.compat.v1.get_variable("weight", [1, 1])
        ...     loss = tf.reduce_mean(tf.square(features @ weight - labels))
        ...     optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        ...     optimizer = tpu.CrossShardOptimizer(optimizer)
        ...     train_op = optimizer.minimize(loss, tf.compat.v1.train.get_global_step())
        ...     return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)
        >>> config = tpu.RunConfig(
        ...     model_dir="runs/cores", master="emulated", tpu_config=tpu.TPUConfig(num_shards=2)
        ... )
        >>> estimator = tpu.TPUEstimator(model_fn, config=config, train_batch_size=4)
        >>> estimator = estimator.train(input_fn, max_steps=100)
        rows of a core: 2
        >>> print(estimator.get_variable_value("weight").round(3))
        [[2.]]
    """

    _warns_of_missing_params = False

    def __init__(
        self,
        model_fn: Callable[..., Any] | None = None,
        model_dir: str | os.PathLike[str] | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
        use_tpu: bool = True,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
        batch_axis: Sequence[int] | None = None,
        eval_on_tpu: bool = True,
        export_to_tpu: bool = True,
        export_to_cpu: bool = True,
        warm_start_from: Any = None,
        embedding_config_spec: Any = None,
        export_saved_model_api_version: (
            ExportSavedModelApiVersion | int
        ) = ExportSavedModelApiVersion.V1,
    ) -> None:
        """Checks the arguments and keeps copies of them.

        Args:
            model_fn: Takes `features` and `params`, and optionally `labels`, `mode` and
                `config`; returns a `TPUEstimatorSpec` or `EstimatorSpec`.
            model_dir: Folder of checkpoints and events. Defaults to that of `config`, or else
                to a temporary folder.
            config: Configuration of the runs; must be given.
            params: Passed to model_fn and input_fn as `params`, with more keys; `batch_size` and
                `context` are reserved. Defaults to `None`.
            use_tpu: Whether the model runs on TPU cores. Defaults to `True`: emulated ones with
                `RunConfig(master="emulated")` or TFX_TPU_TRAINER_EMULATE=1 in the environment.
            train_batch_size: Global batch size of training; needed with `use_tpu`.
            eval_batch_size: Global batch size of evaluation.
            predict_batch_size: Global batch size of prediction.
            batch_axis: For each flattened input tensor, the axis to split over the cores.
                Defaults to `None`, axis 0.
            eval_on_tpu: Whether evaluation runs on the cores too. Defaults to `True`.
            export_to_tpu: Whether an export has a graph for TPUs. Defaults to `True`.
            export_to_cpu: Whether an export has a graph for CPUs. Defaults to `True`.
            warm_start_from: A checkpoint, a SavedModel or `WarmStartSettings` with the variables' initial values.
                Defaults to `None`.
            embedding_config_spec: Embeddings of the cores, an `experimental.EmbeddingConfigSpec`. Defaults to `None`.
            export_saved_model_api_version: 1 or 2, or the enum. Defaults to V1.

        Raises:
            ValueError: If an argument is invalid.
            TypeError: If a batch size is not an integer, or an argument has the wrong type.
        """
        if not isinstance(config, RunConfig):
            raise ValueError(
                "`config` must be provided with type `tpu_config.RunConfig`, of "
                f"tfx_tpu_trainer.estimator.tpu; got {config!r}."
            )
        given = as_params(params)
        reserved = [key for key in _RESERVED_PARAMS if key in given]
        if reserved:
            raise ValueError(
                f"{list(_RESERVED_PARAMS)} are reserved keys but existed in params {given}: rename {reserved}."
            )
        check_model_fn(model_fn, params)
        if batch_axis is not None and not _are_axes(batch_axis):
            raise TypeError(
                f"batch_axis must be a list of one axis for each input tensor, given: {batch_axis!r}."
            )
        batch_sizes = {
            ModeKeys.TRAIN: train_batch_size,
            ModeKeys.EVAL: eval_batch_size,
            ModeKeys.PREDICT: predict_batch_size,
        }
        _check_batch_sizes(batch_sizes, use_tpu=use_tpu)
        if use_tpu:
            _check_model_parallelism(config)
        elif eval_on_tpu:
            _logger.warning("eval_on_tpu ignored because use_tpu is False.")
        check_embeddings(
            embedding_config_spec, config=config, use_tpu=use_tpu, eval_on_tpu=eval_on_tpu
        )
        super().__init__(
            model_fn,
            model_dir=model_dir,
            # It would add a ThroughputHook that counts a session call as a step to each session. `_calls` adds those of
            # the cores, with the period below.
            config=config.replace(log_step_count_steps=None),
            params=params,
            warm_start_from=warm_start_from,
        )
        if export_saved_model_api_version not in (1, 2, *ExportSavedModelApiVersion):
            raise ValueError(
                "export_saved_model_api_version should be 1 or 2; got "
                f"{export_saved_model_api_version!r}."
            )
        self._call_settings = TPUCallSettings(
            on_cores={
                ModeKeys.TRAIN: use_tpu,
                ModeKeys.EVAL: use_tpu and eval_on_tpu,
                ModeKeys.PREDICT: use_tpu,
            },
            batch_sizes=batch_sizes,
            batch_axis=batch_axis,
            embedding_config_spec=embedding_config_spec,
            report_period=_report_period(config),
            report_steps=config.log_step_count_steps,
        )
        # Read at each export, since BERT's export scripts set `estimator._export_to_tpu = False`.
        self._export_to_cpu = export_to_cpu
        self._export_to_tpu = export_to_tpu
        self._export_saved_model_api_version = export_saved_model_api_version

    @property
    def _calls(self) -> TPUEstimatorCalls:
        version = self._export_saved_model_api_version
        if isinstance(version, ExportSavedModelApiVersion):
            version = version.value
        return TPUEstimatorCalls(
            self._model_fn,
            config=cast(RunConfig, self._config_of_runs),
            params=self._params or {},
            settings=self._call_settings,
            export_options={
                "export_to_cpu": self._export_to_cpu,
                "export_to_tpu": self._export_to_tpu,
                "api_version": version,
            },
        )


def call_settings(estimator: TPUEstimator) -> TPUCallSettings:
    """Returns an estimator's settings of cores and batches, for a preflight."""
    return estimator._call_settings


def _check_batch_sizes(batch_sizes: Mapping[str, Any], *, use_tpu: bool) -> None:
    if use_tpu and batch_sizes[ModeKeys.TRAIN] is None:
        raise ValueError("`train_batch_size` cannot be `None` when use_tpu is True.")
    # A host's input_fn may ignore its batch size, which may be 0 or -1 there.
    check = check_positive_integer if use_tpu else check_integer
    for mode, value in batch_sizes.items():
        if value is not None:
            check(value, BATCH_SIZE_NAMES[mode])


def _are_axes(batch_axis: Any) -> bool:
    return isinstance(batch_axis, (list, tuple)) and all(
        axis is None or isinstance(axis, numbers.Integral) for axis in batch_axis
    )


def _check_model_parallelism(config: RunConfig) -> None:
    tpu_config = config.tpu_config
    per_shard = tpu_config.per_host_input_for_training == InputPipelineConfig.PER_SHARD_V1
    if per_shard and tpu_config.num_cores_per_replica:
        raise ValueError(
            "Model parallelism only supports per host input for training; got "
            f"num_cores_per_replica={tpu_config.num_cores_per_replica} with PER_SHARD_V1. Please "
            "adjust TPUConfig.per_host_input_for_training."
        )


def _report_period(config: RunConfig) -> dict[str, int] | None:
    """Returns the period of loss and throughput, divided by the loop's length as in the original."""
    steps = whole_steps(config.log_step_count_steps)
    loop = parse_iterations_per_loop(config.tpu_config.iterations_per_loop)
    if steps is None:
        return None
    if loop.unit == "auto":
        return {"every_n_steps": steps}
    if loop.unit == "seconds":
        return {"every_n_secs": loop.value}
    return {"every_n_steps": math.ceil(steps / loop.value)}
