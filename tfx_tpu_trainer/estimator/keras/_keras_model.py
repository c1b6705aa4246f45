"""The interface of an estimator to Keras models, and its implementation for Keras 3."""

import abc
import contextlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf


class Named(NamedTuple):
    """A variable of a model or an optimizer."""

    name: str  # Keras's name; several variables may share one.
    variable: Any
    trainable: bool  # Whether training changes it.


class Crossentropy(NamedTuple):
    """The loss of a classifier."""

    binary: bool  # Whether the output is one value for two classes, instead of one for each class.
    from_logits: bool  # Whether the output is a logit, instead of a probability.


class KerasModel(abc.ABC):
    """A compiled Keras model, whose methods are called in a trace.

    Attributes:
        model: The caller's model.
        custom_objects: Classes and functions by name, for objects that are made from a config.
        metric_names: Names of the compiled metrics if they differ from the model's; or `None`.
    """

    def __init__(self, model: Any, custom_objects: Mapping[str, Any] | None) -> None:
        """Wraps a model."""
        self.model = model
        self.custom_objects = dict(custom_objects or {})
        self.metric_names: Sequence[str] | None = None

    @abc.abstractmethod
    def in_use(self) -> contextlib.AbstractContextManager[None]:
        """Makes the model usable inside; all code that uses it runs in this context."""

    @property
    def optimizer(self) -> Any:
        """The caller's optimizer; `None` if the model is not compiled."""
        return getattr(self.model, "optimizer", None)

    @property
    def is_functional(self) -> bool:
        """Whether the layers define the inputs: a functional or sequential model."""
        return getattr(self.model, "inputs", None) is not None

    @property
    def is_built(self) -> bool:
        """Whether the model has its variables."""
        return bool(self.model.built)

    @property
    @abc.abstractmethod
    def input_names(self) -> list[str]:
        """The names of a functional model's inputs, in the model's order."""

    @property
    def input_structure(self) -> Any:
        """The nested structure of a functional model's inputs."""
        inputs = self.model.inputs
        # A sequential model of Keras 3 has no structure.
        return getattr(self.model, "input", inputs[0] if len(inputs) == 1 else inputs)

    def output_names(self, outputs: Any) -> list[str]:
        """Returns the names of a model's outputs, in the order of `tf.nest.flatten`."""
        count = len(tf.nest.flatten(outputs))
        names = self.known_output_names
        if names is not None and len(names) == count:
            return list(names)
        if isinstance(outputs, Mapping) and len(outputs) == count:
            return sorted(outputs)
        return [f"output_{number}" for number in range(1, count + 1)]

    @property
    @abc.abstractmethod
    def known_output_names(self) -> Sequence[str] | None:
        """The names of a functional model's outputs, or `None`."""

    @abc.abstractmethod
    def check_custom_objects(self) -> None:
        """Checks, as the original does, that Keras knows the names in the layers' configs."""

    @abc.abstractmethod
    def custom_scope(self) -> contextlib.AbstractContextManager[Any]:
        """Makes the custom objects known to Keras."""

    @abc.abstractmethod
    def call(self, features: Any, *, training: bool) -> Any:
        """Computes the outputs."""

    @abc.abstractmethod
    def loss(
        self, features: Any, labels: Any, outputs: Any, weights: Any, *, training: bool
    ) -> tf.Tensor:
        """Computes the loss, regularization included, after `call`."""

    def regularization(self) -> tf.Tensor:
        """Returns the part of the loss that is independent of labels, after `call`."""
        return tf.add_n([tf.cast(loss, tf.float32) for loss in self.model.losses] or [0.0])

    @property
    def losses_are_sums(self) -> set[bool]:
        """Whether compiled losses are sums over rows: `{True}` for sums, `{False}` for means, or both."""
        losses = [loss for loss in tf.nest.flatten(self.model.loss) if loss is not None]
        return {getattr(loss, "reduction", None) == "sum" for loss in losses}

    @property
    def crossentropy(self) -> Crossentropy | None:
        """The compiled crossentropy of a single output; `None` for other losses."""
        losses = [loss for loss in tf.nest.flatten(self.model.loss) if loss is not None]
        if len(losses) != 1:
            return None
        (loss,) = losses
        called = loss if isinstance(loss, str) else getattr(loss, "name", None)
        called = str(called or getattr(loss, "__name__", "")).lower().replace("_", "")
        if not called.endswith("crossentropy"):
            return None
        config = loss.get_config() if hasattr(loss, "get_config") else {}
        return Crossentropy(called.startswith("binary"), bool(config.get("from_logits")))

    @abc.abstractmethod
    def update_metrics(self, labels: Any, outputs: Any, weights: Any) -> None:
        """Updates the compiled metrics."""

    @abc.abstractmethod
    def metric_results(self) -> dict[str, tf.Tensor]:
        """Returns the updated compiled metrics by their Keras names."""

    @abc.abstractmethod
    def metric_container(self) -> Any:
        """Returns the container of the compiled metrics, with `metrics` and `reset_state`; or `None`."""

    @abc.abstractmethod
    def variables(self) -> list[Named]:
        """Returns the model's variables without those of metrics."""

    @property
    def trainable_variables(self) -> list[Any]:
        """Keras's trainable variables."""
        return list(self.model.trainable_variables)

    @abc.abstractmethod
    def raw(self, variable: Any) -> tf.Variable:
        """Returns the `tf.Variable` of one of Keras's variables."""

    def parts_to_optimize(self) -> list[tuple[Any, list[Any]]]:
        """Returns the caller's optimizers, each with the variables that it trains."""
        optimizer = self.optimizer
        if isinstance(optimizer, (list, tuple)):
            raise ValueError(
                "The `optimizer` in `compile` should be a single optimizer. The Keras model "
                f"{self.model.name!r} has {len(optimizer)}; only a WideDeepModel assigns each of "
                "its two to a part."
            )
        return [(optimizer, self.trainable_variables)]

    def fresh_optimizer(self, optimizer: Any) -> Any:
        """Makes an optimizer with the settings of the caller's, but without its state."""
        try:
            with self.custom_scope():
                return type(optimizer).from_config(optimizer.get_config())
        except Exception as error:
            name = type(optimizer).__name__
            raise ValueError(
                f"The optimizer {name} can't be made from its own config: {error}. Its class needs "
                "a matching get_config and from_config, and custom classes in its settings, such "
                "as a learning rate schedule, must be in custom_objects={'Name': Name} or registered by "
                "keras.saving.register_keras_serializable()."
            ) from error

    def fresh_metric_values(self) -> dict[int, np.ndarray]:
        """Returns the values of the metrics' variables after a reset; the caller's keep theirs."""
        container = self.metric_container()
        variables = [
            self.raw(variable) for metric in container.metrics for variable in metric.variables
        ]
        # Only a reset shows a metric's initial values (0 for a Mean, others elsewhere); the metrics are the caller's,
        # so their values are restored.
        kept = [variable.numpy() for variable in variables]
        container.reset_state()
        fresh = {id(variable.handle): variable.numpy() for variable in variables}
        for variable, value in zip(variables, kept):
            variable.assign(value)
        return fresh


def is_variable(trackable: Any) -> bool:
    """Returns whether a tracked object is a variable, of TensorFlow or of either Keras."""
    return hasattr(trackable, "handle") and hasattr(trackable, "assign")


class Keras3Model(KerasModel):
    """A model of Keras 3."""

    def in_use(self) -> contextlib.AbstractContextManager[None]:
        """Does nothing, since Keras 3 has one class of each name."""
        return contextlib.nullcontext()

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs."""
        return [tensor.name for tensor in self.model.inputs]

    @property
    def known_output_names(self) -> Sequence[str] | None:
        """The names of the output layers."""
        names = getattr(self.model, "output_names", None)
        if names is None and self.is_functional:
            return [self.model.layers[-1].name]
        return names

    def check_custom_objects(self) -> None:
        """Checks nothing, since the original has no Keras 3."""

    def custom_scope(self) -> contextlib.AbstractContextManager[Any]:
        """Makes the custom objects known to Keras."""
        import keras

        return keras.saving.custom_object_scope(self.custom_objects)

    def call(self, features: Any, *, training: bool) -> Any:
        """Computes the outputs."""
        takes = inspect.signature(self.model.call).parameters
        return self.model(features, **({"training": training} if "training" in takes else {}))

    def loss(
        self, features: Any, labels: Any, outputs: Any, weights: Any, *, training: bool
    ) -> tf.Tensor:
        """Computes the loss, regularization included, after `call`."""
        takes = inspect.signature(self.model.compute_loss).parameters
        more = {"training": training} if "training" in takes else {}
        return self.model.compute_loss(
            x=features, y=labels, y_pred=outputs, sample_weight=weights, **more
        )

    def update_metrics(self, labels: Any, outputs: Any, weights: Any) -> None:
        """Updates the compiled metrics."""
        self.metric_container().update_state(labels, outputs, weights)

    def metric_results(self) -> dict[str, tf.Tensor]:
        """Returns the compiled metrics by their Keras names."""
        results: dict[str, tf.Tensor] = {}
        for name, result in self.metric_container().result().items():
            if isinstance(result, dict):
                results.update(result)
            else:
                results[name] = result
        return results

    def metric_container(self) -> Any:
        """Returns the container of the compiled metrics; `None` without any."""
        for metric in self.model.metrics:
            if metric.name == "compile_metrics" and hasattr(metric, "metrics"):
                return metric
        return None

    def variables(self) -> list[Named]:
        """Returns the model's variables without those of metrics."""
        trained = {id(variable) for variable in self.model.trainable_variables}
        of_metrics = {id(variable) for variable in self.model.metrics_variables}
        return [
            Named(variable.path, self.raw(variable), id(variable) in trained)
            for variable in self.model.variables
            if id(variable) not in of_metrics
        ]

    def raw(self, variable: Any) -> tf.Variable:
        """Returns the `tf.Variable` inside a Keras variable."""
        return variable.value if hasattr(variable, "path") else variable
