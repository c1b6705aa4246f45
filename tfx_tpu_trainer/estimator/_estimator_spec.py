"""The result of a model_fn for an Estimator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer.estimator import _spec_checks
from tfx_tpu_trainer.estimator._engine.evaluating import metric_ops
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate
from tfx_tpu_trainer.estimator._mode_keys import ModeKeys
from tfx_tpu_trainer.estimator.export import _outputs

v1 = tf.compat.v1


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
        train_op = _spec_checks.check_train_op(train_op, mode)
        loss = _spec_checks.check_loss(loss, mode)
        predictions = _spec_checks.check_predictions(predictions, mode)
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
            training_chief_hooks=_spec_checks.check_hooks(training_chief_hooks),
            training_hooks=_spec_checks.check_hooks(training_hooks),
            scaffold=_check_scaffold(scaffold),
            evaluation_hooks=_spec_checks.check_hooks(evaluation_hooks),
            prediction_hooks=_spec_checks.check_hooks(prediction_hooks),
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
            predictions=_spec_checks.predictions_of_mode(self.predictions, mode),
            eval_metrics=None,
            eval_metric_ops=self.eval_metric_ops,
            host_call=None,
            make_scaffold=lambda: self.scaffold,
            hooks=_spec_checks.hooks_of_mode(self, mode),
            chief_hooks=self.training_chief_hooks if mode == ModeKeys.TRAIN else (),
        )


def _check_eval_metric_ops(
    eval_metric_ops: Mapping[str, Any] | None,
) -> dict[str, tuple[Any, Any]]:
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
            _spec_checks.check_graph(part, "eval_metric_ops", key=name)
    return pairs


def _check_scaffold(scaffold: v1.train.Scaffold | None) -> v1.train.Scaffold:
    scaffold = scaffold or v1.train.Scaffold()
    if not isinstance(scaffold, v1.train.Scaffold):
        raise TypeError(f"scaffold must be tf.train.Scaffold. Given: {scaffold!r}.")
    return scaffold
