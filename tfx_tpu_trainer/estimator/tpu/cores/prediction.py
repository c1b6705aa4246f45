"""Predicts on TPU cores, emulated or real: pads short batches, and cuts the padding off the predictions."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.graph_copy import Fetch, GraphCopier, ReplicaCopier
from tfx_tpu_trainer.estimator._engine.prediction import PredictionPlan
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate
from tfx_tpu_trainer.estimator.places.host_functions import trace_host_function
from tfx_tpu_trainer.estimator.tpu.cores.feed import FiniteFeed

_MAX_BYTES = 1 << 30


def plan_prediction_on_cores(
    template: ModelTemplate,
    predictions: Mapping[str, tf.Tensor],
    feed: FiniteFeed,
    is_padding: tf.Tensor,
    *,
    cores: int,
    broadcast: bool,
    for_cores: Callable[[GraphCopier], ReplicaCopier],
) -> PredictionPlan:
    """Plans predictions over cores, one batch per session call."""
    check_predictions(template.predictions)
    # With BROADCAST every core has all rows, so that one core's predictions are enough.
    taken_from = range(1 if broadcast else cores)
    host_call = trace_host_function(template.host_call, cores=cores, broadcast=broadcast)
    copier = GraphCopier(template.graph)
    cores_copier = for_cores(copier)
    names = list(predictions)

    def one_batch() -> list[tf.Tensor]:
        drawn = feed.draw(copier)
        fed, masks = feed.cut_padded(drawn)
        for tensors, mask in zip(fed, masks):
            tensors[is_padding.name] = mask
        fetches = [Fetch(core, predictions[name]) for name in names for core in taken_from]
        count = len(fetches)
        fetches += [] if host_call is None else host_call.fetches()
        copies = cores_copier.copy(fetches, replaced=fed, name="cores")
        effects = []
        if host_call is not None:
            gathered = host_call.gathered(copies[count:])
            effects.append(host_call.run(copier, gathered, name="host_call"))
        is_real = tf.logical_not(tf.concat([masks[core] for core in taken_from], axis=0))
        n = len(taken_from)
        with tf.control_dependencies(effects):
            outputs = [
                _real_rows(tf.concat(copies[start : start + n], axis=0), is_real)
                for start in range(0, count, n)
            ]
            return [*outputs, tf.identity(drawn.total_rows)]

    *outputs, rows = tf.function(one_batch, autograph=False)()
    return PredictionPlan(template, dict(zip(names, outputs)), rows)


def _real_rows(prediction: tf.Tensor, is_real: tf.Tensor) -> tf.Tensor:
    """Cuts off the padding.

    A prediction whose first axis is not the rows is kept whole for a full batch, and cut to its first rows for a padded
    one, as in the original; the error comes when rows are iterated.
    """
    if prediction.shape[0] == is_real.shape[0]:
        return tf.boolean_mask(prediction, is_real)
    count = tf.reduce_sum(tf.cast(is_real, tf.int32))
    all_rows = tf.shape(prediction)[0]
    return prediction[: tf.where(tf.reduce_all(is_real), all_rows, count)]


def check_predictions(predictions: Any) -> None:
    """Checks that predictions can come from TPU cores.

    Raises:
        TypeError: If they are not a dict.
        ValueError: If one has no static batch, or they are too large for a transfer.
    """
    if not isinstance(predictions, Mapping):
        raise TypeError(
            f"TPUEstimatorSpec.predictions must be dict of Tensors; got {predictions!r}."
        )
    sizes = {}
    for name, tensor in predictions.items():
        if tensor.shape.rank == 0:
            raise ValueError(
                f"The tensor with key ({name}) in TPUEstimatorSpec.predictions must have the batch as its first "
                f"dimension, but is a scalar. Tensor: {tensor}. Repeat it for each row, as by tf.fill, or leave it out."
            )
        if tensor.shape.rank is None or tensor.shape[0] is None:
            raise ValueError(
                f"The tensor with key ({name}) in TPUEstimatorSpec.predictions has dynamic shape "
                f"(should be static). Tensor: {tensor}. Keep the batch as its first dimension."
            )
        known = [size or 1 for size in tensor.shape.as_list()]
        sizes[name] = math.prod(known) * tensor.dtype.size
    if sum(sizes.values()) >= _MAX_BYTES:
        shapes = {name: tuple(predictions[name].shape.as_list()) for name in sizes}
        raise ValueError(
            f"The predictions of a batch come to {sum(sizes.values())} bytes, which is too large "
            f"for a transfer from TPU (1 GiB): {shapes}. Return fewer of them, or use a smaller "
            "predict_batch_size."
        )
