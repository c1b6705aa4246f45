"""What a model_fn calls to serve on a TPU, with `export_saved_model_api_version=2`.

Version 2 leaves it to model_fn which part of it runs on the TPU, and whether the rows of several requests are combined
before. model_fn finds `params["use_tpu"]` True while the graph for TPUs is built, and False in the graph for CPUs,
where it does without these functions:

```python
def model_fn(features, labels, mode, params):
    def network(images):
        return [tf.nn.softmax(dense_layers(images))]

    if mode == ModeKeys.PREDICT and params["use_tpu"]:
        (scores,) = inference_on_tpu(
            network, [features["image"]], num_batch_threads=4, max_batch_size=64,
            batch_timeout_micros=5000, allowed_batch_sizes=[8, 64],
        )
    else:
        (scores,) = network(features["image"])
```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator import _user_calls
from tfx_tpu_trainer.estimator._mode_keys import ModeKeys
from tfx_tpu_trainer.estimator.export._batching import BatchConfig, call_in_batches
from tfx_tpu_trainer.estimator.export._tpu_call import call_on_tpu, call_partitioned
from tfx_tpu_trainer.estimator.export._tpu_metagraph import rewrite_model


def call_computation(
    computation_inputs: Any,
    computation: Callable[[Any], Any],
    batch_config: BatchConfig | None = None,
) -> Any:
    """Calls a computation that rewrites itself, on a TPU core of the host.

    Args:
        computation_inputs: A tensor, or a dict or other structure of tensors.
        computation: Takes the inputs in their structure; calls `tf.compat.v1.tpu.rewrite` for what
            the TPU shall run, and returns tensors. Its other ops run on the host.
        batch_config: How the rows of several requests are combined. Defaults to `None`, not.

    Returns:
        A list of tensors, also of a single one; a dict where the computation returns one.

    Raises:
        ValueError: If it returns no tensor, or there are inputs that cannot be batched.
    """

    def call(*tensors: tf.Tensor) -> Any:
        inputs = tf.nest.pack_sequence_as(computation_inputs, tensors)
        return call_partitioned(lambda: computation(inputs))

    return call_in_batches(call, tf.nest.flatten(computation_inputs), batch_config)


def inference_on_tpu(
    computation: Callable[..., Any],
    inputs_to_tpu: Sequence[tf.Tensor],
    num_batch_threads: int,
    max_batch_size: int | None,
    batch_timeout_micros: int,
    allowed_batch_sizes: Sequence[int] | None = None,
    max_enqueued_batches: int = 100,
) -> Any:
    """Rewrites a computation for the TPU and calls it there, in batches if wanted.

    Args:
        computation: Takes the inputs, one argument each, and returns tensors.
        inputs_to_tpu: Its inputs.
        num_batch_threads: As of `BatchConfig`, like the others.
        max_batch_size: Rows of a batch at most. `None` or 0: no batching, and the numbers around
            it mean nothing.
        batch_timeout_micros: See there.
        allowed_batch_sizes: See there. Defaults to `None`, batches are not padded.
        max_enqueued_batches: See there. Defaults to 100.

    Returns:
        A list of tensors, also of a single one; a dict where the computation returns one.

    Raises:
        NotImplementedError: If all of model_fn is rewritten already, by version 1.
        ValueError: If it returns no tensor, or the numbers or inputs do not hold for batches.
    """
    batch_config = None
    if max_batch_size:
        batch_config = BatchConfig(
            num_batch_threads=num_batch_threads,
            max_batch_size=max_batch_size,
            batch_timeout_micros=batch_timeout_micros,
            allowed_batch_sizes=allowed_batch_sizes,
            max_enqueued_batches=max_enqueued_batches,
        )

    def call(*tensors: tf.Tensor) -> Any:
        return call_on_tpu(computation, tensors)

    return call_in_batches(call, list(inputs_to_tpu), batch_config)


def model_fn_inference_on_tpu(
    model_fn: Callable[..., Any],
    features: Any,
    labels: Any = None,
    config: Any = None,
    params: Mapping[str, Any] | None = None,
    batch_config: BatchConfig | None = None,
) -> Any:
    """Calls a whole model_fn on the TPU: what version 1 does, with batching if wanted.

    Args:
        model_fn: Called once, in mode `"infer"`, inside of the TPU computation.
        features: A tensor or a structure of tensors.
        labels: Handed to model_fn. Defaults to `None`.
        config: Handed to model_fn. Defaults to `None`.
        params: Handed to model_fn. Defaults to `None`, an empty dict.
        batch_config: How the rows of several requests are combined. Defaults to `None`, not.

    Returns:
        What model_fn returned, with predictions and export outputs that stand outside of the call.

    Raises:
        NotImplementedError: If all of the caller is rewritten already, by version 1.
        ValueError: If there is nothing to run on the TPU, or there are features that cannot be
            batched.
    """

    def call_model(inner_features: Any) -> Any:
        return _user_calls.call_model_fn(
            model_fn,
            features=inner_features,
            labels=labels,
            mode=ModeKeys.PREDICT,
            params=params or {},
            config=config,
        )

    model = rewrite_model(
        call_model, features, batch_config=batch_config, predictions_come_out=True
    )
    return model.spec._replace(export_outputs=model.export_outputs, predictions=model.predictions)
