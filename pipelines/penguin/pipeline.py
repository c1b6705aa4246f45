"""Declares the penguin pipeline: up to Transform, then TpuTrainer and its gate, or the stock Trainer and Evaluator."""

from __future__ import annotations

from typing import Any

import tensorflow_model_analysis as tfma
from tfx import v1 as tfx

from pipelines.penguin.config import Config
from pipelines.penguin.transform.preprocessing import LABEL
from tfx_tpu_trainer.components import source_hash
from tfx_tpu_trainer.components.evaluation import stock_evaluator_config
from tfx_tpu_trainer.workbench.project import components

_ACCURACY = "sparse_categorical_accuracy"


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
        statistics=statistics.outputs["statistics"], infer_feature_shape=True
    )
    transform = tfx.components.Transform(
        examples=examples.outputs["examples"],
        schema=schema.outputs["schema"],
        disable_statistics=True,
        disable_analyzer_cache=True,  # No later run is given it.
        **components.preprocessing(config, "pipelines.penguin.transform.preprocessing"),
    )
    if config.stock:
        last = stock_nodes(config, examples, transform)
    else:
        last = components.train_gate_push(
            config,
            raw_examples=examples.outputs["examples"],
            statistics=statistics.outputs["statistics"],
            examples=transform.outputs["transformed_examples"],
            transform_graph=transform.outputs["transform_graph"],
            schema=schema.outputs["schema"],
            params=config.model.model_dump(mode="json"),
        )
    return components.pipeline(config, [examples, statistics, schema, transform, *last])


def stock_nodes(config: Config, examples: Any, transform: Any) -> list[Any]:
    """Returns TFX's own Trainer, Evaluator and Pusher.

    Args:
        config: The pipeline's config.
        examples: The ExampleGen.
        transform: The Transform component.

    Returns:
        The components.
    """
    settings = config.trainer
    trainer = tfx.components.Trainer(
        run_fn="pipelines.penguin.stock_model.run_fn",
        examples=transform.outputs["transformed_examples"],
        transform_graph=transform.outputs["transform_graph"],
        train_args=tfx.proto.TrainArgs(num_steps=settings.train_steps),
        eval_args=tfx.proto.EvalArgs(num_steps=settings.eval_steps or 0),
        custom_config={
            "params": config.model.model_dump(mode="json"),
            "batch_size": settings.train_batch_size,
            "seed": settings.tf_random_seed,
            # TFX's cache compares arguments; the import path does not change with the code.
            "code": source_hash("pipelines.penguin.stock_model"),
        },
    )
    least = tfma.GenericValueThreshold(lower_bound={"value": config.gate.at_least[_ACCURACY]})
    accuracy = tfma.MetricConfig(
        class_name="SparseCategoricalAccuracy",
        threshold=tfma.MetricThreshold(value_threshold=least),
    )
    evaluator = tfx.components.Evaluator(
        examples=examples.outputs["examples"],
        model=trainer.outputs["model"],
        eval_config=stock_evaluator_config(LABEL, metrics=["ExampleCount", accuracy]),
    )
    pusher = tfx.components.Pusher(
        model=trainer.outputs["model"],
        model_blessing=evaluator.outputs["blessing"],
        push_destination=tfx.proto.PushDestination(
            filesystem=tfx.proto.PushDestination.Filesystem(base_directory=config.push_folder)
        ),
    )
    return [trainer, evaluator, pusher]
