"""The result of a model_fn for a TPUEstimator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer.estimator import _estimator_spec
from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream
from tfx_tpu_trainer.estimator._engine.reporting.summaries import HostCallHook
from tfx_tpu_trainer.estimator._engine.template import HostFunction, ModelTemplate
from tfx_tpu_trainer.estimator._estimator_spec import EstimatorSpec
from tfx_tpu_trainer.estimator._modes import ModeKeys
from tfx_tpu_trainer.estimator._user_calls import positional_names, takes_varargs
from tfx_tpu_trainer.estimator.export import _outputs

v1 = tf.compat.v1
_OP_FIELDS = ("init_op", "ready_op", "ready_for_local_init_op", "local_init_op", "summary_op")


class _Fields(NamedTuple):
    mode: str | None
    predictions: Any
    loss: tf.Tensor | None
    train_op: Any
    eval_metrics: Any
    export_outputs: Mapping[str, Any] | None
    scaffold_fn: Callable[[], v1.train.Scaffold] | None
    host_call: Any
    training_hooks: tuple[v1.train.SessionRunHook, ...]
    evaluation_hooks: tuple[v1.train.SessionRunHook, ...]
    prediction_hooks: tuple[v1.train.SessionRunHook, ...]


class TPUEstimatorSpec(_Fields):
    """Ops and objects that a model_fn returns to a TPUEstimator.

    Mirrors `tf.compat.v1.estimator.tpu.TPUEstimatorSpec`. Metrics and host_call run on the host, so
    each is a pair of a function and its tensors, to be called with the tensors of all cores.

    Examples:
        >>> from tfx_tpu_trainer.estimator import tpu
        >>> import tensorflow as tf
        >>> def metric_fn(labels, logits):
        ...     classes = tf.argmax(logits, 1)
        ...     return {"accuracy": tf.compat.v1.metrics.accuracy(labels, classes)}
        >>> def model_fn(features, labels, mode, params):
        ...     logits = features @ tf.compat.v1.get_variable("weights", [4, 3])
        ...     loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, logits)
        ...     optimizer = tpu.CrossShardOptimizer(tf.compat.v1.train.AdamOptimizer())
        ...     step = tf.compat.v1.train.get_or_create_global_step()
        ...     return tpu.TPUEstimatorSpec(
        ...         mode,
        ...         loss=loss,
        ...         train_op=optimizer.minimize(loss, step),
        ...         eval_metrics=(metric_fn, [labels, logits]),
        ...     )
        >>> with tf.Graph().as_default():
        ...     spec = model_fn(tf.ones([2, 4]), tf.constant([0, 2]), "eval", {})
        ...     print(sorted(spec.as_estimator_spec().eval_metric_ops))
        ['accuracy']
    """

    __slots__ = ()

    def __new__(
        cls,
        mode: str | None,
        predictions: Any = None,
        loss: tf.Tensor | None = None,
        train_op: Any = None,
        eval_metrics: Any = None,
        export_outputs: Mapping[str, Any] | None = None,
        scaffold_fn: Callable[[], v1.train.Scaffold] | None = None,
        host_call: Any = None,
        training_hooks: Iterable[v1.train.SessionRunHook] | None = None,
        evaluation_hooks: Iterable[v1.train.SessionRunHook] | None = None,
        prediction_hooks: Iterable[v1.train.SessionRunHook] | None = None,
    ) -> TPUEstimatorSpec:
        """Checks the fields and makes a spec."""
        for name, host_function in (("eval_metrics", eval_metrics), ("host_call", host_call)):
            if host_function is not None:
                _check_host_function(name, host_function)
        hooks = {
            "training_hooks": _estimator_spec.check_hooks(training_hooks),
            "evaluation_hooks": _estimator_spec.check_hooks(evaluation_hooks),
            "prediction_hooks": _estimator_spec.check_hooks(prediction_hooks),
        }
        train_op = _estimator_spec.check_train_op(train_op, mode)
        loss = _estimator_spec.check_loss(loss, mode)
        predictions = _estimator_spec.check_predictions(predictions, mode)
        if scaffold_fn is not None and not callable(scaffold_fn):
            raise TypeError(f"scaffold_fn must be callable, given: {scaffold_fn!r}.")
        if mode == ModeKeys.PREDICT:
            export_outputs = _outputs.normalise_export_outputs(export_outputs, predictions)
        return super().__new__(
            cls,
            mode=mode,
            predictions=predictions,
            loss=loss,
            train_op=train_op,
            eval_metrics=eval_metrics,
            export_outputs=export_outputs,
            scaffold_fn=scaffold_fn,
            host_call=host_call,
            **hooks,
        )

    def as_estimator_spec(self) -> EstimatorSpec:
        """Returns the `EstimatorSpec` of a run on the host.

        It calls metric_fn, the host_call's function and scaffold_fn; a hook of every mode runs the
        host_call.
        """
        metrics = _host_function("eval_metrics", self.eval_metrics)
        host_call = _host_function("host_call", self.host_call)
        hooks = () if host_call is None else (HostCallHook(host_call()),)
        return EstimatorSpec(
            mode=self.mode,
            predictions=self.predictions,
            loss=self.loss,
            train_op=self.train_op,
            eval_metric_ops=None if metrics is None else metrics(),
            export_outputs=self.export_outputs,
            scaffold=self.scaffold_fn() if self.scaffold_fn else None,
            training_hooks=self.training_hooks + hooks,
            evaluation_hooks=self.evaluation_hooks + hooks,
            prediction_hooks=self.prediction_hooks + hooks,
        )

    def as_template(self, *, mode: str, features: Any, labels: Any) -> ModelTemplate:
        """Returns the engine's view of this spec, whose host functions are not called yet."""
        return ModelTemplate(
            graph=v1.get_default_graph(),
            mode=mode,
            features=features,
            labels=labels,
            loss=_estimator_spec.check_loss(self.loss, mode),
            train_op=_estimator_spec.check_train_op(self.train_op, mode),
            predictions=_estimator_spec.predictions_of_mode(self.predictions, mode),
            eval_metrics=_of_cores(_host_function("eval_metrics", self.eval_metrics)),
            eval_metric_ops={},
            host_call=_of_cores(_host_function("host_call", self.host_call)),
            make_scaffold=self._make_scaffold,
            hooks=_estimator_spec.hooks_of_mode(self, mode),
            chief_hooks=(),
        )

    def _make_scaffold(self) -> v1.train.Scaffold:
        scaffold = self.scaffold_fn() if self.scaffold_fn else None
        return v1.train.Scaffold() if scaffold is None else scaffold


def _host_function(name: str, pair: Any) -> HostFunction | None:
    if pair is None:
        return None
    # Checked again, since `_replace` of a named tuple does not call `__new__`.
    _check_host_function(name, pair)
    function, tensors = pair
    return HostFunction(name, function, tensors)


def _of_cores(function: HostFunction | None) -> HostFunction | None:
    """Checks that cores can send a host function's arguments; on the host any value is allowed."""
    for value in () if function is None else tf.nest.flatten(function.tensors):
        if not tf.is_tensor(value):
            assert function is not None
            raise TypeError(
                f"{function.name}[1] must hold tensors, given: {value!r}. Bind other values to the function with "
                "functools.partial, or make tensors of them with tf.constant."
            )
    return function


def _check_host_function(name: str, pair: Any) -> None:
    if not isinstance(pair, (tuple, list)):
        raise ValueError(f"{name} should be tuple or list (function, tensors); got {pair!r}.")
    if len(pair) != 2:
        raise ValueError(f"{name} should have two elements, (function, tensors); got {len(pair)}.")
    function, tensors = pair
    if not callable(function):
        raise TypeError(f"{name}[0] should be callable; got {function!r}.")
    if not isinstance(tensors, (tuple, list, dict)):
        raise ValueError(f"{name}[1] should be tuple or list, or dict; got {tensors!r}.")
    if isinstance(tensors, dict) or takes_varargs(function):
        return
    names = positional_names(function)
    if len(tensors) != len(names):
        raise RuntimeError(
            f"In TPUEstimatorSpec.{name}, length of tensors {len(tensors)} does not match method "
            f"args of the function, which takes {len(names)}: {list(names)}."
        )


def make_host_scaffold(
    scaffold_fn: Callable[[], v1.train.Scaffold | None], inputs: Sequence[tf.Tensor | None]
) -> v1.train.Scaffold:
    """Calls scaffold_fn and checks that its result can run without the cores."""
    graph = v1.get_default_graph()
    known = len(graph.get_operations())
    scaffold = scaffold_fn()
    if scaffold is None:
        raise ValueError(
            "TPUEstimatorSpec.scaffold_fn returns None, which is not allowed: it must return a "
            "tf.compat.v1.train.Scaffold. Leave it out if none is needed. scaffold_fn: "
            f"{scaffold_fn!r}"
        )
    if not isinstance(scaffold, v1.train.Scaffold):
        raise TypeError(
            f"TPUEstimatorSpec.scaffold_fn must return a tf.compat.v1.train.Scaffold. Given: {scaffold!r}."
        )
    named = [getattr(scaffold, field) for field in _OP_FIELDS]
    nodes = [getattr(node, "op", node) for node in tf.nest.flatten(named)]
    # Ops that scaffold_fn made or named, such as a local_init_op of model_fn.
    ops = [*graph.get_operations()[known:], *(op for op in nodes if isinstance(op, tf.Operation))]
    on_cores = {tensor.op for tensor in inputs if tensor is not None}
    for op in ops:
        if not on_cores.isdisjoint(upstream([op])):
            raise ValueError(
                f"scaffold_fn: op {op.name!r} depends on TPU computation, which is not allowed: "
                "a scaffold runs on the host, without the features and labels of a core."
            )
    return scaffold
