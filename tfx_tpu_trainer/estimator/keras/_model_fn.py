"""The model_fn of a Keras model, for an Estimator and for a TPUEstimator."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.checkpointing.savers import ObjectScaffold
from tfx_tpu_trainer.estimator._estimator_spec import EstimatorSpec
from tfx_tpu_trainer.estimator._modes import ModeKeys, is_on_cores
from tfx_tpu_trainer.estimator.export._outputs import PredictOutput
from tfx_tpu_trainer.estimator.keras import _forward
from tfx_tpu_trainer.estimator.keras._checkpoints import checkpoint_of
from tfx_tpu_trainer.estimator.keras._keras_model import KerasModel
from tfx_tpu_trainer.estimator.keras._optimizers import (
    GraphOptimizer,
    TracedOptimizer,
    make_optimizer,
)
from tfx_tpu_trainer.estimator.keras._tf_private import eagerly
from tfx_tpu_trainer.estimator.keras._trace import (
    GraphModel,
    StandIns,
    Trace,
    graph_name,
    trace,
    unused_name,
)
from tfx_tpu_trainer.estimator.tpu._tpu_estimator_spec import TPUEstimatorSpec

v1 = tf.compat.v1

_CLASSES = "classes"
_WRITES = ("AssignVariableOp", "AssignAddVariableOp")


@dataclasses.dataclass(frozen=True)
class KerasModelFn:
    """Makes the ops of a Keras model for each call of train, evaluate, predict or export."""

    model: KerasModel
    of_objects: bool  # Whether checkpoints are object-based.
    # Names in `evaluate` by Keras's names of metrics, or `None`.
    metric_names_map: Mapping[str, str] | None
    # Classes of `ExportOutput` by names of outputs, or `None`.
    export_outputs: Mapping[str, Any] | None
    has_first_checkpoint: bool  # Whether a checkpoint gives the variables their initial values.
    with_classes: bool = False  # Whether predictions of a single classifying output have classes.

    def for_estimator(self) -> Callable[..., Any]:
        """Returns the model_fn of an Estimator."""

        def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec | TPUEstimatorSpec:
            with self.model.in_use():
                made = self._make(features, labels, mode)
                return made.tpu_spec(mode) if is_on_cores() else made.spec(mode)

        return model_fn

    def for_tpu_estimator(self) -> Callable[..., Any]:
        """Returns the model_fn of a TPUEstimator."""

        def model_fn(
            features: Any, labels: Any, mode: str, params: Mapping[str, Any]
        ) -> TPUEstimatorSpec:
            del params
            with self.model.in_use():
                return self._make(features, labels, mode).tpu_spec(mode)

        return model_fn

    def _make(self, features: Any, labels: Any, mode: str) -> _SpecParts:
        features, weights = _forward.split_weights(features)
        labels = _forward.as_tensors(labels)
        model = self.model
        optimizer = None
        if mode == ModeKeys.TRAIN:
            if not model.is_built:
                # A model without an input shape gets its variables in its first call, and the
                # optimizer must be built for them before the step is traced.
                trace(functools.partial(_forward.predict, model), features)
            optimizer = make_optimizer(model)
            traced = isinstance(optimizer, TracedOptimizer)
            step = functools.partial(
                _forward.train,
                model,
                optimizer=optimizer.optimizer if traced else None,
                replicas=_forward.Replicas.of_this_call(),
            )
            traced_call = trace(step, features, labels, weights)
        elif mode == ModeKeys.EVAL:
            step = functools.partial(_forward.evaluate, model)
            traced_call = trace(step, features, labels, weights)
        else:
            traced_call = trace(functools.partial(_forward.predict, model), features)
        graph_model = GraphModel(model, with_values=not self.has_first_checkpoint)
        forward, train_op = _place(traced_call, graph_model, model, optimizer)
        metrics = None
        if mode == ModeKeys.EVAL:
            metrics = _metrics_of(model, forward, labels, weights, self.metric_names_map)
        predictions = dict(zip(forward.names, tf.nest.flatten(forward.outputs)))
        if self.with_classes:
            predictions = {**_classes_of(model, predictions), **predictions}
        return _SpecParts(
            predictions=predictions,
            loss=forward.loss,
            train_op=train_op,
            metrics=metrics,
            export_outputs=_export_outputs(predictions, self.export_outputs),
            checkpoint=(
                functools.partial(_checkpoint_of, model, graph_model.stand_ins, optimizer)
                if self.of_objects
                else None
            ),
        )


@dataclasses.dataclass(frozen=True)
class _SpecParts:
    """The parts of a spec."""

    predictions: dict[str, tf.Tensor]  # Tensors by names of outputs.
    loss: tf.Tensor | None
    train_op: tf.Operation | None  # The op of a training step, or `None`.
    # The metrics as `TPUEstimatorSpec.eval_metrics`, or `None`.
    metrics: tuple[Callable[..., Any], dict[str, tf.Tensor]] | None
    export_outputs: Mapping[str, Any]  # Outputs by signature name.
    # Returns the objects to save; `None` saves variables by name.
    checkpoint: Callable[[], tf.train.Checkpoint] | None

    def spec(self, mode: str) -> EstimatorSpec:
        """Returns the spec of an Estimator."""
        metric_fn, tensors = self.metrics or (dict, {})
        return EstimatorSpec(
            mode,
            predictions=self.predictions,
            loss=self.loss,
            train_op=self.train_op,
            eval_metric_ops=metric_fn(**tensors),
            export_outputs=self.export_outputs,
            scaffold=self._scaffold() if self.checkpoint is not None else None,
        )

    def tpu_spec(self, mode: str) -> TPUEstimatorSpec:
        """Returns the spec of a TPUEstimator."""
        return TPUEstimatorSpec(
            mode,
            predictions=self.predictions,
            loss=self.loss,
            train_op=self.train_op,
            eval_metrics=self.metrics,
            export_outputs=self.export_outputs,
            scaffold_fn=self._scaffold if self.checkpoint is not None else None,
        )

    def _scaffold(self) -> v1.train.Scaffold:
        assert self.checkpoint is not None
        return ObjectScaffold(self.checkpoint())


def _place(
    traced: Trace,
    graph_model: GraphModel,
    model: KerasModel,
    optimizer: TracedOptimizer | GraphOptimizer | None,
) -> tuple[_forward.Forward, tf.Operation | None]:
    """Copies a traced pass into the default graph; returns the copy and the op of a training step."""
    # Three kinds of optimizers end in one train_op. A traced one has applied its gradients in the
    # trace: its assignments are among the updates, and its count of steps is the global step. An
    # optimizer of a graph gets the copied gradients here. A traced one that does not write its count
    # in every step (it skips a step whose scaled loss overflows) needs the global step raised here.
    # Invariant: each run of the train_op raises the global step by exactly one.
    stand_ins = graph_model.stand_ins
    counts_steps = False
    updates: list[tf.Operation] = []
    if optimizer is not None:
        if isinstance(optimizer, TracedOptimizer):
            counts_steps = _is_written(traced, optimizer.iterations)
            optimizer.add_stand_ins(stand_ins, counts_steps=counts_steps)
        updates = _updates_of_the_model(traced, stand_ins, model)
    result: _forward.Forward = traced.results
    tensors = tf.nest.flatten(
        [result.outputs, result.marks.tensors, result.loss, list(result.gradients)],
        expand_composites=True,
    )
    there = [tensor for tensor in tensors if tensor is not None]
    after = None
    if optimizer is not None:
        # The op that counts steps reads no batch, and would run in the session call that finds the end of the input. So
        # every op that uses a variable waits for an input.
        after = next((tf.identity(tensor) for tensor in traced.inputs.values()), None)
    copies = traced.copy(
        [*there, *updates],
        stand_in=lambda captured: stand_ins.tensor_for(captured, traced),
        name=model.model.name,
        after=after,
    )
    rest = iter(copies[: len(there)])
    outputs, marks, loss, gradients = tf.nest.pack_sequence_as(
        [result.outputs, result.marks.tensors, result.loss, list(result.gradients)],
        [None if tensor is None else next(rest) for tensor in tensors],
        expand_composites=True,
    )
    placed = _forward.Forward(
        outputs=outputs, names=result.names, marks=result.marks.with_tensors(marks), loss=loss
    )
    if optimizer is None:
        return placed, None
    steps = copies[len(there) :]
    if isinstance(optimizer, GraphOptimizer):
        trained = [stand_ins.of(model.raw(each)) for each in model.trainable_variables]
        steps.append(optimizer.apply(list(zip(gradients, trained))))
    elif not counts_steps:
        with tf.control_dependencies(steps):
            steps = [v1.assign_add(v1.train.get_or_create_global_step(), 1)]
    return placed, tf.group(*steps, name="train_op")


def _checkpoint_of(model: KerasModel, *arguments: Any) -> tf.train.Checkpoint:
    with model.in_use():
        return checkpoint_of(model, *arguments)


def _is_written(traced: Trace, variable: tf.Variable) -> bool:
    """Returns whether each step of a trace changes a variable, not only in a branch."""
    return any(
        op.type in _WRITES and any(handle is variable.handle for handle in traced.handles_of(op))
        for op in traced.updates
    )


def _updates_of_the_model(
    traced: Trace, stand_ins: StandIns, model: KerasModel
) -> list[tf.Operation]:
    """Returns the updates of a trace without those of metrics only, which training does not need."""
    # Keras's loss updates metrics, such as the mean of each loss. An op without a handle (a print, a
    # py_function) stays, as does one that also writes a model's variable.
    of_metrics = {
        id(model.raw(variable).handle)
        for metric in model.model.metrics
        for variable in metric.variables
    }

    def changes_the_model(op: tf.Operation) -> bool:
        handles = traced.handles_of(op)
        return not handles or any(
            stand_ins.has(handle) or id(handle) not in of_metrics for handle in handles
        )

    return [op for op in traced.updates if changes_the_model(op)]


def _export_outputs(
    predictions: Mapping[str, tf.Tensor], classes: Mapping[str, Any] | None
) -> dict[str, Any]:
    outputs: dict[str, Any] = {
        tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY: PredictOutput(dict(predictions))
    }
    unknown = sorted(set(classes or {}) - set(predictions))
    if unknown:
        names = list(predictions)
        raise _forward.MissingKeysError(
            f"The list passed into {names} does not cover requested {dict(classes or {})} keys "
            f"defined in the keras model.\n\tExpected keys: {sorted(classes or {})}\n\t{names} keys: "
            f"{sorted(names)}\n\tMissed keys: {unknown}\nGive export_outputs the names of outputs."
        )
    for name, output in (classes or {}).items():
        outputs[name] = output(predictions[name])
    return outputs


def _classes_of(model: KerasModel, predictions: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    loss = model.crossentropy
    if loss is None or len(predictions) != 1:
        return {}
    (values,) = predictions.values()
    if not loss.binary:
        return {_CLASSES: tf.argmax(values, axis=-1)}
    return {_CLASSES: tf.cast(values > (0.0 if loss.from_logits else 0.5), tf.int64)}


def _metrics_of(
    model: KerasModel,
    forward: _forward.Forward,
    labels: Any,
    weights: Any,
    metric_names_map: Mapping[str, str] | None,
) -> tuple[Callable[..., dict[str, Any]], dict[str, tf.Tensor]] | None:
    """Returns the compiled metrics as `TPUEstimatorSpec.eval_metrics`, also for tensors of all cores."""
    if labels is None or model.metric_container() is None:
        return None
    structure = (labels, forward.outputs, weights, forward.marks.tensors)
    flat = tf.nest.flatten(structure, expand_composites=True)
    # These names tell readers of an evaluation's rows which are labels and which predictions.
    loss = model.crossentropy
    outputs = "logits" if loss is not None and loss.from_logits else "predictions"
    names = [
        kind if len(tf.nest.flatten(part, expand_composites=True)) == 1 else f"{kind}/{number}"
        for kind, part in zip(("labels", outputs, "weights", "marks"), structure)
        for number, _ in enumerate(tf.nest.flatten(part, expand_composites=True))
    ]
    tensors = {name: tensor for name, tensor in zip(names, flat) if tensor is not None}

    def metric_fn(**given: tf.Tensor) -> dict[str, Any]:
        filled = [given.get(name) for name in names]
        packed = tf.nest.pack_sequence_as(structure, filled, expand_composites=True)
        update = functools.partial(_update_metrics, model, forward.names, forward.marks)
        with model.in_use():
            return _metric_ops(model, update, packed, metric_names_map)

    return metric_fn, tensors


def _metric_ops(
    model: KerasModel,
    update_state: Callable[..., None],
    given: tuple[Any, ...],
    metric_names_map: Mapping[str, str] | None,
) -> dict[str, Any]:
    # Traced separately, so a value can be fetched without an update. Both share the stand-ins: an
    # eager variable of both has one local variable in this graph.
    updates = trace(update_state, *given)
    values = trace(model.metric_results)
    renamed = _renamed(list(values.results), metric_names_map)
    if not renamed:
        return {}
    stand_ins = StandIns()
    fresh = eagerly(model.fresh_metric_values)

    def stand_in(source: Trace, captured: Any) -> tf.Tensor:
        for variable in source.variables:
            if variable.handle is captured and not stand_ins.has(captured):
                taken = {each.op.name for each in v1.local_variables()}
                name = unused_name(f"metrics/{graph_name(variable.name)}", taken)
                stand_ins.add(name, variable, first_value=fresh.get(id(captured)), local=True)
        return stand_ins.tensor_for(captured, source)

    copied = updates.copy(
        updates.updates, stand_in=functools.partial(stand_in, updates), name="metrics/update"
    )
    update = tf.group(*copied)
    results = values.copy(
        list(values.results.values()), stand_in=functools.partial(stand_in, values), name="metrics"
    )
    return {renamed[name]: (value, update) for name, value in zip(values.results, results)}


def _update_metrics(
    model: KerasModel,
    names: Sequence[str],
    marks: _forward.MasksAndLogits,
    labels: Any,
    outputs: Any,
    weights: Any,
    of_marks: list[Any],
) -> None:
    outputs = marks.with_tensors(of_marks).put(outputs)
    each = _forward.model_weights(names, weights)
    model.update_metrics(
        _forward.model_labels(names, outputs, labels),
        outputs,
        None if each is None else tf.nest.pack_sequence_as(outputs, each),
    )


def _renamed(known: Sequence[str], metric_names_map: Mapping[str, str] | None) -> dict[str, str]:
    if not metric_names_map:
        return {name: name for name in known}
    unknown = sorted(set(known) - set(metric_names_map))
    if unknown:
        raise ValueError(
            f"Invalid `metric_names_map`. The following keras model metric names: {unknown} do not "
            f"exist in the `metric_names_map` dictionary {dict(metric_names_map)}. Add them."
        )
    extra = sorted(set(metric_names_map) - set(known))
    if extra:
        raise ValueError(
            "Invalid `metric_names_map`. There are unexpected keys in the `metric_names_map` "
            f"dictionary. Expected keys: {sorted(known)}, Received: {extra}."
        )
    return dict(metric_names_map)
