"""Runs pipelines whose gate finds its baseline in ML Metadata, or by the pointer of a LastBlessedModel."""

from __future__ import annotations

import json

import ml_metadata as mlmd
import pytest
import tensorflow_model_analysis as tfma
from tfx import v1 as tfx

from tests.bad_input import case
from tests.components.evaluation import thresholds as t
from tests.components.trainer.gate_producers import produce_model
from tests.pipeline_runs import PipelineRun
from tfx_tpu_trainer.components import EvalMetricsGate, LastBlessedModel


@pytest.mark.e2e
def test_the_first_model_is_rubber_stamped_and_pushed(digits_run: PipelineRun) -> None:
    assert "blessed (first model: no baseline yet" in digits_run.report.verdict
    assert digits_run.report.pushed is not None
    evaluation = digits_run.output_folder("EvalMetricsGate", "evaluation")
    assert tfma.load_validation_result(str(evaluation)).rubber_stamp


_CONFIG = t.config(accuracy=t.change(-0.01, value_lower=0.7))


@pytest.mark.parametrize(
    "pointer",
    [
        case(
            "component",
            f"`LastBlessedModel(pointer={pointer!r})`",
            f"LastBlessedModel: pointer={pointer!r} is not the path of a .json file",
            "such as 'gs://bucket/taxi/blessed.json'",
            values=(pointer,),
        )
        for pointer in ("", "gs://bucket/taxi", "blessed.json", 5)
    ],
)
def test_a_pointer_is_the_path_of_a_json_file(pointer, refused):
    with refused(ValueError):
        LastBlessedModel(pointer=pointer)


@pytest.mark.e2e
def test_runs_of_a_pipeline_find_their_baselines_by_the_pointer(tmp_path):
    connection = tfx.orchestration.metadata.sqlite_metadata_connection_config(
        str(tmp_path / "metadata.sqlite")
    )
    pointer = str(tmp_path / "gate" / "blessed.json")

    def newest(type_name):
        artifacts = mlmd.MetadataStore(connection).get_artifacts_by_type(type_name)
        return max(artifacts, key=lambda artifact: artifact.id)

    def run(accuracy):
        producer = produce_model(accuracy=accuracy)
        baseline = LastBlessedModel(pointer=pointer)
        gate = EvalMetricsGate(
            model=producer.outputs["model"],
            evaluation=producer.outputs["evaluation"],
            baseline_model=baseline.outputs["model"],
            eval_config=_CONFIG,
            pointer=pointer,
        )
        pipeline = tfx.dsl.Pipeline(
            pipeline_name="gate",
            pipeline_root=str(tmp_path / "root"),
            metadata_connection_config=connection,
            components=[producer, baseline, gate],
            # What LastBlessedModel finds must not come from the cache of another day.
            enable_cache=True,
        )
        tfx.orchestration.LocalDagRunner().run(pipeline)
        properties = newest("ModelBlessing").custom_properties
        return properties["blessed"].int_value, properties["verdict"].string_value

    def pointed_to():
        with open(pointer, encoding="utf-8") as file:
            return json.load(file)

    blessed, verdict = run(0.8)
    assert blessed == 1 and verdict.startswith("blessed (first model")
    first = pointed_to()
    assert first["metrics"] == {"accuracy": 0.8, "loss": pytest.approx(0.2)}

    blessed, verdict = run(0.81)
    assert blessed == 1 and "accuracy is 0.81, the baseline's 0.8" in verdict
    second = pointed_to()
    assert second["uri"] != first["uri"]

    blessed, verdict = run(0.75)
    assert blessed == 0 and f"a change of {0.75 - 0.81:.6g}" in verdict
    assert pointed_to() == second

    blessed, verdict = run(0.82)
    assert blessed == 1 and "accuracy is 0.82, the baseline's 0.81" in verdict
