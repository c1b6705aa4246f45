"""Declares the taxi pipeline once for every runner."""

from __future__ import annotations

from typing import Any

import tensorflow_model_analysis as tfma
from tfx import v1 as tfx

from pipelines.taxi.config import Config
from tfx_tpu_trainer.components.evaluation import stock_evaluator_config
from tfx_tpu_trainer.workbench.project import components


def create_pipeline(config: Config) -> tfx.dsl.Pipeline:
    """Returns the pipeline from CSV files to a pushed model.

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
        disable_analyzer_cache=True,  # No later run is given it.
        **components.preprocessing(config, "pipelines.taxi.transform.preprocessing"),
    )
    tuner = None
    if config.tune.enabled:
        tuner = components.tuner(
            config,
            config.tune,
            tuner_fn="pipelines.taxi.tuning.tuner_fn",
            examples=transform.outputs["transformed_examples"],
            transform_graph=transform.outputs["transform_graph"],
            params=model_params(config, steps=config.tune.train_steps),
        )
    trainer, baseline, gate, pusher = components.train_gate_push(
        config,
        hyperparameters=tuner and tuner.outputs["best_hyperparameters"],
        raw_examples=examples.outputs["examples"],
        statistics=statistics.outputs["statistics"],
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
    nodes = [examples, statistics, schema, anomalies, transform, *([tuner] if tuner else [])]
    nodes += [trainer, evaluator, baseline, gate, pusher]
    if config.bulk_inference:
        nodes.append(
            tfx.components.BulkInferrer(
                examples=examples.outputs["examples"],
                model=trainer.outputs["model"],
                model_blessing=gate.outputs["blessing"],
                data_spec=tfx.proto.DataSpec(example_splits=config.bulk_inference.splits),
                model_spec=bulk_model_spec(),
            )
        )
    return components.pipeline(config, nodes)


def model_params(config: Config, *, steps: int | None = None) -> dict[str, Any]:
    """Returns the `params` of the model_fn; the learning rate falls until training ends.

    Args:
        config: The pipeline's config.
        steps: Steps of the training. Defaults to `None`, those of the trainer.
    """
    params = config.model.model_dump(mode="json")
    decay_steps = config.model.decay_steps or steps or config.trainer.train_steps
    return {**params, "decay_steps": decay_steps}


def bulk_model_spec() -> tfx.proto.ModelSpec:
    """Selects the metagraph for CPU hosts for BulkInferrer."""
    return tfx.proto.ModelSpec(model_signature_name=["serving_default"], tag=["serve"])


def evaluator_config(label_key: str) -> tfma.EvalConfig:
    """Returns the stock Evaluator's config, without thresholds: it writes no blessing, and only the gate decides.

    Args:
        label_key: The label in Transform's output; the model's `transform_features` signature
            computes it.

    Returns:
        The EvalConfig.
    """
    return stock_evaluator_config(
        label_key,
        prediction_key="probability",
        metrics=["ExampleCount", "BinaryAccuracy", "AUC"],
        slicing_specs=[tfma.SlicingSpec(feature_keys=["payment_type"])],
    )
