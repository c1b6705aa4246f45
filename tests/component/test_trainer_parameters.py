"""TrainSettings: what it accepts, how it is stored, and what it says when it refuses."""

from __future__ import annotations

import ast
import inspect
import json

import pytest

from scripts import document_parameters
from tests import bad_input
from tfx_tpu_trainer.component import TpuTrainer, VertexTpuTrainer
from tfx_tpu_trainer.component.trainer_parameters import TrainSettings


def test_the_constructor_shows_every_setting_with_its_default():
    parameters = inspect.signature(TpuTrainer).parameters
    settings = TrainSettings.parse({})
    for name, value in settings:
        expected = None if name in ("params", "use_tpu") else value
        assert parameters[name].default == expected, name
        assert f" {name}: " in TpuTrainer.__init__.__doc__
    assert parameters["train_batch_size"].annotation == "int | RuntimeParameter"
    assert parameters["tpu"].annotation == "TpuSpec | str | None"


def test_a_vertex_trainer_shows_what_it_needs_besides():
    parameters = inspect.signature(VertexTpuTrainer).parameters
    assert set(parameters) == {*inspect.signature(TpuTrainer).parameters, "vertex_job"}
    needed = {name for name, each in parameters.items() if each.default is inspect.Parameter.empty}
    assert needed == {"vertex_job", "tpu", "examples", "transform_graph", "schema"}


def test_the_page_and_the_types_for_editors_are_those_of_the_declarations():
    page = document_parameters.PAGE.read_text(encoding="utf-8")
    assert document_parameters.page(page) == page, "call `make docs`"

    def parsed(text: str) -> str:
        return ast.dump(ast.parse(text))

    assert parsed(document_parameters.STUB.read_text(encoding="utf-8")) == parsed(
        document_parameters.stub()
    ), "call `make docs`"


def test_batch_sizes_follow_one_another():
    assert TrainSettings.parse({"train_batch_size": 32}).rows_per_predict_batch == 32
    settings = TrainSettings.parse({"train_batch_size": 32, "eval_batch_size": 48})
    assert (settings.rows_per_eval_batch, settings.rows_per_predict_batch) == (48, 48)


def test_execution_properties_there_and_back():
    settings = TrainSettings.parse(
        {"label_key": "y", "params": {"b": [1, 2.5], "a": None}, "use_tpu": True, "num_shards": 8}
        | {"warmup_batch_sizes": [1, 8], "serving_check": "warn"}
    )
    stored = settings.to_exec_properties()
    assert stored["params"] == '{"a":null,"b":[1,2.5]}'
    assert stored["warmup_batch_sizes"] == "[1,8]"
    assert stored["use_tpu"] == 1 and type(stored["use_tpu"]) is int
    assert all(value is None or type(value) in (int, str) for value in stored.values())
    assert TrainSettings.parse(stored) == settings


def test_settings_do_not_change():
    with pytest.raises(ValueError, match="frozen"):
        TrainSettings.parse({}).train_batch_size = 3


def refusal(values, *says):
    """A row of docs/bad-input.md for settings that are refused."""
    given = ", ".join(f"`{name}={value!r}`" for name, value in values.items())
    return bad_input.case("component", given, *says, values=values)


@pytest.mark.parametrize(
    "values",
    [
        refusal(
            {"train_batch_size": 0}, "train_batch_size=0 is not valid; give an integer above 0"
        ),
        refusal({"train_batch_size": "64"}, "train_batch_size='64' is not valid; give an integer"),
        refusal({"train_batch_size": True}, "train_batch_size=True is not valid; give an integer"),
        refusal({"use_tpu": 2}, "use_tpu=2 is not valid; give True or False"),
        refusal(
            {"keep_checkpoint_max": -1}, "keep_checkpoint_max=-1 is not valid; give 0 or a positive"
        ),
        refusal(
            {"stall_timeout_secs": -1}, "stall_timeout_secs=-1 is not valid; give 0 or a positive"
        ),
        refusal({"label_key": ""}, "label_key='' is not valid; give a name, or None"),
        refusal(
            {"export_saved_model_api_version": 3}, "export_saved_model_api_version=3", "give 1 or 2"
        ),
        refusal({"serving_check": "no"}, "serving_check='no'", "give 'error', 'warn' or 'off'"),
        refusal(
            {"serving_check_timeout": 0},
            "serving_check_timeout=0 is not valid; give an integer above",
        ),
        refusal(
            {"warmup_batch_sizes": "1"}, "warmup_batch_sizes='1'", "list of integers above 0, as [1"
        ),
        refusal({"warmup_batch_sizes": []}, "warmup_batch_sizes=[]", "list of integers above 0"),
        refusal(
            {"warmup_batch_sizes": [8, 0]},
            "warmup_batch_sizes=0 is not valid; give an integer above",
        ),
        refusal(
            {"warmup_batch_sizes": [8, 5 * 10**9]},
            "warmup_batch_sizes=5000000000",
            "at most 65,536",
        ),
        refusal(
            {"train_batch_size": 2**63}, f"train_batch_size={2**63}", "give at most 2,147,483,647"
        ),
        refusal({"warmup_batch_sizes": "[1"}, "give a JSON list of integers"),
        refusal({"params": "{"}, "params='{' is not valid; give a JSON object; "),
        refusal({"params": [1]}, "params=[1] is not valid; give a dict"),
        refusal({"params": {"batch_size": 3}}, "params['batch_size']=3:", "set train_batch_size"),
        refusal({"params": {"x": float("nan")}}, "params['x']=nan is no JSON value"),
        refusal({"params": {"x": object}}, "params['x']=<class 'object'> is no JSON value"),
        refusal(
            {"slicing_specs": "hour"},
            "slicing_specs='hour' is not valid; slicing_specs='hour' is no JSON",
        ),
        refusal({"slicing_specs": [{"feature": "hour"}]}, "which is no SlicingSpec"),
        refusal(
            {"best_metric_mode": "up"}, "best_metric_mode='up' is not valid; give 'max' or 'min'"
        ),
        refusal(
            {"eval_every_steps": 10, "eval_every_secs": 60},
            "eval_every_steps=10 and eval_every_secs=60 are both set; give one of them",
        ),
        refusal(
            {"best_metric": "auc"},
            "best_metric='auc' needs evaluations during training; give eval_every_steps or",
        ),
        refusal(
            {"early_stopping_patience": 3, "eval_every_steps": 10},
            "early_stopping_patience=3 needs a metric to watch; give best_metric",
        ),
        refusal(
            {"train_batchsize": 3},
            "unknown setting 'train_batchsize'; did you mean 'train_batch_size'",
        ),
        refusal(
            {"export_to_cpu": False, "export_to_tpu": False},
            "export_to_cpu=False and export_to_tpu=False leave nothing to export; set one of them",
        ),
        refusal(
            {"use_tpu": True, "num_shards": 8, "train_batch_size": 100},
            "train_batch_size=100 is not divisible by num_shards=8:",
            "use 96 or 104",
        ),
        refusal(
            {"use_tpu": True, "num_shards": 8, "eval_batch_size": 4},
            "eval_batch_size=4 is not divisible by num_shards=8:",
            "use 8",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_the_fix(values, refused):
    with refused(ValueError):
        TrainSettings.parse(values)


def test_the_source_is_named():
    with pytest.raises(ValueError, match=r"^config\.yaml: train_batch_size=0"):
        TrainSettings.parse({"train_batch_size": 0}, source="config.yaml")


def test_batches_need_not_divide_on_the_host():
    settings = TrainSettings.parse({"num_shards": 8, "train_batch_size": 100})
    assert (settings.num_shards, settings.train_batch_size) == (8, 100)


def test_a_deferred_value_defers_the_rules_that_need_it():
    values = {"use_tpu": True, "num_shards": 7, "train_batch_size": None}
    with pytest.raises(ValueError, match="train_batch_size=64 is not divisible"):
        TrainSettings.parse(values)
    TrainSettings.parse(values, deferred={"train_batch_size"})


def test_slicing_specs_are_canonical():
    forms = [
        [{"feature_values": {"hour": 3}, "feature_keys": ["b", "a"]}],
        '[{"featureKeys": ["a", "b"], "featureValues": {"hour": "3"}}, {}]',
    ]
    stored = {
        TrainSettings.parse({"slicing_specs": form}).to_exec_properties()["slicing_specs"]
        for form in forms
    }
    assert stored == {'[{"feature_keys":["a","b"],"feature_values":{"hour":"3"}}]'}
    assert TrainSettings.parse({}).to_exec_properties()["slicing_specs"] == "[]"


def test_params_are_canonical():
    one = TrainSettings.parse({"params": {"a": 1, "b": 2}}).to_exec_properties()["params"]
    other = TrainSettings.parse({"params": json.dumps({"b": 2, "a": 1})}).to_exec_properties()
    assert one == other["params"]
