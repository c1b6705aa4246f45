"""Features among the predictions of an Estimator that is there already."""

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.canned import test_on_cores as cores
from tfx_tpu_trainer import estimator as ours
from tfx_tpu_trainer.estimator import export, forward_features, tpu

v1 = tf.compat.v1

X = np.arange(12, dtype=np.float32).reshape(6, 2)
IDS = np.arange(6)


def input_fn(params=None):
    dataset = tf.data.Dataset.from_tensor_slices(({"x": X, "id": IDS}, X.sum(1)))
    return dataset.batch(2, drop_remainder=True)


def sparse_input_fn():
    def add_words(features, labels):
        words = tf.SparseTensor([[0, 0], [1, 1]], [7, 8], [2, 2])
        return {**features, "words": tf.cast(words, tf.int32)}, labels

    return input_fn().map(add_words)


def ragged_input_fn():
    def add_words(features, labels):
        return {**features, "words": tf.RaggedTensor.from_row_lengths([1, 2, 3], [1, 2])}, labels

    return input_fn().map(add_words)


def receiver():
    features = {"x": v1.placeholder(tf.float32, [None, 2]), "id": v1.placeholder(tf.int64, [None])}
    return export.ServingInputReceiver(features, features)


@pytest.fixture(scope="module")
def canned(tmp_path_factory):
    """A trained linear regressor."""
    columns = [tf.feature_column.numeric_column("x", 2)]
    folder = str(tmp_path_factory.mktemp("canned"))
    return ours.LinearRegressor(columns, model_dir=folder).train(input_fn, steps=1)


@pytest.mark.parametrize(
    ("keys", "found"),
    [(None, {"x", "id"}), ("id", {"id"}), (["id"], {"id"}), (("x", "id"), {"x", "id"})],
)
def test_the_features_of_the_keys_are_predicted(canned, keys, found):
    rows = list(forward_features(canned, keys).predict(input_fn))
    assert set(rows[0]) == {"predictions", *found}
    assert len(rows) == len(X)
    for name in found:
        np.testing.assert_array_equal([row[name] for row in rows], {"x": X, "id": IDS}[name])


def test_it_trains_and_evaluates_as_before(canned):
    forwarded = forward_features(canned, "id")
    assert forwarded.evaluate(input_fn) == canned.evaluate(input_fn)
    copy = ours.Estimator(forwarded.model_fn, config=None)
    assert copy.train(input_fn, steps=1).get_variable_value("global_step") == 1


def outputs_of(path, tags=("serve",)):
    with v1.Session(graph=tf.Graph()) as session:
        model = v1.saved_model.load(session, list(tags), path)
    return {name: sorted(each.outputs) for name, each in model.signature_def.items()}


def serialized():
    spec = {"x": tf.io.FixedLenFeature([2], tf.float32), "id": tf.io.FixedLenFeature([], tf.int64)}
    return export.build_parsing_serving_input_receiver_fn(spec)()


def test_predict_signatures_of_an_export_answer_with_them(canned, tmp_path):
    path = forward_features(canned, "id").export_saved_model(str(tmp_path), serialized)
    # The values of a regress signature have no names.
    assert outputs_of(path) == {
        "predict": ["id", "predictions"],
        "regression": ["outputs"],
        "serving_default": ["outputs"],
    }


def with_signatures(make):
    """An untrained model_fn's Estimator; `make` gets its predictions and makes its export outputs."""

    def model_fn(features, labels, mode):
        predictions = {"y": v1.get_variable("w", []) * features["x"][:, 0]}
        loss = tf.reduce_sum(predictions["y"])
        step = v1.train.get_global_step()
        return ours.EstimatorSpec(
            mode,
            predictions=predictions,
            loss=loss,
            train_op=v1.train.GradientDescentOptimizer(0.1).minimize(loss, step),
            export_outputs=make(predictions),
        )

    return ours.Estimator(model_fn).train(input_fn, steps=1)


@pytest.mark.parametrize(
    ("make", "outputs"),
    [
        (lambda predictions: None, {"serving_default": ["id", "y"]}),
        (
            lambda predictions: {
                "serving_default": export.PredictOutput(predictions["y"]),
                "other": export.PredictOutput(predictions["y"]),
            },
            {"serving_default": ["id", "output"], "other": ["output"]},
        ),
    ],
)
def test_signatures_of_a_model_fn(tmp_path, make, outputs):
    """The original looks at two names, and leaves other signatures as they are."""
    forwarded = forward_features(with_signatures(make), "id")
    assert outputs_of(forwarded.export_saved_model(str(tmp_path), receiver)) == outputs


def test_a_sparse_feature_becomes_dense(canned):
    forwarded = forward_features(canned, ["words"], sparse_default_values={"words": -1})
    rows = list(forwarded.predict(sparse_input_fn))
    assert [row["words"].tolist() for row in rows[:2]] == [[7, -1], [-1, 8]]


@pytest.mark.matrix
def test_cores_predict_them(tmp_path):
    canned = forward_features(cores.combined(ours, model_dir=str(tmp_path)), ["town", "weight"])
    estimator = cores.on_cores(canned, tmp_path, 2).train(cores.train_input_fn, steps=3)
    features, _ = cores.rows()
    rows = list(estimator.predict(cores.eval_input_fn))
    for name in ("town", "weight"):
        np.testing.assert_array_equal([row[name] for row in rows], features[name])
    assert isinstance(estimator, tpu.TPUEstimator)


@pytest.mark.parametrize(
    ("keys", "error", "says"),
    [
        (3, TypeError, "keys should be either a string or a list of strings. Given: 3, a int"),
        ([3], TypeError, "There exist an item with type: int, 3"),
    ],
)
def test_keys_are_checked_at_once(canned, keys, error, says):
    with pytest.raises(error, match=says):
        forward_features(canned, keys)


@pytest.mark.parametrize(
    ("given", "input_fn", "says"),
    [
        ({"keys": "no"}, input_fn, r"Key \"no\" is not in features dict.*\['id', 'x'\]"),
        ({"keys": "words"}, sparse_input_fn, r"\(words\) should be a Tensor.*is SparseTensor"),
        ({"keys": "words"}, ragged_input_fn, r"\(words\) should be a Tensor.*is RaggedTensor"),
        (
            {"keys": "id", "sparse_default_values": {"id": 0}},
            input_fn,
            r"Feature \(id\) is expected to be a `SparseTensor`",
        ),
        ({}, lambda: tf.data.Dataset.from_tensors(tf.ones([2])), "Features should be a dict"),
    ],
)
def test_features_are_checked(given, input_fn, says):
    def model_fn(features, mode):
        return ours.EstimatorSpec(mode, predictions={"y": tf.constant([1.0, 2.0])})

    with pytest.raises(ValueError, match=says):
        next(forward_features(ours.Estimator(model_fn), **given).predict(input_fn))


@pytest.mark.parametrize(
    ("predictions", "says"),
    [
        (lambda x: {"x": x}, r"Cannot forward feature key \(x\).*\['x'\]"),
        (lambda x: x, "Predictions should be a dict"),
    ],
)
def test_predictions_are_checked(predictions, says):
    def model_fn(features, mode):
        return ours.EstimatorSpec(mode, predictions=predictions(features["x"]))

    with pytest.raises(ValueError, match=says):
        next(forward_features(ours.Estimator(model_fn)).predict(input_fn))


def metric_fn(features, labels, predictions, config):
    """Error of each row times its weight, and what the others are told by name."""
    assert config.model_dir
    error = tf.cast(labels, tf.float32) - predictions["logistic"][:, 0]
    return {"weighted": v1.metrics.mean(error * features["weight"]), "loss_twice": _keras(error)}


def _keras(error):
    metric = tf.keras.metrics.Mean()
    metric.update_state(error)
    return metric


@pytest.fixture(scope="module")
def expected(classifier) -> tuple[float, float]:
    """By formula, from the predictions."""
    features, labels = cores.rows()
    rows = list(classifier.predict(lambda: cores.eval_input_fn({"batch_size": 4})))
    error = labels - np.array([row["logistic"][0] for row in rows])
    return (error * features["weight"]).mean(), error.mean()


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A trained linear classifier."""
    columns = [tf.feature_column.numeric_column("x", 2)]
    folder = str(tmp_path_factory.mktemp("classifier"))
    classifier = ours.LinearClassifier(columns, weight_column="weight", model_dir=folder)
    return classifier.train(lambda: cores.train_input_fn({"batch_size": 8}), steps=2)


@pytest.mark.matrix
def test_metrics_are_added_to_a_canned_estimators(classifier, expected):
    more = ours.add_metrics(classifier, metric_fn)
    metrics = more.evaluate(lambda: cores.eval_input_fn({"batch_size": 8}))
    assert "average_loss" in metrics
    np.testing.assert_allclose((metrics["weighted"], metrics["loss_twice"]), expected, rtol=1e-5)


@pytest.mark.matrix
def test_metrics_are_added_on_cores(classifier, expected):
    more = cores.on_cores(ours.add_metrics(classifier, metric_fn), classifier.model_dir, 2)
    metrics = more.evaluate(cores.eval_input_fn)
    assert "average_loss" in metrics
    np.testing.assert_allclose((metrics["weighted"], metrics["loss_twice"]), expected, rtol=1e-5)


@pytest.mark.matrix
def test_arguments_of_a_metric_fn_are_checked(tmp_path):
    classifier = ours.BaselineRegressor(model_dir=str(tmp_path))
    with pytest.raises(ValueError, match=r"not expected args: \['logits'\]"):
        ours.add_metrics(classifier, lambda labels, logits: {})
    assert isinstance(tpu.from_estimator(classifier, use_tpu=False), tpu.TPUEstimator)
