"""Constructor, batch sizes, layout and input on emulated cores: groups A, D, E, F of behaviours.md."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator.export import build_raw_serving_input_receiver_fn

pytestmark = pytest.mark.matrix


@pytest.mark.behaviour(12)
def test_one_core_is_an_ordinary_layout_and_eval_on_tpu_false_holds_in_it(tmp_path):
    seen = []

    def model_fn(features, labels, mode, params):
        context = params.get("context")
        layout = context and (context.num_replicas, context.num_hosts)
        seen.append((mode, params["use_tpu"], params["batch_size"], layout))
        return linear_model.model_fn_for(tpu)(features, labels, mode, params)

    estimator = on_cores.make(tmp_path, model_fn, cores=1, eval_on_tpu=False, eval_batch_size=5)
    estimator.train(on_cores.train_input_fn, steps=2)
    on_cores.assert_descended(estimator, 2)
    estimator.evaluate(linear_model.input_fn)
    assert seen == [("train", True, 8, (1, 1)), ("eval", False, 5, None)]


@mostly_swept("size", [None, 7], kept=[None])
@pytest.mark.behaviour(87)
def test_an_export_looks_at_no_batch_size(tmp_path, size):
    estimator = on_cores.linear(tmp_path, cores=4, predict_batch_size=size)
    estimator.train(on_cores.train_input_fn, steps=1)
    receiver_fn = build_raw_serving_input_receiver_fn({"x": tf.zeros([1, 3])})
    path = estimator.export_saved_model(str(tmp_path / "exports"), receiver_fn).decode()
    serve = tf.saved_model.load(path, tags=["serve"]).signatures["serving_default"]
    features, _ = linear_model.rows(5)
    _, weights, bias = on_cores.descended(1)
    np.testing.assert_allclose(
        serve(x=tf.constant(features))["y"],
        linear_model.output(features, weights, bias),
        rtol=1e-4,
        atol=1e-6,
    )


@mostly_swept("mode", on_cores.MODES, kept=["infer"])
@pytest.mark.behaviour(88)
def test_every_call_is_checked_and_nothing_is_remembered(tmp_path, monkeypatch, mode):
    # A lift: the original checks a mode's configuration once in an estimator's life.
    config = tpu.RunConfig(model_dir=str(tmp_path), tpu_config=tpu.TPUConfig(num_shards=2))
    estimator = tpu.TPUEstimator(
        linear_model.model_fn_for(tpu), config=config, **on_cores.BATCH_SIZES
    )
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATE", "1")
    on_cores.run(estimator, mode)
    monkeypatch.delenv("TFX_TPU_TRAINER_EMULATE")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="TFX_TPU_TRAINER_EMULATE=1"):
            on_cores.run(estimator, mode)


@pytest.mark.behaviour(91)
def test_emulated_there_are_as_many_replicas_as_num_shards_says(tmp_path):
    seen = []

    def model_fn(features, labels, mode, params):
        seen.append((params["context"].num_replicas, features["x"].shape[0]))
        return linear_model.model_fn_for(tpu)(features, labels, mode, params)

    estimator = on_cores.make(tmp_path, model_fn, cores=3, train_batch_size=6)
    estimator.train(on_cores.train_input_fn, steps=2)
    assert seen == [(3, 2)]
    on_cores.assert_descended(estimator, 2, batch=6)


@pytest.mark.parametrize(
    ("options", "batch_size", "hosts"),
    [
        pytest.param(
            {"per_host_input_for_training": on_cores.PER_HOST_V1}, 32, 1, marks=pytest.mark.sweep
        ),
        pytest.param(
            {"per_host_input_for_training": on_cores.PER_HOST_V2}, 2, 1, marks=pytest.mark.sweep
        ),
        ({"eval_training_input_configuration": on_cores.SLICED}, 32, 2),
    ],
    ids=["PER_HOST_V1", "PER_HOST_V2", "SLICED"],
)
@pytest.mark.behaviour(95, 96)
def test_two_hosts_of_cores_evaluate_and_predict_each_row_once(
    tmp_path, options, batch_size, hosts
):
    # A lift: the original wants BROADCAST, or PER_HOST_V2 of a single replica.
    calls = []

    def input_fn(params):
        calls.append((params["batch_size"], params["context"].num_hosts))
        return linear_model.input_fn(params, count=37)

    estimator = on_cores.linear(
        tmp_path, cores=16, eval_batch_size=32, predict_batch_size=32, tpu_options=options
    )
    result = estimator.evaluate_result(input_fn)
    features, labels = linear_model.rows(37)
    outputs = linear_model.output(features)
    assert result.num_examples == 37
    assert result.metrics["mae"] == pytest.approx(np.mean(np.abs(outputs - labels)), rel=1e-5)
    rows = [row["y"] for row in estimator.predict(input_fn)]
    np.testing.assert_allclose(rows, outputs, rtol=1e-5, atol=1e-6)
    assert calls == [(batch_size, hosts)] * 2


@pytest.mark.behaviour(105)
def test_each_hosts_input_has_its_name_scope_and_is_on_the_cpu(tmp_path):
    made = []

    def input_fn(params):
        features, labels = linear_model.rows(on_cores.BATCH)
        tensor = tf.constant(features, name="mine")
        made.append((params["context"].current_host, tensor.op.name, tensor.device))
        return {"x": tensor}, tf.constant(labels)

    options = {"per_host_input_for_training": on_cores.PER_HOST_V1}
    estimator = on_cores.linear(tmp_path, cores=16, train_batch_size=16, tpu_options=options)
    estimator.train(input_fn, steps=1)
    assert made == [(host, f"input_pipeline_task{host}/mine", "/device:CPU:0") for host in (0, 1)]


@mostly_swept("mode", on_cores.MODES, kept=["infer"])
@pytest.mark.behaviour(115)
def test_on_the_host_each_call_calls_input_fn_and_model_fn_once(tmp_path, mode):
    calls = []

    def input_fn(params):
        calls.append("input_fn")
        return linear_model.input_fn(params)

    def model_fn(features, labels, mode, params):
        calls.append("model_fn")
        return linear_model.model_fn_for(tpu)(features, labels, mode, params)

    estimator = on_cores.make(tmp_path, model_fn, cores=4, use_tpu=False)
    for number in (1, 2):
        on_cores.run(estimator, mode, input_fn)
        assert calls == ["input_fn", "model_fn"] * number


@pytest.mark.behaviour(141)
def test_prediction_ends_with_its_data_and_only_there(tmp_path):
    estimator = on_cores.linear(tmp_path, cores=4)
    endless = estimator.predict(functools.partial(linear_model.input_fn, epochs=50))
    rows = [next(endless)["y"] for _ in range(3 * linear_model.ROWS)]
    endless.close()
    expected = linear_model.output(linear_model.rows()[0])
    np.testing.assert_allclose(rows, np.tile(expected, 3), rtol=1e-5, atol=1e-6)
    finite = estimator.predict(functools.partial(linear_model.input_fn, count=9))
    for _ in range(9):
        next(finite)
    with pytest.raises(StopIteration):
        next(finite)
