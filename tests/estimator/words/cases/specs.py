"""EstimatorSpec: what it checks when it is made; add_metrics."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.estimator.words.stacks import Stack


def _spec(mode: str = "train", **fields: Any) -> Callable[[Stack], Any]:
    """A spec of the model with these fields, which are made in its graph where they are callable."""

    def case(t: Stack) -> Any:
        t.graph()
        features = {"x": tf.constant([1.0, 2.0])}
        made = {name: field() if callable(field) else field for name, field in fields.items()}
        return t.spec(features, tf.constant([1.0, 2.0]), mode, **made)

    return case


def _elsewhere(make: Callable[[], Any]) -> Callable[[], Any]:
    def made() -> Any:
        with tf.Graph().as_default():
            return make()

    return made


def _fresh_metric() -> Any:
    return {"m": tf.keras.metrics.Mean(name="fresh")}


def _replaced_mode(t: Stack) -> Any:
    return _spec()(t)._replace(mode="eval")


def _without_default(t: Stack) -> Any:
    def output() -> Any:
        return t.est.export.PredictOutput({"y": tf.constant([1.0])})

    return _spec("infer", export_outputs=lambda: {"a": output(), "b": output()})(t)


def _added(t: Stack, metric_fn: Any) -> Any:
    return t.est.add_metrics(t.trained(), metric_fn).evaluate(t.input_fn, steps=1)


CASES: dict[str, Callable[[Stack], Any]] = {
    "train_without_train_op": _spec(train_op=None),
    "train_without_loss": _spec(loss=None),
    "eval_without_loss": _spec("eval", loss=None),
    "predict_without_predictions": _spec("infer", predictions=None),
    "train_op_of_a_number": _spec(train_op=3),
    "train_op_of_another_graph": _spec(train_op=_elsewhere(lambda: tf.no_op())),
    "loss_of_a_string": _spec(loss="a"),
    "loss_of_a_number": _spec(loss=1.0),
    "loss_of_a_vector": _spec(loss=lambda: tf.constant([1.0, 2.0])),
    "loss_of_one_element": _spec(loss=lambda: tf.constant([1.0])),
    "loss_of_another_graph": _spec(loss=_elsewhere(lambda: tf.constant(1.0))),
    "prediction_of_a_number": _spec("infer", predictions={"a": 1.0}),
    "predictions_of_a_list": _spec("infer", predictions=[1.0]),
    "prediction_of_another_graph": _spec(
        "infer", predictions=_elsewhere(lambda: {"a": tf.constant(1.0)})
    ),
    "predictions_of_another_graph": _spec(
        "infer", predictions=_elsewhere(lambda: tf.constant(1.0))
    ),
    "training_hook_of_another_type": _spec(training_hooks=["a"]),
    "chief_hook_of_another_type": _spec(training_chief_hooks=["a"]),
    "evaluation_hook_of_another_type": _spec("eval", evaluation_hooks=["a"]),
    "prediction_hook_of_another_type": _spec("infer", prediction_hooks=["a"]),
    "metrics_of_a_list": _spec("eval", eval_metric_ops=["a"]),
    "metric_of_a_tensor": _spec("eval", eval_metric_ops=lambda: {"a": tf.constant(1.0)}),
    "metric_of_one": _spec("eval", eval_metric_ops=lambda: {"a": (tf.constant(1.0),)}),
    "metric_of_another_graph": _spec(
        "eval", eval_metric_ops=_elsewhere(lambda: {"a": (tf.constant(1.0), tf.no_op())})
    ),
    "keras_metric_never_updated": _spec("eval", eval_metric_ops=_fresh_metric),
    "export_outputs_of_a_list": _spec("infer", export_outputs=["a"]),
    "export_output_of_a_number": _spec("infer", export_outputs={"serving_default": 1}),
    "export_outputs_without_default": _without_default,
    "scaffold_of_another_type": _spec(scaffold="a"),
    "mode_unknown": _spec("boss"),
    "mode_replaced": _replaced_mode,
    "metric_fn_of_other_arguments": lambda t: _added(t, lambda features, color: {}),
    "metric_fn": lambda t: _added(t, lambda labels: {"more": tf.compat.v1.metrics.mean(labels)}),
}
