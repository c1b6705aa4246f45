"""Compares metrics by slice, on the host and on emulated cores, with NumPy."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.estimator import linear_model
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.components.evaluation._data_slices import parse_slicing_specs
from tfx_tpu_trainer.components.trainer import slicing as slicing_
from tfx_tpu_trainer.components.trainer.slicing import Slicing
from tfx_tpu_trainer.estimator import EstimatorSpec, tpu

v1 = tf.compat.v1

COUNT = 50
COLOURS = np.array([[b"red", b"green", b"blue", b"red"][i % 4] for i in range(COUNT)])
HOURS = np.arange(COUNT) % 3
# Row i has i % 3 tags; none in every third row.
TAGS = [["a", "b"][: i % 3] for i in range(COUNT)]
X, LABELS = linear_model.rows(COUNT)
ERRORS = np.abs(linear_model.output(X) - LABELS)


@dataclasses.dataclass(frozen=True)
class Split:
    """The eval split, as an input function."""

    form: str = "sparse"

    def __call__(self, params):
        features = {"x": X, "colour": COLOURS[:, None], "hour": HOURS.astype(np.int64)}
        tags = tf.ragged.constant(TAGS)
        features["tags"] = tags if self.form == "ragged" else tags.to_sparse()
        dataset = tf.data.Dataset.from_tensor_slices((features, LABELS))
        return dataset.batch(params["batch_size"])


def dense_only(params):
    return Split()(params).map(
        lambda features, labels: ({n: features[n] for n in ("x", "hour")}, labels)
    )


def model_fn(features, labels, mode, params):
    assert slicing_.MEMBERSHIP not in features
    return linear_model.model_fn_for(tpu, "sgd")({"x": features["x"]}, labels, mode, params)


def found(*specs, input_fn=None, max_slices=50, label_key=None):
    return Slicing.find(
        parse_slicing_specs(specs),
        lambda: (input_fn or Split())({"batch_size": 7}),
        max_slices=max_slices,
        label_key=label_key,
    )


def evaluated(
    tmp_path,
    slicing,
    *,
    batch=8,
    cores=None,
    input_fn=None,
    model=model_fn,
    steps=None,
    on_this_host=True,
    **options,
):
    if cores:
        options["master"] = "emulated"
    estimator = tpu.TPUEstimator(
        slicing.model_fn(model, on_this_host=on_this_host),
        config=tpu.RunConfig(
            model_dir=str(tmp_path), tpu_config=tpu.TPUConfig(num_shards=cores), **options
        ),
        use_tpu=cores is not None,
        train_batch_size=batch,
        eval_batch_size=batch,
    )
    wrapped = slicing.input_fn(input_fn or Split())
    return slicing.metrics_of(estimator.evaluate_result(wrapped, steps=steps))


def check(metrics, expected):
    """`expected`: slice key -> rows."""
    assert {one.key: one.num_examples for one in metrics.slices} == {
        key: int(np.sum(rows)) for key, rows in expected.items()
    }
    for one in metrics.slices:
        rows = np.asarray(expected[one.key], bool)
        outputs = linear_model.output(X)
        assert one.metrics == pytest.approx(
            {"mae": np.mean(ERRORS[rows]), "mean_output": np.mean(outputs[rows])}, rel=1e-5
        )
    assert metrics.overall["mae"] == pytest.approx(np.mean(ERRORS), rel=1e-5)
    assert metrics.num_examples == COUNT


def by_colour(colour):
    return colour.encode() == COLOURS


def by_tag(tag):
    return np.array([tag in tags for tags in TAGS])


def test_texts_numbers_and_crosses(tmp_path):
    slicing = found({"feature_keys": ["colour"]}, {"feature_keys": ["hour", "colour"]})
    expected = {(("colour", c),): by_colour(c) for c in ("red", "green", "blue")}
    for colour in ("red", "green", "blue"):
        for hour in range(3):
            rows = by_colour(colour) & (hour == HOURS)
            expected[(("colour", colour), ("hour", hour))] = rows
    check(evaluated(tmp_path, slicing), expected)


@pytest.mark.parametrize("form", ["sparse", "ragged"])
def test_a_row_is_in_the_slices_of_all_its_values_and_of_none_without_one(tmp_path, form):
    slicing = found({"feature_keys": ["tags"]}, input_fn=Split(form))
    expected = {(("tags", tag),): by_tag(tag) for tag in ("a", "b")}
    check(evaluated(tmp_path, slicing, input_fn=Split(form)), expected)


def test_feature_values_pick_slices(tmp_path):
    slicing = found(
        {"feature_keys": ["hour"], "feature_values": {"colour": "red"}},
        {"feature_values": {"hour": "2"}},
        {"feature_values": {"hour": 7}},
    )
    expected = {
        (("colour", "red"), ("hour", hour)): by_colour("red") & (hour == HOURS) for hour in range(3)
    }
    check(evaluated(tmp_path, slicing), expected | {(("hour", 2),): HOURS == 2})


def test_too_many_slices_leave_an_other_one(tmp_path):
    slicing = found({"feature_keys": ["colour"]}, max_slices=1)
    expected = {(("colour", "red"),): by_colour("red")}
    expected[(("colour", "__OTHER__"),)] = ~by_colour("red")
    check(evaluated(tmp_path, slicing), expected)


def test_labels_can_be_sliced(tmp_path):
    def signs(params):
        return Split()(params).map(lambda features, labels: (features, tf.sign(labels)))

    slicing = found({"feature_keys": ["y"]}, input_fn=signs, label_key="y")
    metrics = evaluated(tmp_path, slicing, input_fn=signs)
    assert {one.key: one.num_examples for one in metrics.slices} == {
        (("y", -1.0),): np.sum(LABELS < 0),
        (("y", 1.0),): np.sum(LABELS > 0),
    }


@pytest.mark.matrix
@mostly_swept(("cores", "batch"), itertools.product([1, 2, 8], [8, 16, 24]), kept=[(8, 16)])
def test_on_emulated_cores(tmp_path, cores, batch):
    slicing = found({"feature_keys": ["hour"]}, input_fn=dense_only)
    metrics = evaluated(tmp_path, slicing, batch=batch, cores=cores, input_fn=dense_only)
    check(metrics, {(("hour", hour),): hour == HOURS for hour in range(3)})


def test_under_a_strategy(tmp_path):
    slicing = found({"feature_keys": ["hour"]}, input_fn=dense_only)
    metrics = evaluated(
        tmp_path,
        slicing,
        input_fn=dense_only,
        eval_distribute=tf.distribute.MirroredStrategy(
            ["/cpu:0", "/cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
        ),
    )
    check(metrics, {(("hour", hour),): hour == HOURS for hour in range(3)})


@mostly_swept("cores", [None, 2], kept=[2])
def test_where_the_session_is_in_another_process(tmp_path, cores):
    slicing = found({"feature_keys": ["hour"]}, input_fn=dense_only)
    options = {"cores": cores, "input_fn": dense_only, "on_this_host": False}
    metrics = evaluated(tmp_path, slicing, **options)
    check(metrics, {(("hour", hour),): hour == HOURS for hour in range(3)})


def test_metric_fn_is_called_once_for_all_slices(tmp_path):
    calls = []

    def counting(features, labels, mode, params):
        spec = model_fn(features, labels, mode, params)
        function, tensors = spec.eval_metrics

        def metric_fn(*args, **named):
            calls.append(v1.get_default_graph())
            return function(*args, **named)

        return spec._replace(eval_metrics=(metric_fn, tensors))

    slicing = found({"feature_keys": ["hour"]}, {"feature_keys": ["colour"]})
    evaluated(tmp_path, slicing, model=counting)
    graph, apart = calls
    assert graph is not apart


def test_what_fails_on_a_slice_is_told_with_its_name(tmp_path):
    def metric_fn(scores):
        enough = v1.debugging.assert_greater(tf.size(scores), 16, message="too few scores")
        with tf.control_dependencies([enough]):
            scores = tf.identity(scores)
        return {"m": v1.metrics.mean(scores)}

    def model(features, labels, mode, params):
        scores = features["x"][:, 0]
        metrics = (metric_fn, {"scores": scores})
        return tpu.TPUEstimatorSpec(mode, loss=tf.reduce_mean(scores), eval_metrics=metrics)

    slicing = found({"feature_keys": ["hour"]})
    says = r"\AValueError: metric_fn fails on the rows of slice 'hour:2': .*too few scores.*\Z"
    with pytest.raises(tf.errors.InvalidArgumentError, match=says):
        evaluated(tmp_path, slicing, batch=COUNT, model=model)


def test_slices_not_seen_in_some_steps_are_left_out(tmp_path):
    def sorted_by_hour(params):
        order = np.argsort(HOURS, kind="stable")
        features = {"x": X[order], "hour": HOURS[order]}
        return tf.data.Dataset.from_tensor_slices((features, LABELS[order])).batch(8)

    slicing = found({"feature_keys": ["hour"]}, input_fn=sorted_by_hour)
    metrics = evaluated(tmp_path, slicing, input_fn=sorted_by_hour, steps=2)
    assert [one.key for one in metrics.slices] == [(("hour", 0),)]


def test_specs_without_a_row_measure_nothing(tmp_path):
    slicing = found({"feature_values": {"colour": "pink"}})
    metrics = evaluated(tmp_path, slicing)
    assert metrics.slices == ()
    assert metrics.num_examples == COUNT


class TestRefused:
    @row(
        "component",
        "slices by a feature that is nearly one",
        "name the feature 'color', ",
        "did you mean 'colour'",
    )
    def test_unknown_feature(self, refused):
        with refused(ValueError):
            found({"feature_keys": ["color"]})

    @row("component", "slices of features without names", "slicing_specs need features by name")
    def test_features_without_names(self, refused):
        with refused(ValueError):
            found(
                {"feature_keys": ["x"]}, input_fn=lambda params: tf.data.Dataset.range(3).batch(2)
            )

    @row(
        "component",
        "slices of an EstimatorSpec's metrics",
        "need a metric_fn ",
        "returned a EstimatorSpec",
    )
    def test_metrics_that_are_built_already(self, tmp_path, refused):
        def built(features, labels, mode, params):
            loss = tf.reduce_mean(features["x"])
            return EstimatorSpec(mode, loss=loss, eval_metric_ops={"m": v1.metrics.mean(loss)})

        with refused(ValueError):
            evaluated(tmp_path, found({"feature_keys": ["hour"]}), model=built)

    def _with_tensor(self, tensor_of):
        def model(features, labels, mode, params):
            loss = tf.reduce_mean(features["x"])
            metrics = (lambda t: {"m": v1.metrics.mean(t)}, [tensor_of(features["x"])])
            return tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics)

        return model

    @pytest.mark.parametrize(
        "tensor_of", [tf.reduce_mean, lambda x: tf.reshape(tf.reduce_mean(x), [1]), tf.transpose]
    )
    def test_a_tensor_without_rows(self, tmp_path, tensor_of):
        model = self._with_tensor(tensor_of)
        with pytest.raises(Exception, match="does not have the rows of the batch on axis 0"):
            evaluated(tmp_path, found({"feature_keys": ["hour"]}), model=model)

    @row(
        "component",
        "slices, and a metric called 'example_count'",
        "metric_fn returns a metric 'example_count'",
    )
    def test_a_metric_that_takes_the_counters_name(self, tmp_path, refused):
        def model(features, labels, mode, params):
            loss = tf.reduce_mean(features["x"])
            metrics = (lambda t: {"example_count": v1.metrics.mean(t)}, [features["x"]])
            return tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics)

        with refused(ValueError):
            evaluated(tmp_path, found({"feature_keys": ["hour"]}), model=model)


@row(
    "data",
    "a slice by a feature whose bytes are not UTF-8",
    "slicing_specs name the feature 'code', whose value b'D\\xff' is not a UTF-8 string",
    "leave it out of them",
)
def test_bytes_that_are_no_text_make_no_slice(refused):
    def input_fn(params):
        rows = {"code": [b"US", b"D\xff"]}
        return tf.data.Dataset.from_tensor_slices((rows, [0.0, 1.0])).batch(2)

    with refused(ValueError):
        found({"feature_keys": ["code"]}, input_fn=input_fn)
