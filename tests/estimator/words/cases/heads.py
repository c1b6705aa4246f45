"""Heads: their constructors, losses, metrics and specs, eager and in a graph."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.estimator.words.stacks import Stack

_ONES = np.ones([2, 1], np.float32)
_Case = Callable[[Stack], Any]


def _make(name: str, *arguments: Any, **options: Any) -> _Case:
    return lambda t: getattr(t.est, name)(*arguments, **options)


def _loss(
    make: _Case, labels: Any, logits: Any, *, features: Any = None, graph: bool = False
) -> _Case:
    """The loss of a head; in a graph what it is given has no static shape."""

    def case(t: Stack) -> Any:
        head = make(t)
        if not graph:
            return head.loss(labels, logits, features=features or {}, mode="train")
        t.graph()

        def fed(value: Any) -> Any:
            if value is None:
                return None
            return tf.compat.v1.placeholder_with_default(value, shape=None)

        hidden = {name: fed(value) for name, value in (features or {}).items()}
        loss = head.loss(fed(labels), fed(logits), features=hidden, mode="train")
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.tables_initializer())
            return session.run(loss)

    return case


def _spec(make: _Case, mode: str = "train", **options: Any) -> _Case:
    """The spec that a head makes in a graph."""

    def case(t: Stack) -> Any:
        t.graph()
        given: dict[str, Any] = {"labels": tf.constant(_ONES), "logits": tf.Variable(_ONES) * 1.0}
        for name, value in options.items():
            given[name] = value() if callable(value) and name != "train_op_fn" else value
        return make(t).create_estimator_spec({}, mode, **given)

    return case


def _both(name: str, make: _Case, labels: Any, logits: Any, **options: Any) -> dict[str, _Case]:
    """A loss with shapes known, and with none known."""
    return {
        name: _loss(make, labels, logits, **options),
        f"{name}_in_a_graph": _loss(make, labels, logits, graph=True, **options),
    }


def _optimizer() -> Any:
    return tf.keras.optimizers.legacy.SGD(0.1)


def _old_optimizer() -> Any:
    return tf.compat.v1.train.GradientDescentOptimizer(0.1)


def _no_train(loss: Any) -> Any:
    return tf.no_op()


def _multi_head(t: Stack, *heads: Any, **options: Any) -> Any:
    made = heads or (t.est.RegressionHead(name="a"), t.est.RegressionHead(name="b"))
    return t.est.MultiHead(list(made), **options)


_BINARY = _make("BinaryClassHead")
_REGRESSION = _make("RegressionHead")
_WIDE = _make("RegressionHead", label_dimension=2)
_THREE = _make("MultiClassHead", 3)
_WORDS = _make("MultiClassHead", 3, label_vocabulary=["a", "b", "c"])
_LABELS = _make("MultiLabelHead", 2)
_WEIGHTED = _make("RegressionHead", weight_column="w")
_INTEGERS = np.int64([[1], [2]])
_WIDE_LOGITS = np.ones([2, 3], np.float32)


def _sparse() -> Any:
    return tf.sparse.from_dense(_ONES)


def _bad_shape_fn(labels: Any, logits: Any) -> Any:
    return tf.ones([7])


def _abstract(t: Stack) -> Any:
    """A head that implements nothing."""
    kind = type("Bare", (t.est.Head,), {})
    kind.__abstractmethods__ = frozenset()
    return kind()


CASES: dict[str, _Case] = {
    "abstract_name": lambda t: _abstract(t).name,
    "abstract_logits_dimension": lambda t: _abstract(t).logits_dimension,
    "abstract_loss_reduction": lambda t: _abstract(t).loss_reduction,
    "abstract_loss": lambda t: _abstract(t).loss(_ONES, _ONES),
    "abstract_predictions": lambda t: _abstract(t).predictions(_ONES),
    "abstract_metrics": lambda t: _abstract(t).metrics(),
    "abstract_update_metrics": lambda t: _abstract(t).update_metrics({}, {}, _ONES, _ONES),
    "abstract_spec": lambda t: _abstract(t).create_estimator_spec({}, "train", _ONES),
    # Constructors.
    "binary_thresholds": _make("BinaryClassHead", thresholds=[0.5, 1.0]),
    "binary_vocabulary_of_a_string": _make("BinaryClassHead", label_vocabulary="ab"),
    "binary_weight_column_of_a_number": _loss(
        _make("BinaryClassHead", weight_column=3), _ONES, _ONES
    ),
    "multi_class_without_n_classes": _make("MultiClassHead", None),
    "multi_class_of_two": _make("MultiClassHead", 2),
    "multi_class_vocabulary_of_a_string": _make("MultiClassHead", 3, label_vocabulary="abc"),
    "multi_class_vocabulary_too_short": _make("MultiClassHead", 3, label_vocabulary=["a"]),
    "multi_class_of_a_tensor_of_two": lambda t: t.est.MultiClassHead(tf.constant(2)),
    "multi_label_of_one": _make("MultiLabelHead", 1),
    "multi_label_without_n_classes": _make("MultiLabelHead", None),
    "multi_label_thresholds": _make("MultiLabelHead", 2, thresholds=[0.0]),
    "multi_label_vocabulary_of_a_string": _make("MultiLabelHead", 2, label_vocabulary="ab"),
    "multi_label_vocabulary_too_short": _make("MultiLabelHead", 2, label_vocabulary=["a"]),
    "multi_label_class_names_without_vocabulary": _make(
        "MultiLabelHead", 2, classes_for_class_based_metrics=["a"]
    ),
    "multi_label_classes_without_a_label": _make(
        "MultiLabelHead", 2, label_vocabulary=["a", "b"], classes_for_class_based_metrics=["a", "z"]
    ),
    "multi_label_classes_beyond": _make("MultiLabelHead", 2, classes_for_class_based_metrics=[7]),
    "regression_of_no_dimension": _make("RegressionHead", label_dimension=0),
    "loss_reduction_unknown": _make("RegressionHead", loss_reduction="a"),
    "binary_loss_reduction_unknown": _make("BinaryClassHead", loss_reduction="a"),
    "multi_class_loss_reduction_unknown": _make("MultiClassHead", 3, loss_reduction="a"),
    "multi_label_loss_reduction_unknown": _make("MultiLabelHead", 2, loss_reduction="a"),
    "loss_fn_without_labels": _make("RegressionHead", loss_fn=lambda logits: 1.0),
    "loss_fn_of_more": _make("RegressionHead", loss_fn=lambda labels, logits, color: 1.0),
    # Losses.
    "labels_missing": _loss(_REGRESSION, None, _ONES),
    "binary_labels_missing": _loss(_BINARY, None, _ONES),
    "multi_class_labels_missing": _loss(_THREE, None, _WIDE_LOGITS),
    "multi_label_labels_missing": _loss(_LABELS, None, np.ones([2, 2], np.float32)),
    "labels_sparse": lambda t: _loss(_REGRESSION, _sparse(), _ONES)(t),
    "labels_of_rank_0": _loss(_REGRESSION, np.float32(1), _ONES),
    **_both("labels_of_rank_1", _WIDE, np.float32([1, 2]), np.ones([2, 2], np.float32)),
    **_both("labels_of_another_width", _WIDE, _ONES, np.ones([2, 2], np.float32)),
    **_both("labels_of_other_rows", _REGRESSION, np.ones([3, 1], np.float32), _ONES),
    **_both("logits_of_another_width", _REGRESSION, _ONES, _WIDE_LOGITS),
    **_both("logits_of_rank_1", _REGRESSION, _ONES, np.float32([1, 2])),
    **_both(
        "multi_class_labels_of_another_width", _THREE, np.int64([[1, 2], [0, 1]]), _WIDE_LOGITS
    ),
    **_both("multi_class_label_too_high", _THREE, np.int64([[3], [0]]), _WIDE_LOGITS),
    **_both("multi_class_label_negative", _THREE, np.int64([[-1], [0]]), _WIDE_LOGITS),
    "multi_class_labels_of_floats": _loss(_THREE, _ONES, _WIDE_LOGITS),
    "multi_class_labels_of_words": _loss(_THREE, np.array([["a"], ["b"]]), _WIDE_LOGITS),
    "multi_class_numbers_for_words": _loss(_WORDS, _INTEGERS, _WIDE_LOGITS),
    **_both("binary_label_too_high", _BINARY, 3 * _ONES, _ONES),
    **_both("binary_label_negative", _BINARY, -_ONES, _ONES),
    **_both(
        "multi_label_too_high", _LABELS, np.int64([[0, 3], [1, 1]]), np.ones([2, 2], np.float32)
    ),
    "multi_label_labels_of_floats_sparse": lambda t: _loss(
        _LABELS, _sparse(), np.ones([2, 2], np.float32)
    )(t),
    "multi_label_sparse_too_high": lambda t: _loss(
        _LABELS, tf.sparse.from_dense(np.int64([[1, 7], [0, 1]])), np.ones([2, 2], np.float32)
    )(t),
    **_both(
        "weights_of_other_rows",
        _WEIGHTED,
        _ONES,
        _ONES,
        features={"w": np.ones([3, 1], np.float32)},
    ),
    **_both(
        "weights_of_another_width",
        _WEIGHTED,
        _ONES,
        _ONES,
        features={"w": np.ones([2, 4], np.float32)},
    ),
    **_both(
        "weights_of_rank_3", _WEIGHTED, _ONES, _ONES, features={"w": np.ones([2, 1, 1], np.float32)}
    ),
    **_both("weights_of_rank_0", _WEIGHTED, _ONES, _ONES, features={"w": np.float32(1)}),
    "weights_of_one_axis_less": _loss(
        _WEIGHTED,
        np.ones([2, 2, 1], np.float32),
        np.ones([2, 2, 1], np.float32),
        features={"w": np.ones([3, 1], np.float32)},
    ),
    "binary_weights_of_other_rows": _loss(
        _make("BinaryClassHead", weight_column="w"),
        _ONES,
        _ONES,
        features={"w": np.ones([3, 1], np.float32)},
    ),
    "weights_of_words": _loss(_WEIGHTED, _ONES, _ONES, features={"w": np.array([["a"], ["b"]])}),
    **_both(
        "loss_fn_of_another_shape", _make("RegressionHead", loss_fn=_bad_shape_fn), _ONES, _ONES
    ),
    # Specs.
    "spec_without_optimizer": _spec(_REGRESSION),
    "spec_with_optimizer_and_train_op_fn": _spec(
        _REGRESSION, optimizer=_optimizer, train_op_fn=_no_train, trainable_variables=list
    ),
    "spec_with_an_old_optimizer": _spec(
        _REGRESSION, optimizer=_old_optimizer, trainable_variables=list
    ),
    "spec_with_an_old_optimizer_of_a_number": _spec(
        _REGRESSION, optimizer=_old_optimizer, trainable_variables=3
    ),
    "spec_without_variables": _spec(_REGRESSION, optimizer=_optimizer),
    "spec_with_variables_of_a_number": _spec(
        _REGRESSION, optimizer=_optimizer, trainable_variables=3
    ),
    "spec_with_update_ops_of_a_number": _spec(
        _REGRESSION, train_op_fn=lambda loss: tf.no_op(), update_ops=3
    ),
    "spec_trains": _spec(_REGRESSION, train_op_fn=lambda loss: tf.no_op()),
    "spec_with_labels_of_another_width": _spec(
        _WIDE, logits=lambda: tf.ones([2, 2]), train_op_fn=lambda loss: tf.no_op()
    ),
    "spec_with_logits_of_another_width": _spec(
        _REGRESSION, logits=lambda: tf.ones([2, 3]), train_op_fn=lambda loss: tf.no_op()
    ),
    "spec_of_an_unknown_mode": _spec(_REGRESSION, "boss", train_op_fn=lambda loss: tf.no_op()),
    "prediction_key_unknown": lambda t: t.est.BinaryClassHead().predictions(
        tf.constant(_ONES), keys=["a"]
    ),
    "multi_class_prediction_key_unknown": lambda t: t.est.MultiClassHead(3).predictions(
        tf.constant(_WIDE_LOGITS), keys=["a"]
    ),
    # Several heads.
    "multi_head_of_none": lambda t: t.est.MultiHead([]),
    "multi_head_weights_of_another_length": lambda t: _multi_head(t, head_weights=[1.0]),
    "multi_head_without_names": lambda t: _multi_head(t, t.est.RegressionHead()),
    "multi_head_of_other_reductions": lambda t: (
        _multi_head(
            t, t.est.RegressionHead(name="a"), t.est.RegressionHead(name="b", loss_reduction="sum")
        ).loss_reduction
    ),
    "multi_head_logits_of_another_width": _loss(
        _multi_head, {"a": _ONES, "b": _ONES}, _WIDE_LOGITS
    ),
    "multi_head_logits_missing": _loss(_multi_head, {"a": _ONES, "b": _ONES}, {"a": _ONES}),
    "multi_head_labels_of_an_array": _loss(_multi_head, _ONES, {"a": _ONES, "b": _ONES}),
    "multi_head_labels_missing": _loss(_multi_head, {"a": _ONES}, {"a": _ONES, "b": _ONES}),
    "multi_head_spec_of_an_unknown_mode": _spec(
        _multi_head,
        "boss",
        labels=lambda: {"a": tf.constant(_ONES), "b": tf.constant(_ONES)},
        logits=lambda: {"a": tf.constant(_ONES), "b": tf.constant(_ONES)},
    ),
}
