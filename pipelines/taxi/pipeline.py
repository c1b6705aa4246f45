"""The taxi pipeline, declared once for every runner."""

from __future__ import annotations

from typing import Any

import tensorflow_model_analysis as tfma
from tfx import v1 as tfx

from pipelines import components
from pipelines.taxi.config import Config


def create_pipeline(config: Config) -> tfx.dsl.Pipeline:
    """From CSV files to a pushed model.

    Args:
        config: The pipeline's config, with `data` set.

    Returns:
        The pipeline.
    """
    examples = tfx.components.CsvExampleGen(input_base=components.data_folder(config))
    statistics = tfx.components.StatisticsGen(examples=examples.outputs["examples"])
    schema = tfx.components.SchemaGen(
        statistics=statistics.outputs["statistics"], infer_feature_shape=False
    )
    anomalies = tfx.components.ExampleValidator(
        statistics=statistics.outputs["statistics"], schema=schema.outputs["schema"]
    )
    transform = tfx.components.Transform(
        examples=examples.outputs["examples"],
        schema=schema.outputs["schema"],
        force_tf_compat_v1=True,
        disable_statistics=True,
        **components.preprocessing(config, "pipelines.taxi.transform.preprocessing"),
    )
    trainer, *gate_and_push = components.train_gate_push(
        config,
        examples=transform.outputs["transformed_examples"],
        transform_graph=transform.outputs["transform_graph"],
        schema=schema.outputs["schema"],
        params=model_params(config),
    )
    evaluator = tfx.components.Evaluator(
        examples=examples.outputs["examples"],
        model=trainer.outputs["model"],
        schema=schema.outputs["schema"],
        eval_config=evaluator_config(config.trainer.label_key),
    )
    return components.pipeline(
        config,
        [examples, statistics, schema, anomalies, transform, trainer, evaluator, *gate_and_push],
    )


def model_params(config: Config) -> dict[str, Any]:
    """What the model_fn finds in its `params`: the learning rate falls until training ends."""
    params = config.model.model_dump(mode="json")
    return {**params, "decay_steps": config.model.decay_steps or config.trainer.train_steps}


def evaluator_config(label_key: str) -> tfma.EvalConfig:
    """What the stock Evaluator measures: no thresholds, so that it writes no blessing and the gate alone decides.

    Args:
        label_key: The label in Transform's output; the model's `transform_features` signature
            computes it.

    Returns:
        The EvalConfig.
    """
    return tfma.EvalConfig(
        model_specs=[
            tfma.ModelSpec(
                model_type="tf_generic",
                signature_name="serving_default",
                prediction_key="probability",
                label_key=label_key,
                preprocessing_function_names=["transform_features"],
            )
        ],
        metrics_specs=[
            tfma.MetricsSpec(
                metrics=[
                    tfma.MetricConfig(class_name=name)
                    for name in ("ExampleCount", "BinaryAccuracy", "AUC")
                ]
            )
        ],
        slicing_specs=[tfma.SlicingSpec(), tfma.SlicingSpec(feature_keys=["payment_type"])],
    )
