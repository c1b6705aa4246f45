"""Models of Keras 3, the package keras, on its TensorFlow backend."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.keras._keras_model import KerasModel, Named


class Keras3Model(KerasModel):
    """A model of Keras 3."""

    def in_use(self) -> contextlib.AbstractContextManager[None]:
        """Does nothing: Keras 3 has one class of each name."""
        return contextlib.nullcontext()

    @property
    def input_names(self) -> list[str]:
        """The names of its inputs."""
        return [tensor.name for tensor in self.model.inputs]

    @property
    def known_output_names(self) -> Sequence[str] | None:
        """The names of its output layers."""
        names = getattr(self.model, "output_names", None)
        if names is None and self.is_functional:
            return [self.model.layers[-1].name]
        return names

    def check_custom_objects(self) -> None:
        """Checks nothing: there is no original to be like."""

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
        """Returns what holds the compiled metrics; `None` where none were compiled."""
        for metric in self.model.metrics:
            if metric.name == "compile_metrics" and hasattr(metric, "metrics"):
                return metric
        return None

    def variables(self) -> list[Named]:
        """Returns the model's variables, those of metrics left out."""
        trained = {id(variable) for variable in self.model.trainable_variables}
        of_metrics = {id(variable) for variable in self.model.metrics_variables}
        return [
            Named(variable.path, self.raw(variable), id(variable) in trained)
            for variable in self.model.variables
            if id(variable) not in of_metrics
        ]

    def raw(self, variable: Any) -> tf.Variable:
        """Returns the `tf.Variable` inside of Keras's variable."""
        return variable.value if hasattr(variable, "path") else variable
