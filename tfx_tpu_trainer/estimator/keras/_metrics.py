"""Compiled metrics, as the function of labels and outputs that an estimator evaluates."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.keras import _forward
from tfx_tpu_trainer.estimator.keras._forward import MasksAndLogits
from tfx_tpu_trainer.estimator.keras._keras_model import KerasModel
from tfx_tpu_trainer.estimator.keras._tf_private import eagerly
from tfx_tpu_trainer.estimator.keras._trace import StandIns, Trace, graph_name, trace, unused_name

v1 = tf.compat.v1

MetricFn = Callable[..., dict[str, Any]]


def metrics_of(
    model: KerasModel,
    *,
    names: Sequence[str],
    labels: Any,
    outputs: Any,
    weights: Any,
    marks: MasksAndLogits,
    metric_names_map: Mapping[str, str] | None,
) -> tuple[MetricFn, list[tf.Tensor]] | None:
    """Returns the compiled metrics as `TPUEstimatorSpec.eval_metrics`.

    The function may be called with other tensors than these, such as those of all cores.
    """
    if labels is None or model.metric_container() is None:
        return None
    structure = (labels, outputs, weights, marks.tensors)
    flat = tf.nest.flatten(structure, expand_composites=True)
    tensors = [tensor for tensor in flat if tensor is not None]

    def metric_fn(*given: tf.Tensor) -> dict[str, Any]:
        rest = iter(given)
        filled = [None if tensor is None else next(rest) for tensor in flat]
        packed = tf.nest.pack_sequence_as(structure, filled, expand_composites=True)
        update = functools.partial(_update, model, names, marks)
        with model.in_use():
            return _metric_ops(model, update, packed, metric_names_map)

    return metric_fn, tensors


def _metric_ops(
    model: KerasModel,
    update_state: Callable[..., None],
    given: tuple[Any, ...],
    metric_names_map: Mapping[str, str] | None,
) -> dict[str, Any]:
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


def _update(
    model: KerasModel,
    names: Sequence[str],
    marks: MasksAndLogits,
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
