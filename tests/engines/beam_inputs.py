"""The taxi pipeline's Beam components with the inputs that they had in a local run."""

from __future__ import annotations

from pathlib import Path

from tests.pipeline_runs import PipelineRun


def taxi_inputs(taxi_run: PipelineRun) -> dict[str, dict[str, Path]]:
    """Returns the folder of each input, by the components' names."""
    examples = taxi_run.output_folder("CsvExampleGen", "examples")
    schema = taxi_run.output_folder("SchemaGen", "schema")
    model = taxi_run.output_folder("TpuTrainer", "model")
    return {
        "StatisticsGen": {"examples": examples},
        "Transform": {"examples": examples, "schema": schema},
        "Evaluator": {"examples": examples, "model": model, "schema": schema},
    }
