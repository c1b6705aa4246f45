"""predict()."""

import functools
import gc

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.estimator import linear_model
from tests.estimator._engine.log_lines import log_lines
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import Estimator, EstimatorSpec, tpu

v1 = tf.compat.v1


def _input_fn(**options):
    return functools.partial(linear_model.input_fn, {"batch_size": 3}, **options)


def _estimator(folder, predictions=None, **fields) -> Estimator:
    """The linear model; `predictions` is given the features and the outputs."""

    def model_fn(features, labels, mode):
        outputs = linear_model.outputs_of(features)
        loss, train_op = None, None
        if mode == "train":
            loss = tf.reduce_mean(tf.square(outputs - labels))
            still = v1.train.GradientDescentOptimizer(0.0)
            train_op = still.minimize(loss, v1.train.get_global_step())
        made = predictions(features, outputs) if predictions else {"y": outputs, **features}
        return EstimatorSpec(mode, loss=loss, train_op=train_op, predictions=made, **fields)

    return Estimator(model_fn, folder)


@pytest.mark.behaviour(221, 227)
def test_one_row_for_each_input_row_in_order_or_whole_batches(tmp_path):
    features, _ = linear_model.rows(7)
    estimator = _estimator(tmp_path)
    rows = list(estimator.predict(_input_fn(count=7)))
    assert [sorted(row) for row in rows] == [["x", "y"]] * 7
    np.testing.assert_array_equal([row["x"] for row in rows], features)
    np.testing.assert_allclose([row["y"] for row in rows], linear_model.output(features), rtol=1e-5)
    batches = list(estimator.predict(_input_fn(count=7), yield_single_examples=False))
    assert [batch["y"].shape for batch in batches] == [(3,), (3,), (1,)]


@pytest.mark.behaviour(118)
def test_labels_are_dropped(tmp_path):
    seen = []

    def model_fn(features, labels, mode):
        seen.append(labels)
        return EstimatorSpec(mode, predictions=features["x"])

    def without_labels(features, mode):
        return EstimatorSpec(mode, predictions=features["x"])

    for fn in (model_fn, without_labels):
        assert len(list(Estimator(fn, tmp_path).predict(_input_fn(count=4)))) == 4
    assert seen == [None]


def _constant():
    return {"x": tf.constant(linear_model.rows(4)[0])}


def _from_iterator():
    return v1.data.make_one_shot_iterator(
        tf.data.Dataset.from_tensors(linear_model.rows(4))
    ).get_next()


def _from_queue():
    row = v1.train.input_producer(linear_model.rows(4)[0], num_epochs=1).dequeue()
    return {"x": v1.train.batch([row], 2)}


_ENDLESS = "Input graph does not use tf.data.Dataset or contain a QueueRunner."


@pytest.mark.parametrize(
    ("input_fn", "endless"),
    [
        (_constant, True),
        (lambda: {"x": tf.identity(_from_iterator()[0])}, True),
        (lambda: {"x": _from_iterator()[0]}, False),
        (_from_queue, False),
        (_input_fn(count=4), False),
    ],
    ids=["constant", "computed", "iterator", "queue", "dataset"],
)
def test_an_input_that_may_never_end_is_a_warning(tmp_path, caplog, input_fn, endless):
    # What TensorFlow 2.15.1's Estimator does, and its TPUEstimator never: asked by hand.
    with log_lines(caplog) as lines:
        next(_estimator(tmp_path).predict(input_fn))
    assert any(line.startswith(_ENDLESS) for line in lines) == endless


@pytest.mark.behaviour(237)
def test_a_tpu_estimator_on_the_host_takes_an_input_that_never_ends(tmp_path, caplog):
    model_fn = linear_model.model_fn_for(tpu)
    config = tpu.RunConfig(model_dir=str(tmp_path))
    sizes = {"train_batch_size": 4, "predict_batch_size": 4}
    estimator = tpu.TPUEstimator(model_fn, config=config, use_tpu=False, **sizes)
    with log_lines(caplog) as lines:
        next(estimator.predict(lambda params: _constant()))
    assert not any(line.startswith(_ENDLESS) for line in lines)


@pytest.mark.parametrize("keys", [["y"], "y", ["y", "absent"]])
@pytest.mark.behaviour(229)
def test_predict_keys(tmp_path, keys):
    (row,) = _estimator(tmp_path).predict(_input_fn(count=1), predict_keys=keys)
    assert list(row) == ["y"]


@pytest.mark.behaviour(229)
@row("estimator", "`predict(predict_keys=['z'])`", "at least one output from ['x', 'y']")
def test_keys_that_are_not_there_are_refused(tmp_path, refused):
    with refused(ValueError):
        next(_estimator(tmp_path).predict(_input_fn(), predict_keys=["z"]))


@pytest.mark.behaviour(230)
def test_a_lone_tensor(tmp_path):
    estimator = _estimator(tmp_path, lambda features, outputs: outputs)
    features, _ = linear_model.rows(4)
    np.testing.assert_allclose(
        list(estimator.predict(_input_fn(count=4))), linear_model.output(features), rtol=1e-5
    )
    with pytest.raises(ValueError, match="not valid in case of non-dict"):
        next(estimator.predict(_input_fn(), predict_keys=["y"]))


@pytest.mark.behaviour(228)
@row(
    "estimator",
    "predictions of unequal length",
    "Batch length of predictions should be same. first has different",
)
def test_unequal_lengths_are_refused_by_row_only(tmp_path, refused):
    estimator = _estimator(tmp_path, lambda features, outputs: {"y": outputs, "first": outputs[:1]})
    with refused(ValueError):
        next(estimator.predict(_input_fn()))
    batch = next(estimator.predict(_input_fn(), yield_single_examples=False))
    assert (len(batch["y"]), len(batch["first"])) == (3, 1)


@pytest.mark.behaviour(220)
def test_nothing_is_checked_or_called_before_the_first_row(tmp_path):
    def fails():
        raise ZeroDivisionError

    rows = _estimator(tmp_path).predict(fails, hooks=["no hook"])
    with pytest.raises(TypeError, match="SessionRunHook"):
        next(rows)
    with pytest.raises(ZeroDivisionError):
        next(_estimator(tmp_path).predict(fails))


@pytest.mark.behaviour(234)
def test_a_given_checkpoint_the_latest_or_none(tmp_path):
    step = lambda features, outputs: {  # noqa: E731
        "step": tf.fill(tf.shape(outputs), v1.train.get_global_step().read_value())
    }
    estimator = _estimator(tmp_path, step)
    assert next(estimator.predict(_input_fn()))["step"] == 0
    estimator.train(_input_fn(), steps=1)
    estimator.train(_input_fn(), steps=2)
    assert next(estimator.predict(_input_fn()))["step"] == 3
    older = str(tmp_path / "model.ckpt-1")
    assert next(estimator.predict(_input_fn(), checkpoint_path=older))["step"] == 1


class _Session(v1.train.SessionRunHook):
    def after_create_session(self, session, coord):
        self.session = session

    def is_closed(self) -> bool:
        try:
            self.session.run([])
        except RuntimeError as error:
            return "closed Session" in str(error)
        return False


@mostly_swept("single", [True, False], kept=[True])
@pytest.mark.behaviour(236)
def test_closing_or_breaking_out_frees_the_session(tmp_path, single):
    hook = _Session()
    rows = _estimator(tmp_path).predict(_input_fn(), hooks=[hook], yield_single_examples=single)
    next(rows)
    assert not hook.is_closed()
    rows.close()
    assert hook.is_closed()

    for _ in _estimator(tmp_path).predict(_input_fn(), hooks=[hook], yield_single_examples=single):
        break
    gc.collect()
    assert hook.is_closed()


@pytest.mark.behaviour(239)
def test_generators_may_be_interleaved_with_each_other_and_with_training(tmp_path):
    estimator = _estimator(tmp_path)
    outside = v1.get_default_graph()
    one, other = (estimator.predict(_input_fn(count=4)) for _ in range(2))
    first = [next(one)["y"], next(other)["y"]]
    estimator.train(_input_fn(), steps=1)
    assert v1.get_default_graph() is outside
    second = [next(one)["y"], next(other)["y"]]
    expected = linear_model.output(linear_model.rows(4)[0])
    np.testing.assert_allclose(first, [expected[0]] * 2, rtol=1e-5)
    np.testing.assert_allclose(second, [expected[1]] * 2, rtol=1e-5)
    assert len(list(one)) == len(list(other)) == 2


@pytest.mark.behaviour(258)
def test_prediction_hooks_of_the_spec_run(tmp_path):
    hook = _Session()
    list(_estimator(tmp_path, prediction_hooks=[hook]).predict(_input_fn(count=1)))
    assert hook.is_closed()


@pytest.mark.behaviour(384, 385)
def test_an_error_comes_from_the_generator_and_the_next_call_works(tmp_path):
    estimator = _estimator(
        tmp_path,
        lambda features, outputs: {"y": tf.debugging.check_numerics(outputs, "not finite")},
    )

    def poisoned():
        return tf.data.Dataset.from_tensors({"x": np.float32([[np.nan, 0, 0]])})

    with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
        next(estimator.predict(poisoned))
    assert len(list(estimator.predict(_input_fn(count=2)))) == 2
