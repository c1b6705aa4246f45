"""What canned estimators refuse beyond the original's conditions, which words/cases/canned.py has."""

import math
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import row
from tfx_tpu_trainer import estimator as ours

v1 = tf.compat.v1
fc = tf.feature_column

X = {"x": np.array([[1.0], [2.0], [3.0]], np.float32)}


def input_fn_of(labels: Any, **features: Any) -> Any:
    """One batch without end."""
    rows = ({**X, **features}, labels)
    return lambda: tf.data.Dataset.from_tensors(rows).repeat()


def numeric() -> list[Any]:
    return [fc.numeric_column("x")]


@pytest.mark.parametrize("api", [ours, ours.v1], ids=["v2", "v1"])
def test_columns_are_checked_by_the_constructor(api):
    with pytest.raises(ValueError, match="feature_columns must not be empty; given: None"):
        api.LinearRegressor(None)
    with pytest.raises(ValueError, match=r"found dictionary: {'x': 1}"):
        api.DNNRegressor([2], {"x": 1})
    with pytest.raises(ValueError, match="Duplicate feature column name 'x' found"):
        api.LinearEstimator(ours.RegressionHead(), numeric() * 2)
    with pytest.raises(ValueError, match=r"dnn_hidden_units must be defined.*given: \(\)"):
        api.DNNLinearCombinedRegressor(dnn_feature_columns=numeric())


@pytest.mark.parametrize("units", [4, "64", [4, 0], [-1], ["4"], None])
def test_hidden_layers_have_units(units):
    said = rf"hidden_units must be the positive width.*given: {re.escape(repr(units))}"
    for api in (ours, ours.v1):
        with pytest.raises(ValueError, match=said):
            api.DNNClassifier(units, numeric())
    if units is not None:
        with pytest.raises(ValueError, match=said):
            ours.DNNLinearCombinedRegressor(dnn_feature_columns=numeric(), dnn_hidden_units=units)


@pytest.mark.parametrize("dropout", ["x", 2, -1.0, 1.0, True, math.nan])
@row(
    "estimator",
    "`DNNClassifier(dropout='x')` and other values outside of [0, 1)",
    "Invalid value",
    "received for `rate`, expected a value between 0 and 1. ",
    "dropout is the share of values that training drops, such as 0.5; give less than 1.",
)
def test_a_share_of_values_is_dropped(dropout, refused):
    for api in (ours, ours.v1):
        with refused(ValueError) as raised:
            api.DNNClassifier([2], numeric(), dropout=dropout)
        assert f"Invalid value {dropout!r} " in str(raised.value)
        with refused(ValueError) as raised:
            api.DNNLinearCombinedRegressor(
                dnn_feature_columns=numeric(), dnn_hidden_units=[2], dnn_dropout=dropout
            )
        assert " dnn_dropout is " in str(raised.value)


@pytest.mark.parametrize("api", [ours, ours.v1], ids=["v2", "v1"])
def test_widths_are_rounded_down(api, tmp_path):
    # As in the original, whose Keras layers do it: programs compute widths, as 64 * 0.7**i.
    estimator = api.DNNRegressor([2.5, 3.0], numeric(), model_dir=str(tmp_path))
    estimator.train(input_fn_of([1.0, 2.0, 3.0]), steps=1)
    assert estimator.get_variable_value("dnn/hiddenlayer_0/kernel").shape == (1, 2)
    assert estimator.get_variable_value("dnn/hiddenlayer_1/kernel").shape == (2, 3)


_MAKERS = {
    "Linear": lambda api, columns, head: api.LinearEstimator(head, columns),
    "DNN": lambda api, columns, head: api.DNNEstimator(head, [2], columns),
    "combined": lambda api, columns, head: api.DNNLinearCombinedEstimator(
        head, linear_feature_columns=columns
    ),
    "baseline": lambda api, columns, head: api.BaselineEstimator(head),
}


@pytest.mark.parametrize("make", _MAKERS.values(), ids=_MAKERS)
@row(
    "estimator",
    "`DNNEstimator(head=5)`, and of other canned estimators",
    "'int' object has no attribute 'logits_dimension': head must be a Head, such as "
    "RegressionHead(); got 5.",
)
def test_a_head_is_a_head(make, refused):
    for api in (ours, ours.v1):
        with refused(AttributeError):
            make(api, numeric(), 5)
        with pytest.raises(TypeError, match="RegressionHead'> is a class: call it"):
            make(api, numeric(), ours.RegressionHead)


@pytest.mark.parametrize("name", ["Linear", "DNN", "combined"])
@row(
    "estimator",
    "`LinearRegressor(feature_columns=5)`, and of other canned estimators",
    "'int' object is not iterable: feature_columns must be a list, such as [",
    "; got 5.",
)
def test_columns_are_a_list(name, refused):
    for api in (ours, ours.v1):
        with refused(TypeError):
            _MAKERS[name](api, 5, ours.RegressionHead())
        with pytest.raises(
            ValueError, match=r"Given: NumericColumn\(.*one column: put it into a l"
        ):
            _MAKERS[name](api, numeric()[0], ours.RegressionHead())


def test_columns_of_tensorflow_1_are_for_v1_estimators_only(tmp_path):
    town = fc.categorical_column_with_identity("town", 3)
    port = fc.categorical_column_with_identity("port", 3)
    with tf.Graph().as_default():
        shared = v1.feature_column.shared_embedding_columns([town, port], 2)
    with pytest.raises(
        ValueError, match=r"Received a feature column from TensorFlow v1, but .*'town_"
    ):
        ours.DNNClassifier([2], shared)
    estimator = ours.v1.DNNClassifier([2], shared, model_dir=str(tmp_path))
    features = {name: np.array([[0], [1], [2]]) for name in ("town", "port")}
    estimator.train(input_fn_of([0, 1, 1], **features), steps=1)
    name = "dnn/input_from_feature_columns/input_layer/port_town_shared_embedding"
    assert any(each.startswith(name) for each in estimator.get_variable_names())


def test_a_baseline_needs_features_with_rows_of_one_length(tmp_path):
    with pytest.raises(ValueError, match=r"features should be a dictionary.*Given type"):
        ours.BaselineClassifier(model_dir=str(tmp_path)).train(
            lambda: tf.data.Dataset.from_tensors(([[1.0]], [1])), steps=1
        )
    estimator = ours.BaselineRegressor(model_dir=str(tmp_path))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"x.* and .*y.* differ in rows"):
        estimator.train(input_fn_of([1.0, 2.0, 3.0], y=np.zeros([2, 1])), steps=1)


def test_specs_parse_labels_and_weights():
    spec = ours.classifier_parse_example_spec(numeric(), "label", weight_column="w")
    assert sorted(spec) == ["label", "w", "x"]
    assert spec["label"] == tf.io.FixedLenFeature((1,), tf.int64)
    spec = ours.v1.regressor_parse_example_spec(numeric(), "label", label_dimension=2)
    assert spec["label"] == tf.io.FixedLenFeature((2,), tf.float32)


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: ours.experimental.LinearSDCA("id"), "Ftrl"),
        (lambda: ours.v1.experimental.KMeans(3), "MiniBatchKMeans"),
        (lambda: ours.experimental.RNNClassifier([], units=[3]), "tf.keras.layers.GRU"),
        (lambda: ours.experimental.RNNEstimator(None, []), "head's create_estimator_spec"),
    ],
)
def test_what_is_not_here_says_what_to_use_instead(make, advice):
    with pytest.raises(NotImplementedError, match=f"is not part of tfx_tpu_trainer.*{advice}"):
        make()
