"""Runs an existing Estimator, canned or not, on TPU cores, and exports it for TPU hosts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.cross_replica_ops import SUM
from tfx_tpu_trainer.estimator._estimator import Estimator
from tfx_tpu_trainer.estimator._estimator_spec import EstimatorSpec
from tfx_tpu_trainer.estimator._keras_in_model_fn import legacy_bases, todays_bases
from tfx_tpu_trainer.estimator._modes import ModeKeys, on_cores
from tfx_tpu_trainer.estimator.tpu._run_config import RunConfig
from tfx_tpu_trainer.estimator.tpu._tpu_estimator import TPUEstimator
from tfx_tpu_trainer.estimator.tpu._tpu_estimator_spec import TPUEstimatorSpec

v1 = tf.compat.v1
_logger = tf.get_logger()

# Params that a TPUEstimator sets itself.
_RESERVED: Final = ("batch_size", "context", "use_tpu")
_SHARED_SETTINGS: Final = (
    "tf_random_seed",
    "save_summary_steps",
    "save_checkpoints_steps",
    "save_checkpoints_secs",
    "session_config",
    "keep_checkpoint_max",
    "keep_checkpoint_every_n_hours",
    "log_step_count_steps",
    "save_input_position",
    "first_checkpoint_secs",
    "stall_timeout_secs",
    "progress",
    "gradient_norms",
    "histograms",
    "profile_steps",
    "checkpoint_save_graph_def",
    "session_creation_timeout_secs",
)
Combination = Literal["mean", "sum"]
_COMBINATIONS: Final = ("mean", "sum")


def from_estimator(
    estimator: Estimator,
    config: RunConfig | None = None,
    *,
    gradients: Combination = "mean",
    **options: Any,
) -> TPUEstimator:
    """Returns a TPUEstimator with the model of another estimator; the original lacks this function.

    On cores, the optimizers of model_fn combine their gradients: in canned estimators and heads by the reduction of
    their losses, elsewhere by `gradients`. Metrics of heads measure the rows of all cores. Summaries are left out,
    because they can't be read from cores.

    Examples:
        >>> from tfx_tpu_trainer.estimator import BaselineClassifier, tpu
        >>> import tensorflow as tf
        >>> config = tpu.RunConfig(master="emulated", tpu_config=tpu.TPUConfig(num_shards=4))
        >>> estimator = tpu.from_estimator(
        ...     BaselineClassifier(model_dir="runs/canned"), config, train_batch_size=64
        ... )
        >>> def input_fn(params):
        ...     rows = tf.data.Dataset.from_tensors(({"x": 0.0}, 1)).repeat()
        ...     return rows.batch(params["batch_size"], drop_remainder=True)
        >>> print(estimator.train(input_fn, max_steps=3).get_variable_value("global_step"))
        3

    Args:
        estimator: Any `Estimator`. Its model folder, params and warm start are kept; only its own
            model_fn sees `batch_size`, `context` and `use_tpu` in its params.
        config: Configuration of the runs. Defaults to `None`: that of the estimator. Its model
            folder is used if the estimator was given none and is not trained yet.
        gradients: How the cores' gradients are combined for a custom model_fn that uses no head: `"mean"`, the default,
            for a loss that is a mean over rows, or `"sum"`.
        **options: Further arguments of `TPUEstimator`, such as `use_tpu` and batch sizes.

    Returns:
        The TPUEstimator.

    Raises:
        ValueError: If an argument is invalid. On cores, methods raise it for string features, and for metrics that no
            head makes.
        TypeError: If `estimator` is not an Estimator, or is a TPUEstimator already.
    """
    if not isinstance(estimator, Estimator) or isinstance(estimator, TPUEstimator):
        raise TypeError(
            "estimator should be an Estimator of tfx_tpu_trainer.estimator, not a TPUEstimator; "
            f"got {estimator!r}."
        )
    check_combination(gradients)

    def model_fn(
        features: Any, labels: Any, mode: str, params: Mapping[str, Any], config: RunConfig
    ) -> Any:
        if not params["use_tpu"]:
            return estimator.model_fn(features, labels, mode, config)
        _refuse_strings({"features": features, "labels": labels})
        context = params.get("context")
        replicas = context.num_replicas if context is not None else 1
        with on_cores(), summed_gradients(replicas=replicas, gradients=gradients):
            spec = estimator.model_fn(features, labels, mode, config)
        return _as_tpu_spec(spec, mode)

    given = {
        "model_dir": _model_dir_of(estimator, config),
        "params": {key: each for key, each in estimator.params.items() if key not in _RESERVED},
        "warm_start_from": estimator._warm_start_settings,
    }
    return TPUEstimator(model_fn, config=config or _config_of(estimator), **{**given, **options})


def _model_dir_of(estimator: Estimator, config: RunConfig | None) -> str:
    replaceable = estimator._has_temporary_model_dir and estimator.latest_checkpoint() is None
    given = None if config is None else config.model_dir
    return given if given and replaceable else estimator.model_dir


def _config_of(estimator: Estimator) -> RunConfig:
    settings = {name: getattr(estimator.config, name) for name in _SHARED_SETTINGS}
    if settings["save_checkpoints_steps"] is not None:
        # RunConfig takes only one kind of interval; both `None`, for no checkpoints, are passed on.
        del settings["save_checkpoints_secs"]
    return RunConfig(model_dir=estimator.model_dir, **settings)


def _refuse_strings(inputs: Mapping[str, Any]) -> None:
    strings = sorted(
        "".join([part, *(f"[{key!r}]" for key in path)])
        for part, given in inputs.items()
        for path, tensor in _with_paths(given)
        if getattr(tensor, "dtype", None) == tf.string
    )
    if strings:
        raise ValueError(
            f"{', '.join(strings)}: TPU cores can't compute with strings. Look them up in input_fn "
            "(tf.keras.layers.StringLookup, tf.lookup, or a vocabulary of Transform) and use "
            "tf.feature_column.categorical_column_with_identity; labels become ids there too, "
            "without label_vocabulary."
        )


def _with_paths(given: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    if isinstance(given, Mapping):
        return [leaf for key in given for leaf in _with_paths(given[key], (*path, key))]
    return [(path, given)]


def _as_tpu_spec(spec: EstimatorSpec | TPUEstimatorSpec, mode: str) -> TPUEstimatorSpec:
    if isinstance(spec, TPUEstimatorSpec):
        return spec
    if mode == ModeKeys.EVAL and spec.eval_metric_ops:
        raise ValueError(
            f"The metrics {sorted(spec.eval_metric_ops)} are created inside model_fn, where each "
            "core would measure its own rows. Let a head create them (Head.create_estimator_spec, "
            "add_metrics), or evaluate on the host: from_estimator(..., eval_on_tpu=False)."
        )
    return TPUEstimatorSpec(
        mode,
        predictions=spec.predictions,
        loss=spec.loss,
        train_op=spec.train_op,
        export_outputs=spec.export_outputs,
        # Made with the rest of the model. `make_host_scaffold`, which calls this, rejects a scaffold whose ops read a
        # core's tensors.
        scaffold_fn=lambda: spec.scaffold,
        training_hooks=(*spec.training_hooks, *spec.training_chief_hooks),
        evaluation_hooks=spec.evaluation_hooks,
        prediction_hooks=spec.prediction_hooks,
    )


def check_combination(gradients: str) -> None:
    """Checks how cores combine gradients."""
    if gradients not in _COMBINATIONS:
        raise ValueError(
            f"gradients should be one of {_COMBINATIONS}; got {gradients!r}. Give 'mean' for a "
            "loss that is a mean over rows, 'sum' for one that is a sum."
        )


@contextlib.contextmanager
def summed_gradients(*, replicas: int, gradients: Combination) -> Iterator[None]:
    """Makes all optimizers that are used inside combine their gradients over the cores."""
    # It does the work of `CrossShardOptimizer` for a model_fn that makes its own optimizer, which can't be wrapped. In
    # the block, `apply_gradients` of the base classes of all graph optimizers is replaced in the whole process;
    # gradients that are already summed stay unchanged.
    # Gradients may pass several wrapped methods, for example those of a v1 optimizer inside another one. The first one
    # makes them the output of a CrossReplicaSum, which the next ones recognize (`_summed`).
    with contextlib.ExitStack() as stack:
        for base in _bases():
            stack.enter_context(_replaced(base, replicas, gradients))
        yield


def _bases() -> list[Any]:
    return [v1.train.Optimizer, *legacy_bases(), *todays_bases()]


@contextlib.contextmanager
def _replaced(base: Any, replicas: int, gradients: Combination) -> Iterator[None]:
    # A base that only inherits the method must not own a copy afterwards.
    inherited = "apply_gradients" not in vars(base)
    own: Callable[..., Any] = base.apply_gradients

    def apply_gradients(
        self: Any, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any
    ) -> Any:
        pairs = [
            (_summed(gradient, replicas, gradients), variable)
            for gradient, variable in grads_and_vars
        ]
        return own(self, pairs, *args, **kwargs)

    base.apply_gradients = apply_gradients
    try:
        yield
    finally:
        if inherited:
            del base.apply_gradients
        else:
            base.apply_gradients = own


def _summed(gradient: Any, replicas: int, gradients: Combination) -> Any:
    if gradient is None:
        return None
    # IndexedSlices become dense, since cores have different rows and a sum over cores needs one shape.
    tensor = tf.convert_to_tensor(gradient)
    # A head inside `on_cores`, or the user's CrossShardOptimizer, has summed it already.
    if tensor.op.type == SUM:
        return gradient
    return v1.tpu.cross_replica_sum(tensor / replicas if gradients == "mean" else tensor)


def export_estimator_savedmodel(
    estimator: Estimator,
    export_dir_base: str,
    serving_input_receiver_fn: Callable[[], Any],
    assets_extra: Mapping[str, str] | None = None,
    as_text: bool = False,
    checkpoint_path: str | None = None,
) -> bytes:
    """Exports the model of an Estimator as a TPUEstimator of the same model_fn does.

    Args:
        estimator: The estimator; its model_fn must take `params`.
        export_dir_base: As in `TPUEstimator.export_saved_model`, like the others.
        serving_input_receiver_fn: See there.
        assets_extra: See there. Defaults to `None`.
        as_text: See there. Defaults to `False`.
        checkpoint_path: See there. Defaults to the estimator's latest.

    Returns:
        The path of the export, which holds a graph for CPUs and one for TPUs.

    Raises:
        ValueError: As `TPUEstimator.export_saved_model`.
    """
    exporter = TPUEstimator(
        estimator._model_fn,
        config=RunConfig(model_dir=estimator.model_dir),
        params=estimator.params,
        use_tpu=False,
        eval_on_tpu=False,
    )
    return exporter.export_saved_model(
        export_dir_base,
        serving_input_receiver_fn,
        assets_extra=assets_extra,
        as_text=as_text,
        checkpoint_path=checkpoint_path or estimator.latest_checkpoint(),
    )
