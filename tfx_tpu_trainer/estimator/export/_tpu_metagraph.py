"""Builds the metagraph for TPU hosts, tagged `serve` and `tpu`: model_fn behind a TPU call, or rewritten as a whole.

Version 1 of the export's API puts all of model_fn on the TPU. In version 2, model_fn decides which part of it runs
there, and whether the rows of several requests are combined before. `params["use_tpu"]` is True while the graph for
TPUs is built, and False in the graph for CPUs, where model_fn does not use these functions:

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

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator import _user_calls
from tfx_tpu_trainer.estimator._engine import tf_private, tracing
from tfx_tpu_trainer.estimator._modes import ModeKeys
from tfx_tpu_trainer.estimator.export._meta_graph import (
    TPU_TAGS,
    MetaGraph,
    ModelCall,
    build_signature_defs,
    receive,
)
from tfx_tpu_trainer.estimator.export._outputs import (
    ExportOutput,
    normalise_export_outputs,
    own_output,
)
from tfx_tpu_trainer.estimator.export._tpu_call import (
    BatchConfig,
    call_in_batches,
    call_on_tpu,
    call_partitioned,
    check_runs_on_tpu,
    runs_on_tpu,
)

v1 = tf.compat.v1

_logger = tf.get_logger()


def build_tpu_meta_graph(
    call_model: ModelCall,
    serving_input_receiver_fn: Callable[[], Any],
    *,
    api_version: int,
    random_seed: int | None = None,
) -> MetaGraph:
    """Builds the metagraph in its own graph; needs no TPU."""
    build_outputs = {1: _rewrite_model, 2: _call_model_that_rewrites}[api_version]
    with tracing.fresh_graph(random_seed):
        receiver = receive(serving_input_receiver_fn)
        with tf_private.inference_context():
            spec, export_outputs = build_outputs(call_model, receiver)
        signature_defs = build_signature_defs(
            receiver.receiver_tensors,
            export_outputs,
            getattr(receiver, "receiver_tensors_alternatives", None),
        )
        return MetaGraph.of_default_graph(
            mode=ModeKeys.PREDICT, tags=TPU_TAGS, signatures=signature_defs, spec=spec
        )


def _call_model_that_rewrites(
    call_model: ModelCall, receiver: Any
) -> tuple[Any, Mapping[str, ExportOutput]]:
    spec = _call(call_model, receiver.features, receiver, use_tpu=True)
    # A model_fn may rewrite without this package's calls, which check their ops.
    check_runs_on_tpu(v1.get_default_graph())
    if not runs_on_tpu(v1.get_default_graph()):
        _logger.warning(
            "The exported graph for TPU hosts runs nothing on a TPU: with "
            "export_saved_model_api_version=2, model_fn must call inference_on_tpu if "
            "params['use_tpu'] is True. Version 1 puts all of model_fn on the TPU."
        )
    return spec, normalise_export_outputs(spec.export_outputs, spec.predictions)


def _rewrite_model(call_model: ModelCall, receiver: Any) -> tuple[Any, Mapping[str, ExportOutput]]:
    # use_tpu is not True: it would make a model_fn call inference_on_tpu, which can't be nested in this rewrite.
    model = rewrite_model(
        lambda features: _call(call_model, features, receiver, use_tpu=False), receiver.features
    )
    return model.spec, model.export_outputs


def _call(call_model: ModelCall, features: Any, receiver: Any, *, use_tpu: bool) -> Any:
    labels = getattr(receiver, "labels", None)
    return call_model(features, labels, mode=ModeKeys.PREDICT, use_tpu=use_tpu)


@dataclasses.dataclass(frozen=True)
class RewrittenModel:
    """A model that runs on the TPU."""

    spec: Any  # The result of model_fn; its tensors are inside the TPU computation.
    export_outputs: Mapping[str, ExportOutput]  # Tensors of the default graph.
    predictions: Any  # Tensors of the default graph; `None` if not requested.


def rewrite_model(
    call_model: Callable[[Any], Any],
    features: Any,
    *,
    batch_config: BatchConfig | None = None,
    predictions_come_out: bool = False,
) -> RewrittenModel:
    """Calls a model inside a TPU computation, which the default graph calls."""
    # A feature that the model only passes on never enters the computation, so it may be a string, which a TPU can't
    # hold.
    # model_fn makes its export outputs inside the computation, but a signature must fetch
    # tensors of the default graph. So three maps follow each tensor of an output out of the computation:
    #   stays_outside: a feature, or any other tensor of the host's graph -> itself outside;
    #   leaving: the TPU's results, in the order in which the computation returns it;
    #   come_out: both, once the call was made -> the tensor of the default graph.
    # Invariant: `note` has seen each tensor of each output, so `outside` finds all of them.
    # Example: outputs {"id": features["id"], "score": s} -> only s is returned by the TPU call,
    # and the string "id" is fetched where the request was parsed.
    # In a batch the inner features are slices that the batching op made. call_on_batch maps each to
    # the request's own feature, by filling stays_outside before model_fn runs.
    host_graph = v1.get_default_graph()
    stays_outside: dict[Any, tf.Tensor] = {}
    leaving: dict[Any, tf.Tensor] = {}
    spec: Any = None
    made_inside: dict[str, ExportOutput] = {}

    def note(tensor: tf.Tensor) -> tf.Tensor:
        if tensor.graph is host_graph:
            stays_outside[tensor.ref()] = tensor
        elif tensor.ref() not in stays_outside:
            leaving[tensor.ref()] = tensor
        return tensor

    def computation(inner_features: Any) -> list[tf.Tensor]:
        nonlocal spec
        spec = call_model(inner_features)
        given = normalise_export_outputs(spec.export_outputs, spec.predictions)
        made_inside.update({name: own_output(output) for name, output in given.items()})
        for output in made_inside.values():
            output.map_tensors(note)
        if predictions_come_out:
            tf.nest.map_structure(note, spec.predictions)
        if not leaving:
            raise ValueError(
                "Nothing is left for the TPU to compute: every export output is a feature passed "
                f"through untouched: {sorted(made_inside)}. Export with export_to_tpu=False."
            )
        return list(leaving.values())

    def call_on_batch(*tensors: tf.Tensor) -> list[tf.Tensor]:
        for inner, outer in zip(tensors, tf.nest.flatten(features), strict=True):
            stays_outside[inner.ref()] = outer
        inner_features = tf.nest.pack_sequence_as(features, tensors)
        return call_on_tpu(lambda: computation(inner_features))

    if batch_config is None:
        results = call_on_tpu(lambda: computation(features))
    else:
        results = call_in_batches(call_on_batch, tf.nest.flatten(features), batch_config)
    come_out = {**stays_outside, **dict(zip(leaving, results, strict=True))}

    def outside(tensor: tf.Tensor) -> tf.Tensor:
        return come_out[tensor.ref()]

    return RewrittenModel(
        spec=spec,
        export_outputs={name: output.map_tensors(outside) for name, output in made_inside.items()},
        predictions=(
            tf.nest.map_structure(outside, spec.predictions) if predictions_come_out else None
        ),
    )


def call_computation(
    computation_inputs: Any,
    computation: Callable[[Any], Any],
    batch_config: BatchConfig | None = None,
) -> Any:
    """Calls a computation that rewrites itself, on a TPU core of the host.

    Args:
        computation_inputs: A tensor, or a dict or other structure of tensors.
        computation: Takes the inputs in their structure; calls `tf.compat.v1.tpu.rewrite` for the part that the TPU is
            to run, and returns tensors. Its other ops run on the host.
        batch_config: How the rows of several requests are combined. Defaults to `None`: they are not.

    Returns:
        A list of tensors, even for a single one; a dict if the computation returns one.

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
    """Rewrites a computation for the TPU and calls it there, in batches on request.

    Args:
        computation: Takes the inputs, one argument each, and returns tensors.
        inputs_to_tpu: Its inputs.
        num_batch_threads: As in `BatchConfig`, like the others.
        max_batch_size: The most rows of a batch. With `None` or 0 there is no batching, and the other numbers have no
            effect.
        batch_timeout_micros: See there.
        allowed_batch_sizes: See there. Defaults to `None`, batches are not padded.
        max_enqueued_batches: See there. Defaults to 100.

    Returns:
        A list of tensors, even for a single one; a dict if the computation returns one.

    Raises:
        NotImplementedError: If all of model_fn is rewritten already, by version 1.
        ValueError: If it returns no tensor, or the numbers or inputs are not valid for batches.
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
    """Calls a whole model_fn on the TPU, like version 1, in batches on request.

    Args:
        model_fn: Called once, in mode `"infer"`, inside the TPU computation.
        features: A tensor or a structure of tensors.
        labels: Passed to model_fn. Defaults to `None`.
        config: Passed to model_fn. Defaults to `None`.
        params: Passed to model_fn. Defaults to `None`, an empty dict.
        batch_config: How the rows of several requests are combined. Defaults to `None`: they are not.

    Returns:
        The result of model_fn, with predictions and export outputs from outside the call.

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
