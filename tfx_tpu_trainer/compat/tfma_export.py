"""Replaces `tfma.export`: the receiver of an evaluation, and an export that today's TFMA reads.

TensorFlow Model Analysis no longer loads an EvalSavedModel, whose graph held the metrics. It evaluates a serving model
and computes the metrics itself, with labels and the slices' features from a signature `transform_features`. This module
exports that signature, from the same arguments.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator import Estimator
from tfx_tpu_trainer.estimator.export import HostSignature, ServingInputReceiver
from tfx_tpu_trainer.estimator.extending import host_signatures_of

__all__ = [
    "EXAMPLES",
    "LABELS",
    "TRANSFORM_SIGNATURE",
    "EvalInputReceiver",
    "build_parsing_eval_input_receiver_fn",
    "evaluation_receiver",
    "export_eval_savedmodel",
    "receive_evaluation",
]

v1 = tf.compat.v1

EXAMPLES = "examples"
"""The one key of an evaluation's receiver tensors."""

TRANSFORM_SIGNATURE = "transform_features"
"""Parses serialized tf.Examples into features and labels: `preprocessing_function_names` of a ModelSpec."""

LABELS = "labels"
"""The output of a label that is not among the features."""

_logger = logging.getLogger(__name__)

ReceiverFn = Callable[[], Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalInputReceiver:
    """The result of an eval_input_receiver_fn; mirrors `tfma.export.EvalInputReceiver`.

    Attributes:
        features: The model's features, and others to slice by: a dict of str to Tensor or SparseTensor, or a single
            one.
        labels: The labels, in the same form; `None` for a model without.
        receiver_tensors: `{"examples": placeholder}`: string [batch], serialized tf.Examples.
        input_refs: The row of `examples` that each row of the features comes from. Must be left out: today's TFMA takes
            one row for each example.
        iterator_initializer: Must be left out, for the same reason.

    Raises:
        ValueError: If the receiver tensors have other keys, or input_refs or iterator_initializer
            is given.
    """

    features: Any
    labels: Any
    receiver_tensors: Mapping[str, Any]
    input_refs: Any = None
    iterator_initializer: str | None = None

    def __post_init__(self) -> None:
        given = self.receiver_tensors
        if not isinstance(given, Mapping) or list(given) != [EXAMPLES]:
            raise ValueError(
                f"receiver_tensors must contain exactly one key named {EXAMPLES}, given: "
                f"{list(given) if isinstance(given, Mapping) else given!r}. Return "
                f"EvalInputReceiver(..., receiver_tensors={{{EXAMPLES!r}: serialized_examples}})."
            )
        for name in ("input_refs", "iterator_initializer"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: today's TensorFlow Model Analysis takes one row "
                    "of features for each example. Leave it out."
                )


def build_parsing_eval_input_receiver_fn(
    feature_spec: Mapping[str, Any], label_key: str | None
) -> ReceiverFn:
    """Makes an eval_input_receiver_fn that parses tf.Examples; mirrors TFMA's function of that name.

    Args:
        feature_spec: Feature name -> its type for `tf.io.parse_example`, label included.
        label_key: Name of the label; `None` for a model without.

    Returns:
        The function. Its features hold the label too.

    Raises:
        ValueError: If the label is not in the spec.
    """
    spec = dict(feature_spec)
    if label_key is not None and label_key not in spec:
        raise ValueError(
            f"label_key={label_key!r} is not in the feature_spec, which has {sorted(spec)}. Add it, or "
            "give None for a model without a label."
        )

    def eval_input_receiver_fn() -> EvalInputReceiver:
        examples = v1.placeholder(tf.string, [None], name="input_example_tensor")
        features = tf.io.parse_example(examples, spec)
        return EvalInputReceiver(
            features=features,
            labels=None if label_key is None else features[label_key],
            receiver_tensors={EXAMPLES: examples},
        )

    return eval_input_receiver_fn


def export_eval_savedmodel(
    *,
    estimator: Estimator,
    export_dir_base: str,
    eval_input_receiver_fn: ReceiverFn,
    serving_input_receiver_fn: ReceiverFn | None = None,
    assets_extra: Mapping[str, str] | None = None,
    checkpoint_path: str | None = None,
) -> bytes:
    """Exports a model for evaluation by TFMA; mirrors `tfma.export.export_eval_savedmodel`.

    The export is a SavedModel tagged `serve` with the model's own signatures and with
    `transform_features`. Evaluate it with
    `ModelSpec(label_key=..., preprocessing_function_names=["transform_features"])`.

    Args:
        estimator: A trained estimator.
        export_dir_base: Folder to make the timestamped folder in.
        eval_input_receiver_fn: Returns an `EvalInputReceiver`.
        serving_input_receiver_fn: Returns a ServingInputReceiver that the predictions are made
            from. Defaults to `None`: from the evaluation's features.
        assets_extra: Name below `assets.extra` -> file to copy. Defaults to `None`.
        checkpoint_path: Checkpoint to export. Defaults to the latest.

    Returns:
        The path of the export.

    Raises:
        ValueError: If there is no checkpoint, or a receiver function returned something else.
    """
    receiver_fn = functools.partial(
        evaluation_receiver,
        eval_input_receiver_fn=eval_input_receiver_fn,
        serving_input_receiver_fn=serving_input_receiver_fn,
    )
    return estimator.export_saved_model(
        export_dir_base,
        receiver_fn,
        assets_extra=assets_extra,
        checkpoint_path=checkpoint_path,
    )


def evaluation_receiver(
    *,
    eval_input_receiver_fn: ReceiverFn,
    serving_input_receiver_fn: ReceiverFn | None = None,
) -> Any:
    """Makes a serving receiver with the signature `transform_features`, in the default graph.

    Args:
        eval_input_receiver_fn: Returns features and labels.
        serving_input_receiver_fn: Returns what predictions are made from. Defaults to `None`: the
            evaluation's features.

    Returns:
        A ServingInputReceiver. A receiver of another kind, or one that has this signature already, is returned
        unchanged, with a log line.

    Raises:
        ValueError: If eval_input_receiver_fn returned something else than an EvalInputReceiver.
    """
    own: Mapping[str, Any] = {}
    if serving_input_receiver_fn is None:
        of_eval = receive_evaluation(eval_input_receiver_fn)
        receiver = ServingInputReceiver(of_eval.features, dict(of_eval.receiver_tensors))
    else:
        receiver = serving_input_receiver_fn()
        own = host_signatures_of(receiver)
        if not isinstance(receiver, ServingInputReceiver) or TRANSFORM_SIGNATURE in own:
            _logger.info(
                "The export already has the signatures %s: %r is not added.",
                type(receiver).__name__,
                TRANSFORM_SIGNATURE,
            )
            return receiver
        of_eval = receive_evaluation(eval_input_receiver_fn)
    outputs = _outputs(of_eval)
    if not outputs:
        return receiver
    return ServingInputReceiver(
        receiver.features,
        receiver.receiver_tensors,
        receiver.receiver_tensors_alternatives,
        host_signatures={
            **own,
            TRANSFORM_SIGNATURE: HostSignature(
                inputs=dict(of_eval.receiver_tensors), outputs=outputs
            ),
        },
    )


def receive_evaluation(eval_input_receiver_fn: ReceiverFn) -> EvalInputReceiver:
    """Calls an eval_input_receiver_fn in the default graph.

    Args:
        eval_input_receiver_fn: The function.

    Returns:
        The receiver.

    Raises:
        ValueError: If it returns anything else.
    """
    receiver = eval_input_receiver_fn()
    if isinstance(receiver, EvalInputReceiver):
        return receiver
    raise ValueError(
        f"eval_input_receiver_fn returned {receiver!r}, not an EvalInputReceiver: return "
        "tfx_tpu_trainer.compat.tfma_export.EvalInputReceiver(features=..., labels=..., "
        "receiver_tensors={'examples': ...}), which is tfma.export.EvalInputReceiver where "
        "compat.install() is on."
    )


def _outputs(receiver: EvalInputReceiver) -> dict[str, tf.Tensor]:
    """Returns dense features and labels by name; a label overrides a feature of the same name."""
    features = receiver.features
    named = {
        str(name): value
        for name, value in (features.items() if isinstance(features, Mapping) else ())
        if not _is_raw_and_sparse(value)
    }
    labels = _named_labels(receiver)
    return {name: _dense(value) for name, value in {**named, **labels}.items()}


def _named_labels(receiver: EvalInputReceiver) -> dict[str, Any]:
    labels, features = receiver.labels, receiver.features
    if labels is None:
        return {}
    if isinstance(labels, Mapping):
        return {str(name): value for name, value in labels.items()}
    of_features = features.items() if isinstance(features, Mapping) else ()
    return {next((str(name) for name, value in of_features if value is labels), LABELS): labels}


def _is_raw_and_sparse(value: Any) -> bool:
    """Returns whether a feature is still as parsed, so values may be missing.

    TFMA reads raw features itself, and knows a missing value there; in a dense tensor it would be a zero.
    """
    return isinstance(value, tf.SparseTensor) and value.values.op.type.startswith("ParseExample")


def _dense(value: Any) -> tf.Tensor:
    if isinstance(value, tf.SparseTensor):
        return tf.sparse.to_dense(value)
    if isinstance(value, tf.RaggedTensor):
        return value.to_tensor()
    # A tensor that is also fed or fetched elsewhere keeps its name in the signature.
    return tf.identity(value)
