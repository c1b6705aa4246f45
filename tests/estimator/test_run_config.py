import json
import math
import pathlib
import re

import pytest
import tensorflow as tf

from tests.bad_input import row
from tfx_tpu_trainer.estimator import RunConfig
from tfx_tpu_trainer.estimator._run_config import REPLACEABLE

v1 = tf.compat.v1

# What the original refuses too is in words/cases/config.py.
BAD_VALUES = [
    ("save_checkpoints_steps", math.nan, ">= 0; got nan"),
    ("first_checkpoint_secs", 0, "> 0; got 0"),
    ("stall_timeout_secs", 0, "> 0; got 0"),
    ("jit_compile", "on", "must be None, False, True or \"auto\"; got 'on'"),
    ("jit_compile", 2, 'must be None, False, True or "auto"; got 2'),
    ("save_input_position", "yes", "must be True or False; got 'yes'"),
    ("gradient_norms", 1, "True or False; got 1"),
    ("histograms", "weights", "True or False; got 'weights'"),
    ("profile_steps", 5, "the first and the last step, counted from 1, as \\(100, 105\\); got 5"),
    ("profile_steps", (9, 3), "the first and the last step"),
    ("profile_steps", (0, 3), "the first and the last step"),
    ("experimental_max_worker_delay_secs", "5", "integer if set; got '5'"),
    ("device_fn", lambda node: "/cpu:0", 'one argument "op"'),
]


@pytest.fixture(autouse=True)
def _no_tf_config(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


@pytest.mark.behaviour(58, 59)
def test_defaults():
    config = RunConfig()
    assert config.model_dir is None
    assert config.tf_random_seed is None
    assert config.save_summary_steps == 100
    assert config.save_checkpoints_secs == 600
    assert config.save_checkpoints_steps is None
    assert config.session_config is None
    assert config.keep_checkpoint_max == 5
    assert config.keep_checkpoint_every_n_hours == 10000
    assert config.log_step_count_steps == 100
    assert config.session_creation_timeout_secs == 7200
    assert config.checkpoint_save_graph_def is True
    assert config.stall_timeout_secs is None


@pytest.mark.parametrize(
    ("given", "steps", "secs"),
    [
        ({"save_checkpoints_steps": 7}, 7, None),
        ({"save_checkpoints_secs": 7}, None, 7),
        ({"save_checkpoints_steps": None}, None, None),
        ({"save_checkpoints_steps": None, "save_checkpoints_secs": None}, None, None),
        ({"save_checkpoints_steps": None, "save_checkpoints_secs": 9}, None, 9),
    ],
)
@pytest.mark.behaviour(58)
def test_one_checkpoint_interval_clears_the_other(given, steps, secs):
    config = RunConfig(**given)
    assert (config.save_checkpoints_steps, config.save_checkpoints_secs) == (steps, secs)


@pytest.mark.behaviour(58, 57)
@row(
    "estimator",
    "`RunConfig(save_checkpoints_steps=1, save_checkpoints_secs=2)`",
    "cannot be both set. Got 1 and 2",
)
def test_both_checkpoint_intervals_are_refused(refused):
    with refused(ValueError):
        RunConfig(save_checkpoints_steps=1, save_checkpoints_secs=2)
    with refused(ValueError):
        RunConfig().replace(save_checkpoints_steps=1, save_checkpoints_secs=2)


@pytest.mark.parametrize(("name", "value", "says"), BAD_VALUES)
@pytest.mark.behaviour(60)
def test_values_out_of_range_are_refused(name, value, says):
    with pytest.raises(ValueError, match=f"{name}.*{says}"):
        RunConfig(**{name: value})
    with pytest.raises(ValueError, match=f"{name}.*{says}"):
        RunConfig().replace(**{name: value})


@pytest.mark.parametrize(
    "name",
    [
        "save_summary_steps",
        "save_checkpoints_steps",
        "save_checkpoints_secs",
        "keep_checkpoint_max",
        "keep_checkpoint_every_n_hours",
        "log_step_count_steps",
        "session_creation_timeout_secs",
        "first_checkpoint_secs",
        "stall_timeout_secs",
    ],
)
@row(
    "estimator",
    '`RunConfig(save_checkpoints_steps="100")`, and all its other numbers',
    " must be a number; got '100'.",
)
def test_what_is_no_number_is_named(name, refused):
    for make in (RunConfig, RunConfig().replace):
        with refused(TypeError) as raised:
            make(**{name: "100"})
        assert str(raised.value).startswith(name)


@pytest.mark.parametrize(
    "name", ["save_summary_steps", "save_checkpoints_steps", "log_step_count_steps"]
)
@row(
    "estimator",
    "`RunConfig(save_checkpoints_steps=tf.constant(5))`, and the other steps",
    "must be a number; got <tf.Tensor: shape=(), dtype=int32, numpy=5>. Give its value, int(...).",
)
def test_a_tensor_is_no_number_of_steps(name, refused):
    with refused(TypeError) as raised:
        RunConfig(**{name: tf.constant(5)})
    assert str(raised.value).startswith(name)


def test_intervals_need_not_be_whole_numbers():
    assert RunConfig(save_checkpoints_steps=31.25).save_checkpoints_steps == 31.25


# What tf_config says is read, and the mapping itself not kept.
@pytest.mark.parametrize("name", [name for name in REPLACEABLE if name != "tf_config"])
@pytest.mark.behaviour(61)
def test_any_of_them_may_be_none(name):
    assert getattr(RunConfig(**{name: None}), name) is None
    assert getattr(RunConfig().replace(**{name: None}), name) is None


def test_a_tf_config_of_none_is_that_of_the_environment(monkeypatch):
    cluster = {"chief": ["localhost:1"], "ps": ["localhost:2"]}
    task = {"type": "ps", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    assert RunConfig(tf_config=None).cluster_spec.as_dict() == cluster


@pytest.mark.behaviour(62)
def test_model_dir_may_be_a_path():
    path = pathlib.Path("runs") / "model"
    assert RunConfig(model_dir=path).model_dir == "runs/model"
    assert RunConfig().replace(model_dir=path).model_dir == "runs/model"


@pytest.mark.behaviour(63)
@row(
    "estimator",
    "`RunConfig(model_dir=)` other than TF_CONFIG's",
    "must have the same value",
    "'here'",
    "'there'",
)
def test_model_dir_of_tf_config(monkeypatch, refused):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"model_dir": "there"}))
    assert RunConfig().model_dir == "there"
    assert RunConfig(model_dir="there").model_dir == "there"
    with refused(ValueError):
        RunConfig(model_dir="here")


@pytest.mark.behaviour(55)
def test_replace_gives_a_changed_deep_copy():
    session_config = v1.ConfigProto(intra_op_parallelism_threads=1)
    config = RunConfig(model_dir="a", tf_random_seed=3, session_config=session_config)
    changed = config.replace(model_dir="b")
    changed.session_config.intra_op_parallelism_threads = 9
    assert (config.model_dir, changed.model_dir) == ("a", "b")
    assert changed.tf_random_seed == 3
    assert config.session_config.intra_op_parallelism_threads == 1


@pytest.mark.parametrize("name", ["master", "task_type", "cluster_spec", "tpu_config", "any"])
@pytest.mark.behaviour(56)
@row(
    "estimator",
    "`RunConfig.replace` of what can't be replaced",
    "Replacing ",
    "is not supported",
    "'model_dir'",
)
def test_what_cannot_be_replaced_is_refused(name, refused):
    with refused(ValueError) as raised:
        RunConfig().replace(**{name: "value"})
    assert re.search(f"Replacing {name} is not supported.*'model_dir'", str(raised.value))


@pytest.mark.parametrize(
    ("replaced", "steps", "secs"),
    [
        ({"save_checkpoints_steps": 5}, 5, None),
        ({"save_checkpoints_secs": 5}, None, 5),
        ({"save_checkpoints_steps": None}, None, 600),
        ({"save_checkpoints_secs": None}, None, None),
    ],
)
@pytest.mark.behaviour(57)
def test_replacing_one_checkpoint_interval_clears_the_other(replaced, steps, secs):
    config = RunConfig().replace(**replaced)
    assert (config.save_checkpoints_steps, config.save_checkpoints_secs) == (steps, secs)


@pytest.mark.behaviour(69)
def test_a_task_of_a_cluster_gets_device_filters_unless_a_session_config_is_given(monkeypatch):
    cluster = {"chief": ["h0:1"], "worker": ["h1:1", "h2:1"], "ps": ["h3:1"]}
    task = {"type": "worker", "index": 1}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    filters = RunConfig().session_config.device_filters
    assert list(filters) == ["/job:ps", "/job:worker/task:1"]
    given = v1.ConfigProto()
    assert RunConfig(session_config=given).session_config == given


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({}, ""),
        ({"model_dir": "m", "tf_random_seed": 0}, "model_dir='m', tf_random_seed=0"),
        ({"save_checkpoints_steps": 5}, "save_checkpoints_steps=5"),
        ({"save_checkpoints_secs": None}, "save_checkpoints_secs=None"),
        ({"keep_checkpoint_max": None}, "keep_checkpoint_max=None"),
    ],
)
def test_it_shows_what_is_not_the_default(given, shown):
    assert repr(RunConfig(**given)) == f"RunConfig({shown})"
