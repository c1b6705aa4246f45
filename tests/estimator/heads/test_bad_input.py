"""What heads refuse beyond the original's conditions, which words/cases/heads.py has."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator.heads import (
    BinaryClassHead,
    Head,
    LogisticRegressionHead,
    MultiClassHead,
    MultiHead,
    MultiLabelHead,
    RegressionHead,
)

v1 = tf.compat.v1

LOGITS = np.zeros([2, 1], np.float32)
THREE_LOGITS = np.zeros([2, 3], np.float32)


class Unfinished(Head):
    name = "unfinished"
    logits_dimension = 1
    loss_reduction = "sum"

    def loss(self, labels, logits, features=None, mode=None, regularization_losses=None):
        return tf.reduce_sum(logits - labels)

    def predictions(self, logits, keys=None):
        return {"logits": logits}

    def metrics(self, regularization_losses=None):
        return {}

    def update_metrics(
        self, eval_metrics, features, logits, labels, mode=None, regularization_losses=None
    ):
        return eval_metrics


_CONSTRUCTORS: dict[type[Exception], list[tuple[Callable[[], Any], str]]] = {
    ValueError: [
        (lambda: BinaryClassHead(label_vocabulary=["a", "a"]), r"\['a'\] more"),
        (lambda: BinaryClassHead(label_vocabulary=[]), r"strings. Given: \[\]"),
        (lambda: BinaryClassHead(label_vocabulary=[1, 2]), r"Given: \[1, 2\]"),
        (lambda: MultiHead([RegressionHead(name="a")] * 2), r"unique names. Given: \['a', 'a'\]"),
    ],
    TypeError: [
        (lambda: MultiClassHead("3"), "a number. Given: '3'"),
        (lambda: MultiLabelHead("3"), "^'<' not supported between .* 'str' and"),
        (lambda: MultiLabelHead(3.5), "whole number. Given: 3.5"),
        (lambda: Head(), "abstract"),
        (
            lambda: MultiHead(5),
            r"^'int' object is not iterable: heads must be a list, such as .*; got 5\.$",
        ),
        (lambda: MultiHead(RegressionHead(name="a")), "heads must be a list"),
        (lambda: MultiHead([RegressionHead]), r"heads\[0\].* a class: call it"),
        (
            lambda: MultiHead([RegressionHead(name="a")], head_weights=5),
            r"head_weights must be a list, such as \[1.0, 2.0\]; got 5",
        ),
        (
            lambda: MultiHead([RegressionHead(name="a")], head_weights=["x"]),
            "head_weights must be a number; got 'x'",
        ),
        (lambda: BinaryClassHead(loss_fn=5), "^unsupported callable: loss_fn.*got 5"),
        (lambda: BinaryClassHead(thresholds=5), "thresholds must be a list.*got 5"),
        (
            lambda: MultiLabelHead(3, classes_for_class_based_metrics=5),
            "classes_for_class_based_metrics must be a list.*got 5",
        ),
        (lambda: RegressionHead(2.5), "label_dimension must be a whole.*got 2.5"),
        (lambda: RegressionHead(inverse_link_fn=5), "inverse_link_fn must be a function; got 5"),
    ],
    AttributeError: [
        (
            lambda: MultiHead([RegressionHead(name="a"), 5]),
            r"^'int' object has no attribute 'logits_dimension': heads\[1\] must be a Head.*got 5",
        )
    ],
}


@pytest.mark.parametrize(
    ("make", "message", "error"),
    [(*each, error) for error, given in _CONSTRUCTORS.items() for each in given],
)
def test_a_heads_constructor_refuses(
    make: Callable[[], Any], message: str, error: type[Exception]
) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: BinaryClassHead().loss([["a"], ["b"]], LOGITS), "label_vocabulary"),
        (
            lambda: BinaryClassHead(label_vocabulary=["a", "b"]).loss([["a"], ["c"]], LOGITS),
            r"labels that it lacks: \[b'c'\]",
        ),
        (
            lambda: BinaryClassHead(label_vocabulary=["a", "b"]).loss([[0], [1]], LOGITS),
            "should be string .* Instead got .*int32",
        ),
        (
            lambda: BinaryClassHead("weight").loss([[1], [0]], LOGITS, {"x": [1.0]}),
            r"Feature weight is not in features dictionary.*\['x'\]",
        ),
        (
            lambda: BinaryClassHead("weight").loss([[1], [0]], LOGITS, {"weight": [1.0, 2.0, 3.0]}),
            r"logits_shape: \(2, 1\). weights_shape: \(3, 1\). They are the feature 'weight'",
        ),
        (
            lambda: BinaryClassHead("weight").loss([[1], [0]], LOGITS, {"weight": ["a", "b"]}),
            "castable to float. Given dtype: .*string.* of the feature 'weight'",
        ),
        (
            lambda: BinaryClassHead("weight").loss(
                [[1], [0]], LOGITS, {"weight": tf.sparse.from_dense([[1.0], [2.0]])}
            ),
            "SparseTensor is not supported. key: weight",
        ),
        (
            lambda: MultiLabelHead(3).loss(tf.sparse.from_dense([["a"], ["b"]]), THREE_LOGITS),
            "Instead got .*string.*: give the head a label_vocabulary",
        ),
        (
            lambda: LogisticRegressionHead().loss([[0.5], [1.5]], LOGITS),
            r"range \[0, 1\].*greatest label is 1.5",
        ),
        (
            lambda: RegressionHead(2, "weight").loss(
                np.zeros([2, 2]), np.zeros([2, 2]), {"weight": np.ones([2, 3])}
            ),
            r"logits_dimension\], logits_shape.* They are the feature 'weight'",
        ),
    ],
)
def test_a_heads_loss_refuses(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_label_that_the_vocabulary_lacks_is_refused_by_the_session() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        given = v1.placeholder(tf.string, [None, 1])
        loss = MultiClassHead(3, label_vocabulary=["a", "b", "c"]).loss(given, THREE_LOGITS)
        session.run(v1.tables_initializer())
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"that it lacks: \] \[d\]"):
            session.run(loss, {given: [["a"], ["d"]]})


def test_logits_of_an_unknown_shape_are_checked_by_the_session() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        logits = v1.placeholder(tf.float32)
        predictions = MultiClassHead(3).predictions(logits, ["probabilities"])
        shown = session.run(predictions, {logits: THREE_LOGITS})
        np.testing.assert_allclose(shown["probabilities"], np.full([2, 3], 1 / 3))
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"logits_dimension"):
            session.run(predictions, {logits: LOGITS})


def test_a_head_of_ones_own_must_say_how_it_makes_a_spec() -> None:
    with pytest.raises(
        NotImplementedError, match=r"Subclasses of Head must implement .* Unfinished has"
    ):
        Unfinished().create_estimator_spec({}, "train", LOGITS, LOGITS)


def test_strings_of_an_unknown_shape_are_looked_up_when_they_run() -> None:
    head = BinaryClassHead(label_vocabulary=["no", "yes"])
    with tf.Graph().as_default(), v1.Session() as session:
        given = v1.placeholder(tf.string)
        loss = head.loss(given, LOGITS)
        session.run(v1.tables_initializer())
        # Sigmoid cross entropy of a logit of 0, whatever the label is.
        assert session.run(loss, {given: [["no"], ["yes"]]}) == pytest.approx(np.log(2.0))
        with pytest.raises(tf.errors.InvalidArgumentError, match="Labels must be >= 0"):
            session.run(loss, {given: [["no"], ["maybe"]]})


@pytest.mark.parametrize("dtype", [tf.float64, tf.int32])
def test_a_loss_fn_may_give_any_number_type(dtype: tf.DType) -> None:
    head = BinaryClassHead("weight", loss_fn=lambda labels, logits: tf.ones([2, 1], dtype))
    loss = head.loss([[1], [0]], LOGITS, {"weight": [1.0, 3.0]})
    assert (loss.dtype, loss.numpy()) == (dtype, 2)


@pytest.mark.parametrize(
    ("value", "dtype", "fix"),
    [(True, "bool", "Cast them to int64"), ("yes", "string", "Give a SparseTensor of strings")],
)
def test_dense_labels_of_a_multi_label_head_are_numbers(value: Any, dtype: str, fix: str) -> None:
    def loss() -> tf.Tensor:
        return MultiLabelHead(3).loss(tf.constant([[value] * 3] * 2), THREE_LOGITS)

    with pytest.raises(
        TypeError, match=f"^Cannot convert 1 to EagerTensor of dtype {dtype}.*{fix}"
    ):
        loss()
    message = f"^Expected {dtype}, but got 1 of type 'int'.*{fix}"
    with tf.Graph().as_default(), pytest.raises(TypeError, match=message):
        loss()


def test_a_label_that_a_multi_label_heads_vocabulary_lacks_is_out_of_bounds() -> None:
    head = MultiLabelHead(3, label_vocabulary=["a", "b", "c"])
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"^Indices are not valid \(out of bounds\).* labels that it lacks: \[b'd'\]",
    ):
        head.loss(tf.sparse.from_dense([["a"], ["d"]]), THREE_LOGITS)


def test_a_class_that_the_vocabulary_lacks_is_predicted_as_unknown() -> None:
    head = BinaryClassHead(label_vocabulary=["no"])
    classes = head.predictions(np.array([[-1.0], [1.0]], np.float32))["classes"]
    assert classes.numpy().tolist() == [[b"no"], [b"UNK"]]


def test_weights_may_be_true_and_false() -> None:
    loss = BinaryClassHead("weight").loss([[1], [0]], LOGITS, {"weight": [True, False]})
    assert loss.numpy() == pytest.approx(np.log(2.0) / 2)


@pytest.mark.parametrize(
    ("head", "given", "message"),
    [
        (lambda: BinaryClassHead("weight"), {"weight": [[2.0]]}, "weights shape"),
        (lambda: RegressionHead(1, "weight"), {"weight": [[1.0, 2.0]] * 2}, "weights shape"),
        (lambda: MultiClassHead(3, "weight"), {"weight": [[1.0, 2.0]] * 2}, "weights shape"),
        (
            lambda: BinaryClassHead(loss_fn=lambda labels, logits: tf.ones([2])),
            {},
            r"loss_fn must return .*\[logits_shape: \] \[2 1\] \[loss_shape: \] \[2\]",
        ),
    ],
)
def test_shapes_of_weights_and_losses_in_a_graph_are_the_sessions_to_refuse(
    head: Callable[[], Head], given: dict[str, Any], message: str
) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        features = {name: tf.constant(value) for name, value in given.items()}
        made = head()
        loss = made.loss([[1], [0]], np.zeros([2, made.logits_dimension]), features)
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(loss)


@pytest.mark.parametrize(
    ("head", "labels", "weights", "words"),
    [
        # What TensorFlow 2.15's heads say in the session; ours go on.
        (
            lambda: RegressionHead(2, "weight"),
            [[1.0, 0.0]] * 2,
            [[1.0]] * 3,
            (
                "[weights shape must be [D0, D1, ... DN], [D0, D1, ... DN, 1] or [D0, D1, ... DN, "
                "logits_dimension]] [logits_shape: ] [2 2] [weights_shape: ] [3 1]"
            ),
        ),
        (
            lambda: MultiLabelHead(2, "weight"),
            [[1, 0]] * 2,
            [[1.0]] * 3,
            (
                "[weights shape must be [D0, D1, ... DN] or [D0, D1, ... DN, 1]] [logits_shape: ] "
                "[2 2] [weights_shape: ] [3 1]"
            ),
        ),
    ],
)
def test_the_session_refuses_shapes_in_the_words_of_the_original(
    head: Callable[[], Head], labels: Any, weights: Any, words: str
) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        features = {"weight": v1.placeholder_with_default(tf.constant(weights), None)}
        made = head()
        hidden = v1.placeholder_with_default(tf.constant(labels), None, "labels")
        loss = made.loss(hidden, tf.zeros([2, 2]), features)
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            session.run(loss)
    assert f"assertion failed: {words}" in str(caught.value)


def test_weights_of_one_axis_less_are_told_of_as_they_are_given() -> None:
    logits = np.ones([2, 2, 1], np.float32)
    with pytest.raises(ValueError, match=r"logits_shape: \(2, 2, 1\). weights_shape: \(3, 1\)."):
        RegressionHead(1, "weight").loss(logits, logits, {"weight": np.ones([3, 1])})


def test_an_evaluation_refuses_weights_of_a_known_wrong_shape_when_it_is_built() -> None:
    head = RegressionHead(1, "weight")
    message = r"^weights can not be broadcast to values. Mismatch at dim 1. values.shape=\(2, 1\)"
    with tf.Graph().as_default():
        features, zeros = {"weight": tf.ones([2, 3])}, tf.zeros([2, 1])
        with pytest.raises(ValueError, match=message):
            head.create_estimator_spec(features, "eval", logits=zeros, labels=zeros)


def test_labels_without_rows_are_refused_in_the_words_of_the_mode() -> None:
    head, short = MultiClassHead(3), "labels must have rank at least 2.  Received rank 0"
    with pytest.raises(ValueError, match=f"^{short}"):
        head.loss(1, THREE_LOGITS)
    with tf.Graph().as_default(), pytest.raises(ValueError, match=f"^labels shape .*{short}"):
        head.loss(1, THREE_LOGITS)


def test_weights_of_logits_whose_width_comes_with_them() -> None:
    head, weights = RegressionHead(2, "weight"), np.array([[1.0, 2.0], [3.0, 4.0]])
    for shape in (None, [None, None]):
        with tf.Graph().as_default(), v1.Session() as session:
            logits = v1.placeholder(tf.float32, shape)
            loss = head.loss(np.zeros([2, 2]), logits, {"weight": weights})
            # Squared errors of 1, weighted: (1 + 2 + 3 + 4) / 4.
            assert session.run(loss, {logits: np.ones([2, 2])}) == pytest.approx(2.5)
    with pytest.raises(ValueError, match=r"Feature \(key: weight\) cannot have rank 0"):
        head.loss(np.zeros([2, 2]), np.ones([2, 2]), {"weight": 2.0})
