"""Heads, and what they are given: two batches of logits, labels and features each."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

TWO = ["no", "yes"]
THREE = ["red", "green", "blue"]


@dataclasses.dataclass(frozen=True)
class Case:
    """A head and its batches.

    `head` makes it from a module with the Head classes. Labels of `sparse` are lists of the classes
    of each row. `regularization` are the values of two losses to add.
    """

    head: Callable[[Any], Any]
    logits: Any
    labels: Any
    weights: Any = None
    sparse: bool = False
    regularization: tuple[float, ...] = ()


def _array(seed: int, *shape: int) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.normal(scale=2.0, size=shape).astype(np.float32) for _ in range(2)]


def _ids(seed: int, n: int, *shape: int) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, n, size=shape) for _ in range(2)]


def _names(seed: int, names: list[str], *shape: int) -> list[np.ndarray]:
    return [np.array(names, dtype=object)[ids] for ids in _ids(seed, len(names), *shape)]


def _weights(seed: int, *shape: int) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.uniform(0.1, 3.0, size=shape).astype(np.float32) for _ in range(2)]


def _doubled_weight() -> Any:
    return tf.feature_column.numeric_column("weight", normalizer_fn=lambda x: 2.0 * x)


def _absolute_loss(labels: Any, logits: Any) -> Any:
    return tf.abs(tf.cast(labels, tf.float32) - tf.reduce_mean(logits, -1, keepdims=True))


def _loss_of_feature(labels: Any, logits: Any, features: Any) -> Any:
    del labels
    return tf.abs(logits) * tf.reshape(features["weight"], [-1, 1])


CASES: dict[str, Case] = {
    "binary": Case(lambda h: h.BinaryClassHead(), _array(1, 6, 1), _ids(2, 2, 6, 1)),
    "binary_flat_labels_thresholds_name": Case(
        lambda h: h.BinaryClassHead(thresholds=[0.25, 0.5, 0.75], name="clicks"),
        _array(3, 6, 1),
        _ids(4, 2, 6),
        regularization=(1.5, 0.25),
    ),
    "binary_weights_vocabulary_sum": Case(
        lambda h: h.BinaryClassHead("weight", [0.4], label_vocabulary=TWO, loss_reduction="sum"),
        _array(5, 6, 1),
        _names(6, TWO, 6, 1),
        _weights(7, 6, 1),
    ),
    "binary_custom_loss": Case(
        lambda h: h.BinaryClassHead("weight", loss_fn=_loss_of_feature),
        _array(8, 6, 1),
        _ids(9, 2, 6, 1),
        _weights(10, 6),
    ),
    "binary_deep": Case(
        lambda h: h.BinaryClassHead("weight"),
        _array(11, 3, 2, 1),
        _ids(12, 2, 3, 2),
        _weights(13, 3, 2),
    ),
    "multi_class": Case(lambda h: h.MultiClassHead(3), _array(14, 6, 3), _ids(15, 3, 6, 1)),
    "multi_class_weights_vocabulary_name": Case(
        lambda h: h.MultiClassHead(3, "weight", THREE, name="colour"),
        _array(16, 6, 3),
        _names(17, THREE, 6),
        _weights(18, 6),
        regularization=(0.5,),
    ),
    "multi_class_custom_loss_sum": Case(
        lambda h: h.MultiClassHead(
            4, _doubled_weight(), loss_reduction="sum", loss_fn=_absolute_loss
        ),
        _array(19, 6, 4),
        _ids(20, 4, 6, 1),
        _weights(21, 6, 1),
    ),
    "multi_class_deep": Case(
        lambda h: h.MultiClassHead(3), _array(22, 3, 2, 3), _ids(23, 3, 3, 2, 1)
    ),
    "multi_label": Case(lambda h: h.MultiLabelHead(3), _array(24, 6, 3), _ids(25, 2, 6, 3)),
    "multi_label_classes_thresholds_weights": Case(
        lambda h: h.MultiLabelHead(
            3, "weight", thresholds=[0.3, 0.6], classes_for_class_based_metrics=[0, 2], name="tags"
        ),
        _array(26, 6, 3),
        _ids(27, 2, 6, 3),
        _weights(28, 6),
        regularization=(0.5, 2.0),
    ),
    "multi_label_sparse_names": Case(
        lambda h: h.MultiLabelHead(
            3, label_vocabulary=THREE, classes_for_class_based_metrics=["green"]
        ),
        _array(29, 4, 3),
        [[["red"], [], ["green", "blue"], ["blue"]], [["green"], ["red", "blue"], ["red"], []]],
        sparse=True,
    ),
    "multi_label_sparse_ids_sum": Case(
        lambda h: h.MultiLabelHead(3, loss_reduction="sum"),
        _array(30, 4, 3),
        [[[0], [], [1, 2], [2]], [[1], [0, 2], [0], []]],
        sparse=True,
    ),
    "regression": Case(lambda h: h.RegressionHead(), _array(31, 6, 1), _array(32, 6, 1)),
    "regression_two_weights_per_logit": Case(
        lambda h: h.RegressionHead(
            2, tf.feature_column.numeric_column("weight", shape=(2,)), name="fares"
        ),
        _array(33, 6, 2),
        _array(34, 6, 2),
        _weights(35, 6, 2),
        regularization=(0.25,),
    ),
    "regression_link_sum": Case(
        lambda h: h.RegressionHead(
            1, "weight", loss_reduction="sum", inverse_link_fn=tf.nn.softplus
        ),
        _array(36, 6, 1),
        _array(37, 6, 1),
        _weights(38, 6),
    ),
    "poisson": Case(
        lambda h: h.PoissonRegressionHead(name="counts"), _array(39, 6, 1), _ids(40, 9, 6, 1)
    ),
    "poisson_short_loss": Case(
        lambda h: h.PoissonRegressionHead(2, "weight", "sum", compute_full_loss=False),
        _array(41, 6, 2),
        _ids(42, 9, 6, 2),
        _weights(43, 6),
    ),
    "logistic": Case(
        lambda h: h.LogisticRegressionHead("weight", name="rate"),
        _array(44, 6, 1),
        [labels / 3.0 for labels in _weights(45, 6, 1)],
        _weights(46, 6),
    ),
    "multi_head": Case(
        lambda h: h.MultiHead(
            [h.MultiClassHead(3, name="colour"), h.BinaryClassHead("weight", name="click")],
            head_weights=[0.5, 2.0],
        ),
        _array(47, 6, 4),
        [
            {"colour": colour, "click": click}
            for colour, click in zip(_ids(48, 3, 6, 1), _ids(49, 2, 6, 1))
        ],
        _weights(50, 6),
        regularization=(1.0, 0.5),
    ),
    "multi_head_of_dicts": Case(
        lambda h: h.MultiHead([h.RegressionHead(2, name="a"), h.MultiLabelHead(2, name="b")]),
        [{"a": a, "b": b} for a, b in zip(_array(51, 6, 2), _array(52, 6, 2))],
        [{"a": a, "b": b} for a, b in zip(_array(53, 6, 2), _ids(54, 2, 6, 2))],
    ),
}

# The heads of tf.compat.v1.estimator's canned estimators; `h` has functions for them.
V1_CASES: dict[str, Case] = {
    "binary": Case(
        lambda h: h.binary(thresholds=[0.3], name="clicks"),
        _array(61, 6, 1),
        _ids(62, 2, 6, 1),
        regularization=(1.0, 0.5),
    ),
    "binary_weights_vocabulary": Case(
        lambda h: h.binary(weight_column="weight", label_vocabulary=TWO),
        _array(63, 6, 1),
        _names(64, TWO, 6, 1),
        _weights(65, 6),
    ),
    "binary_by_nonzero_weights": Case(
        lambda h: h.binary(
            weight_column="weight", loss_reduction="weighted_sum_by_nonzero_weights"
        ),
        _array(66, 6, 1),
        _ids(67, 2, 6),
        [np.array([0.0, 1.0, 2.0, 0.0, 1.0, 1.0], np.float32) for _ in range(2)],
    ),
    "multi_class": Case(
        lambda h: h.multi_class(3, weight_column="weight", label_vocabulary=THREE),
        _array(68, 6, 3),
        _names(69, THREE, 6, 1),
        _weights(70, 6, 1),
        regularization=(0.5,),
    ),
    "multi_class_mean": Case(
        lambda h: h.multi_class(3, weight_column="weight", loss_reduction="weighted_mean"),
        _array(71, 6, 3),
        _ids(72, 3, 6, 1),
        _weights(73, 6, 1),
    ),
    "regression": Case(
        lambda h: h.regression(label_dimension=2, weight_column="weight", name="fares"),
        _array(74, 6, 2),
        _array(75, 6, 2),
        _weights(76, 6),
        regularization=(0.5, 0.125),
    ),
    "regression_link_over_batch_size": Case(
        lambda h: h.regression(
            loss_reduction="weighted_sum_over_batch_size", inverse_link_fn=tf.exp
        ),
        _array(77, 6, 1),
        _array(78, 6, 1),
    ),
}


def sparse_labels(rows: list[list[Any]]) -> tf.compat.v1.SparseTensorValue:
    """Returns lists of the classes of each row as a sparse tensor."""
    places = [(row, column) for row, values in enumerate(rows) for column in range(len(values))]
    values = [value for row in rows for value in row]
    width = max(len(row) for row in rows)
    return tf.compat.v1.SparseTensorValue(places, values, (len(rows), width))


def batches(case: Case) -> list[Mapping[str, Any]]:
    """Returns the batches: `logits`, `labels`, `features`."""
    weights = case.weights or [None] * len(case.logits)
    return [
        {
            "logits": logits,
            "labels": sparse_labels(labels) if case.sparse else labels,
            "features": {"x": np.zeros([4], np.float32)} if w is None else {"weight": w},
        }
        for logits, labels, w in zip(case.logits, case.labels, weights)
    ]
