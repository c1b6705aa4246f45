from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator._engine.log_lines import log_lines
from tests.estimator.places.strategy.strategy_runs import REPLICAS, mirrored
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import tpu

pytestmark = pytest.mark.matrix

v1 = tf.compat.v1


def _make(
    folder: Any, *, use_tpu: bool = True, loop: int | str = 2, model_fn: Any = None, **config
):
    strategy = mirrored()
    options = {"train_distribute": strategy, "eval_distribute": strategy, **config}
    run_config = tpu.RunConfig(
        model_dir=str(folder), tpu_config=tpu.TPUConfig(iterations_per_loop=loop), **options
    )
    return tpu.TPUEstimator(
        model_fn or linear_model.model_fn_for(tpu, "sgd"),
        config=run_config,
        use_tpu=use_tpu,
        **on_cores.BATCH_SIZES,
    )


@mostly_swept("loop", [1, 2, 5, "auto"], kept=[2])
def test_training_descends_as_on_one_device(tmp_path, loop):
    estimator = _make(tmp_path, loop=loop)
    estimator.train(on_cores.train_input_fn, steps=5)
    on_cores.assert_descended(estimator, 5)
    assert estimator.get_variable_value("global_step") == 5
    # It goes on from its checkpoint, and on the host.
    again = _make(tmp_path, use_tpu=False, train_distribute=None, eval_distribute=None)
    again.train(linear_model.endless_input_fn, max_steps=6)
    assert again.get_variable_value("global_step") == 6


def test_evaluation_and_prediction_count_every_row(tmp_path):
    estimator = _make(tmp_path)
    estimator.train(on_cores.train_input_fn, steps=2)
    host = _make(tmp_path, use_tpu=False, train_distribute=None, eval_distribute=None)
    result = estimator.evaluate_result(linear_model.input_fn)
    expected = host.evaluate_result(linear_model.input_fn)
    assert result.num_examples == linear_model.ROWS
    np.testing.assert_allclose(result.loss_by_rows, expected.loss_by_rows, rtol=1e-5)
    assert result.metrics.keys() == expected.metrics.keys()
    predicted = [row["y"] for row in estimator.predict(linear_model.input_fn)]
    wanted = [row["y"] for row in host.predict(linear_model.input_fn)]
    assert len(predicted) == linear_model.ROWS
    np.testing.assert_allclose(predicted, wanted, rtol=1e-5)


def test_input_fn_sees_its_share_and_its_context(tmp_path):
    seen: dict[str, Any] = {}

    def input_fn(params: dict[str, Any], input_context: tf.distribute.InputContext) -> Any:
        seen["batch_size"] = params["batch_size"]
        seen["replicas"] = input_context.num_replicas_in_sync
        seen["calls"] = seen.get("calls", 0) + 1
        return on_cores.train_input_fn(params)

    def model_fn(features, labels, mode, params):
        seen["rows"] = features["x"].shape[0]
        seen["use_tpu"] = params["use_tpu"]
        seen["num_replicas"] = params["context"].num_replicas
        return linear_model.model_fn_for(tpu, "sgd")(features, labels, mode, params)

    _make(tmp_path, model_fn=model_fn).train(input_fn, steps=2)
    share = on_cores.BATCH // REPLICAS
    assert seen == {
        "batch_size": share,
        "replicas": REPLICAS,
        "calls": 1,
        "rows": share,
        "use_tpu": True,
        "num_replicas": REPLICAS,
    }


def test_experimental_distribute_wins(tmp_path):
    class Both:
        train_distribute = mirrored()
        eval_distribute = None

    estimator = _make(
        tmp_path, train_distribute=None, eval_distribute=None, experimental_distribute=Both()
    )
    estimator.train(on_cores.train_input_fn, steps=2)
    on_cores.assert_descended(estimator, 2)


def test_emulation_wins_over_a_strategy(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATE", "1")
    with log_lines(caplog) as logged:
        _make(tmp_path).train(on_cores.train_input_fn, steps=2)
    assert any("runs on emulated TPU cores" in line for line in logged)


def test_the_choice_is_logged_with_its_reason(tmp_path, monkeypatch, caplog):
    monkeypatch.delenv("TFX_TPU_TRAINER_EMULATE", raising=False)
    with log_lines(caplog) as logged:
        _make(tmp_path).train(on_cores.train_input_fn, steps=2)
    says = "runs on a tf.distribute strategy (RunConfig has a MirroredStrategy)"
    assert any(says in line for line in logged)


def test_replicas_that_do_not_divide_the_batch_are_refused(tmp_path):
    estimator = tpu.TPUEstimator(
        linear_model.model_fn_for(tpu, "sgd"),
        config=tpu.RunConfig(model_dir=str(tmp_path), train_distribute=mirrored()),
        train_batch_size=7,
    )
    with pytest.raises(ValueError, match=r"batch size 7 must be divisible.*replicas.*2"):
        estimator.train(on_cores.train_input_fn, steps=2)


def test_gradients_that_are_not_combined_are_refused_of_a_model_for_cores(tmp_path):
    def model_fn(features, labels, mode, params):
        return linear_model.model_fn_for(tpu, "sgd")(features, labels, mode, {})

    with pytest.raises(ValueError, match="CrossShardOptimizer must be used"):
        _make(tmp_path, model_fn=model_fn).train(on_cores.train_input_fn, steps=2)


@pytest.mark.sweep
def test_without_cores_the_strategy_combines_gradients(tmp_path):
    # The model wraps its optimizer where params say that it runs on TPU cores.
    estimator = _make(tmp_path, use_tpu=False)
    estimator.train(on_cores.train_input_fn, steps=2)
    on_cores.assert_descended(estimator, 2)


def test_what_was_trained_before_the_input_ended_is_saved(tmp_path):
    def input_fn(params: dict[str, Any]) -> tf.data.Dataset:
        return on_cores.train_input_fn(params).take(3 * REPLICAS)

    estimator = _make(tmp_path, loop=5)
    estimator.train(input_fn, steps=5)
    assert estimator.get_variable_value("global_step") == 3
    on_cores.assert_descended(estimator, 3)
