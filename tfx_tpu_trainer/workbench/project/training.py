"""Reads a project's declared training and the model's features, for commands that run nothing."""

from __future__ import annotations

import dataclasses
import importlib
import json
import runpy
import tempfile
from pathlib import Path
from typing import Any

import apache_beam as beam
import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from tfx_tpu_trainer.components import TpuTrainer, TrainSettings, VertexTpuTrainer
from tfx_tpu_trainer.components.user_module import FeatureSpec
from tfx_tpu_trainer.workbench.project import metadata
from tfx_tpu_trainer.workbench.project.config import ConfigError, PipelineConfig
from tfx_tpu_trainer.workbench.project.project import Project
from tfx_tpu_trainer.workbench.project.roots import Root

# For a column of words whose schema has no domain.
WORDS_WITHOUT_A_DOMAIN = 100
# Often enough for a vocabulary to keep each word.
_ROWS_OF_A_WORD = 8
_MISSING_EVERY = 7

_OTHERWISE = "name the model with --module_file, and what it is fed with --transform_output or --feature_spec"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeclaredTraining:
    """The arguments that a pipeline gives its TpuTrainer."""

    config: PipelineConfig
    pipeline: Any
    settings: TrainSettings
    # Exactly one of the two is set.
    module: str | None
    module_file: str | None
    train_steps: int
    # The component with the trainer's `transform_graph`.
    transform: Any

    def transform_output(self) -> tuple[str, str] | None:
        """Returns Transform's last output and the name of its run; `None` if there is none."""
        root = Root.of(self.config)
        if not root.metadata_file.is_file():
            return None
        store = root.store()
        node = f"{self.config.name}.{self.transform.id}"
        context = store.get_context_by_type_and_name(metadata.NODE_CONTEXT, node)
        made = store.get_executions_by_context(context.id) if context else []
        for execution in sorted(made, key=lambda each: -each.id):
            graph = metadata.outputs(store, execution.id).get("transform_graph")
            if graph is None or not tf.io.gfile.exists(f"{graph.uri}/transform_fn"):
                continue
            runs = [
                each.name
                for each in store.get_contexts_by_execution(execution.id)
                if each.type == metadata.RUN_CONTEXT
            ]
            return graph.uri, runs[0] if runs else "an earlier run"
        return None

    def schema_file(self) -> str | None:
        """Returns the project's schema file for Transform; `None` if a run infers the schema."""
        maker = _maker(self.pipeline, self.transform.inputs.get("schema"))
        return maker and maker.exec_properties.get("schema_file")

    def features_by_schema(self, schema_file: str, *, label_key: str | None) -> FeatureSpec:
        """Runs Transform on made-up rows that follow the schema; types and shapes equal those of a run.

        Vocabularies are as large as the schema's domains, or `WORDS_WITHOUT_A_DOMAIN`.
        """
        with tf.io.gfile.GFile(schema_file) as file:
            schema = text_format.Parse(file.read(), schema_pb2.Schema())
        rows = _made_up_rows(schema)
        with tempfile.TemporaryDirectory() as folder:
            output = str(Path(folder) / "output")
            context = tft_beam.Context(
                temp_dir=str(Path(folder) / "temporary"),
                force_tf_compat_v1=bool(self.transform.exec_properties["force_tf_compat_v1"]),
            )
            with context, beam.Pipeline() as pipeline:
                transform_fn = (
                    pipeline | beam.Create(rows, reshuffle=False),
                    tft.DatasetMetadata(schema),
                ) | tft_beam.AnalyzeDataset(self._preprocessing_fn())
                _ = transform_fn | tft_beam.WriteTransformFn(output)
            return FeatureSpec.of_transform(output, label_key=label_key)

    def _preprocessing_fn(self) -> Any:
        properties = self.transform.exec_properties
        module, _, name = (properties.get("preprocessing_fn") or "").rpartition(".")
        if module:
            return getattr(importlib.import_module(module), name)
        return runpy.run_path(properties["module_file"])["preprocessing_fn"]


def declared_training(project: Project, config: PipelineConfig) -> DeclaredTraining:
    """Makes a project's pipeline and reads its TpuTrainer, without running anything."""
    pipeline = project.declared_pipeline(config)
    kinds = (TpuTrainer, VertexTpuTrainer)
    trainers = [each for each in pipeline.components if isinstance(each, kinds)]
    if len(trainers) != 1:
        raise ConfigError(
            f"the pipeline of {str(project.folder)!r} has {len(trainers)} TpuTrainers instead of one, so the model is "
            f"not known; {_OTHERWISE}"
        )
    properties = trainers[0].exec_properties
    if properties.get("trainer_fn"):
        raise ConfigError(
            f"the trainer_fn {properties['trainer_fn']!r} makes its own estimator, so the model_fn is not known; "
            f"{_OTHERWISE}"
        )
    names = [f"{step}_batch_size" for step in ("train", "eval", "predict")]
    names += ["label_key", "params", "tpu", "num_cores_per_replica"]
    transform = _maker(pipeline, trainers[0].inputs["transform_graph"])
    if transform is None:
        raise ConfigError(
            f"no component of the pipeline of {str(project.folder)!r} makes its TpuTrainer's transform_graph; "
            f"{_OTHERWISE}"
        )
    return DeclaredTraining(
        config=config,
        pipeline=pipeline,
        settings=TrainSettings.parse({name: properties.get(name) for name in names}),
        module=properties.get("module"),
        module_file=properties.get("module_file"),
        train_steps=json.loads(properties["train_args"])["num_steps"],
        transform=transform,
    )


def _maker(pipeline: Any, channel: Any) -> Any:
    """Returns the component of a channel; `None` if it is not in the pipeline."""
    name = getattr(channel, "producer_component_id", None)
    return next((each for each in pipeline.components if each.id == name), None)


def _made_up_rows(schema: schema_pb2.Schema) -> list[dict[str, list[Any]]]:
    """Makes rows with every word of the schema's domains, and gaps in columns that allow them."""
    domains = {domain.name: list(domain.value) for domain in schema.string_domain}
    words = {
        feature.name: list(feature.string_domain.value)
        or domains.get(feature.domain)
        or [f"word {number}" for number in range(WORDS_WITHOUT_A_DOMAIN)]
        for feature in schema.feature
    }
    count = _ROWS_OF_A_WORD * max(map(len, words.values()))

    def value(feature: schema_pb2.Feature, row: int) -> list[Any]:
        if feature.presence.min_fraction < 1 and row % _MISSING_EVERY == 0:
            return []
        if feature.type == schema_pb2.BYTES:
            return [words[feature.name][row % len(words[feature.name])]]
        return [row if feature.type == schema_pb2.INT else float(row)]

    return [{each.name: value(each, row) for each in schema.feature} for row in range(count)]
