"""Canned estimators of both APIs, and the logit_fn builders."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.estimator.words.stacks import Stack

_Case = Callable[[Stack], Any]


def _column() -> Any:
    return tf.feature_column.numeric_column("x")


def _old_embedding() -> Any:
    """A column of TensorFlow 1's kind."""
    from tensorflow.python.feature_column import feature_column

    return feature_column._numeric_column("x")


def _made(api: str, name: str, *, columns: Any = _column, **options: Any) -> _Case:
    def case(t: Stack) -> Any:
        given = dict(options)
        if callable(given.get("optimizer")):
            given["optimizer"] = given["optimizer"]()
        if "DNN" in name and "Combined" not in name:
            given.setdefault("hidden_units", [2])
        if "Combined" not in name and "Baseline" not in name:
            given["feature_columns"] = [columns()]
        return getattr(getattr(t, api), name)(model_dir=t.folder, **given)

    return case


def _trained(make: _Case, input_fn: Any = None) -> _Case:
    return lambda t: make(t).train(input_fn or t.input_fn, steps=1)


def _fed(features: Any, labels: Any) -> Any:
    """An input_fn of a batch without an end."""
    return lambda: tf.data.Dataset.from_tensors((features, labels)).repeat()


_X = {"x": np.float32([[1], [2]])}
_array_input = _fed(np.float32([[1], [2]]), np.float32([1, 2]))
_high_labels = _fed(_X, np.int64([[7], [0]]))
_float_labels = _fed(_X, np.float32([[0.5], [0]]))
_wide_labels = _fed(_X, np.float32([[1, 2], [0, 1]]))
_word_labels = _fed(_X, np.array([["a"], ["b"]]))
_weights_of_words = _fed({**_X, "w": np.array([["a"], ["b"]])}, np.float32([[1], [2]]))


def _sparse_labels() -> Any:
    labels = tf.sparse.from_dense(np.float32([[1], [2]]))
    return tf.data.Dataset.from_tensors((_X, labels)).repeat()


def _unlabelled() -> Any:
    return tf.data.Dataset.from_tensors(_X).repeat()


def _combined(api: str, name: str = "DNNLinearCombinedRegressor", **options: Any) -> _Case:
    return _made(api, name, **options)


def _sync_replicas() -> Any:
    train = tf.compat.v1.train
    return train.SyncReplicasOptimizer(train.GradientDescentOptimizer(0.1), 1)


def _logits(api: str, builder: str, **options: Any) -> _Case:
    def case(t: Stack) -> Any:
        build = getattr(getattr(t, api).experimental, builder)
        return build(feature_columns=[_column()], **options)

    return case


def _called(t: Stack, result: Any) -> Any:
    def logit_fn(features: Any, mode: Any) -> Any:
        return result

    return t.est.experimental.call_logit_fn(logit_fn, {}, "train", {}, None)


_V1 = functools.partial(_made, "v1")
_V2 = functools.partial(_made, "est")

CASES: dict[str, _Case] = {
    "optimizer_unknown": _trained(_V2("LinearRegressor", optimizer="a")),
    "optimizer_of_a_number": _trained(_V2("LinearRegressor", optimizer=3)),
    "optimizer_of_the_old_kind": _trained(
        _V2("DNNRegressor", optimizer=lambda: tf.compat.v1.train.AdamOptimizer(0.1))
    ),
    "old_optimizer_unknown": _trained(_V1("LinearRegressor", optimizer="a")),
    "old_optimizer_of_a_number": _trained(_V1("LinearRegressor", optimizer=3)),
    "features_of_an_array": _trained(_V2("LinearRegressor"), _array_input),
    "dnn_features_of_an_array": _trained(_V2("DNNRegressor"), _array_input),
    "combined_features_of_an_array": _trained(
        lambda t: t.est.DNNLinearCombinedRegressor(t.folder, linear_feature_columns=[_column()]),
        _array_input,
    ),
    "old_features_of_an_array": _trained(_V1("LinearRegressor"), _array_input),
    "old_dnn_features_of_an_array": _trained(_V1("DNNRegressor"), _array_input),
    "old_combined_features_of_an_array": _trained(
        lambda t: t.v1.DNNLinearCombinedRegressor(t.folder, linear_feature_columns=[_column()]),
        _array_input,
    ),
    "column_of_another_type": _trained(_V2("LinearRegressor", columns=lambda: "a")),
    "dnn_column_of_another_type": _trained(_V2("DNNRegressor", columns=lambda: "a")),
    "dnn_column_that_is_not_dense": _trained(
        _V2(
            "DNNRegressor",
            columns=lambda: tf.feature_column.categorical_column_with_hash_bucket("x", 3),
        )
    ),
    "column_of_the_first_kind": _trained(_V2("LinearRegressor", columns=_old_embedding)),
    "dnn_column_of_the_first_kind": _trained(_V2("DNNRegressor", columns=_old_embedding)),
    "combined_without_columns": _combined("est"),
    "combined_classifier_without_columns": _combined("est", "DNNLinearCombinedClassifier"),
    "combined_without_hidden_units": _trained(
        lambda t: t.est.DNNLinearCombinedRegressor(t.folder, dnn_feature_columns=[_column()])
    ),
    "old_combined_without_columns": _combined("v1"),
    "old_combined_without_hidden_units": _trained(
        lambda t: t.v1.DNNLinearCombinedRegressor(t.folder, dnn_feature_columns=[_column()])
    ),
    "old_combined_with_sync_replicas": _trained(
        lambda t: t.v1.DNNLinearCombinedRegressor(
            t.folder,
            linear_feature_columns=[_column()],
            dnn_feature_columns=[_column()],
            dnn_hidden_units=[2],
            linear_optimizer=_sync_replicas,
        )
    ),
    "classes_of_one": _V2("LinearClassifier", n_classes=1),
    "vocabulary_too_short": _V2("LinearClassifier", n_classes=3, label_vocabulary=["a"]),
    "loss_reduction_unknown": _V2("LinearRegressor", loss_reduction="a"),
    "old_classes_of_one": _V1("LinearClassifier", n_classes=1),
    "old_classes_of_none": _V1("LinearClassifier", n_classes=None),
    "old_vocabulary_of_a_string": _V1("LinearClassifier", label_vocabulary="ab"),
    "old_vocabulary_of_three_of_a_string": _V1(
        "LinearClassifier", n_classes=3, label_vocabulary="abc"
    ),
    "old_loss_reduction_unknown": _V1("LinearRegressor", loss_reduction="a"),
    "old_binary_loss_reduction_unknown": _V1("LinearClassifier", loss_reduction="a"),
    "old_three_classes_loss_reduction_unknown": _V1(
        "LinearClassifier", n_classes=3, loss_reduction="a"
    ),
    "old_regression_of_no_dimension": _V1("LinearRegressor", label_dimension=0),
    "old_labels_missing": _trained(_V1("LinearRegressor"), _unlabelled),
    "old_labels_sparse": _trained(_V1("LinearRegressor"), _sparse_labels),
    "old_labels_of_another_width": _trained(_V1("LinearRegressor"), _wide_labels),
    "old_label_too_high": _trained(_V1("LinearClassifier"), _high_labels),
    "old_label_of_three_classes_too_high": _trained(
        _V1("LinearClassifier", n_classes=3), _high_labels
    ),
    "old_labels_of_floats": _trained(_V1("LinearClassifier", n_classes=3), _float_labels),
    "old_numbers_for_words": _trained(
        _V1("LinearClassifier", n_classes=3, label_vocabulary=["a", "b", "c"]), _high_labels
    ),
    "old_weight_column_of_a_number": _trained(_V1("LinearRegressor", weight_column=3)),
    "old_weights_of_words": _trained(_V1("LinearRegressor", weight_column="w"), _weights_of_words),
    "labels_missing": _trained(_V2("LinearRegressor"), _unlabelled),
    "labels_of_words": _trained(_V2("LinearClassifier", n_classes=3), _word_labels),
    "baseline_weight_column_of_a_number": _trained(_V2("BaselineRegressor", weight_column=3)),
    "old_baseline_weight_column_of_a_number": _trained(_V1("BaselineRegressor", weight_column=3)),
    "baseline_weights": _trained(_V2("BaselineRegressor", weight_column="w"), _weights_of_words),
    "old_logits_of_a_string_of_units": _logits(
        "v1",
        "dnn_logit_fn_builder",
        units="a",
        hidden_units=[2],
        activation_fn=tf.nn.relu,
        dropout=None,
        input_layer_partitioner=None,
        batch_norm=False,
    ),
    "logit_fn_of_a_number": lambda t: _called(t, 3),
    "logit_fn_of_a_dict_of_numbers": lambda t: _called(t, {"a": 3}),
}
