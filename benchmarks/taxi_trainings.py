"""Trains one taxi model with either trainer, on the artifacts of a finished taxi run."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tfx import v1 as tfx

from benchmarks.keras_wide_and_deep import METRICS_FILE
from pipelines.taxi.config import Config
from pipelines.taxi.pipeline import model_params
from tfx_tpu_trainer.components.evaluation import read_eval_metrics
from tfx_tpu_trainer.workbench.project import components


def tpu_trainer(config: Config, channels: Mapping[str, Any], *, seed: int) -> Any:
    """Returns the taxi pipeline's own trainer."""
    settings = config.model_copy(
        update={"trainer": config.trainer.model_copy(update={"tf_random_seed": seed})}
    )
    return components.train_gate_push(settings, params=model_params(config), **channels)[0]


def keras_trainer(config: Config, channels: Mapping[str, Any], *, seed: int) -> Any:
    """Returns the stock Trainer with the same model in Keras."""
    return tfx.components.Trainer(
        run_fn="benchmarks.keras_wide_and_deep.run_fn",
        train_args=tfx.proto.TrainArgs(num_steps=config.trainer.train_steps),
        eval_args=tfx.proto.EvalArgs(),
        custom_config={
            "seed": seed,
            "trainer": config.trainer.model_dump(mode="json"),
            "model": model_params(config),
        },
        **channels,
    )


def train(
    make_trainer: Callable[..., Any],
    config: Config,
    outputs: Mapping[str, Any],
    root: Path,
    *,
    seed: int,
) -> Mapping[str, float]:
    """Trains one model in its own pipeline, on a finished run's artifacts; returns its metrics on the eval split."""
    artifacts = tfx.types.standard_artifacts

    def imported(key: str, artifact_type: Any, **properties: str) -> Any:
        return tfx.dsl.Importer(
            source_uri=outputs[key].uri, artifact_type=artifact_type, properties=properties or None
        ).with_id(key)

    split_names = outputs["transformed_examples"].properties["split_names"].string_value
    examples = imported("transformed_examples", artifacts.Examples, split_names=split_names)
    graph = imported("transform_graph", artifacts.TransformGraph)
    schema = imported("schema", artifacts.Schema)
    channels = {
        "examples": examples.outputs["result"],
        "transform_graph": graph.outputs["result"],
        "schema": schema.outputs["result"],
    }
    trainer = make_trainer(config, channels, seed=seed)
    root.mkdir(parents=True)
    database = str(root / "metadata.sqlite")
    tfx.orchestration.LocalDagRunner().run(
        tfx.dsl.Pipeline(
            pipeline_name="taxi-quality",
            pipeline_root=str(root / "artifacts"),
            components=[examples, graph, schema, trainer],
            metadata_connection_config=tfx.orchestration.metadata.sqlite_metadata_connection_config(
                database
            ),
        )
    )
    (model,) = (root / "artifacts" / trainer.id / "model").iterdir()
    ours = read_eval_metrics(str(model))
    if ours is not None:
        return ours.overall
    return json.loads((model / "Format-Serving" / METRICS_FILE).read_text(encoding="utf-8"))
