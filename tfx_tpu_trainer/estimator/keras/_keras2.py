"""Models of Keras 2, the package tf_keras, including those that were made in a graph.

Keras 2 has two of each class, for eager execution and for graphs, and exchanges the bases of a class such as `Dense`
whenever a layer is made in the other mode. So a program that makes layers in a graph, as every model_fn does, breaks
layers that were made eagerly before. A model that was made in a graph is made again eagerly, and then traced like any
other.
"""

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer.estimator.keras._keras_model import KerasModel, Named
from tfx_tpu_trainer.estimator.keras._tf_private import (
    compile_arguments,
    eagerly,
    inputs_of_any_shape,
    is_class_of_graphs,
)

v1 = tf.compat.v1

# Keras 2 puts this before a layer's error; the original's message begins with the error itself.
_WRAPPED: Final = re.compile(r"Exception encountered when calling [^\n]*\n\n")
_UNKNOWN: Final = re.compile(r"Unknown |Cannot deserialize object of type|custom_object_scope")


class Keras2Model(KerasModel):
    """A model of tf_keras."""

    def in_use(self) -> contextlib.AbstractContextManager[None]:
        """Makes the classes of the model's layers those of eager execution."""
        return eager_classes(self.model)

    @property
    def input_names(self) -> list[str]:
        """The names of the input layers."""
        return list(self.model.input_names)

    @property
    def known_output_names(self) -> Sequence[str] | None:
        """The names of the output layers."""
        import tf_keras

        names = self.model.output_names
        if names is None and isinstance(self.model, tf_keras.Sequential) and self.model.layers:
            # With TensorFlow 2's behaviour off it has no input shape, and so no output names.
            return [self.model.layers[-1].name]
        return names

    def parts_to_optimize(self) -> list[tuple[Any, list[Any]]]:
        """Returns the caller's optimizers, each with the variables that it trains."""
        import tf_keras

        model, optimizers = self.model, self.optimizer
        if not isinstance(optimizers, (list, tuple)) or len(optimizers) != 2:
            return super().parts_to_optimize()
        if not isinstance(model, tf_keras.experimental.WideDeepModel):
            return super().parts_to_optimize()
        parts = (model.linear_model, model.dnn_model)
        if not self.is_built:
            return [(optimizer, []) for optimizer in optimizers]
        return [(each, list(part.trainable_variables)) for each, part in zip(optimizers, parts)]

    def check_custom_objects(self) -> None:
        """Checks that Keras knows the classes and functions in the layers' configs.

        This model is not made from its config. But a model with unknown names can't be saved and loaded, and the
        original, which makes layers from their configs, rejects it.
        """
        for layer in _layers_of(self.model) if self.is_functional else ():
            try:
                with self.custom_scope():
                    type(layer).from_config(layer.get_config())
            except Exception as error:
                # Layers that can't be made again for other reasons don't have to be.
                if _UNKNOWN.search(str(error)):
                    kind = TypeError if isinstance(error, TypeError) else ValueError
                    raise kind(
                        f"{error}\nGive model_to_estimator what the layer {layer.name!r} uses in "
                        "custom_objects={'name': class_or_function}."
                    ) from error

    def custom_scope(self) -> contextlib.AbstractContextManager[Any]:
        """Makes the custom objects known to Keras."""
        import tf_keras

        return tf_keras.utils.custom_object_scope(self.custom_objects)

    def call(self, features: Any, *, training: bool) -> Any:
        """Computes the outputs for any shape of inputs that the layers take, as the original does.

        A `Dense` layer of a model with inputs [2, 3] takes [2, 5, 3] as well.
        """
        with inputs_of_any_shape(self.model):
            try:
                return self.model(features, training=training)
            except Exception as error:
                if error.args and isinstance(error.args[0], str):
                    message = _WRAPPED.sub("", error.args[0], count=1) + self._misfit(features)
                    error.args = (message, *error.args[1:])
                raise

    def _misfit(self, features: Any) -> str:
        """Names the shape that the model was made for; returns "" if the inputs fit."""
        made_for = [tensor.shape for tensor in self.model.inputs] if self.is_functional else []
        shapes = [tensor.shape for tensor in tf.nest.flatten(features)]
        if all(shape.is_compatible_with(other) for shape, other in zip(shapes, made_for)):
            return ""
        return (
            f"\n\nThe model {self.model.name!r} was made for inputs of shape "
            f"{self.model.input_shape}."
        )

    def loss(
        self, features: Any, labels: Any, outputs: Any, weights: Any, *, training: bool
    ) -> tf.Tensor:
        """Computes the loss, regularization included, after `call`."""
        del training
        return self.model.compute_loss(features, labels, outputs, weights)

    def update_metrics(self, labels: Any, outputs: Any, weights: Any) -> None:
        """Updates the compiled metrics."""
        self.model.compiled_metrics.update_state(labels, outputs, weights)

    def metric_results(self) -> dict[str, tf.Tensor]:
        """Returns the compiled metrics by their Keras names."""
        results: dict[str, tf.Tensor] = {}
        for metric in self.model.compiled_metrics.metrics:
            result = metric.result()
            if isinstance(result, dict):
                results.update(result)
            else:
                results[metric.name] = result
        names = self.metric_names
        if names is not None and len(names) == len(results):
            return dict(zip(names, results.values()))
        return results

    def metric_container(self) -> Any:
        """Returns the container of the compiled metrics."""
        return self.model.compiled_metrics

    def variables(self) -> list[Named]:
        """Returns the model's variables without those of metrics."""
        of_metrics = {id(v) for metric in self.model.metrics for v in metric.variables}
        trained = {id(variable) for variable in self.model.trainable_weights}
        return [
            Named(variable.name, variable, id(variable) in trained)
            for variable in _once(self.model.weights)
            if id(variable) not in of_metrics
        ]

    def raw(self, variable: Any) -> tf.Variable:
        """Returns the variable itself."""
        return variable


def _layers_of(model: Any) -> Iterator[Any]:
    """Yields the layers of a model and of the models in it, without those with a table."""
    import tf_keras

    for layer in model.layers:
        if isinstance(layer, tf_keras.Model):
            yield from _layers_of(layer)
        # from_config would make another table for StringLookup and similar layers.
        elif not hasattr(layer, "vocabulary_size"):
            yield layer


def _once(variables: Sequence[Any]) -> list[Any]:
    return list({id(variable): variable for variable in variables}.values())


_logger = tf.get_logger()


def metric_names(model: Any) -> list[str]:
    """Returns the names of a graph's model's compiled metrics, in their order.

    With TensorFlow 2's behaviour switched off they differ from the copy's: `acc` for `accuracy`. And Keras puts the
    outputs' names before those of metric objects each time.
    """
    outputs = len(model.output_names or ())
    return list(model.metrics_names[1 + (outputs if outputs > 1 else 0) :])


def eager_copy(
    model: Any, custom_objects: Mapping[str, Any] | None, session_config: v1.ConfigProto
) -> Any:
    """Makes a graph's compiled model again, eagerly, from its config and with its values."""
    import tf_keras

    arguments = compile_arguments(model)
    optimizers = [_settings_of(each) for each in tf.nest.flatten(model.optimizer)]
    # A subclassed model in a graph has inputs as well, once it has been called.
    is_functional = any(base.__name__ == "Functional" for base in type(model).__mro__)
    values = None
    if model.built and is_functional:
        # Keras marks the variables that a session of its backend has initialized. If there are none, this first session
        # gets the program's configuration; else the values are in an existing session.
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
        # Keras exchanges the bases when an object is made, before its __init__.
        eagerly(lambda: [each.__new__(each) for each in classes])
        yield


@contextlib.contextmanager
def _bases_kept(classes: Collection[type]) -> Iterator[None]:
    # From `object` downwards, so a class's ancestors are restored when its own bases are set.
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
    """Returns an optimizer and its config, in the graph in which it was made."""
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
