"""Tests the estimators made from settings and a TPU slice, in a TpuTrainer and a VertexTpuTrainer."""

from __future__ import annotations

import json

import pytest
from ml_metadata import MetadataStore
from tfx import v1 as tfx

from tests import tfx_testdata
from tests.bad_input import row
from tests.components.trainer import small_model
from tests.components.trainer.execution import Execution
from tests.tfx_importers import importers
from tfx_tpu_trainer import estimator as estimators
from tfx_tpu_trainer.components import (
    TpuTrainer,
    TpuTrainerExecutor,
    VertexTpuTrainer,
    VertexTpuTrainerExecutor,
)
from tfx_tpu_trainer.components.clusters._vertex import VertexJob
from tfx_tpu_trainer.components.trainer.estimators import run_config, strategies
from tfx_tpu_trainer.components.trainer.legacy.training_spec import TrainingSpec, WatchedSchedule
from tfx_tpu_trainer.components.trainer.settings import TrainSettings
from tfx_tpu_trainer.components.trainer.train_job import settings_from
from tfx_tpu_trainer.hardware import TpuSpec

_Runtime = tfx.dsl.experimental.RuntimeParameter
_JOB = VertexJob.parse(project="our-models", region="us-central1", image="r.example/p:1")


def _arguments(**arguments):
    kinds = tfx.types.standard_artifacts
    return {
        "examples": tfx.dsl.Channel(type=kinds.Examples),
        "transform_graph": tfx.dsl.Channel(type=kinds.TransformGraph),
        "schema": tfx.dsl.Channel(type=kinds.Schema),
        "module": "tests.components.trainer.small_model",
        "train_args": tfx.proto.TrainArgs(num_steps=10),
        **arguments,
    }


def _trainer(**arguments):
    return TpuTrainer(**_arguments(**arguments))


def test_a_slice_decides_use_tpu_and_num_shards():
    for tpu in ("v5e:2x4", TpuSpec.parse("v5e:2x4"), '{"slice_name": "v5e:2x4"}'):
        trainer = _trainer(tpu=tpu, num_cores_per_replica=2)
        properties = trainer.exec_properties
        assert json.loads(properties["tpu"]) == {"slice_name": "v5e:2x4"}
        assert (properties["use_tpu"], properties["num_shards"]) == (1, 4)
        assert trainer.tpu == trainer.pod_tpu == TpuSpec.parse("v5e:2x4")
        settings = settings_from(properties)
        assert (settings.tpu, settings.use_tpu, settings.num_shards) == (trainer.tpu, True, 4)
    without = _trainer()
    assert (without.exec_properties["tpu"], without.exec_properties["use_tpu"]) == (None, 0)
    assert without.tpu is None and without.pod_tpu is None


def test_the_cores_of_a_slice_may_be_emulated():
    settings = settings_from(_trainer(tpu="v5e:2x4", master="emulated").exec_properties)
    assert (settings.master, settings.num_shards) == ("emulated", 8)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"tpu": "v5e:3x3"}, r"tpu='v5e:3x3' is not valid; .* nearest: v5e:2x4"),
        ({"num_shards": 4}, "num_shards=4 contradicts tpu='v5e:2x4', which has 8 replicas"),
        ({"use_tpu": False}, "use_tpu=False contradicts tpu='v5e:2x4'; .* master='emulated'"),
        ({"train_batch_size": 60}, "train_batch_size 60 must be divisible by the 8 replicas"),
        ({"eval_batch_size": 60}, "eval_batch_size 60 must be divisible .* 56 or 64 would be"),
        ({"predict_batch_size": 3}, "predict_batch_size 3 must be divisible .* 8 would be"),
        (
            {"num_cores_per_replica": 3},
            r"num_cores_per_replica=3 does not use up the 8 TPU devices",
        ),
        (
            {"train_batch_size": _Runtime("rows", ptype=int, default=60)},
            "train_batch_size 60 must be divisible",
        ),
        (
            {"tpu": _Runtime("tpu", ptype=str)},
            "can't be a runtime parameter: the slice must be known",
        ),
    ],
)
def test_what_does_not_fit_is_found_when_the_pipeline_is_made(arguments, says):
    with pytest.raises(ValueError, match=says):
        _trainer(**{"tpu": "v5e:2x4", **arguments})


@row(
    "component",
    "`train_batch_size=60` of an execution on `v5e:2x4`",
    "train_batch_size 60 must be divisible by the 8 replicas",
)
def test_what_a_run_decides_is_checked_when_it_runs(refused):
    rows = _Runtime("rows", ptype=int)
    properties = dict(_trainer(tpu="v5e:2x4", train_batch_size=rows).exec_properties)
    assert properties["train_batch_size"] is rows
    properties["train_batch_size"] = 60
    with refused(ValueError):
        settings_from(properties)
    cores = _Runtime("cores", ptype=int)
    properties = dict(_trainer(tpu="v5e:2x4", num_cores_per_replica=cores).exec_properties)
    assert properties["num_shards"] is None
    properties["num_cores_per_replica"] = 2
    assert settings_from(properties).num_shards == 4


@pytest.mark.e2e
def test_a_slice_is_emulated_where_tfx_runs_the_pipeline_locally(tmp_path, monkeypatch):
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATE", "1")
    nodes = importers()
    trainer = TpuTrainer(
        **{name: node.outputs["result"] for name, node in nodes.items()},
        module="tests.components.trainer.small_model",
        label_key=tfx_testdata.LABEL,
        train_args=tfx.proto.TrainArgs(num_steps=4),
        eval_args=tfx.proto.EvalArgs(num_steps=2),
        tpu="v5e:2x2",
        export_to_tpu=False,
        serving_check="off",
    )
    connection = tfx.orchestration.metadata.sqlite_metadata_connection_config(str(tmp_path / "db"))
    tfx.orchestration.LocalDagRunner().run(
        tfx.dsl.Pipeline(
            pipeline_name="slice",
            pipeline_root=str(tmp_path / "root"),
            components=[*nodes.values(), trainer],
            metadata_connection_config=connection,
        )
    )
    (execution,) = (
        each
        for each in MetadataStore(connection).get_executions()
        if "tpu" in each.custom_properties
    )
    stored = execution.custom_properties
    assert json.loads(stored["tpu"].string_value) == {"slice_name": "v5e:2x2"}
    assert stored["num_shards"].int_value == 4


def test_the_vertex_trainer_has_the_same_inputs_and_outputs():
    trainer = VertexTpuTrainer(**_arguments(tpu="v5e:4x4", vertex_job=_JOB))
    other = _trainer(tpu="v5e:4x4")
    for mine, its in ((trainer.inputs, other.inputs), (trainer.outputs, other.outputs)):
        kinds = {name: channel.type for name, channel in its.items()}
        assert {name: channel.type for name, channel in mine.items()} == kinds
    assert trainer.executor_spec.executor_class is VertexTpuTrainerExecutor
    assert other.executor_spec.executor_class is TpuTrainerExecutor
    stored = dict(trainer.exec_properties)
    assert VertexJob.model_validate_json(stored.pop("vertex_job")) == _JOB
    expected = dict(other.exec_properties)
    assert stored.pop("node") == "VertexTpuTrainer" and expected.pop("node") == "TpuTrainer"
    assert stored == expected
    assert trainer.tpu == other.tpu
    # Its own pod only waits.
    assert trainer.pod_tpu is None


def test_the_vertex_trainer_is_refused_what_vertex_ai_has_not():
    with pytest.raises(ValueError, match=r"Vertex AI has no machines with v4:2x2x1"):
        VertexTpuTrainer(**_arguments(tpu="v4:2x2x1", vertex_job=_JOB))
    with pytest.raises(ValueError, match=r"train_batch_size 60 must be divisible"):
        VertexTpuTrainer(**_arguments(tpu="v5e:2x4", train_batch_size=60, vertex_job=_JOB))


def _settings(**values):
    return TrainSettings.parse({"tpu": "v5e:2x4", **values})


def test_a_session_will_do_for_old_chips_a_master_and_emulated_cores(monkeypatch):
    assert strategies(TrainSettings.parse({})) == {}
    assert strategies(_settings(tpu="v3:2x2")) == {}
    assert strategies(_settings(master="emulated")) == {}
    assert strategies(_settings(master="grpc://10.0.0.1:8470")) == {}
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATE", "1")
    assert strategies(_settings()) == {}


def test_on_the_host_there_is_no_strategy():
    assert strategies(_settings().model_copy(update={"use_tpu": False})) == {}


def test_a_machine_without_the_slice_says_so_and_trains_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv("TFX_TPU_TRAINER_EMULATE", raising=False)
    execution = Execution.of_trainer(tmp_path, tpu='{"slice_name":"v5e:2x4"}')
    with pytest.raises(RuntimeError, match=r"tpu='v5e:2x4', but this machine has no TPU .*emulate"):
        execution.run()
    assert not execution.files()


def test_a_training_that_makes_no_step_ends_after_half_an_hour(tmp_path):
    folder = str(tmp_path)
    default, off = (TrainSettings.parse(values) for values in ({}, {"stall_timeout_secs": 0}))
    assert run_config(default, model_dir=folder).stall_timeout_secs == 1800
    assert run_config(off, model_dir=folder).stall_timeout_secs is None


def test_hosts_wait_for_each_other_as_long_as_the_settings_say(tmp_path):
    settings = TrainSettings.parse({"start_timeout_secs": 60})
    config = run_config(settings, model_dir=str(tmp_path))
    assert config.session_creation_timeout_secs == 60


@pytest.mark.parametrize(("own", "expected"), [(None, 1800), (60, 60)])
def test_a_module_with_an_estimator_of_its_own_ends_then_too(tmp_path, own, expected):
    config = estimators.RunConfig(model_dir=str(tmp_path), stall_timeout_secs=own)
    spec = TrainingSpec(
        estimator=estimators.Estimator(small_model.model_fn, config=config),
        train_spec=estimators.TrainSpec(lambda: None, max_steps=1),
        eval_spec=estimators.EvalSpec(lambda: None),
        eval_input_receiver_fn=lambda: None,
    )
    schedule = WatchedSchedule(spec, folder=str(tmp_path), stall_timeout_secs=1800)
    assert schedule.estimator.config.stall_timeout_secs == expected
    assert spec.estimator.config.stall_timeout_secs == own
