"""Declares the digits pipeline once for every runner."""

from __future__ import annotations

from tfx import v1 as tfx

from pipelines.digits.config import Config
from tfx_tpu_trainer.workbench.project import components


def create_pipeline(config: Config) -> tfx.dsl.Pipeline:
    """Returns the pipeline from TFRecords of tf.Examples to a pushed model.

    Args:
        config: The pipeline's config, with `data` set.

    Returns:
        The pipeline.
    """
    examples = tfx.components.ImportExampleGen(input_base=components.data_folder(config))
    statistics = tfx.components.StatisticsGen(examples=examples.outputs["examples"])
    schema = tfx.components.SchemaGen(
        statistics=statistics.outputs["statistics"], infer_feature_shape=True
    )
    transform = tfx.components.Transform(
        examples=examples.outputs["examples"],
        schema=schema.outputs["schema"],
        force_tf_compat_v1=True,
        disable_statistics=True,
        disable_analyzer_cache=True,  # No later run is given it.
        **components.preprocessing(config, "pipelines.digits.transform.preprocessing"),
    )
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
