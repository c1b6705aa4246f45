"""Estimator: its constructor, train, evaluate, predict and exports."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.estimator.words.stacks import Stack


class _NoHook:
    pass


def _subclass(t: Stack) -> Any:
    class Overriding(t.est.Estimator):  # type: ignore[misc]
        def train(self, *_: Any) -> None:
            pass

    return Overriding(t.model_fn, t.folder)


def _model_fn_without_labels(t: Stack) -> Any:
    return lambda features, mode: t.spec(features, tf.constant([1.0, 2.0]), mode)


def _receiver(t: Stack) -> Any:
    def receiver_fn() -> Any:
        x = tf.compat.v1.placeholder(tf.float32, [None], "x")
        return t.est.export.ServingInputReceiver({"x": x}, {"x": x})

    return receiver_fn


def _supervised(t: Stack) -> Any:
    def receiver_fn() -> Any:
        x = tf.compat.v1.placeholder(tf.float32, [None], "x")
        return t.est.experimental.build_raw_supervised_input_receiver_fn({"x": x}, {"y": x})()

    return receiver_fn


def _with_params(features: Any, labels: Any, mode: Any, params: Any) -> Any:
    raise NotImplementedError


def _unexpected(features: Any, labels: Any, mode: Any, color: Any) -> Any:
    raise NotImplementedError


def _without_features(labels: Any, mode: Any) -> Any:
    raise NotImplementedError


def _summarized(t: Stack, value: Any) -> Any:
    """Evaluates with a metric of this value."""

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        ops = {"it": (value(), tf.no_op())}
        return t.spec(features, labels, mode, eval_metric_ops=ops)

    t.trained(model_fn).evaluate(t.input_fn, steps=1)


def _predict(t: Stack, count: int = 2, input_fn: Any = None, model_fn: Any = None, **options: Any):
    made = t.trained(model_fn).predict(input_fn or t.short_input_fn, **options)
    return [next(made) for _ in range(count)]


def _predicting(t: Stack, predictions: Callable[[Any], Any]) -> Any:
    return lambda features, labels, mode: t.spec(
        features, labels, mode, predictions=predictions(features)
    )


def _tensors(t: Stack) -> Any:
    return {"x": tf.constant([1.0, 2.0])}, tf.constant([1.0, 2.0])


def _empty(t: Stack) -> Any:
    return t.input_fn().take(0)


class _StopsBefore(tf.compat.v1.train.SessionRunHook):
    """Asks for the end before the first step."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        coord.request_stop()


class _Convertible:
    """Has a tensor, and TensorFlow cannot make one of it."""

    tensor = None


def _not_convertible(*_: Any, **__: Any) -> Any:
    raise TypeError("no tensor")


tf.register_tensor_conversion_function(_Convertible, _not_convertible)


class _Listener(tf.compat.v1.train.CheckpointSaverListener):
    pass


def _train_twice(t: Stack) -> None:
    t.estimator().train(t.input_fn, max_steps=2)
    t.estimator().train(t.input_fn, max_steps=2)


def _warm_started(t: Stack) -> None:
    folder = t.trained().model_dir
    t.estimator(warm_start_from=folder).train(t.input_fn, steps=1)


def _warm_started_from_export(t: Stack) -> None:
    export = t.trained().export_saved_model(f"{t.folder}/export", _receiver(t))
    t.estimator(warm_start_from=export).train(t.input_fn, steps=1)


def _input_with_context(t: Stack, input_context: Any = None) -> Any:
    return t.input_fn()


CASES: dict[str, Callable[[Stack], Any]] = {
    "no_model_fn": lambda t: t.est.Estimator(None, t.folder),
    "model_fn_of_other_arguments": lambda t: t.estimator(_unexpected),
    "model_fn_without_features": lambda t: t.estimator(_without_features),
    "params_that_model_fn_lacks": lambda t: t.estimator(lambda features: 0, params={"a": 1}),
    "params_that_are_missing": lambda t: t.estimator(_with_params),
    "config_of_another_type": lambda t: t.estimator(config={"model_dir": t.folder}),
    "config_of_another_type_before_model_fn": lambda t: t.est.Estimator(None, config="x"),
    "model_dir_before_model_fn": lambda t: t.est.Estimator(None, "a", config=t.est.RunConfig("b")),
    "model_dir_twice": lambda t: t.est.Estimator(t.model_fn, "a", config=t.est.RunConfig("b")),
    "model_dir_nowhere": lambda t: t.est.Estimator(t.model_fn),
    "overridden_member": _subclass,
    "warm_start_from_a_number": lambda t: t.estimator(warm_start_from=3),
    "warm_start_settings_of_nothing": lambda t: t.est.WarmStartSettings(""),
    "warm_start": _warm_started,
    "warm_start_from_export": _warm_started_from_export,
    "steps_and_max_steps": lambda t: t.estimator().train(t.input_fn, steps=1, max_steps=1),
    "steps_0": lambda t: t.estimator().train(t.input_fn, steps=0),
    "max_steps_negative": lambda t: t.estimator().train(t.input_fn, max_steps=-1),
    "train": lambda t: t.estimator().train(t.input_fn, steps=1),
    "train_101_steps": lambda t: t.estimator().train(t.input_fn, steps=101),
    "train_done_before": _train_twice,
    "train_on_empty_input": lambda t: t.estimator().train(functools.partial(_empty, t)),
    "train_stopped_before_the_first_step": lambda t: t.estimator().train(
        t.input_fn, hooks=[_StopsBefore()], steps=1
    ),
    "train_with_another_hook": lambda t: t.estimator().train(
        t.input_fn, hooks=[_NoHook()], steps=1
    ),
    "train_with_another_listener": lambda t: t.estimator().train(
        t.input_fn, steps=1, saving_listeners=[_NoHook()]
    ),
    "listener_without_saver": lambda t: t.estimator(
        config=t.est.RunConfig(t.folder, save_checkpoints_steps=None, save_checkpoints_secs=None)
    ).train(t.input_fn, steps=1, saving_listeners=[_Listener()]),
    "input_fn_with_context": lambda t: t.estimator().train(
        functools.partial(_input_with_context, t), steps=1
    ),
    "input_fn_of_three": lambda t: t.estimator().train(
        lambda: (*_tensors(t), tf.constant(1.0)), steps=1
    ),
    "dataset_of_three": lambda t: t.estimator().train(
        lambda: tf.data.Dataset.from_tensors((1.0, 2.0, 3.0)), steps=1
    ),
    "model_fn_takes_no_labels": lambda t: t.estimator(_model_fn_without_labels(t)).train(
        t.input_fn, steps=1
    ),
    "model_fn_returns_no_spec": lambda t: t.estimator(
        lambda features, labels, mode: features
    ).train(t.input_fn, steps=1),
    "eval_steps_0": lambda t: t.trained().evaluate(t.input_fn, steps=0),
    "evaluate": lambda t: t.trained().evaluate(t.input_fn, steps=2, name="other"),
    "evaluate_100_steps": lambda t: t.trained().evaluate(t.input_fn, steps=20),
    "evaluate_untrained": lambda t: t.estimator().evaluate(t.input_fn, steps=1),
    "evaluate_with_another_hook": lambda t: t.trained().evaluate(
        t.input_fn, steps=1, hooks=[_NoHook()]
    ),
    "evaluate_checkpoint_that_is_missing": lambda t: t.estimator().evaluate(
        t.input_fn, steps=1, checkpoint_path=f"{t.folder}/model.ckpt-7"
    ),
    "metric_named_global_step": lambda t: t.trained(
        lambda features, labels, mode: t.spec(
            features,
            labels,
            mode,
            eval_metric_ops={"global_step": tf.compat.v1.metrics.mean(labels)},
        )
    ).evaluate(t.input_fn, steps=1),
    "metric_named_loss": lambda t: t.trained(
        lambda features, labels, mode: t.spec(
            features, labels, mode, eval_metric_ops={"loss": tf.compat.v1.metrics.mean(labels)}
        )
    ).evaluate(t.input_fn, steps=1),
    "metric_of_an_array": lambda t: _summarized(t, lambda: tf.constant([1.0, 2.0])),
    "metric_of_bytes": lambda t: _summarized(t, lambda: tf.constant(b"\xff\xff\xff no summary")),
    "metric_of_a_summary": lambda t: _summarized(
        t, lambda: tf.constant(tf.compat.v1.Summary().SerializeToString())
    ),
    "metric_of_a_bool": lambda t: _summarized(t, lambda: tf.constant(True)),
    "metric_of_a_double": lambda t: _summarized(t, lambda: tf.constant(1.0, tf.float64)),
    "predict": _predict,
    "predict_untrained": lambda t: next(t.estimator().predict(t.short_input_fn)),
    "predict_warm_started": lambda t: next(
        t.estimator(warm_start_from=t.trained().model_dir).predict(t.short_input_fn)
    ),
    "predict_another_hook": lambda t: _predict(t, hooks=[_NoHook()]),
    "predict_for_ever": lambda t: _predict(t, input_fn=lambda: _tensors(t)[0]),
    "predict_keys_unknown": lambda t: _predict(t, predict_keys=["a"]),
    "predict_keys_of_a_tensor": lambda t: _predict(
        t, predict_keys=["a"], model_fn=_predicting(t, lambda features: features["x"])
    ),
    "predict_other_lengths": lambda t: _predict(
        t,
        model_fn=_predicting(
            t, lambda features: {"a": features["x"], "b": tf.constant([1.0, 2.0, 3.0])}
        ),
    ),
    "predict_checkpoint_that_is_missing": lambda t: next(
        t.estimator().predict(t.short_input_fn, checkpoint_path=f"{t.folder}/model.ckpt-7")
    ),
    "export_with_more_variables": lambda t: t.trained(
        lambda features, labels, mode: _one_more(t, features, labels, mode)
    ).export_saved_model(t.folder, _receiver(t)),
    "receiver_of_no_tensor": lambda t: t.est.export.ServingInputReceiver(_Convertible(), {}),
    "export_without_receiver": lambda t: t.trained().export_saved_model(t.folder, None),
    "export_untrained": lambda t: t.estimator().export_saved_model(t.folder, _receiver(t)),
    "export": lambda t: t.trained().export_saved_model(
        t.folder, _receiver(t), assets_extra={"a.txt": __file__}
    ),
    "export_of_no_mode": lambda t: t.trained().experimental_export_all_saved_models(t.folder, {}),
    "export_of_an_unknown_mode": lambda t: t.trained().experimental_export_all_saved_models(
        t.folder, {"boss": _receiver(t)}
    ),
    "export_all": lambda t: t.trained().experimental_export_all_saved_models(
        t.folder, {"infer": _receiver(t), "eval": _supervised(t), "train": _supervised(t)}
    ),
    "old_export_without_receiver": lambda t: t.v1.Estimator(t.model_fn, t.folder).export_savedmodel(
        t.folder, None
    ),
    "old_export_untrained": lambda t: t.v1.Estimator(t.model_fn, t.folder).export_savedmodel(
        t.folder, _receiver(t)
    ),
    "export_a_later_graph_with_more_variables": lambda t: t.trained(
        lambda features, labels, mode: _one_more(t, features, labels, mode)
    ).experimental_export_all_saved_models(
        t.folder, {"train": _supervised(t), "infer": _receiver(t)}
    ),
    "latest_checkpoint_of_nothing": lambda t: t.estimator().get_variable_names(),
    "variable_that_is_missing": lambda t: t.trained().get_variable_value("nothing"),
    "numpy_labels_too_many": lambda t: t.estimator().train(
        lambda: ({"x": np.float32([1, 2])}, np.float32([1, 2, 3])), steps=1
    ),
}


def _one_more(t: Stack, features: Any, labels: Any, mode: str) -> Any:
    if mode == "infer":
        tf.compat.v1.get_variable("more", [], tf.float32)
    return t.spec(features, labels, mode)
