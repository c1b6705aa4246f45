"""The result of a model_fn for an Estimator, and the checks that a TPUEstimatorSpec shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.evaluating import metric_ops
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate
from tfx_tpu_trainer.estimator._modes import ModeKeys
from tfx_tpu_trainer.estimator.export import _outputs

v1 = tf.compat.v1


class NoSpecError(ValueError):
    """A model_fn returned `returned`, which is not a spec."""

    def __init__(self, message: str, *, returned: Any) -> None:
        super().__init__(message)
        self.returned = returned


def check_loss(loss: Any, mode: str | None) -> tf.Tensor | None:
    """Checks a loss and returns it as a scalar tensor."""
    if loss is None:
        if mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
            raise ValueError(f"Missing loss. Mode {mode!r} needs one in the spec.")
        return None
    _check_is_tensor(loss, "loss")
    if not (loss.dtype.is_floating or loss.dtype.is_integer):
        raise TypeError(f"loss must be of a type of numbers, such as float32, given: {loss!r}.")
    check_graph(loss, "loss")
    if loss.shape.num_elements() not in (None, 1):
        raise ValueError(f"Loss must be scalar, given: {loss}. Average it over the batch.")
    return loss if loss.shape.rank == 0 else tf.reshape(loss, [])


def check_train_op(train_op: Any, mode: str | None) -> Any:
    """Checks a train_op and returns it."""
    if train_op is None:
        if mode == ModeKeys.TRAIN:
            raise ValueError("Missing train_op. Mode 'train' needs one in the spec.")
        return None
    if isinstance(train_op, tf.Variable):
        train_op = train_op.op
    if not isinstance(train_op, (tf.Operation, tf.Tensor)):
        raise TypeError(f"train_op must be Operation or Tensor, given: {train_op!r}.")
    check_graph(train_op, "train_op")
    return train_op


def check_predictions(predictions: Any, mode: str | None) -> Any:
    """Checks predictions and returns them; a dict is copied, and `None` becomes `{}`."""
    if predictions is None:
        if mode == ModeKeys.PREDICT:
            raise ValueError("Missing predictions. Mode 'infer' needs them in the spec.")
        return {}
    if not isinstance(predictions, Mapping):
        _check_is_tensor(predictions, "predictions")
        check_graph(predictions, "prediction values")
        return predictions
    for name, value in predictions.items():
        _check_is_tensor(value, f"predictions[{name}]")
        check_graph(value, "prediction values", key=name)
    return dict(predictions)


def predictions_of_mode(predictions: Any, mode: str) -> Any:
    """Returns predictions; rejects an empty dict, whose session calls would read no input and never end."""
    if mode == ModeKeys.PREDICT and isinstance(predictions, Mapping) and not predictions:
        raise ValueError("Missing predictions. The spec has none, or an empty dict of them.")
    return predictions


def check_hooks(
    hooks: Iterable[Any] | None, *, message: str = "All hooks must be SessionRunHook instances"
) -> tuple[v1.train.SessionRunHook, ...]:
    """Checks hooks and returns them as a tuple."""
    return tuple_of(v1.train.SessionRunHook, hooks, message=message)


def tuple_of(kind: Any, given: Iterable[Any] | None, *, message: str) -> tuple[Any, ...]:
    """Checks that all of some objects are of a kind and returns them as a tuple."""
    if given is not None and not isinstance(given, Iterable):
        raise TypeError(f"{message}, given: {given!r}. Give a list of them.")
    several = tuple(given or ())
    for each in several:
        if not isinstance(each, kind):
            raise TypeError(f"{message}, given: {each!r}")
    return several


def hooks_of_mode(spec: Any, mode: str) -> tuple[v1.train.SessionRunHook, ...]:
    """Returns the hooks that a spec has for a mode."""
    return {
        ModeKeys.TRAIN: spec.training_hooks,
        ModeKeys.EVAL: spec.evaluation_hooks,
        ModeKeys.PREDICT: spec.prediction_hooks,
    }[mode]


def check_graph(value: Any, what: str, *, key: Any = None) -> None:
    """Checks that a tensor or op is in the default graph, or in one around it."""
    # An export for TPUs calls model_fn in a function's graph, where an unchanged feature is a tensor of the graph
    # around it.
    if tf.executing_eagerly():
        return
    graph = v1.get_default_graph()
    while graph is not None:
        if value.graph is graph:
            return
        graph = getattr(graph, "outer_graph", None)
    name = value.name if key is None else f"{key}: {value.name}"
    raise ValueError(
        f'{what} with "{name}" must be from the default graph. Possible causes of this error '
        f"include: {what} was created outside model_fn, or in an earlier call of it. Create every "
        "tensor inside model_fn."
    )


def _check_is_tensor(value: Any, what: str) -> None:
    # A sparse or ragged tensor has several tensors, and a session returns no array for it.
    if not isinstance(value, (tf.Tensor, tf.Variable)):
        raise TypeError(f"{what} must be Tensor, given: {value!r}.")


class _Fields(NamedTuple):
    mode: str | None
    predictions: Any
    loss: tf.Tensor | None
    train_op: Any
    eval_metric_ops: Mapping[str, Any]
    export_outputs: Mapping[str, Any] | None
    training_chief_hooks: tuple[v1.train.SessionRunHook, ...]
    training_hooks: tuple[v1.train.SessionRunHook, ...]
    scaffold: v1.train.Scaffold
    evaluation_hooks: tuple[v1.train.SessionRunHook, ...]
    prediction_hooks: tuple[v1.train.SessionRunHook, ...]


class EstimatorSpec(_Fields):
    """The ops and objects that a model_fn returns to an Estimator; mirrors `tf.estimator.EstimatorSpec`.

    Mode `"train"` needs `loss` and `train_op`, `"eval"` needs `loss`, `"infer"` needs `predictions`; other fields are
    optional.

    Examples:
        >>> from tfx_tpu_trainer.estimator import EstimatorSpec, ModeKeys
        >>> import tensorflow as tf
        >>> def model_fn(features, labels, mode):
        ...     logits = features @ tf.compat.v1.get_variable("weights", [2, 1])
        ...     if mode == ModeKeys.PREDICT:
        ...         return EstimatorSpec(mode, predictions={"logits": logits})
        ...     loss = tf.reduce_mean(tf.square(logits - labels))
        ...     optimizer = tf.compat.v1.train.AdamOptimizer()
        ...     step = tf.compat.v1.train.get_or_create_global_step()
        ...     return EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, step))
        >>> with tf.Graph().as_default():
        ...     spec = model_fn(tf.ones([4, 2]), labels=None, mode=ModeKeys.PREDICT)
        >>> sorted(spec.predictions), sorted(spec.export_outputs)
        (['logits'], ['serving_default'])
    """

    __slots__ = ()

    def __new__(
        cls,
        mode: str | None,
        predictions: Any = None,
        loss: tf.Tensor | None = None,
        train_op: Any = None,
        eval_metric_ops: Mapping[str, Any] | None = None,
        export_outputs: Mapping[str, Any] | None = None,
        training_chief_hooks: Iterable[v1.train.SessionRunHook] | None = None,
        training_hooks: Iterable[v1.train.SessionRunHook] | None = None,
        scaffold: v1.train.Scaffold | None = None,
        evaluation_hooks: Iterable[v1.train.SessionRunHook] | None = None,
        prediction_hooks: Iterable[v1.train.SessionRunHook] | None = None,
    ) -> EstimatorSpec:
        """Checks the fields and makes a spec."""
        train_op = check_train_op(train_op, mode)
        loss = check_loss(loss, mode)
        predictions = check_predictions(predictions, mode)
        if mode == ModeKeys.PREDICT:
            export_outputs = _outputs.normalise_export_outputs(export_outputs, predictions)
        return super().__new__(
            cls,
            mode=mode,
            predictions=predictions,
            loss=loss,
            train_op=train_op,
            eval_metric_ops=_check_eval_metric_ops(eval_metric_ops),
            export_outputs=export_outputs,
            training_chief_hooks=check_hooks(training_chief_hooks),
            training_hooks=check_hooks(training_hooks),
            scaffold=_check_scaffold(scaffold),
            evaluation_hooks=check_hooks(evaluation_hooks),
            prediction_hooks=check_hooks(prediction_hooks),
        )

    def _replace(self, **changes: Any) -> EstimatorSpec:
        """Returns a checked copy with some fields changed."""
        unknown = sorted(set(changes) - set(self._fields))
        if unknown:
            raise ValueError(
                f"Got unexpected field names: {unknown}; the fields are {self._fields}."
            )
        if changes.get("mode", self.mode) != self.mode:
            raise ValueError(
                f"mode of EstimatorSpec cannot be changed. It is {self.mode!r}, given: "
                f"{changes['mode']!r}."
            )
        return EstimatorSpec(**{**self._asdict(), **changes})

    def as_template(self, *, mode: str, features: Any, labels: Any) -> ModelTemplate:
        """Returns the engine's view of this spec."""
        return ModelTemplate(
            graph=v1.get_default_graph(),
            mode=mode,
            features=features,
            labels=labels,
            loss=self.loss,
            train_op=self.train_op,
            predictions=predictions_of_mode(self.predictions, mode),
            eval_metrics=None,
            eval_metric_ops=self.eval_metric_ops,
            host_call=None,
            make_scaffold=lambda: self.scaffold,
            hooks=hooks_of_mode(self, mode),
            chief_hooks=self.training_chief_hooks if mode == ModeKeys.TRAIN else (),
        )


def _check_eval_metric_ops(eval_metric_ops: Mapping[str, Any] | None) -> dict[str, tuple[Any, Any]]:
    """Returns the metrics as pairs of a value and an update op; wrappers read these."""
    if eval_metric_ops is None:
        return {}
    if not isinstance(eval_metric_ops, Mapping):
        raise TypeError(
            f"eval_metric_ops must be a dict, given: {eval_metric_ops!r}. Give metric name -> "
            "(value, update_op)."
        )
    pairs = {}
    for name, metric in eval_metric_ops.items():
        pairs[name] = metric_ops.checked_pair(name, metric)
        metric_ops.add_metric_variables(metric)
        for part in tf.nest.flatten(pairs[name]):
            check_graph(part, "eval_metric_ops", key=name)
    return pairs


def _check_scaffold(scaffold: v1.train.Scaffold | None) -> v1.train.Scaffold:
    scaffold = scaffold or v1.train.Scaffold()
    if not isinstance(scaffold, v1.train.Scaffold):
        raise TypeError(f"scaffold must be tf.train.Scaffold. Given: {scaffold!r}.")
    return scaffold
