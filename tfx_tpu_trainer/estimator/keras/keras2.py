"""Models of Keras 2, the package tf_keras."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.keras.keras_model import KerasModel, Named


class Keras2Model(KerasModel):
    """A model of tf_keras."""

    @property
    def input_names(self) -> list[str]:
        """The names of its input layers."""
        return list(self.model.input_names)

    @property
    def known_output_names(self) -> Sequence[str] | None:
        """The names of its output layers."""
        return self.model.output_names

    def custom_scope(self) -> contextlib.AbstractContextManager[Any]:
        """Makes the custom objects known to Keras."""
        import tf_keras

        return tf_keras.utils.custom_object_scope(self.custom_objects)

    def call(self, features: Any, *, training: bool) -> Any:
        """Computes the outputs."""
        return self.model(features, training=training)

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
        """Gives the compiled metrics by their Keras names."""
        results: dict[str, tf.Tensor] = {}
        for metric in self.model.compiled_metrics.metrics:
            result = metric.result()
            if isinstance(result, dict):
                results.update(result)
            else:
                results[metric.name] = result
        return results

    def metric_container(self) -> Any:
        """Gives what holds the compiled metrics."""
        return self.model.compiled_metrics

    def variables(self) -> list[Named]:
        """Gives the model's variables, those of metrics left out."""
        of_metrics = {id(v) for metric in self.model.metrics for v in metric.variables}
        trained = {id(variable) for variable in self.model.trainable_weights}
        return [
            Named(variable.name, variable, id(variable) in trained)
            for variable in _once(self.model.weights)
            if id(variable) not in of_metrics
        ]

    def raw(self, variable: Any) -> tf.Variable:
        """Gives the variable itself."""
        return variable


def _once(variables: Sequence[Any]) -> list[Any]:
    return list({id(variable): variable for variable in variables}.values())
