"""Makes the last components of a pipeline (tune, train, gate, push) and passes user code to TFX.

The same components run locally, on Kubeflow and on Vertex AI.
"""

import functools
import hashlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow_model_analysis as tfma
from tfx import v1 as tfx

from tfx_tpu_trainer.components import (
    EvalMetricsGate,
    LastBlessedModel,
    TpuTrainer,
    VertexTpuTrainer,
    source_hash,
)
from tfx_tpu_trainer.workbench.project.config import GateSettings, PipelineConfig, TuneSettings


def preprocessing(config: PipelineConfig, module: str) -> dict[str, Any]:
    """Returns Transform's arguments for a module with a `preprocessing_fn`."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(
            f"the preprocessing module {module!r} can't be found; run from the folder that "
            "contains it"
        )
    if config.user_code == "file":
        return {"module_file": spec.origin}
    return {
        "preprocessing_fn": f"{module}.preprocessing_fn",
        # TFX's cache compares arguments; the import path does not change with the code.
        "custom_config": {"code": _fingerprint(Path(spec.origin).parent)},
    }


def _fingerprint(folder: Path) -> str:
    """Hashes the names and contents of a folder's Python files."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def data_folder(config: PipelineConfig) -> str:
    """Returns the folder of input data, which must be known when a pipeline is declared."""
    if not config.data:
        raise ValueError(
            f"data of pipeline {config.name!r} is null; set it to the folder of the input data"
        )
    return config.data


def train_gate_push(
    config: PipelineConfig,
    *,
    examples: Any,
    transform_graph: Any,
    schema: Any,
    params: Mapping[str, Any],
    raw_examples: Any = None,
    statistics: Any = None,
    hyperparameters: Any = None,
) -> list[Any]:
    """Returns TpuTrainer, the last blessed model as baseline, EvalMetricsGate and Pusher."""
    settings = config.trainer
    trainer_class: Any = TpuTrainer
    if config.vertex is not None:
        trainer_class = functools.partial(VertexTpuTrainer, vertex_job=config.vertex)
    trainer = trainer_class(
        raw_examples=raw_examples,
        statistics=statistics,
        examples=examples,
        transform_graph=transform_graph,
        schema=schema,
        hyperparameters=hyperparameters,
        params={**params, **settings.params},
        train_args=tfx.proto.TrainArgs(
            num_steps=settings.train_steps, splits=settings.train_splits
        ),
        eval_args=tfx.proto.EvalArgs(
            num_steps=settings.eval_steps or 0, splits=settings.eval_splits
        ),
        **{**settings.parameters(), "checkpoint_root": config.checkpoint_root},
    ).with_id("TpuTrainer")
    baseline = last_blessed(config).with_id("latest_blessed_model")
    gate = EvalMetricsGate(
        model=trainer.outputs["model"],
        evaluation=trainer.outputs["evaluation"],
        baseline_model=baseline.outputs["model"],
        eval_config=gate_config(config.gate),
        pointer=config.blessed_pointer,
        require_alike_answers=config.gate.require_alike_answers,
    )
    pusher = tfx.components.Pusher(
        model=trainer.outputs["model"],
        model_blessing=gate.outputs["blessing"],
        push_destination=tfx.proto.PushDestination(
            filesystem=tfx.proto.PushDestination.Filesystem(base_directory=config.push_folder)
        ),
    )
    return [trainer, baseline, gate, pusher]


def tuner(
    config: PipelineConfig,
    settings: TuneSettings,
    *,
    tuner_fn: str,
    examples: Any,
    transform_graph: Any,
    params: Mapping[str, Any],
) -> Any:
    """Returns TFX's Tuner, whose trials train like the trainer, on this host or on emulated cores."""
    trainer = config.trainer
    steps = settings.train_steps or trainer.train_steps
    emulated = {"use_tpu": trainer.use_tpu, "master": "emulated", "num_shards": trainer.num_shards}
    of_trainer = {
        "label_key": trainer.label_key,
        "params": {**params, **trainer.params},
        "train_batch_size": trainer.train_batch_size,
        "eval_batch_size": trainer.eval_batch_size,
        "iterations_per_loop": trainer.iterations_per_loop,
        "tf_random_seed": trainer.tf_random_seed,
        # A cluster has slices only for trainers.
        **(emulated if trainer.master == "emulated" else {}),
    }
    # A trial ends early if the training with its values would.
    like_training: dict[str, Any] = {"patience": trainer.early_stopping_patience}
    if trainer.eval_every_steps and settings.oracle != "hyperband":
        like_training["evaluations"] = max(1, steps // trainer.eval_every_steps)
    search = settings.model_dump(exclude={"enabled", "train_steps"}, exclude_none=True)
    # TFX's cache compares arguments; an import path does not change with the code.
    modules = filter(None, (tuner_fn.rpartition(".")[0], trainer.module))
    return tfx.components.Tuner(
        examples=examples,
        transform_graph=transform_graph,
        tuner_fn=tuner_fn,
        train_args=tfx.proto.TrainArgs(num_steps=steps, splits=trainer.train_splits),
        eval_args=tfx.proto.EvalArgs(num_steps=trainer.eval_steps or 0, splits=trainer.eval_splits),
        custom_config={
            "tpu_trainer": of_trainer,
            "tuning": {**like_training, **search, "directory": f"{config.root}/tuning"},
            "code": [source_hash(module) for module in modules],
        },
    )


def last_blessed(config: PipelineConfig) -> Any:
    """Returns the node that finds the baseline model."""
    if config.blessed_pointer is not None:
        return LastBlessedModel(pointer=config.blessed_pointer)
    return tfx.dsl.Resolver(
        strategy_class=tfx.dsl.experimental.LatestBlessedModelStrategy,
        model=tfx.dsl.Channel(type=tfx.types.standard_artifacts.Model),
        model_blessing=tfx.dsl.Channel(type=tfx.types.standard_artifacts.ModelBlessing),
    )


def gate_config(settings: GateSettings) -> tfma.EvalConfig:
    """Returns the gate's thresholds by metric name, as TFMA's config."""
    thresholds = {}
    for name in sorted({*settings.at_least, *settings.at_most, *settings.max_drop}):
        threshold = tfma.MetricThreshold()
        if name in settings.at_least:
            threshold.value_threshold.lower_bound.value = settings.at_least[name]
        if name in settings.at_most:
            threshold.value_threshold.upper_bound.value = settings.at_most[name]
        if name in settings.max_drop:
            threshold.change_threshold.direction = tfma.MetricDirection.HIGHER_IS_BETTER
            threshold.change_threshold.absolute.value = -settings.max_drop[name]
        thresholds[name] = threshold
    return tfma.EvalConfig(
        model_specs=[tfma.ModelSpec()], metrics_specs=[tfma.MetricsSpec(thresholds=thresholds)]
    )


def pipeline(config: PipelineConfig, components: Sequence[Any]) -> tfx.dsl.Pipeline:
    """Returns a pipeline with the config's root and Beam arguments.

    The runner chooses where ML Metadata is: the local one names its SQLite file.
    """
    return tfx.dsl.Pipeline(
        pipeline_name=config.name,
        pipeline_root=config.pipeline_root,
        components=list(components),
        enable_cache=config.enable_cache,
        beam_pipeline_args=list(config.beam_args),
    )
