"""Input that is no good, on the host and on cores: one clear message, of the error's own type."""

import re
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tests.estimator import linear_model
from tests.estimator.each_place import estimator, in_every_mode, in_two_modes, on_host_and_cores
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import (
    BestExporter,
    BinaryClassHead,
    Estimator,
    LatestExporter,
    RegressionHead,
    RunConfig,
    TrainSpec,
    WarmStartSettings,
    add_metrics,
    experimental,
    inputs,
    tpu,
)

v1 = tf.compat.v1

BATCH = on_cores.BATCH
ROWS, LABELS = linear_model.rows(2 * BATCH)
SIGNATURE = (
    {"x": tf.TensorSpec([BATCH, 3]), "extra": tf.TensorSpec([BATCH])},
    tf.TensorSpec([BATCH]),
)
FIRST = ({"x": ROWS[:BATCH], "extra": LABELS[:BATCH]}, LABELS[:BATCH])


def features_that_change(second: Any) -> Callable[..., tf.data.Dataset]:
    """An input_fn whose generator gives `FIRST` and then another element."""

    def generator():
        yield FIRST
        yield second

    return lambda params: tf.data.Dataset.from_generator(generator, output_signature=SIGNATURE)


@in_two_modes
@pytest.mark.parametrize(
    ("features", "says"),
    [
        ({"x": ROWS[BATCH:]}, "lacks the key 'extra'"),
        ({"x": ROWS, "extra": LABELS, "more": LABELS}, "has the key 'more'"),
        (
            {"x": ROWS[BATCH:, :2], "extra": LABELS[BATCH:]},
            r"shape \(8, 2\) where .* declares \(8, 3\) \(for features\['x'\]\)",
        ),
        (
            {"x": [["a"] * 3] * BATCH, "extra": LABELS[BATCH:]},
            r"can't be converted to float32, .*for features\['extra'\] or features\['x'\]",
        ),
    ],
    ids=["less", "more", "shape", "type"],
)
@row(
    "estimator",
    "a generator whose elements change",
    "The input changed between batches: an element of the generator ",
)
def test_a_generators_features_that_change_are_named(
    tmp_path, place, mode, features, says, refused
):
    input_fn = features_that_change((features, LABELS[BATCH:]))
    says = f"^The input changed between batches: an element of the generator .*{says}"
    with refused(tf.errors.InvalidArgumentError) as raised:
        on_cores.run(estimator(tmp_path, place), mode, input_fn)
    assert re.search(says, str(raised.value))


@in_every_mode
@row(
    "estimator",
    "features whose shape changes between batches",
    "The input changed between batches, at features['x']: ",
)
def test_tensors_that_change_are_named(tmp_path, place, mode, refused):
    def widen(number):
        return np.zeros([BATCH, 3 if number == 0 else 2], np.float32)

    def input_fn(params):
        def element(number):
            x = tf.numpy_function(widen, [number], tf.float32)
            x.set_shape([BATCH, 3])
            return {"a": tf.zeros([BATCH]), "x": x}, tf.zeros([BATCH])

        return tf.data.Dataset.range(3).map(element)

    says = r"^The input changed between batches, at features\['x'\]: .*\[8,3\].*\[8,2\]"
    with refused(tf.errors.InvalidArgumentError) as raised:
        on_cores.run(estimator(tmp_path, place), mode, input_fn)
    assert re.search(says, str(raised.value))


@on_host_and_cores
@row(
    "estimator",
    "rows of several shapes in a batch",
    "changed between batches, at features['x']: Cannot ",
)
def test_rows_that_do_not_batch_are_named(tmp_path, place, refused):
    def generator():
        for number in range(BATCH):
            yield {"a": 1.0, "x": np.zeros(3 if number < 5 else 2, np.float32)}

    def input_fn(params):
        spec = {"a": tf.TensorSpec([]), "x": tf.TensorSpec([None])}
        dataset = tf.data.Dataset.from_generator(generator, output_signature=spec)
        dataset = dataset.batch(params["batch_size"], drop_remainder=True)
        return dataset.map(lambda rows: {**rows, "x": tf.ensure_shape(rows["x"], [BATCH, 3])})

    says = r"changed between batches, at features\['x'\]: Cannot .* \[3\] and element 5 .* \[2\]"
    with refused(tf.errors.InvalidArgumentError) as raised:
        on_cores.run(estimator(tmp_path, place), "infer", input_fn)
    assert re.search(says, str(raised.value))


@in_every_mode
@row(
    "estimator",
    "features of other names than the model's",
    "model_fn looked up 'x', which does not exist: features has ['z']",
)
def test_features_of_another_structure_than_the_models_are_named(tmp_path, place, mode, refused):
    trained = estimator(tmp_path, place)
    on_cores.run(trained, "train")

    def input_fn(params):
        dataset = tf.data.Dataset.from_tensor_slices(({"z": ROWS}, LABELS))
        return dataset.batch(params["batch_size"], drop_remainder=True)

    says = r"^model_fn looked up 'x', which does not exist: features has \['z'\]"
    with refused(KeyError) as raised:
        on_cores.run(trained, mode, input_fn)
    assert re.search(says, str(raised.value))


@in_every_mode
@pytest.mark.behaviour(380)
def test_an_input_fn_that_raises_keeps_its_type(tmp_path, place, mode):
    def input_fn(params):
        raise FileNotFoundError("no rows here")

    with pytest.raises(FileNotFoundError, match=r"^no rows here$"):
        on_cores.run(estimator(tmp_path, place), mode, input_fn)


def _failing_generator(params):
    def read_rows():
        yield FIRST
        raise ConnectionError("the database is gone")

    return tf.data.Dataset.from_generator(read_rows, output_signature=SIGNATURE)


def _failing_map(params, *, wrap=tf.numpy_function):
    def read_rows(x):
        raise ConnectionError("the database is gone")

    def element(features, labels):
        x = wrap(read_rows, [features["x"]], tf.float32)
        return {"x": tf.ensure_shape(x, features["x"].shape)}, labels

    return on_cores.train_input_fn(params).map(element)


def _failing_py_function(params):
    return _failing_map(params, wrap=tf.py_function)


@in_two_modes
@pytest.mark.parametrize("input_fn", [_failing_generator, _failing_map, _failing_py_function])
@pytest.mark.behaviour(380)
def test_python_code_in_the_input_speaks_first(tmp_path, place, mode, input_fn):
    with pytest.raises(tf.errors.OpError) as raised:
        on_cores.run(estimator(tmp_path, place), mode, input_fn)
    message = str(raised.value)
    assert message.startswith("ConnectionError: the database is gone\nPython code of the input")
    assert f'File "{__file__}"' in message
    assert "in read_rows\n" in message
    assert "tensorflow/python" not in message


@pytest.mark.behaviour(380)
def test_python_code_in_the_model_speaks_first(tmp_path):
    def model_fn(features, labels, mode, params):
        def fail(x):
            raise ZeroDivisionError("in the model")

        outputs = tf.py_function(fail, [features["x"]], tf.float32)
        return tpu.TPUEstimatorSpec(mode, predictions={"y": outputs})

    says = "^ZeroDivisionError: in the model\nPython code of the model"
    with pytest.raises(tf.errors.OpError, match=says):
        on_cores.run(estimator(tmp_path, "host", model_fn), "infer")


@row(
    "estimator",
    "batches larger than `predict_batch_size`, on cores",
    "should not be greater than the padded batch size 8: batch the dataset with params",
    "[16]",
)
@pytest.mark.behaviour(142)
def test_a_larger_batch_than_that_of_prediction_is_refused(tmp_path, refused):
    trained = estimator(tmp_path, "cores")
    on_cores.run(trained, "train")

    def two_in_one(params):
        return on_cores.train_input_fn({"batch_size": 2 * params["batch_size"]})

    with refused(tf.errors.InvalidArgumentError):
        on_cores.run(trained, "infer", two_in_one)


@on_host_and_cores
@row("estimator", "an empty dataset, in `evaluate`", "the input is empty")
def test_an_empty_dataset(tmp_path, place, caplog, refused):
    def nothing(params):
        return on_cores.train_input_fn(params).take(0)

    empty = estimator(tmp_path, place)
    on_cores.run(empty, "train", nothing)
    assert "made no steps. Perhaps input is empty" in caplog.text
    assert empty.get_variable_value("global_step") == 0
    with refused(ValueError):
        on_cores.run(empty, "eval", nothing)
    assert not (tmp_path / "eval").exists()
    assert on_cores.run(empty, "infer", nothing) == []


def reckons_with_full_batches(features, labels, mode, params):
    x = tf.reshape(features["x"], [params["batch_size"], 3])
    return linear_model.model_fn_for(tpu)({"x": x}, labels, mode, params)


def _full_batches(params):
    dataset = tf.data.Dataset.from_tensor_slices(({"x": ROWS}, LABELS))
    return dataset.batch(params["batch_size"])


@pytest.mark.parametrize("mode", ["eval", "infer"])
def test_a_batch_size_built_into_the_model_fails_on_a_short_batch_of_the_host(tmp_path, mode):
    says = (
        r"^model_fn fails on this batch, at 'Reshape' \(.*12 values.*\)\. The batches of this input may "
        r"differ in their number of rows; .*params\['batch_size'\], or .*drop_remainder=True"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=says):
        on_cores.run(estimator(tmp_path, "host", reckons_with_full_batches), mode)


@mostly_swept("mode", on_cores.MODES, kept=["eval"])
def test_a_batch_size_built_into_the_model_is_fine_on_full_batches(tmp_path, mode):
    built_in = estimator(tmp_path / "built_in", "host", reckons_with_full_batches)
    plain = estimator(tmp_path / "plain", "host")
    results = [on_cores.run(e, mode, _full_batches) for e in (built_in, plain)]
    if mode == "infer":
        results = [[row["y"] for row in result] for result in results]
    if mode != "train":
        assert results[0] == pytest.approx(results[1])


@in_every_mode
@row(
    "estimator",
    "a placeholder of model_fn that nothing feeds",
    "You must feed a value for placeholder tensor 'rate', which nothing feeds: give the value as a ",
)
def test_a_placeholder_that_nothing_feeds_is_named(tmp_path, place, mode, refused):
    linear = linear_model.model_fn_for(tpu)

    def model_fn(features, labels, mode, params):
        rate = v1.placeholder(tf.float32, [], name="rate")
        return linear({**features, "x": features["x"] * rate}, labels, mode, params)

    with refused(tf.errors.InvalidArgumentError):
        on_cores.run(estimator(tmp_path, place, model_fn), mode)


@in_two_modes
@row(
    "estimator",
    "a vocabulary of model_fn whose file is not there",
    "gone.txt; No such file or directory (at '",
)
def test_what_a_session_can_not_open_with_is_named_in_a_line(tmp_path, place, mode, refused):
    linear = linear_model.model_fn_for(tpu)

    def model_fn(features, labels, mode, params):
        words = tf.lookup.TextFileInitializer(
            str(tmp_path / "gone.txt"),
            tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
        )
        tf.lookup.StaticVocabularyTable(words, num_oov_buckets=1)
        return linear(features, labels, mode, params)

    with refused(tf.errors.NotFoundError):
        on_cores.run(estimator(tmp_path / "model", place, model_fn), mode)


@pytest.mark.parametrize("mode", ["train", "eval", "infer"])
@row(
    "estimator",
    "an input of unknown rank, on cores",
    "must have an axis 0 to split over the replicas, but its shape is unknown",
    "set it in input_fn with tf.ensure_shape",
)
def test_an_input_of_unknown_rank_is_told_of(tmp_path, mode, refused):
    def input_fn(params):
        def forget(features, labels):
            return {"x": tf.numpy_function(lambda x: x, [features["x"]], tf.float32)}, labels

        return on_cores.train_input_fn(params).map(forget)

    with refused(ValueError):
        on_cores.run(estimator(tmp_path, "cores"), mode, input_fn)


def _of_mean(features, labels, mode, params):
    mean = tf.reduce_mean(features["x"])
    return tpu.TPUEstimatorSpec(mode, predictions={"mean": mean})


@row(
    "estimator",
    "a scalar prediction, on the host",
    "predictions[mean] must have the batch as its first dimension, but is the scalar ",
    "yield_single_examples=False",
)
def test_a_scalar_prediction_has_no_rows(tmp_path, refused):
    made = estimator(tmp_path, "host", _of_mean)
    with refused(ValueError):
        next(made.predict(linear_model.input_fn))
    (first, *_) = made.predict(linear_model.input_fn, yield_single_examples=False)
    assert np.shape(first["mean"]) == ()


@row(
    "estimator",
    "a scalar prediction, on cores",
    "The tensor with key (mean) in TPUEstimatorSpec.predictions must have the batch as its first dimension, but is a "
    "scalar",
)
def test_cores_predict_no_scalar(tmp_path, refused):
    with refused(ValueError):
        next(estimator(tmp_path, "cores", _of_mean).predict(linear_model.input_fn))


_GIVEN = {
    "`params=['a']`": (
        lambda: tpu.TPUEstimator(_of_mean, config=tpu.RunConfig(), params=["a"], use_tpu=False),
        "params must be a dict of name -> value, given: ['a'].",
    ),
    "`Estimator(params=5)`": (
        lambda: Estimator(_of_mean, params=5),
        "params must be a dict of name -> value, given: 5.",
    ),
    "`train(hooks=5)`": (
        lambda: Estimator(_of_mean).train(on_cores.train_input_fn, hooks=5),
        "Hooks must be a SessionRunHook, given: 5. Give a list of them.",
    ),
    "`train(saving_listeners=5)`": (
        lambda: Estimator(_of_mean).train(on_cores.train_input_fn, saving_listeners=5),
        "saving_listeners must be a list of CheckpointSaverListener, given: 5.",
    ),
    "`TrainSpec(hooks=5)`": (
        lambda: TrainSpec(on_cores.train_input_fn, hooks=5),
        "All hooks must be `SessionRunHook` instances, given: 5. Give a list of them.",
    ),
    "`train(input_fn=5)`": (
        lambda: Estimator(_of_mean).train(5),
        "`input_fn` must be callable, given: 5.",
    ),
    "`evaluate(input_fn=5)` on cores": (
        lambda: on_cores.make(tempfile.mkdtemp(), _of_mean).evaluate(5, steps=1),
        "`input_fn` must be callable, given: 5.",
    ),
    "`predict(predict_keys=5)`": (
        lambda: next(
            on_cores.make(tempfile.mkdtemp(), linear_model.model_fn_for(tpu)).predict(
                linear_model.input_fn, predict_keys=5
            )
        ),
        "predict_keys must be a name or a list of names; got 5.",
    ),
    "`get_variable_value(5)`": (
        lambda: Estimator(_of_mean).get_variable_value(5),
        "name must be the name of a variable or a list of names; got 5.",
    ),
    "`LatestExporter(exports_to_keep='5')`": (
        lambda: LatestExporter("latest", print, exports_to_keep="5"),
        "exports_to_keep must be a number; got '5'.",
    ),
    "`BestExporter(compare_fn=5)`": (
        lambda: BestExporter("best", print, compare_fn=5),
        "`compare_fn` must be callable; got 5.",
    ),
    "`make_early_stopping_hook(run_every_steps='5')`": (
        lambda: experimental.make_early_stopping_hook(
            Estimator(_of_mean), print, run_every_secs=None, run_every_steps="5"
        ),
        "run_every_steps must be a number; got '5'.",
    ),
    "`stop_if_higher_hook(threshold='1')`": (
        lambda: experimental.stop_if_higher_hook(Estimator(_of_mean), "loss", "1"),
        "threshold must be a number; got '1'.",
    ),
    "`stop_if_no_increase_hook(min_steps='1')`": (
        lambda: experimental.stop_if_no_increase_hook(
            Estimator(_of_mean), "loss", 10, min_steps="1"
        ),
        "min_steps must be a number; got '1'.",
    ),
    "`make_stop_at_checkpoint_step_hook(last_step='5')`": (
        lambda: experimental.make_stop_at_checkpoint_step_hook(Estimator(_of_mean), "5"),
        "last_step must be a number; got '5'.",
    ),
    "`InMemoryEvaluatorHook(estimator=5)`": (
        lambda: experimental.InMemoryEvaluatorHook(5, print),
        "`estimator` must have type `tf.estimator.Estimator`. Got: <class 'int'>",
    ),
    "`add_metrics(estimator=5)`": (
        lambda: add_metrics(5, print),
        "`estimator` must have type `tf.estimator.Estimator`. Got: <class 'int'>",
    ),
    "`numpy_input_fn(batch_size='2')`": (
        lambda: inputs.numpy_input_fn({"x": ROWS}, batch_size="2", shuffle=False),
        "batch_size must be a number; got '2'.",
    ),
    "`RegressionHead(label_dimension='2')`": (
        lambda: RegressionHead(label_dimension="2"),
        "label_dimension must be a number; got '2'.",
    ),
    "`BinaryClassHead(thresholds=['0.5'])`": (
        lambda: BinaryClassHead(thresholds=["0.5"]),
        "thresholds must be a number; got '0.5'.",
    ),
    "`WarmStartSettings(5)`": (
        lambda: WarmStartSettings(5),
        "ckpt_to_initialize_from must be a path: a string, bytes or os.PathLike; got 5.",
    ),
    "`WarmStartSettings(var_name_to_vocab_info=5)`": (
        lambda: WarmStartSettings("runs", var_name_to_vocab_info=5),
        "var_name_to_vocab_info must be a dict of names of variables; got 5.",
    ),
    "`export_saved_model(checkpoint_path=5)`": (
        lambda: Estimator(_of_mean).export_saved_model("exported", print, checkpoint_path=5),
        "checkpoint_path must be a path: a string, bytes or os.PathLike; got 5.",
    ),
    "`RunConfig(tf_config='{}')`": (
        lambda: RunConfig(tf_config="{}"),
        "tf_config must be a dict in the form of TF_CONFIG; got '{}'.",
    ),
}


@pytest.mark.parametrize(
    "call", [case("estimator", given, says, values=call) for given, (call, says) in _GIVEN.items()]
)
def test_an_argument_of_the_wrong_type_is_named(call, refused):
    with refused(TypeError):
        call()


@row(
    "estimator",
    "`pandas_input_fn(x=[1])`",
    "'list' object has no attribute 'columns': x must be a pandas.DataFrame; got [1].",
)
def test_rows_that_are_no_data_frame(refused):
    with refused(AttributeError):
        inputs.pandas_input_fn([1], shuffle=False)
