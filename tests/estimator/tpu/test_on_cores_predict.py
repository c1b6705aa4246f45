"""predict() on emulated TPU cores: one result for each row, in their order."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import tpu

v1 = tf.compat.v1

pytestmark = pytest.mark.matrix


def _rows(count: int = linear_model.ROWS):
    return functools.partial(linear_model.input_fn, count=count)


def _predicts(folder, predictions, *, host_call=None, spec=tpu.TPUEstimatorSpec, **options):
    """An estimator whose predictions are a function of the features."""

    def model_fn(features, labels, mode, params):
        fields = {} if host_call is None else {"host_call": host_call(features)}
        return spec(mode, predictions=predictions(features), **fields)

    return on_cores.make(folder, model_fn, **options)


def _outputs(features):
    return {"y": linear_model.outputs_of(features)}


@mostly_swept("number", [1, 2, 8, 16], kept=[8])
@mostly_swept("mode", [on_cores.PER_HOST_V1, on_cores.PER_HOST_V2], kept=[on_cores.PER_HOST_V2])
@mostly_swept("count", [0, 1, 15, 16, 37], kept=[16, 37])
@pytest.mark.behaviour(141, 222, 223)
def test_one_result_for_each_row_in_order(tmp_path, number, mode, count):
    estimator = _predicts(tmp_path, _outputs, cores=number, predict_batch_size=16, fed=mode)
    rows = [row["y"] for row in estimator.predict(_rows(count))]
    assert len(rows) == count
    features, _ = linear_model.rows(count)
    np.testing.assert_allclose(rows, linear_model.output(features), rtol=1e-5, atol=1e-6)


@mostly_swept("count", [8, 9, 15], kept=[9])
@pytest.mark.behaviour(225)
def test_is_padding_marks_the_padding_and_only_who_asks_sees_it(tmp_path, count):
    # A lift: in the original there is no such key.
    seen = []

    def predictions(features):
        assert list(features) == ["x"]
        assert len(features) == 1
        padding = features["is_padding"]
        assert padding.dtype == tf.bool
        assert padding.shape == [4]
        zeros = tf.reduce_all(tf.equal(features["x"], 0), axis=1)
        return {"padding": padding, "zeros": zeros}

    def host_call(features):
        return on_cores.recorder(seen, 0), [features["is_padding"], features["x"]]

    estimator = _predicts(tmp_path, predictions, host_call=host_call)
    rows = list(estimator.predict(_rows(count)))
    assert len(rows) == count
    assert not any(row["padding"] or row["zeros"] for row in rows)
    missing = -count % 8
    padding, x = seen[(count - 1) // 8]
    np.testing.assert_array_equal(padding, [False] * (8 - missing) + [True] * missing)
    assert (x[8 - missing :] == 0).all()


@pytest.mark.behaviour(226, 252)
def test_a_host_call_and_hooks_run_once_more_to_stop(tmp_path):
    seen, hook = [], on_cores.Steps()
    estimator = _predicts(
        tmp_path, _outputs, host_call=lambda f: (on_cores.recorder(seen, 0), [f["x"]])
    )
    list(estimator.predict(_rows(20), hooks=[hook]))
    assert len(seen) == len(hook.seen) == 4
    assert all(x.shape == (8, 3) for (x,) in seen)


@pytest.mark.behaviour(224)
def test_broadcast_predicts_the_whole_batch_on_every_core(tmp_path):
    estimator = _predicts(
        tmp_path,
        lambda features: {"y": tf.identity(features["x"])},
        cores=4,
        predict_batch_size=10,
        fed=on_cores.BROADCAST,
    )
    rows = [row["y"] for row in estimator.predict(_rows(17))]
    np.testing.assert_array_equal(rows, linear_model.rows(17)[0])


@pytest.mark.behaviour(238)
def test_sliced_predicts_too(tmp_path):
    estimator = _predicts(tmp_path, _outputs, cores=4, fed=on_cores.SLICED)
    assert len(list(estimator.predict(_rows(13)))) == 13


def test_a_batch_smaller_than_the_predict_batch_size_is_padded(tmp_path):
    def input_fn(params):
        return _rows(15)({"batch_size": 5}).unbatch().batch(5, drop_remainder=True)

    def predictions(features):
        return {"y": tf.reshape(features["x"], [4, -1])}

    rows = [row["y"] for row in _predicts(tmp_path, predictions).predict(input_fn)]
    np.testing.assert_array_equal(rows, linear_model.rows(15)[0])


@pytest.mark.behaviour(119)
def test_labels_of_the_dataset_reach_model_fn(tmp_path):
    def model_fn(features, labels, mode, params):
        return tpu.TPUEstimatorSpec(mode, predictions={"label": tf.identity(labels)})

    rows = [row["label"] for row in on_cores.make(tmp_path, model_fn).predict(_rows(11))]
    np.testing.assert_array_equal(rows, linear_model.rows(11)[1])


@pytest.mark.behaviour(122)
def test_predict_needs_a_dataset(tmp_path):
    def input_fn(params):
        return {"x": tf.zeros([8, 3])}

    with pytest.raises(
        TypeError, match=r"^For mode PREDICT, `input_fn` must return `Dataset` instead of"
    ):
        next(_predicts(tmp_path, _outputs).predict(input_fn))


@pytest.mark.behaviour(133)
def test_batch_axis_is_not_for_predict(tmp_path):
    with pytest.raises(TypeError, match="PREDICT, batch_axis is not supported"):
        next(_predicts(tmp_path, _outputs, batch_axis=[0, 0]).predict(_rows()))


@pytest.mark.behaviour(174)
def test_variables_that_are_nan_do_not_predict(tmp_path):
    def predictions(features):
        return {"y": features["x"] * v1.get_variable("weight", initializer=np.float32(np.inf))}

    with pytest.raises(tf.errors.InvalidArgumentError, match="Gradient for weight is NaN"):
        next(_predicts(tmp_path, predictions).predict(_rows()))


@pytest.mark.behaviour(234, 258)
def test_a_checkpoint_and_the_specs_hooks(tmp_path):
    hook = on_cores.Steps()
    estimator = on_cores.linear(
        tmp_path, fields={"prediction_hooks": [hook]}, save_checkpoints_steps=2
    )
    estimator.train(on_cores.train_input_fn, steps=4)
    path = str(tmp_path / "model.ckpt-2")
    rows = [row["y"] for row in estimator.predict(_rows(8), checkpoint_path=path)]
    _, weights, bias = on_cores.descended(2)
    features, _ = linear_model.rows(8)
    np.testing.assert_allclose(
        rows, linear_model.output(features, weights, bias), rtol=1e-4, atol=1e-5
    )
    assert hook.seen == [2, 2]


@mostly_swept(
    "mode",
    [on_cores.PER_HOST_V1, on_cores.PER_HOST_V2, on_cores.BROADCAST],
    kept=[on_cores.PER_HOST_V1],
)
@pytest.mark.behaviour(122)
def test_elements_of_features_alone_in_a_tuple_predict(tmp_path, mode):
    estimator = _predicts(tmp_path, _outputs, fed=mode)
    features = linear_model.rows(11)[0]

    def input_fn(params):
        return tf.data.Dataset.from_tensor_slices(({"x": features},)).batch(params["batch_size"])

    rows = [row["y"] for row in estimator.predict(input_fn)]
    np.testing.assert_allclose(rows, linear_model.output(features), rtol=1e-5, atol=1e-6)
