"""What was made outside of input_fn and model_fn. Types are TensorFlow 2.15.1's, with the original."""

import functools

import pytest
import tensorflow as tf

from tests.bad_input import case
from tests.estimator import each_place, linear_model
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import Estimator, EstimatorSpec

v1 = tf.compat.v1

_SENTENCE = (
    "make sure that no part of the dataset returned by the `input_fn` function is defined outside the `input_fn` "
    "function"
)
_EAGER = "Attempting to capture an EagerTensor without building a function"


def _rows() -> tf.data.Dataset:
    return on_cores.train_input_fn({"batch_size": on_cores.BATCH})


def _in_a_graph(make):
    with tf.Graph().as_default():
        return make()


# Each makes what is outside, and returns an input_fn that uses it.
def _whole():
    dataset = _rows()
    return lambda params: dataset


def _of_another_graph():
    dataset = _in_a_graph(_rows)
    return lambda params: dataset


def _batched_inside():
    dataset = _rows().unbatch()
    return lambda params: dataset.batch(params["batch_size"], drop_remainder=True)


def _zipped():
    dataset = _rows()
    zipped = tf.data.Dataset.zip
    return lambda params: zipped((dataset, _rows())).map(lambda first, second: second)


def _captured():
    scale = tf.constant(2.0)
    return lambda params: _rows().map(lambda features, labels: (features, labels * scale))


def _captured_of_another_graph():
    scale = _in_a_graph(lambda: tf.constant(2.0))
    return lambda params: _rows().map(lambda features, labels: (features, labels * scale))


def _iterated():
    dataset = _rows()
    return lambda params: v1.data.make_one_shot_iterator(dataset).get_next()


@each_place.in_every_mode
@pytest.mark.parametrize(
    ("error", "make_input_fn"),
    [
        case(
            "estimator",
            "an input_fn that returns a dataset made outside of it",
            "of the iterator is different from the graph",
            "it was made eagerly, in no graph",
            _SENTENCE,
            values=(ValueError, _whole),
        ),
        case(
            "estimator",
            "an input_fn that returns a dataset of another graph",
            "of the iterator is different from the graph",
            "it was made in another graph",
            _SENTENCE,
            values=(ValueError, _of_another_graph),
        ),
        case(
            "estimator",
            "an input_fn that batches a dataset made outside of it",
            f"input_dataset: {_EAGER}",
            _SENTENCE,
            "dataset.batch(params",
            values=(RuntimeError, _batched_inside),
        ),
        case(
            "estimator",
            "an input_fn that zips a dataset made outside of it",
            _EAGER,
            _SENTENCE,
            "zipped((dataset, _rows()))",
            values=(RuntimeError, _zipped),
        ),
        case(
            "estimator",
            "an input_fn whose map uses an eager tensor",
            _EAGER,
            _SENTENCE,
            "labels * scale",
            values=(RuntimeError, _captured),
        ),
        case(
            "estimator",
            "an input_fn whose map uses a tensor of another graph",
            "must be from the same graph as",
            _SENTENCE,
            "labels * scale",
            values=(ValueError, _captured_of_another_graph),
        ),
        case(
            "estimator",
            "an input_fn that iterates over a dataset made outside of it",
            "of the iterator is different from the graph",
            _SENTENCE,
            "make_one_shot_iterator(dataset)",
            values=(ValueError, _iterated),
        ),
    ],
)
def test_a_dataset_made_outside_of_input_fn_is_refused(
    tmp_path, refused, place, mode, error, make_input_fn
):
    input_fn = make_input_fn()
    with refused(error):
        on_cores.run(each_place.estimator(tmp_path, place), mode, input_fn)


def _eager_tensors():
    features, labels = linear_model.rows(on_cores.BATCH)
    return {"x": tf.constant(features)}, tf.constant(labels)


@mostly_swept("place", ["host", "cores"], kept=["cores"])
@pytest.mark.parametrize(
    ("error", "make"),
    [
        case(
            "estimator",
            "an input_fn that returns eager tensors",
            _EAGER,
            "all tensors and datasets that model_fn and input_fn use are made in these functions",
            values=(RuntimeError, _eager_tensors),
        ),
        case(
            "estimator",
            "an input_fn that returns tensors of another graph",
            "must be from the same graph as",
            "all tensors and datasets that model_fn and input_fn use are made in these functions",
            values=(ValueError, functools.partial(_in_a_graph, _eager_tensors)),
        ),
    ],
)
def test_tensors_made_outside_of_input_fn_are_refused(tmp_path, refused, place, error, make):
    returned = make()
    config = {"tpu_options": {"per_host_input_for_training": on_cores.PER_HOST_V1}}
    estimator = each_place.estimator(tmp_path, place, config=config)
    with refused(error):
        estimator.train(lambda params: returned, steps=1)


def test_a_model_fn_that_uses_an_eager_tensor_is_named_with_its_line(tmp_path):
    scale = tf.constant(2.0)

    def model_fn(features, mode):
        return EstimatorSpec(mode, predictions={"y": features["x"] * scale})

    input_fn = functools.partial(linear_model.input_fn, {"batch_size": 4})
    says = rf'{_EAGER}\. Make sure .* model_fn .*test_one_graph\.py:\d+: return .*features\["x"\] \* scale'
    with pytest.raises(RuntimeError, match=says):
        next(Estimator(model_fn, tmp_path).predict(input_fn))
