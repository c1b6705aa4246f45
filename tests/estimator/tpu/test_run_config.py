import copy
import json
import urllib.error
import urllib.request

import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tfx_tpu_trainer.estimator import tpu
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


TENSORFLOWS = tf.distribute.cluster_resolver.TPUClusterResolver


@pytest.fixture
def no_cloud(monkeypatch):
    """A machine whose metadata server can't be reached: nothing waits for a real one."""

    def urlopen(*_, **__):
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    monkeypatch.delenv("TFX_TPU_TRAINER_EMULATE", raising=False)


@row(
    "estimator",
    "`TPUClusterResolver('my-tpu')` where there is no Google Cloud",
    "TPUClusterResolver(tpu='my-tpu'): the TPU can't be looked up",
    "TFX_TPU_TRAINER_EMULATE=1",
)
@pytest.mark.usefixtures("no_cloud")
def test_a_tpu_that_can_t_be_looked_up_is_one_line(refused):
    with refused(urllib.error.URLError):
        tpu.TPUClusterResolver("my-tpu")
    with pytest.raises(urllib.error.URLError, match="'my-tpu'") as raised:
        tpu.TPUClusterResolver.connect(tpu="my-tpu")
    # Nothing of urllib's: a traceback ends here.
    assert raised.value.__suppress_context__
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("no_cloud")
@pytest.mark.parametrize(
    ("named", "master"), [("local", ""), ("grpc://10.0.0.2:8470", "grpc://10.0.0.2:8470")]
)
def test_what_needs_no_cloud_is_as_tensorflow_has_it(named, master):
    resolver = tpu.TPUClusterResolver(named)
    assert isinstance(resolver, TENSORFLOWS)
    assert resolver.master() == TENSORFLOWS(named).master() == master
    assert tpu.RunConfig(cluster=resolver).master == master


def test_emulated_cores_answer_any_name(monkeypatch):
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATE", "1")
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATED_REPLICAS", "4")
    for resolver in (
        tpu.TPUClusterResolver("tpu-of-nobody", zone="here", project="mine"),
        tpu.TPUClusterResolver.connect("tpu-of-nobody"),
        copy.deepcopy(tpu.TPUClusterResolver(tpu="tpu-of-nobody")),
    ):
        assert isinstance(resolver, tpu.TPUClusterResolver)
        assert resolver.master() == ""
        assert resolver.num_accelerators() == {"TPU": 4}
        assert tpu.RunConfig(cluster=resolver).master == ""
