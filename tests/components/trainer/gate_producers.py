"""Makes models with metrics, without training, for EvalMetricsGate in test pipelines."""

# No `from __future__ import annotations`: TFX's @component reads the annotations as types.

import tensorflow as tf
from tfx import v1 as tfx

from tfx_tpu_trainer.components.evaluation import (
    EvalMetrics,
    metric_properties,
    set_properties,
    write_eval_metrics,
    write_model_evaluation,
)

_Model = tfx.types.standard_artifacts.Model
_ModelEvaluation = tfx.types.standard_artifacts.ModelEvaluation


class _Constant(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def serve(self, examples: tf.Tensor) -> dict:
        return {"score": tf.zeros_like(examples, tf.float32)}


@tfx.dsl.components.component
def produce_model(
    model: tfx.dsl.components.OutputArtifact[_Model],
    evaluation: tfx.dsl.components.OutputArtifact[_ModelEvaluation],
    accuracy: tfx.dsl.components.Parameter[float],
):
    metrics = EvalMetrics(
        overall={"accuracy": accuracy, "loss": 1 - accuracy}, global_step=100, num_examples=1000
    )
    constant = _Constant()
    tf.saved_model.save(constant, f"{model.uri}/Format-Serving", signatures=constant.serve)
    write_eval_metrics(model.uri, metrics)
    write_model_evaluation(evaluation.uri, metrics, model_location=model.uri)
    set_properties(evaluation, metric_properties(metrics))
