from __future__ import annotations

import json

import pytest
import tensorflow as tf

from tests.bad_input import case
from tfx_tpu_trainer.estimator.tpu import RunConfig, TPUConfig

v1 = tf.compat.v1
CLUSTER = {"chief": ["h0:1"], "worker": ["h1:1"]}


class _Resolver(tf.distribute.cluster_resolver.SimpleClusterResolver):
    """A resolver of two named hosts; a real one needs a TPU to ask."""

    def __init__(self):
        super().__init__(
            tf.train.ClusterSpec({"worker": ["w0:8470", "w1:8470"]}),
            master="grpc://w0:8470",
            task_type="worker",
            task_id=0,
        )


@pytest.fixture(autouse=True)
def _no_tf_config(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


def _tf_config(monkeypatch, **content) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps(content))


@pytest.mark.behaviour(46, 47)
def test_defaults():
    config = RunConfig()
    assert config.tpu_config == TPUConfig()
    assert (config.master, config.evaluation_master) == ("", "")
    assert config.cluster is None
    assert config.session_config is None
    assert config.save_checkpoints_secs == 600


@pytest.mark.parametrize(
    ("tf_config", "given", "master", "evaluation_master"),
    [
        ({}, {"master": "m"}, "m", "m"),
        ({}, {"master": "m", "evaluation_master": "e"}, "m", "e"),
        ({}, {"evaluation_master": "e"}, "", "e"),
        ({"session_master": "s"}, {}, "s", "s"),
        ({"session_master": "s", "eval_session_master": "t"}, {}, "s", "t"),
        ({"session_master": "s", "eval_session_master": "t"}, {"master": "m"}, "m", "t"),
        ({"session_master": "s", "eval_session_master": "t"}, {"master": ""}, "", "t"),
        ({"session_master": "s"}, {"evaluation_master": ""}, "s", ""),
    ],
    ids=["b48", "b49", "b49_eval", "b48_tf_config", "b50", "b49_wins", "b49_empty", "b49_empty_e"],
)
@pytest.mark.behaviour(48, 49, 50)
def test_masters(monkeypatch, tf_config, given, master, evaluation_master):
    _tf_config(monkeypatch, **tf_config)
    config = RunConfig(**given)
    assert (config.master, config.evaluation_master) == (master, evaluation_master)


@pytest.mark.behaviour(51)
def test_an_evaluator_keeps_its_own_master(monkeypatch):
    _tf_config(monkeypatch, cluster=CLUSTER, task={"type": "evaluator", "index": 0})
    assert RunConfig(master="m").evaluation_master == ""


@pytest.mark.behaviour(52)
def test_master_and_cluster_exclude_each_other():
    with pytest.raises(ValueError, match="Both master and cluster are set: 'm'"):
        RunConfig(master="m", cluster=_Resolver())


@pytest.mark.parametrize(
    "given",
    [
        case(
            "estimator",
            f"`tpu.RunConfig({name}={value!r})`",
            f"{name} must be {says}",
            f"got {value!r}.",
            values={name: value},
        )
        for name, value, says in (
            ("tpu_config", {"num_shards": 8}, "a TPUConfig of tfx_tpu_trainer.estimator.tpu"),
            ("cluster", "grpc://10.0.0.1:8470", "a tf.distribute.cluster_resolver.ClusterResolver"),
            ("master", {"worker": 0}, "the address of a session, such as 'grpc://10.0.0.1:8470'"),
            ("evaluation_master", 5, "the address of a session, such as 'grpc://10.0.0.1:8470'"),
        )
    ],
)
def test_arguments_of_another_type_are_named(given, refused):
    with refused(TypeError):
        RunConfig(**given)


def test_a_tpu_config_of_another_type_is_named_by_replace():
    with pytest.raises(TypeError, match="tpu_config must be a TPUConfig"):
        RunConfig().replace(tpu_config={"num_shards": 8})


@pytest.mark.behaviour(53)
def test_a_cluster_is_merged_into_the_session_config():
    session_config = v1.ConfigProto(intra_op_parallelism_threads=3)
    resolver = _Resolver()
    config = RunConfig(cluster=resolver, session_config=session_config)
    assert config.cluster is resolver
    assert config.master == config.evaluation_master == "grpc://w0:8470"
    assert config.cluster_spec == resolver.cluster_spec()
    assert config.session_config.intra_op_parallelism_threads == 3
    (job,) = config.session_config.cluster_def.job
    assert (job.name, dict(job.tasks)) == ("worker", {0: "w0:8470", 1: "w1:8470"})


@pytest.mark.behaviour(53)
def test_a_cluster_beside_a_cluster_def_is_refused():
    session_config = v1.ConfigProto()
    session_config.cluster_def.job.add(name="other")
    with pytest.raises(ValueError, match="cannot provide a ClusterResolver and"):
        RunConfig(cluster=_Resolver(), session_config=session_config)


@pytest.mark.behaviour(54, 69)
def test_no_session_config_is_invented(monkeypatch):
    _tf_config(monkeypatch, cluster=CLUSTER, task={"type": "worker", "index": 0})
    assert RunConfig().session_config is None


@pytest.mark.behaviour(55)
def test_replace_keeps_or_replaces_the_tpu_config():
    config = RunConfig(tpu_config=TPUConfig(num_shards=8), master="m")
    changed = config.replace(model_dir="b", tpu_config=TPUConfig(num_shards=4))
    assert (changed.tpu_config.num_shards, changed.model_dir) == (4, "b")
    assert config.tpu_config.num_shards == 8
    assert config.replace(model_dir="b").tpu_config.num_shards == 8
    assert config.replace(model_dir="b").master == "m"
    assert isinstance(changed, RunConfig)


def test_it_shows_the_tpu_config_and_the_master_where_they_are_given():
    assert repr(RunConfig()) == "RunConfig()"
    tpu_config = TPUConfig(num_shards=2)
    shown = repr(RunConfig(model_dir="b", tpu_config=tpu_config, master="emulated"))
    assert shown == f"RunConfig(model_dir='b', tpu_config={tpu_config!r}, master='emulated')"
    assert "evaluation_master='e'" in repr(RunConfig(evaluation_master="e"))


@pytest.mark.behaviour(56)
def test_the_master_cannot_be_replaced():
    with pytest.raises(ValueError, match="Replacing master is not supported"):
        RunConfig().replace(master="m")
