"""TpuTrainer as TFX sees it before it runs."""

from __future__ import annotations

import json

import pytest
import tensorflow_model_analysis as tfma
from tfx import v1 as tfx
from tfx.v1.dsl import standard_annotations

import tfx_tpu_trainer
from tfx_tpu_trainer import component, hardware
from tfx_tpu_trainer.component import TpuTrainer, TpuTrainerExecutor
from tfx_tpu_trainer.component.trainer_parameters import TrainSettings

_Runtime = tfx.dsl.experimental.RuntimeParameter
_MODULE = "tests.component.small_model"


def _channel(name):
    return tfx.dsl.Channel(type=getattr(tfx.types.standard_artifacts, name))


def _trainer(**arguments):
    defaults = {
        "examples": _channel("Examples"),
        "transform_graph": _channel("TransformGraph"),
        "schema": _channel("Schema"),
        "module": _MODULE,
        "train_args": tfx.proto.TrainArgs(num_steps=10),
    }
    return TpuTrainer(**{**defaults, **arguments})


def test_outputs_and_executor():
    trainer = _trainer()
    types = {name: channel.type.__name__ for name, channel in trainer.outputs.items()}
    assert types == {"model": "Model", "model_run": "ModelRun", "evaluation": "ModelEvaluation"}
    assert trainer.executor_spec.executor_class is TpuTrainerExecutor
    assert trainer.spec.TYPE_ANNOTATION is standard_annotations.Train


def test_each_setting_is_an_execution_parameter():
    properties = _trainer(label_key="y", params={"b": 1, "a": 2}, use_tpu=True).exec_properties
    assert set(TrainSettings.execution_types()) <= set(properties)
    assert properties["label_key"] == "y"
    assert properties["params"] == '{"a":2,"b":1}'
    assert properties["use_tpu"] == 1
    assert json.loads(properties["train_args"]) == {"num_steps": 10}


def test_slicing_specs_may_be_tfmas_or_dicts_or_a_runtime_parameter():
    specs = [tfma.SlicingSpec(feature_keys=["hour"]), {"feature_values": {"pays": "Cash"}}]
    text = '[{"feature_keys":["hour"]},{"feature_values":{"pays":"Cash"}}]'
    assert _trainer(slicing_specs=specs).exec_properties["slicing_specs"] == text
    runtime = _Runtime(name="slices", ptype=str, default=text)
    assert _trainer(slicing_specs=runtime).exec_properties["slicing_specs"] is runtime
    with pytest.raises(ValueError, match="is no list"):
        _trainer(slicing_specs=specs[0])


def test_the_source_of_an_import_path_is_hashed():
    properties = _trainer().exec_properties
    assert properties["module"] == _MODULE and len(properties["module_hash"]) == 64


def test_a_module_file_is_packaged_into_a_wheel(tmp_path):
    path = tmp_path / "packaged_model.py"
    path.write_text("def model_fn(features, params): pass\n")
    trainer = _trainer(module=None, module_file=str(path))
    tfx.dsl.Pipeline("p", str(tmp_path / "root"), components=[trainer])
    trainer._resolve_pip_dependencies(str(tmp_path / "root"))
    name, wheel = trainer.exec_properties["module_path"].split("@")
    assert name == "packaged_model" and wheel.startswith(str(tmp_path / "root"))
    assert not trainer.exec_properties["module_file"]


def test_runtime_parameters_are_taken_for_every_kind():
    trainer = _trainer(
        label_key=_Runtime("label", ptype=str),
        params=_Runtime("params", ptype=str, default='{"a": 1}'),
        train_batch_size=_Runtime("rows", ptype=int, default=32),
        use_tpu=_Runtime("tpu", ptype=int, default=0),
        train_args=_Runtime("steps", ptype=str, default='{"num_steps": 5}'),
    )
    for name in ("label_key", "params", "train_batch_size", "use_tpu", "train_args"):
        assert isinstance(trainer.exec_properties[name], _Runtime)


def test_a_runtime_parameters_default_is_checked():
    with pytest.raises(ValueError, match="train_batch_size=-1 is not valid"):
        _trainer(train_batch_size=_Runtime("rows", ptype=int, default=-1))
    with pytest.raises(ValueError, match="RuntimeParameter 'rows' has no type; give it ptype=int"):
        _trainer(train_batch_size=_Runtime("rows"))


def test_a_runtime_parameter_without_default_waits_for_the_run():
    rows = _Runtime("rows", ptype=int)
    trainer = _trainer(use_tpu=True, num_shards=7, train_batch_size=rows)
    assert trainer.exec_properties["train_batch_size"] is rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"module": None}, "give exactly one of module_file=None .* and module=None"),
        ({"module_file": "m.py"}, "give exactly one of module_file='m.py' "),
        ({"module": "no_such_model"}, "module='no_such_model' can't be found"),
        ({"module": _Runtime("m", ptype=str)}, "can't be a runtime parameter"),
        ({"train_args": None}, r"train_args\.num_steps=0: .*TrainArgs\(num_steps="),
        ({"train_args": tfx.proto.TrainArgs()}, r"train_args\.num_steps=0"),
        ({"eval_args": tfx.proto.EvalArgs(num_steps=-3)}, r"eval_args\.num_steps=-3: give the"),
        ({"train_batch_size": 0}, "TpuTrainer: train_batch_size=0 is not valid"),
        (
            {"use_tpu": True, "num_shards": 8, "train_batch_size": 20},
            "train_batch_size=20 is not divisible by num_shards=8",
        ),
    ],
)
def test_mistakes_are_found_when_the_pipeline_is_made(arguments, message):
    with pytest.raises(ValueError, match=message):
        _trainer(**arguments)


def test_an_unknown_argument_is_a_type_error():
    with pytest.raises(TypeError, match="train_batchsize"):
        _trainer(train_batchsize=3)


def test_what_a_pipeline_needs_is_importable_from_the_package():
    assert tfx_tpu_trainer.TpuTrainer is component.TpuTrainer
    assert tfx_tpu_trainer.EvalMetricsGate is component.EvalMetricsGate
    assert tfx_tpu_trainer.VertexTpuTrainer is component.VertexTpuTrainer
    assert tfx_tpu_trainer.TpuSpec is hardware.TpuSpec
    with pytest.raises(AttributeError, match="'tfx_tpu_trainer' has no attribute 'Trainer'"):
        _ = tfx_tpu_trainer.Trainer
