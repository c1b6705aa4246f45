"""Keras 2 models that were made in a graph: made again eagerly, to be traced as any other.

Keras 2 has two of each class, for eager execution and for graphs, and the one name `Dense` stands for the
one that fits whoever made a layer last: it exchanges the bases of the class. So a program that makes
layers in a graph, as every model_fn does, breaks the layers that were made eagerly before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.keras._eagerly import eagerly
from tfx_tpu_trainer.estimator.keras._tf_private import compile_arguments, is_class_of_graphs

v1 = tf.compat.v1
_logger = tf.get_logger()


def metric_names(model: Any) -> list[str]:
    """Returns the names of a graph's model's compiled metrics, in their order.

    With TensorFlow 2's behaviour switched off they are others than those of the copy: `acc` for
    `accuracy`. And Keras puts the outputs' names before those of metric objects each time.
    """
    outputs = len(model.output_names or ())
    return list(model.metrics_names[1 + (outputs if outputs > 1 else 0) :])


def eager_copy(
    model: Any, custom_objects: Mapping[str, Any] | None, session_config: v1.ConfigProto
) -> Any:
    """Makes a compiled model of a graph again, eagerly, of its config and with its values."""
    import tf_keras

    arguments = compile_arguments(model)
    optimizers = [_settings_of(each) for each in tf.nest.flatten(model.optimizer)]
    # A subclassed model of a graph has inputs as well, once it was called.
    is_functional = any(base.__name__ == "Functional" for base in type(model).__mro__)
    values = None
    if model.built and is_functional:
        if not any(hasattr(weight, "_keras_initialized") for weight in model.weights):
            v1.keras.backend.set_session(v1.Session(config=session_config))
        values = model.get_weights()
    elif model.built:
        _logger.warning(
            "You are creating an Estimator from a Keras model manually subclassed from `Model`, "
            "that was already called on some inputs (and thus already had weights). We are "
            "currently unable to preserve the model's state (its weights) as part of the "
            "estimator in this case: it was created in a graph. The estimator starts from newly "
            "initialized values."
        )

    def copied() -> Any:
        with tf_keras.utils.custom_object_scope(dict(custom_objects or {})):
            if is_functional:
                copy = tf_keras.models.clone_model(model)
            else:
                copy = type(model).from_config(model.get_config())
            made = [_made_again(*each) for each in optimizers]
            arguments["metrics"] = _fresh_metrics(arguments.get("metrics"))
            arguments["weighted_metrics"] = _fresh_metrics(arguments.get("weighted_metrics"))
            copy.compile(made if isinstance(model.optimizer, list) else made[0], **arguments)
        if values is not None:
            copy.set_weights(values)
        return copy

    with _bases_kept(_keras_classes(model)):
        return eagerly(copied)


@contextlib.contextmanager
def eager_classes(model: Any) -> Iterator[None]:
    """Makes the classes of a model those of eager execution, for as long as it is used."""
    classes = _keras_classes(model)
    if not any(is_class_of_graphs(base) for each in classes for base in each.__mro__):
        yield
        return
    with _bases_kept(classes):
        # Keras exchanges the bases where an object is made, before its __init__.
        eagerly(lambda: [each.__new__(each) for each in classes])
        yield


@contextlib.contextmanager
def _bases_kept(classes: Collection[type]) -> Iterator[None]:
    before = {base: base.__bases__ for each in classes for base in reversed(each.__mro__)}
    try:
        yield
    finally:
        for each, bases in before.items():
            if each.__bases__ != bases:
                each.__bases__ = bases


def _keras_classes(model: Any) -> set[Any]:
    import tf_keras

    parts = [model, *model.submodules]
    return {type(each) for each in parts if isinstance(each, tf_keras.layers.Layer)}


def _settings_of(optimizer: Any) -> tuple[Any, Any]:
    """Returns an optimizer and its config, as the graph that it was made in has it."""
    inner = getattr(optimizer, "optimizer", None)
    if isinstance(inner, v1.train.Optimizer):
        return inner, None
    try:
        return optimizer, optimizer.get_config()
    except Exception as error:
        raise ValueError(
            "Please set your optimizer as an instance of `tf.keras.optimizers.legacy.Optimizer`, "
            "e.g., `tf.keras.optimizers.legacy.Adam`. Received optimizer type: "
            f"{type(optimizer)}. It has no config in a graph: {error}"
        ) from error


def _made_again(optimizer: Any, config: Mapping[str, Any] | None) -> Any:
    return optimizer if config is None else type(optimizer).from_config(config)


def _fresh_metrics(metrics: Any) -> Any:
    import tf_keras

    def fresh(metric: Any) -> Any:
        if isinstance(metric, tf_keras.metrics.Metric):
            return type(metric).from_config(metric.get_config())
        return metric

    return tf.nest.map_structure(fresh, metrics)
