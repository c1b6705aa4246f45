"""Makes estimators from compiled Keras models: `model_to_estimator`, and `keras_to_estimator` for TPUs."""

import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import tensorflow as tf

from tfx_tpu_trainer.estimator._calls import complete_config
from tfx_tpu_trainer.estimator._estimator import Estimator
from tfx_tpu_trainer.estimator._run_config import RunConfig
from tfx_tpu_trainer.estimator._warm_start import WarmStartSettings
from tfx_tpu_trainer.estimator.keras._checkpoints import write_first_checkpoint
from tfx_tpu_trainer.estimator.keras._keras2 import Keras2Model, eager_copy, metric_names
from tfx_tpu_trainer.estimator.keras._keras_model import Keras3Model, KerasModel
from tfx_tpu_trainer.estimator.keras._model_fn import KerasModelFn
from tfx_tpu_trainer.estimator.keras._saved_files import load_model
from tfx_tpu_trainer.estimator.keras._tf_private import eagerly, is_of_a_graph
from tfx_tpu_trainer.estimator.keras._trace import unused_name
from tfx_tpu_trainer.estimator.tpu._run_config import RunConfig as TPURunConfig
from tfx_tpu_trainer.estimator.tpu._tpu_estimator import TPUEstimator

_logger = tf.get_logger()

_FORMATS: Final = ("checkpoint", "saver")
_WRAPPERS: Final = {"tf_keras": Keras2Model, "keras": Keras3Model}


def model_to_estimator(
    keras_model: Any = None,
    keras_model_path: str | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    model_dir: str | os.PathLike[str] | None = None,
    config: RunConfig | None = None,
    checkpoint_format: str | None = "checkpoint",
    metric_names_map: Mapping[str, str] | None = None,
    export_outputs: Mapping[str, Any] | None = None,
    *,
    safe_mode: bool = True,
) -> Estimator:
    """Makes an Estimator from a compiled Keras model; mirrors `tf.keras.estimator`'s.

    The estimator starts from the model's current values, including batch norm statistics. Training does not change the
    model itself or its optimizer.

    Example:
    ```python
    model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=[4])])
    model.compile(optimizer="adam", loss="mse", metrics=["mae"])
    estimator = model_to_estimator(model, model_dir="runs/model")
    estimator.train(input_fn, steps=1000)
    ```

    Args:
        keras_model: A compiled model of Keras 2 (tf_keras) or Keras 3. Defaults to `None`; then
            `keras_model_path` must be given.
        keras_model_path: A saved compiled model: an HDF5 file, a `.keras` file, or a SavedModel of
            Keras 2. Defaults to `None`.
        custom_objects: Your own classes and functions by name, for objects that are made from a
            config: the saved model and the optimizer. Defaults to `None`.
        model_dir: Folder of checkpoints and events. Defaults to that of `config`, or else to a
            temporary folder.
        config: Configuration of the runs. Defaults to `RunConfig()`.
        checkpoint_format: `"checkpoint"`, the default: `tf.train.Checkpoint(model)` and
            `model.load_weights` read the estimator's checkpoints. `"saver"`: variables are saved by
            name.
        metric_names_map: Maps the names of all compiled metrics to those in `evaluate`. Defaults to
            `None`, Keras's names.
        export_outputs: Maps names of outputs to classes of their exports, such as
            `estimator.export.RegressionOutput`; each becomes a signature. Defaults to `None`: one signature with all
            outputs, which is always exported.
        safe_mode: Whether to reject a `keras_model_path` whose file runs its own Python code, as Lambda layers do, or
            import modules that it names. Defaults to `True`; give `False` if you trust the author of the file. The
            original lacks this argument.

    Returns:
        The estimator.

    Raises:
        ValueError: If not exactly one of model and path is given, the model is not compiled, or an
            argument is invalid.
    """
    model_fn, config, warm_start_from = _make_parts(
        keras_model,
        keras_model_path,
        custom_objects=custom_objects,
        model_dir=model_dir,
        config=config,
        checkpoint_format=checkpoint_format,
        metric_names_map=metric_names_map,
        export_outputs=export_outputs,
        safe_mode=safe_mode,
    )
    return Estimator(model_fn.for_estimator(), config=config, warm_start_from=warm_start_from)


def v1_model_to_estimator(
    keras_model: Any = None,
    keras_model_path: str | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    model_dir: str | os.PathLike[str] | None = None,
    config: RunConfig | None = None,
    checkpoint_format: str | None = "saver",
    metric_names_map: Mapping[str, str] | None = None,
    export_outputs: Mapping[str, Any] | None = None,
    *,
    safe_mode: bool = True,
) -> Estimator:
    """Makes an Estimator from a compiled Keras model; mirrors `tf.compat.v1.keras.estimator`'s.

    It differs from `estimator.model_to_estimator` in one default: `checkpoint_format="saver"`.
    """
    return model_to_estimator(
        keras_model,
        keras_model_path,
        custom_objects,
        model_dir,
        config,
        checkpoint_format,
        metric_names_map,
        export_outputs,
        safe_mode=safe_mode,
    )


def _make_parts(
    keras_model: Any,
    keras_model_path: str | None,
    *,
    custom_objects: Mapping[str, Any] | None,
    model_dir: str | os.PathLike[str] | None,
    config: RunConfig | None,
    checkpoint_format: str | None,
    metric_names_map: Mapping[str, str] | None,
    export_outputs: Mapping[str, Any] | None,
    safe_mode: bool,
) -> tuple[KerasModelFn, RunConfig, WarmStartSettings | None]:
    """Checks the arguments of `model_to_estimator`; returns model_fn, config and warm start settings."""
    _check_one_is_given(keras_model, keras_model_path)
    if checkpoint_format is not None and checkpoint_format not in _FORMATS:
        raise ValueError(
            f'Checkpoint format must be one of "checkpoint" or "saver". Got {checkpoint_format}'
        )
    if keras_model is not None:
        _check_is_compiled(keras_model)
        _logger.info("Using the Keras model provided.")
    config, folder = complete_config(config, model_dir)
    if keras_model is None:
        keras_model = load_model(
            keras_model_path, custom_objects, model_dir=folder, safe_mode=safe_mode
        )
    model = _eager_model(keras_model, custom_objects, config.session_config)
    of_objects = checkpoint_format != "saver"
    with model.in_use():
        _check_is_compiled(model.model)
        _check_can_be_traced(model)
        warm_start_from = _first_values(model, config, of_objects=of_objects)
    model_fn = KerasModelFn(
        model=model,
        of_objects=of_objects,
        metric_names_map=metric_names_map,
        export_outputs=export_outputs,
        has_first_checkpoint=model.is_built,
    )
    return model_fn, config, warm_start_from


def _first_values(
    model: KerasModel, config: RunConfig, *, of_objects: bool
) -> WarmStartSettings | None:
    """Writes a checkpoint of a model's values; returns the settings to start from it."""
    if not model.is_built:
        _logger.info("The Keras model has no variables yet: it starts from newly initialized ones.")
        return None
    if not config.is_chief:
        return None
    taken: set[str] = set()
    names = [unused_name(each.name, taken) for each in model.variables()]
    return WarmStartSettings(
        write_first_checkpoint(model, config, of_objects=of_objects),
        # A list of patterns selects among all variables, a string only among trainable ones, which excludes the
        # statistics of a batch norm. A pattern matches the beginning of a name: with the colon of "dense/kernel:0" it
        # excludes "dense/kernel_1:0".
        vars_to_warm_start=[f"{re.escape(name)}:" for name in names],
    )


def _wrap(model: Any, custom_objects: Mapping[str, Any] | None) -> KerasModel:
    """Wraps a model of either Keras."""
    for name, wrapper in _WRAPPERS.items():
        keras = sys.modules.get(name)
        if keras is not None and isinstance(model, keras.Model):
            if name == "keras" and keras.backend.backend() != "tensorflow":
                raise ValueError(
                    f"Keras 3 runs on the backend {keras.backend.backend()!r}: an estimator needs "
                    "KERAS_BACKEND=tensorflow in the environment."
                )
            return wrapper(model, custom_objects)
    raise ValueError(
        f"keras_model should be a model of Keras 2 (tf_keras) or Keras 3 (keras); got {model!r}."
    )


def _eager_model(
    model: Any, custom_objects: Mapping[str, Any] | None, session_config: tf.compat.v1.ConfigProto
) -> KerasModel:
    """Wraps a model to be traced: the given one, or an eager copy of a model of this graph."""
    if tf.executing_eagerly() or not is_of_a_graph(model):
        return _wrap(model, custom_objects)
    copy = _wrap(eager_copy(model, custom_objects, session_config), custom_objects)
    copy.metric_names = metric_names(model)
    return copy


def _check_one_is_given(keras_model: Any, keras_model_path: Any) -> None:
    """Checks that there is a model or a path, and not both."""
    if keras_model is None and not keras_model_path:
        raise ValueError(
            "Either `keras_model` or `keras_model_path` needs to be provided; got "
            f"keras_model={keras_model!r} and keras_model_path={keras_model_path!r}."
        )
    if keras_model is not None and keras_model_path:
        raise ValueError(
            "Please specify either `keras_model` or `keras_model_path`, but not both; got "
            f"keras_model={keras_model!r} and keras_model_path={keras_model_path!r}."
        )


def _check_is_compiled(model: Any) -> None:
    """Checks that a model is a compiled Keras model."""
    _wrap(model, None)
    if not getattr(model, "optimizer", None):
        raise ValueError(
            "The given keras model has not been compiled yet. Please compile the model with "
            f"`model.compile()` before calling `model_to_estimator()`. The model {model.name!r} needs "
            "an optimizer and, to be trained, a loss."
        )


def _check_can_be_traced(keras_model: KerasModel) -> None:
    """Checks a model that becomes an estimator, and warns of unused parts."""
    model = keras_model.model
    if isinstance(keras_model.optimizer, (list, tuple)):
        keras_model.parts_to_optimize()
    # Keras 2 raises an error for the variables of a model without any.
    variables = model.weights if keras_model.is_built else []
    of_a_graph = any(tf.is_symbolic_tensor(keras_model.raw(each).handle) for each in variables)
    if of_a_graph or is_of_a_graph(model):
        raise ValueError(
            f"The Keras model {model.name!r} was created in a graph that is no longer the default "
            "one. Convert it where it was created, inside the same `with graph.as_default():`, or "
            "create it outside any graph. A Keras 3 model must be created eagerly."
        )
    eagerly(keras_model.check_custom_objects)
    train_step = getattr(type(model), "train_step", None)
    if getattr(train_step, "__module__", "").partition(".")[0] not in _WRAPPERS:
        _logger.warning(
            "The train_step of %s is not used: an estimator trains with the compiled loss.",
            type(model).__name__,
        )


def is_keras_model(model: Any) -> bool:
    """Returns whether a value is a model of Keras 2 or Keras 3."""
    modules = (sys.modules.get(name) for name in _WRAPPERS)
    return any(module is not None and isinstance(model, module.Model) for module in modules)


def keras_output_names(model: Any) -> list[str]:
    """Returns the label names of a model's outputs; none for a subclassed model."""
    wrapped = _wrap(model, None)
    outputs = getattr(model, "output", None) if wrapped.is_functional else None
    if isinstance(outputs, Mapping):
        return sorted(outputs)
    return list(wrapped.known_output_names or []) if wrapped.is_functional else []


def keras_model_fn(
    keras_model: Any, config: TPURunConfig | None = None, *, warm_start_from: Any = None
) -> tuple[Callable[..., Any], Any]:
    """Returns the model_fn of a compiled Keras model for a TPUEstimator, and its warm start.

    Predictions of a model with one output and a crossentropy also have `classes`.

    Args:
        keras_model: A compiled model of Keras 2 or Keras 3.
        config: Configuration of the training; the model's values are saved below its `model_dir`. Defaults to `None`:
            the model is never trained, and nothing is written.
        warm_start_from: Source of the trained variables' initial values. Defaults to `None`, the model's own.

    Returns:
        The model_fn and the `warm_start_from` of its estimator.

    Raises:
        ValueError: If `keras_model` is not a Keras model, is not compiled, or can't be traced.
    """
    _check_is_compiled(keras_model)
    model = _eager_model(keras_model, None, None)
    own_values = None
    with model.in_use():
        _check_can_be_traced(model)
        if config is not None and warm_start_from is None:
            own_values = _first_values(model, config, of_objects=True)
    model_fn = KerasModelFn(
        model=model,
        of_objects=config is not None,
        metric_names_map=None,
        export_outputs=None,
        # Variables that another model's checkpoint lacks, such as batch norm statistics, get their values
        # from the graph.
        has_first_checkpoint=config is None or (model.is_built and warm_start_from is None),
        with_classes=True,
    )
    return model_fn.for_tpu_estimator(), warm_start_from or own_values


def keras_to_estimator(
    keras_model: Any = None,
    keras_model_path: str | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    model_dir: str | os.PathLike[str] | None = None,
    config: TPURunConfig | None = None,
    checkpoint_format: str | None = "checkpoint",
    metric_names_map: Mapping[str, str] | None = None,
    export_outputs: Mapping[str, Any] | None = None,
    *,
    safe_mode: bool = True,
    use_tpu: bool = True,
    train_batch_size: int | None = None,
    eval_batch_size: int | None = None,
    predict_batch_size: int | None = None,
    **options: Any,
) -> TPUEstimator:
    """Makes a TPUEstimator from a compiled Keras model; the original lacks this function.

    The optimizer averages the gradients of the cores if losses are means over rows, Keras's default, and sums them with
    `reduction="sum"`. So a step on several cores equals a step of one core with all rows, except for layers that mix
    the rows of a batch, such as a batch norm in training.

    Examples:
        >>> from tfx_tpu_trainer.estimator import keras_to_estimator, tpu
        >>> import tensorflow as tf
        >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
        >>> model.compile(optimizer="sgd", loss="mse")
        >>> def input_fn(params):
        ...     rows = tf.data.Dataset.from_tensors(([1.0], [2.0])).repeat()
        ...     return rows.batch(params["batch_size"], drop_remainder=True)
        >>> config = tpu.RunConfig(master="emulated", tpu_config=tpu.TPUConfig(num_shards=2))
        >>> estimator = keras_to_estimator(
        ...     model, model_dir="runs/keras", config=config, train_batch_size=4, eval_batch_size=4
        ... )
        >>> metrics = estimator.train(input_fn, max_steps=200).evaluate(input_fn, steps=1)
        >>> print(metrics["global_step"], round(float(metrics["loss"]), 3))
        200 0.0

    Args:
        keras_model: As in `model_to_estimator`, like the arguments up to `safe_mode`.
        keras_model_path: See there.
        custom_objects: See there.
        model_dir: See there.
        config: Configuration of the runs. Defaults to `None`, a `RunConfig()` of
            `estimator.tpu`.
        checkpoint_format: See there.
        metric_names_map: See there.
        export_outputs: See there.
        safe_mode: See there.
        use_tpu: Whether the model runs on TPU cores. Defaults to `True`: emulated ones with
            `RunConfig(master="emulated")` or TFX_TPU_TRAINER_EMULATE=1 in the environment.
        train_batch_size: Global batch size of training.
        eval_batch_size: Global batch size of evaluation.
        predict_batch_size: Global batch size of prediction.
        **options: Further arguments of `TPUEstimator`: `params`, `eval_on_tpu`, `export_to_tpu` ...

    Returns:
        The estimator.

    Raises:
        ValueError: If an argument is invalid.
        TypeError: If a batch size is not an integer.
    """
    config = TPURunConfig() if config is None else config
    if not isinstance(config, TPURunConfig):
        raise ValueError(
            "`config` should be a RunConfig of tfx_tpu_trainer.estimator.tpu, which a TPUEstimator "
            f"needs; got {config!r}."
        )
    model_fn, complete, warm_start_from = _make_parts(
        keras_model,
        keras_model_path,
        custom_objects=custom_objects,
        model_dir=model_dir,
        config=config,
        checkpoint_format=checkpoint_format,
        metric_names_map=metric_names_map,
        export_outputs=export_outputs,
        safe_mode=safe_mode,
    )
    given = {"warm_start_from": warm_start_from, **options}
    return TPUEstimator(
        model_fn.for_tpu_estimator(),
        config=cast(TPURunConfig, complete),
        use_tpu=use_tpu,
        train_batch_size=train_batch_size,
        eval_batch_size=eval_batch_size,
        predict_batch_size=predict_batch_size,
        **given,
    )
