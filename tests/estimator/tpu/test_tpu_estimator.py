"""What a TPUEstimator adds to an Estimator, on the host."""

import itertools
import json
import re

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.estimator import linear_model
from tests.estimator._engine.event_files import read_values
from tests.estimator._engine.log_lines import log_lines
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer import estimator as plain
from tfx_tpu_trainer.estimator import tpu

v1 = tf.compat.v1


BATCHES = {"train_batch_size": 6, "eval_batch_size": 5, "predict_batch_size": 4}


MODES = {"train": "train", "eval": "eval", "predict": "infer"}


def _model_fn(features, labels, mode, params):
    raise AssertionError("not called")


def _make(model_fn=_model_fn, *, folder="m", config=None, **options) -> tpu.TPUEstimator:
    config = config or tpu.RunConfig(model_dir=str(folder))
    return tpu.TPUEstimator(model_fn, config=config, **{"use_tpu": False, **options})


def _run(estimator: tpu.TPUEstimator, mode: str, input_fn=linear_model.input_fn):
    if mode == "train":
        return estimator.train(input_fn, steps=1)
    if mode == "eval":
        return estimator.evaluate(input_fn, steps=1)
    return next(estimator.predict(input_fn))


def _linear(folder, optimizer: str = "sgd", *, fields=None, **options) -> tpu.TPUEstimator:
    model_fn = linear_model.model_fn_for(tpu, optimizer, **(fields or {}))
    return _make(model_fn, folder=folder, **{**BATCHES, **options})


def _config(**options) -> tpu.RunConfig:
    return tpu.RunConfig(tpu_config=tpu.TPUConfig(**options))


@pytest.mark.parametrize("config", [None, plain.RunConfig(), {"model_dir": "m"}])
@pytest.mark.behaviour(1)
@row(
    "estimator",
    "`TPUEstimator(config=RunConfig())` of another kind",
    "`config` must be provided with type",
)
def test_config_must_be_a_tpu_run_config(config, refused):
    with refused(ValueError):
        tpu.TPUEstimator(_model_fn, config=config, use_tpu=False)


@pytest.mark.parametrize("key", ["batch_size", "context"])
@pytest.mark.behaviour(2)
@row("estimator", "`TPUEstimator(params={'batch_size': 3})`", "reserved keys but existed in params")
def test_reserved_params(key, refused):
    with refused(ValueError) as raised:
        _make(params={key: 3})
    assert re.search(f"reserved keys but existed in params.*'{key}': 3", str(raised.value))


@mostly_swept("mode", MODES, kept=["predict"])
@pytest.mark.behaviour(3, 146)
def test_use_tpu_is_not_reserved_and_says_false_on_the_host(tmp_path, mode):
    seen = []

    def model_fn(features, labels, mode, params):
        seen.append(params["use_tpu"])
        return linear_model.model_fn_for(tpu)(features, labels, mode, params)

    _run(_make(model_fn, folder=tmp_path, params={"use_tpu": "any"}, **BATCHES), mode)
    assert seen == [False]


@pytest.mark.behaviour(4)
@row(
    "estimator", "`use_tpu=True` without `train_batch_size`", "`train_batch_size` cannot be `None`"
)
def test_use_tpu_needs_a_train_batch_size(refused):
    with refused(ValueError):
        _make(use_tpu=True)


@pytest.mark.parametrize("name", sorted(BATCHES))
@pytest.mark.parametrize(
    ("value", "error", "says"),
    [
        (8.0, TypeError, "must be int"),
        ("8", TypeError, "must be int"),
        (0, ValueError, "must be positive"),
        (-8, ValueError, "must be positive"),
    ],
)
@pytest.mark.behaviour(5, 6)
@row("estimator", "a batch size of 0, -8, 8.0 or '8' on cores", "_batch_size must be ")
def test_batch_sizes_must_be_positive_integers_on_tpu(name, value, error, says, refused):
    with refused(error) as raised:
        _make(use_tpu=True, **{"train_batch_size": 8, name: value})
    assert re.search(f"{name} {says}", str(raised.value))


@pytest.mark.behaviour(5)
def test_numpy_integers_are_batch_sizes():
    _make(use_tpu=True, train_batch_size=np.int64(8), eval_batch_size=np.int32(4))


@pytest.mark.parametrize("value", [None, np.int64(8), np.array(8), 0, -8])
@pytest.mark.behaviour(7)
def test_an_integer_of_any_size_is_a_batch_size_on_the_host(value):
    _make(train_batch_size=value, eval_batch_size=value, predict_batch_size=value)


@pytest.mark.parametrize("name", sorted(BATCHES))
@pytest.mark.parametrize("value", ["8", 8.0, True, [8], np.float32(8)])
@pytest.mark.behaviour(7)
@row("estimator", "a batch size of '8', 8.0 or True on the host", "_batch_size must be int, got ")
def test_a_batch_size_that_no_dataset_takes_is_named(name, value, refused):
    with refused(TypeError) as raised:
        _make(**{name: value})
    assert str(raised.value).startswith(f"{name} must be int, got {type(value)}: {value!r}.")


@pytest.mark.parametrize("given", [0, "ab", ["a"], 1.5])
@row(
    "estimator",
    "`TPUEstimator(batch_axis=0)`",
    "batch_axis must be a list of one axis for each input tensor, given: ",
)
def test_a_batch_axis_of_another_type_is_named(given, refused):
    with refused(TypeError):
        _make(batch_axis=given)


@row(
    "estimator",
    "`TPUConfig(num_shards=10**6)` on emulated cores",
    "TPUConfig num_shards=1000000: at most 1024 replicas can be emulated",
    "Give fewer, or run on a TPU.",
)
def test_more_cores_than_can_be_emulated_are_refused_at_once(tmp_path, refused):
    estimator = on_cores.linear(tmp_path, cores=10**6, train_batch_size=10**6)
    with refused(ValueError):
        estimator.train(lambda params: pytest.fail("called"), max_steps=1)


@pytest.mark.behaviour(8)
@row(
    "estimator",
    "`num_cores_per_replica` without input per host",
    "Model parallelism only supports per host input",
)
def test_model_parallelism_needs_per_host_input(refused):
    config = _config(num_cores_per_replica=2, per_host_input_for_training=False)
    with refused(ValueError):
        _make(config=config, use_tpu=True, train_batch_size=8)
    _make(config=config, use_tpu=False)


@pytest.mark.behaviour(16)
def test_model_fn_gets_a_dict_where_no_params_were_given(tmp_path, caplog):
    # A lift: there is no warning, as every model_fn of a TPUEstimator takes params.
    seen = []

    def model_fn(features, labels, mode, params):
        seen.append(params)
        return linear_model.model_fn_for(tpu)(features, labels, mode, params)

    with log_lines(caplog) as logged:
        estimator = _make(model_fn, folder=tmp_path, train_batch_size=2)
    assert not any("params" in line for line in logged)
    _run(estimator, "train")
    assert seen == [{"batch_size": 2, "use_tpu": False}]


@pytest.mark.behaviour(17)
@row("estimator", "`TPUEstimator(None)`", "model_fn must be callable, given: None.")
def test_no_model_fn_is_a_type_error(refused):
    with refused(TypeError):
        _make(None)


@pytest.mark.parametrize("version", [1, 2, *tpu.ExportSavedModelApiVersion])
@pytest.mark.behaviour(19)
def test_export_versions(version):
    _make(export_saved_model_api_version=version)


@pytest.mark.parametrize("version", [0, 3, "1", None])
@pytest.mark.behaviour(19)
@row(
    "estimator",
    "`export_saved_model_api_version=3`",
    "export_saved_model_api_version should be 1 or 2; got",
)
def test_other_export_versions_are_refused(version, refused):
    with refused(ValueError):
        _make(export_saved_model_api_version=version)


@pytest.mark.behaviour(26)
def test_log_step_count_steps_is_taken_out_of_the_config():
    assert _make(config=tpu.RunConfig(log_step_count_steps=7)).config.log_step_count_steps is None


@pytest.mark.behaviour(28)
def test_eval_on_tpu_without_use_tpu_is_only_a_warning(caplog):
    with log_lines(caplog) as logged:
        _make(eval_on_tpu=True)
    assert "eval_on_tpu ignored because use_tpu is False." in logged


@mostly_swept(
    ("mode", "pipeline"),
    itertools.product(MODES, [1, 2, 3, 4]),
    kept=[("train", 3), ("eval", 2), ("predict", 1)],
)
@pytest.mark.behaviour(70, 72, 115)
def test_the_batch_size_is_that_of_the_mode_whatever_the_shards(tmp_path, mode, pipeline):
    seen = []

    def input_fn(params, mode):
        seen.append((mode, params["batch_size"]))
        return linear_model.input_fn(params)

    def model_fn(features, labels, mode, params):
        seen.append((mode, params["batch_size"]))
        return linear_model.model_fn_for(tpu)(features, labels, mode, params)

    tpu_config = tpu.TPUConfig(num_shards=4, per_host_input_for_training=pipeline)
    config = tpu.RunConfig(model_dir=str(tmp_path), tpu_config=tpu_config)
    _run(_make(model_fn, config=config, **BATCHES), mode, input_fn)
    assert seen == [(MODES[mode], BATCHES[f"{mode}_batch_size"])] * 2


@mostly_swept("mode", MODES, kept=["predict"])
@pytest.mark.behaviour(71)
def test_without_a_batch_size_there_is_none_in_params(tmp_path, mode):
    def input_fn(params):
        assert params == {"rate": 1}
        return linear_model.input_fn({"batch_size": 2})

    def model_fn(features, labels, mode, params):
        assert params == {"rate": 1, "use_tpu": False}
        return linear_model.model_fn_for(tpu)(features, labels, mode, params)

    _run(_make(model_fn, folder=tmp_path, params={"rate": 1}), mode, input_fn)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.behaviour(111)
@row("estimator", "an input_fn without `params`", "does not include params argument, required by")
def test_an_input_fn_must_take_params(tmp_path, mode, refused):
    with refused(ValueError):
        _run(_linear(tmp_path), mode, lambda: linear_model.input_fn({"batch_size": 2}))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.behaviour(144)
@row(
    "estimator",
    "a model_fn without `params`, of a TPUEstimator",
    "model_fn",
    "does not include params argument",
)
def test_a_model_fn_must_take_params_when_it_is_called(tmp_path, mode, refused):
    estimator = _make(lambda features, labels, mode: None, folder=tmp_path, **BATCHES)
    with refused(ValueError):
        _run(estimator, mode)


@mostly_swept("mode", MODES, kept=["eval"])
@pytest.mark.behaviour(241, 252)
def test_a_host_call_runs_in_every_mode(tmp_path, mode):
    seen = []

    def host_call(value):
        return v1.py_func(lambda x: seen.append(float(x)) or np.float32(x), [value], tf.float32)

    def model_fn(features, labels, mode, params):
        fields = {"host_call": (host_call, [tf.constant(2.0)])}
        return linear_model.model_fn_for(tpu, **fields)(features, labels, mode, params)

    _run(_make(model_fn, folder=tmp_path, **BATCHES), mode)
    assert seen
    assert set(seen) == {2.0}


@mostly_swept(
    ("every", "loop", "steps"),
    [
        (4, 2, [5, 9]),
        (3, 2, [4, 7, 10]),
        (4, 1, [5, 9]),
        (1, 100, list(range(2, 11))),
        (9, 100, [10]),
    ],
    kept=[(3, 2, [4, 7, 10]), (9, 100, [10])],
)
@pytest.mark.behaviour(390, 391)
def test_throughput_is_written_every_n_steps(tmp_path, every, loop, steps):
    config = tpu.RunConfig(
        model_dir=str(tmp_path),
        log_step_count_steps=every,
        tpu_config=tpu.TPUConfig(iterations_per_loop=loop),
    )
    _linear(tmp_path, config=config).train(linear_model.endless_input_fn, steps=10)
    values = read_values(tmp_path)
    assert sorted(values["global_step/sec"]) == sorted(values["examples/sec"]) == steps
    for step in steps:
        rate = values["global_step/sec"][step]
        assert values["examples/sec"][step] == pytest.approx(6 * rate, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "tags"),
    [
        ({"log_step_count_steps": None}, {"loss"}),
        ({"log_step_count_steps": 1, "save_summary_steps": 0}, set()),
    ],
    ids=["b392", "b395"],
)
@pytest.mark.behaviour(392, 395)
def test_throughput_may_be_switched_off(tmp_path, options, tags):
    config = tpu.RunConfig(model_dir=str(tmp_path), **options)
    _linear(tmp_path, config=config).train(linear_model.endless_input_fn, steps=3)
    assert set(read_values(tmp_path)) == tags


@pytest.mark.behaviour(394)
def test_throughput_without_a_batch_size_reports_steps_only(tmp_path):
    config = tpu.RunConfig(model_dir=str(tmp_path), log_step_count_steps=1)
    estimator = _linear(tmp_path, config=config, train_batch_size=None)
    input_fn = lambda params: linear_model.input_fn({"batch_size": 4})  # noqa: E731
    estimator.train(input_fn, steps=4)
    assert set(read_values(tmp_path)) == {"global_step/sec", "loss"}


CLUSTER = {"chief": ["localhost:1"], "ps": ["localhost:2"]}


def _model_fn_cluster(features, labels, mode, params):
    weight = v1.get_variable("weight", [])
    loss = tf.reduce_mean(tf.square(weight * features - labels))
    optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
    train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def _input_fn(params):
    rows = tf.data.Dataset.from_tensors((1.0, 2.0)).repeat(8)
    return rows.batch(params["batch_size"], drop_remainder=True)


def test_a_sum_over_cores_is_refused_before_a_cluster_is_asked(tmp_path, monkeypatch):
    task = {"cluster": CLUSTER, "task": {"type": "chief", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(task))
    estimator = tpu.TPUEstimator(
        _model_fn_cluster,
        config=tpu.RunConfig(model_dir=str(tmp_path)),
        train_batch_size=2,
        use_tpu=False,
    )
    message = r"'CrossReplicaSum' is a sum over TPU cores.*only if params\['use_tpu'\] is true"
    with pytest.raises(ValueError, match=message):
        estimator.train(_input_fn, max_steps=1)
