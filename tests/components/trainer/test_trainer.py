"""Tests TpuTrainer as TFX sees it before it runs."""

from __future__ import annotations

import json

import pytest
import tensorflow_model_analysis as tfma
from tfx import v1 as tfx
from tfx.v1.dsl import standard_annotations

import tfx_tpu_trainer
from tests.bad_input import case
from tfx_tpu_trainer import components, hardware
from tfx_tpu_trainer.components import TpuTrainer, TpuTrainerExecutor
from tfx_tpu_trainer.components.trainer.settings import TrainSettings

_Runtime = tfx.dsl.experimental.RuntimeParameter
_MODULE = "tests.components.trainer.small_model"


def _channel(name):
    return tfx.dsl.Channel(type=getattr(tfx.types.standard_artifacts, name))


def _in_itself():
    value = {}
    value["a"] = value
    return value


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
    assert types == {
        "model": "Model",
        "model_run": "ModelRun",
        "evaluation": "ModelEvaluation",
        "page": "RunPage",
    }
    assert trainer.executor_spec.executor_class is TpuTrainerExecutor
    assert trainer.spec.TYPE_ANNOTATION is standard_annotations.Train


def test_each_setting_is_an_execution_parameter():
    properties = _trainer(label_key="y", params={"b": 1, "a": 2}, use_tpu=True).exec_properties
    assert set(TrainSettings.execution_types()) <= set(properties)
    assert properties["label_key"] == "y"
    assert properties["params"] == '{"a":2,"b":1}'
    assert properties["use_tpu"] == 1
    assert json.loads(properties["train_args"]) == {"num_steps": 10}


def test_a_setting_that_is_no_argument_is_named(monkeypatch):
    monkeypatch.setitem(
        TrainSettings.model_fields, "a_new_one", TrainSettings.model_fields["resume"]
    )
    with pytest.raises(TypeError, match=r"no argument for the settings \['a_new_one'\]; add it"):
        _trainer()


def test_slicing_specs_may_be_tfmas_or_dicts_or_a_runtime_parameter():
    specs = [tfma.SlicingSpec(feature_keys=["hour"]), {"feature_values": {"pays": "Cash"}}]
    text = '[{"feature_keys":["hour"]},{"feature_values":{"pays":"Cash"}}]'
    assert _trainer(slicing_specs=specs).exec_properties["slicing_specs"] == text
    runtime = _Runtime(name="slices", ptype=str, default=text)
    assert _trainer(slicing_specs=runtime).exec_properties["slicing_specs"] is runtime
    with pytest.raises(ValueError, match="is not a list"):
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


def test_a_runtime_parameter_without_default_waits_for_the_run():
    rows = _Runtime("rows", ptype=int)
    trainer = _trainer(use_tpu=True, num_shards=7, train_batch_size=rows)
    assert trainer.exec_properties["train_batch_size"] is rows


def refusal(arguments, *says, given=None, error=ValueError):
    """A row of docs/bad-input.md for arguments of the constructor."""
    given = given or ", ".join(f"`{name}={value!r}`" for name, value in arguments.items())
    return case("component", given, *says, values=(arguments, error))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        refusal({"module": None}, "give exactly one of module_file=None", "and module=None"),
        refusal(
            {"module_file": "m.py"},
            "give exactly one of module_file='m.py' ",
            given="`module_file` and `module`",
        ),
        refusal(
            {"module": "no_such_model"}, "module='no_such_model' can't be found; give an import"
        ),
        refusal(
            {"module": _Runtime("m", ptype=str)},
            "can't be a runtime parameter: its source is hashed when the pipeline is made",
            given="`module` as a runtime parameter",
        ),
        refusal(
            {"module": None, "module_file": "/no/m.py"},
            "module_file='/no/m.py' is not a Python file on this machine; give the path of a .py "
            "file",
        ),
        refusal(
            {"module": None, "module_file": 3},
            "TpuTrainer: module_file=3 is not a string; give the path of a .py file",
            error=TypeError,
        ),
        refusal(
            {"module": None, "trainer_fn": "trainer_fn"},
            "trainer_fn='trainer_fn' is not an import path of a function; give "
            "'package.module.trainer_fn'",
        ),
        refusal(
            {"train_args": None}, "train_args.num_steps=0: ", "give train_args=tfx.proto.Train"
        ),
        refusal(
            {"train_args": tfx.proto.TrainArgs()},
            "train_args.num_steps=0: the number of training steps must be set",
            given="`train_args=TrainArgs()`",
        ),
        refusal(
            {"train_args": tfx.proto.TrainArgs(num_steps=-1)},
            "train_args.num_steps=-1: the number of training steps must be set",
            given="`train_args=TrainArgs(num_steps=-1)`",
        ),
        refusal(
            {"train_args": {"num_steps": -1}},
            "train_args.num_steps=-1: the number of training steps must be set",
        ),
        refusal(
            {"train_args": {"steps": 9}},
            "train_args=",
            "is not valid (unknown 'steps'; did you mean 'num_steps'?",
        ),
        refusal(
            {"train_args": 100},
            "train_args=100 is not a tfx.proto.TrainArgs; give "
            "train_args=tfx.proto.TrainArgs(num_steps=...)",
            error=TypeError,
        ),
        refusal(
            {"train_args": tfx.proto.EvalArgs(num_steps=3)},
            "train_args=num_steps: 3 is not a tfx.proto.TrainArgs; give "
            "train_args=tfx.proto.TrainArgs(",
            given="`train_args=EvalArgs(num_steps=3)`",
            error=TypeError,
        ),
        refusal(
            {"eval_args": 5},
            "eval_args=5 is not a tfx.proto.EvalArgs; give "
            "eval_args=tfx.proto.EvalArgs(num_steps=...)",
            error=TypeError,
        ),
        refusal(
            {"eval_args": tfx.proto.EvalArgs(num_steps=-3)},
            "eval_args.num_steps=-3: give the number of batches to evaluate, or leave it out",
            given="`eval_args=EvalArgs(num_steps=-3)`",
        ),
        refusal({"train_batch_size": -1}, "TpuTrainer: train_batch_size=-1 is not valid"),
        refusal(
            {"use_tpu": True, "num_shards": 8, "train_batch_size": 20},
            "TpuTrainer: train_batch_size=20 is not divisible by num_shards=8",
            "use 16 or 24",
        ),
        refusal(
            {"train_batch_size": _Runtime("rows", ptype=int, default=-1)},
            "train_batch_size=-1 is not valid",
            given="a runtime parameter whose default is -1",
        ),
        refusal(
            {"train_batch_size": _Runtime("rows")},
            "train_batch_size: RuntimeParameter 'rows' has no type; give it ptype=int",
            given="a runtime parameter without `ptype`",
        ),
        refusal(
            {"tpu": _Runtime("slice", ptype=str)},
            "can't be a runtime parameter: the slice must be known when the pipeline is",
            given="`tpu` as a runtime parameter",
        ),
        refusal(
            {"custom_config": [1]}, "custom_config=[1] is not valid; give a dict of JSON values"
        ),
        refusal(
            {"custom_config": {"a": object()}},
            "custom_config={'a': <object object",
            "is not valid (",
            "give a dict of JSON values",
            given="`custom_config={'a': object()}`",
        ),
        refusal(
            {"custom_config": _in_itself()},
            "custom_config=",
            "is not valid (Circular reference detected); give a dict of JSON values",
            given="`custom_config` that stands in itself",
        ),
        refusal(
            {"restore_tf_estimator": "yes"},
            "TpuTrainer: restore_tf_estimator='yes' is not valid; give True or False",
        ),
        refusal(
            {"examples": None},
            "TpuTrainer: examples is None and must be a channel of Examples; give "
            "transform.outputs['transformed_examples']",
            error=TypeError,
        ),
        refusal(
            {"transform_graph": "path/of/a/graph"},
            "transform_graph is 'path/of/a/graph' and must be a channel of TransformGraph; give",
            error=TypeError,
        ),
        refusal(
            {"schema": _channel("Examples")},
            "schema is a channel of Examples and must be a channel of Schema; give schema_gen",
            given="`schema=example_gen.outputs['examples']`",
            error=TypeError,
        ),
        refusal(
            {"hyperparameters": _channel("Schema")},
            "hyperparameters is a channel of Schema and must be a channel of HyperParameters; give",
            "tuner.outputs['best_hyperparameters']",
            given="`hyperparameters=schema_gen.outputs['schema']`",
            error=TypeError,
        ),
        refusal(
            {"base_model": "gs://bucket/model"},
            "base_model is 'gs://bucket/model' and must be a channel of Model; give the",
            error=TypeError,
        ),
        refusal(
            {"train_batchsize": 3},
            "TpuTrainer got an unexpected keyword argument 'train_batchsize'; did you mean",
            error=TypeError,
        ),
    ],
)
def test_mistakes_are_found_when_the_pipeline_is_made(arguments, error, refused):
    with refused(error):
        _trainer(**arguments)


def test_what_a_pipeline_needs_is_importable_from_the_package():
    assert tfx_tpu_trainer.TpuTrainer is components.TpuTrainer
    assert tfx_tpu_trainer.EvalMetricsGate is components.EvalMetricsGate
    assert tfx_tpu_trainer.VertexTpuTrainer is components.VertexTpuTrainer
    assert tfx_tpu_trainer.TpuSpec is hardware.TpuSpec
    with pytest.raises(AttributeError, match="'tfx_tpu_trainer' has no attribute 'Trainer'"):
        _ = tfx_tpu_trainer.Trainer


def _transformed():
    """Components whose examples are raw, merged (raw too) and transformed."""
    example_gen = tfx.components.ImportExampleGen(input_base="rows")
    statistics = tfx.components.StatisticsGen(examples=example_gen.outputs["examples"])
    schema = tfx.components.SchemaGen(statistics=statistics.outputs["statistics"])
    latest = tfx.dsl.Resolver(
        strategy_class=tfx.dsl.experimental.LatestArtifactStrategy,
        examples=example_gen.outputs["examples"],
    ).with_id("latest")
    transform = tfx.components.Transform(
        examples=latest.outputs["examples"],
        schema=schema.outputs["schema"],
        preprocessing_fn="package.preprocessing_fn",
    )
    return example_gen, latest, transform


_TRANSFORMED = "give examples=transform.outputs['transformed_examples']"


@pytest.mark.parametrize(
    ("name", "producer"),
    [
        case(
            "component",
            "`TpuTrainer(examples=example_gen.outputs['examples'])`, the rows before Transform",
            "TpuTrainer: examples=ImportExampleGen.outputs['examples'] are not transformed yet; ",
            _TRANSFORMED,
            values=("examples", 0),
        ),
        case(
            "component",
            "`TpuTrainer(examples=resolver.outputs['examples'])`, the rows before Transform",
            "TpuTrainer: examples=latest.outputs['examples'] are not transformed yet; ",
            _TRANSFORMED,
            values=("examples", 1),
        ),
        case(
            "component",
            "`TpuTrainer(raw_examples=transform.outputs['transformed_examples'])`",
            "TpuTrainer: raw_examples=Transform.outputs['transformed_examples'] are transformed already",
            "give raw_examples=example_gen.outputs['examples']",
            values=("raw_examples", 2),
        ),
    ],
)
def test_examples_of_the_wrong_side_of_transform_are_refused(name, producer, refused):
    components = _transformed()
    transform = components[-1]
    given = {
        "examples": transform.outputs["transformed_examples"],
        "raw_examples": components[1].outputs["examples"],
        "transform_graph": transform.outputs["transform_graph"],
    }
    _trainer(**given)
    outputs = components[producer].outputs
    with refused(ValueError):
        _trainer(**{**given, name: outputs.get("transformed_examples", outputs.get("examples"))})
