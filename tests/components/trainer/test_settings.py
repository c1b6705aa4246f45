"""Tests TrainSettings: accepted values, stored forms, and errors."""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tfx import v1 as tfx
from tfx.v1.dsl.experimental import RuntimeParameter

from tests import bad_input
from tfx_tpu_trainer.components import TpuTrainer, VertexTpuTrainer, plain_type
from tfx_tpu_trainer.components.clusters import VertexJob
from tfx_tpu_trainer.components.trainer.settings import TrainSettings
from tfx_tpu_trainer.components.trainer.train_job import settings_from

_SIGNATURE = inspect.signature(TpuTrainer)


@pytest.mark.parametrize("name", TrainSettings.model_fields)
def test_the_constructor_takes_each_setting_as_the_model_declares_it(name):
    field = TrainSettings.model_fields[name]
    # A default that others decide: `{}`, and whether there is a slice.
    default = None if name in ("params", "use_tpu") else field.default
    assert _SIGNATURE.parameters[name].default == default
    kinds = set(typing.get_args(typing.get_type_hints(TpuTrainer.__init__)[name]))
    forms = {dict: Mapping, tuple: Sequence} if name != "profile_steps" else {}
    kind = plain_type(field.annotation)
    kind = typing.get_origin(kind) or kind
    assert forms.get(kind, kind) in {typing.get_origin(each) or each for each in kinds}
    assert (type(None) in kinds) == (default is None)
    # `compile` requests the slice from the cluster.
    assert (RuntimeParameter in kinds) == (name != "tpu")


def test_each_argument_of_the_constructor_is_documented_with_its_default():
    text = inspect.getdoc(TpuTrainer.__init__)
    text = text[text.index("Args:") : text.index("Raises:")]
    about = dict(re.findall(r"(?ms)^    (\w+): (.*?)(?=^    \w|^$)", text))
    assert list(about) == list(_SIGNATURE.parameters)
    for name, parameter in _SIGNATURE.parameters.items():
        said = " ".join(about[name].split())
        assert (parameter.default is inspect.Parameter.empty) != ("Defaults to" in said)
        if parameter.default not in (None, inspect.Parameter.empty):
            assert f"Defaults to `{parameter.default!r}`." in said


def test_the_page_names_each_argument():
    page = (Path(__file__).parents[3] / "docs" / "component.md").read_text(encoding="utf-8")
    table = page[page.index("| about | arguments |") : page.index("The arguments in bold")]
    assert re.findall(r"`(\w+)`", table) == list(_SIGNATURE.parameters)


def test_a_vertex_trainer_takes_what_a_trainer_takes():
    channels = {
        name: tfx.dsl.Channel(type=channel.type)
        for name, channel in TpuTrainer.SPEC_CLASS.INPUTS.items()
    }
    given = {
        **channels,
        "module": "tests.components.trainer.small_model",
        "train_args": tfx.proto.TrainArgs(num_steps=10),
        "train_batch_size": 32,
        "tpu": "v5e:2x4",
    }
    job = VertexJob(project="our-models-17", region="us-central1", image="r.example/p:1")
    stored = VertexTpuTrainer(**given, vertex_job=job).exec_properties
    assert json.loads(stored.pop("vertex_job"))["project"] == "our-models-17"
    assert {**stored, "node": "TpuTrainer"} == TpuTrainer(**given).exec_properties
    with pytest.raises(
        TypeError,
        match=r"^VertexTpuTrainer got .* 'train_batchsize'; did you mean 'train_batch_size'",
    ):
        VertexTpuTrainer(**given, vertex_job=job, train_batchsize=3)
    with pytest.raises(TypeError, match=r"missing 2 required .*: 'vertex_job' and 'tpu'"):
        VertexTpuTrainer(**channels)


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


def refusal(values, *says, given=None):
    """A row of docs/bad-input.md for settings that are rejected."""
    given = given or ", ".join(f"`{name}={value!r}`" for name, value in values.items())
    return bad_input.case("component", given, *says, values=values)


def _nested(depth, inner=0):
    value = inner
    for _ in range(depth):
        value = {"a": value}
    return value


def _in_itself():
    value = {}
    value["a"] = value
    return value


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
        refusal(
            {"save_input_position": "yes"},
            "save_input_position='yes' is not valid; give True or False",
        ),
        refusal(
            {"mlflow_tracking_uri": "postgresql://me:secret@db.example/mlflow"},
            "mlflow_tracking_uri='postgresql://...@db.example/mlflow' has a password",
            "set MLFLOW_TRACKING_URI in the trainer's environment instead",
            given="`mlflow_tracking_uri` with a password",
        ),
        refusal({"cache_input": 2}, "cache_input=2 is not valid; give True or False"),
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
            {"warmup_batch_sizes": "1"},
            "warmup_batch_sizes='1'",
            "list of integers above 0, such as [1",
        ),
        refusal(
            {"profile_steps": [5, 3]},
            "profile_steps=[5, 3] is not valid; give the first and the last step",
        ),
        refusal({"profile_steps": 5}, "profile_steps=5 is not valid; give the first and the last"),
        refusal({"histograms": "weights"}, "histograms='weights' is not valid; give True or False"),
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
        refusal({"params": {"x": float("nan")}}, "params['x']=nan is not a JSON value"),
        refusal({"params": {"x": object}}, "params['x']=<class 'object'> is not a JSON value"),
        refusal({"params": {"x": [1, float("nan")]}}, "params['x']=[1, nan] is not a JSON value"),
        refusal({"params": {"x": {1}}}, "params['x']={1} is not a JSON value; give finite numbers"),
        refusal({"params": {"x": b"y"}}, "params['x']=b'y' is not a JSON value"),
        refusal({"params": '{"x": NaN}'}, "params['x']=nan is not a JSON value"),
        refusal({"params": {1: 2}}, "params has the key 1; give strings as keys"),
        refusal({"params": {"x": {1: 2}}}, "params['x']={1: 2} has the key 1, but JSON allows"),
        refusal(
            {"params": _nested(100_000)},
            "params['a']=<dict, too large to show> is nested more than 100 deep; give",
            given="`params` nested 100,000 deep",
        ),
        refusal(
            {"params": '{"a":' * 100_000},
            "params='{",
            "give a JSON object; it is nested too deeply",
            given="`params` as JSON nested 100,000 deep",
        ),
        refusal(
            {"params": _in_itself()},
            "params['a']={'a': {...}} is nested more than 100 deep",
            given="`params` that stand in themselves",
        ),
        refusal(
            {"params": {"x": 10**5000}},
            "params['x']=<int, too large to show> is not a JSON value",
            given="`params={'x': 10**5000}`",
        ),
        refusal({"params": "[1]"}, "params=[1] is not valid; give a dict with strings as keys"),
        refusal({"params": {"use_tpu": True}}, "params['use_tpu']=True: the engine sets this key"),
        refusal({"tf_random_seed": 1.5}, "tf_random_seed=1.5 is not valid; give an integer"),
        refusal(
            {"tf_random_seed": 2**63},
            f"tf_random_seed={2**63} is not valid; give an integer of at most 64 bits",
        ),
        refusal({"tf_random_seed": "a"}, "tf_random_seed='a' is not valid; give an integer"),
        refusal({"train_batch_size": 64.0}, "train_batch_size=64.0 is not valid; give an integer"),
        refusal({"num_shards": 0}, "num_shards=0 is not valid; give an integer above 0"),
        refusal({"max_slices": 0}, "max_slices=0 is not valid; give an integer above 0"),
        refusal({"eval_every_secs": -1}, "eval_every_secs=-1 is not valid; give an integer above"),
        refusal(
            {"iterations_per_loop": 2**31}, f"iterations_per_loop={2**31}", "at most 2,147,483,647"
        ),
        refusal(
            {"use_tpu": True, "master": "not an address"},
            "master='not an address' is not valid; give the address of a master, such as 'grpc://10.0.0.1",
            "'local' or 'emulated'",
        ),
        refusal(
            {"use_tpu": True, "master": "10.0.0.2:8470"},
            "master='10.0.0.2:8470' is not valid; give the address of a master, such as 'grpc://",
        ),
        refusal({"master": ""}, "master='' is not valid; give a name, or None"),
        refusal({"master": 3}, "master=3 is not valid; give a string"),
        refusal(
            {"checkpoint_root": "a\0b"},
            r"checkpoint_root='a\x00b' is not valid; give a folder whose name has no control",
        ),
        refusal({"checkpoint_root": ""}, "checkpoint_root='' is not valid; give a name, or None"),
        refusal(
            {"serving_model_name": "a/b"},
            "serving_model_name='a/b' is not valid; give a name of letters, digits,",
        ),
        refusal(
            {"preflight": "maybe"}, "preflight='maybe' is not valid; give 'off', 'warn' or 'er"
        ),
        refusal(
            {"preflight": "error"},
            "preflight='error' compiles for a TPU slice, but tpu is not set; give a slice",
        ),
        refusal({"resume": "maybe"}, "resume='maybe' is not valid; give True or False"),
        refusal(
            {"tpu": "v99:2x2"},
            "tpu='v99:2x2' is not valid;",
            "unknown generation 'v99'; use one of",
        ),
        refusal({"tpu": "v5e:0x4"}, "tpu='v5e:0x4' is not valid;", "no slice '0x4'; nearest: v5e:"),
        refusal({"tpu": 3}, "tpu=3 is not valid;", "give a name such as 'v5e:2x4'"),
        refusal(
            {"tpu": "v5e:2x4", "use_tpu": False},
            "use_tpu=False contradicts tpu='v5e:2x4'; leave one of them out",
        ),
        refusal({"warmup_batch_sizes": [1.5]}, "warmup_batch_sizes=1.5", "give an integer"),
        refusal(
            {"warmup_batch_sizes": "[" * 100_000},
            "give a JSON list of integers; it is nested too deeply",
            given="`warmup_batch_sizes` as JSON nested 100,000 deep",
        ),
        refusal({"slicing_specs": 3}, "slicing_specs=3 is not a list: give [tfma.SlicingSpec("),
        refusal({"slicing_specs": [None]}, "slicing_specs has None: give a tfma.SlicingSpec, or a"),
        refusal(
            {"slicing_specs": "[" * 100_000},
            "slicing_specs is JSON nested too deeply: give a list of dicts",
            given="`slicing_specs` as JSON nested 100,000 deep",
        ),
        refusal(
            {"slicing_specs": "hour"},
            "slicing_specs='hour' is not valid JSON",
            'Give a list of dicts, such as [{"feature_keys": ["hour"]}]',
        ),
        refusal({"slicing_specs": [{"feature": "hour"}]}, "which is not a SlicingSpec"),
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


@pytest.mark.parametrize(
    "values",
    [
        bad_input.case(
            "component",
            "`custom_config={'tpu_trainer': {'train_batch_size': 0}}` of a stock Trainer",
            "custom_config['tpu_trainer']: train_batch_size=0 is not valid; give an integer",
            values={"train_batch_size": 0},
        ),
        bad_input.case(
            "component",
            "`custom_config={'tpu_trainer': {'labelkey': 'y'}}` of a stock Trainer",
            "custom_config['tpu_trainer']: unknown setting 'labelkey'; did you mean 'label_key'",
            values={"labelkey": "y"},
        ),
        bad_input.case(
            "component",
            "`custom_config={'tpu_trainer': [1]}` of a stock Trainer",
            "custom_config['tpu_trainer']: [1] is not valid; give a dict of settings by name",
            values=[1],
        ),
        bad_input.case(
            "component",
            "`custom_config={'tpu_trainer': None}` of a stock Trainer",
            "custom_config['tpu_trainer']: None is not valid; give a dict of settings by name",
            values=None,
        ),
    ],
)
def test_the_source_is_named(values, refused):
    stored = {"custom_config": json.dumps({"tpu_trainer": values})}
    with refused(ValueError):
        settings_from(stored)


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


@pytest.mark.parametrize(
    ("given", "is_required"),
    [
        ({}, False),
        ({"use_tpu": True}, True),
        ({"tpu": "v5e:2x2"}, True),
        ({"export_to_tpu": True}, True),
        ({"use_tpu": True, "export_to_tpu": False}, False),
        # Else nothing would be exported.
        ({"export_to_cpu": False}, True),
    ],
)
def test_who_asks_for_a_tpu_asks_for_its_graph(given, is_required):
    assert TrainSettings.parse(given).requires_tpu_graph == is_required
