"""The metagraph of training or of evaluation, for CPU hosts, tagged `train` or `eval`: loss, metrics, predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import tensorflow as tf

from tfx_tpu_trainer._support.imports import without_notice
from tfx_tpu_trainer.estimator._engine import tracing
from tfx_tpu_trainer.estimator._engine.evaluating import metric_ops
from tfx_tpu_trainer.estimator._mode_keys import ModeKeys
from tfx_tpu_trainer.estimator.export import _signatures, _tags
from tfx_tpu_trainer.estimator.export._cpu_metagraph import without_core_sums
from tfx_tpu_trainer.estimator.export._meta_graph import MetaGraph, ModelCall, receive
from tfx_tpu_trainer.estimator.export._outputs import ExportOutput, named_tensors

v1 = tf.compat.v1

# Where loaders look for the op that trains; TensorFlow gives the name no public constant.
_TRAIN_OP_COLLECTION = "saved_model_train_op"


_LOSS = "loss"
_PREDICTIONS = "predictions"
_METRICS = "metrics"
_VALUE = "value"
_UPDATE = "update_op"


class _SupervisedOutput(ExportOutput):
    """Loss, metrics and predictions under one signature.

    The names say what is what: `loss`, `predictions/<name>`, `metrics/<name>/value` and
    `metrics/<name>/update_op`. A name that begins like its group already is left as it is, and a
    lone tensor has the name of the group.
    """

    LOSS_NAME: ClassVar[str] = _LOSS
    PREDICTIONS_NAME: ClassVar[str] = _PREDICTIONS
    METRICS_NAME: ClassVar[str] = _METRICS
    METRIC_VALUE_SUFFIX: ClassVar[str] = _VALUE
    METRIC_UPDATE_SUFFIX: ClassVar[str] = _UPDATE

    method_name: ClassVar[str]

    def __init__(self, loss: Any = None, predictions: Any = None, metrics: Any = None) -> None:
        """Checks the tensors and names them."""
        self._loss = _group(loss, _LOSS)
        self._predictions = _group(predictions, _PREDICTIONS)
        self._metrics = None if metrics is None else _named_metrics(metrics)

    @property
    def loss(self) -> dict[str, tf.Tensor] | None:
        """Output name -> tensor, or `None`."""
        return self._loss

    @property
    def predictions(self) -> dict[str, tf.Tensor] | None:
        """Output name -> tensor, or `None`."""
        return self._predictions

    @property
    def metrics(self) -> dict[str, tf.Tensor] | None:
        """Output name -> value or update of a metric, or `None`."""
        return self._metrics

    def as_signature_def(self, receiver_tensors: Mapping[str, Any]) -> Any:
        """Returns the signature; any tensors will do as inputs."""
        if not receiver_tensors:
            raise ValueError(f"{self.method_name} `inputs` cannot be empty.")
        outputs = {**(self._loss or {}), **(self._predictions or {}), **(self._metrics or {})}
        return v1.saved_model.build_signature_def(
            _tensor_infos(receiver_tensors), _tensor_infos(outputs), self.method_name
        )


class TrainOutput(_SupervisedOutput):
    """What a graph of training exports."""

    method_name = "tensorflow/supervised/training"


class EvalOutput(_SupervisedOutput):
    """What a graph of evaluation exports."""

    method_name = "tensorflow/supervised/eval"


def _group(tensors: Any, group: str) -> dict[str, tf.Tensor] | None:
    if tensors is None:
        return None
    named = named_tensors(tensors, group, label=group)
    return {_in_group(name, group): tensor for name, tensor in named.items()}


def _in_group(name: str, group: str) -> str:
    return name if name.startswith(group) else f"{group}/{name}"


def _named_metrics(metrics: Any) -> dict[str, tf.Tensor]:
    if not isinstance(metrics, Mapping):
        metrics = {_METRICS: metrics}
    named = {}
    for key, metric in metrics.items():
        joined = "/".join(key) if isinstance(key, tuple) else key
        if not isinstance(joined, str):
            raise ValueError(f"{_METRICS} output key must be a string; got {joined!r}.")
        name = _in_group(joined, _METRICS)
        value, update = metric_ops.value_and_update(name, metric)
        if not isinstance(value, tf.Tensor):
            raise ValueError(f"{name} output value must be a Tensor; got {value!r}.")
        if not (isinstance(update, tf.Operation) or tf.is_tensor(update)):
            raise ValueError(f"{name} update_op must be a Tensor or Operation; got {update!r}.")
        named[f"{name}/{_VALUE}"] = value
        named[f"{name}/{_UPDATE}"] = _as_tensor(update)
    return named


def _as_tensor(update: Any) -> tf.Tensor:
    """Returns a tensor that runs an update: a signature holds nothing else."""
    if isinstance(update, tf.Tensor):
        return update
    with tf.control_dependencies([update]):
        return tf.constant([], name="metric_op_wrapper")


def _tensor_infos(tensors: Mapping[str, Any]) -> dict[str, Any]:
    describe = without_notice(v1.saved_model.build_tensor_info)
    return {name: describe(tensor) for name, tensor in tensors.items()}


_OUTPUTS = {ModeKeys.TRAIN: TrainOutput, ModeKeys.EVAL: EvalOutput}


def build_supervised_meta_graph(
    call_model: ModelCall,
    input_receiver_fn: Callable[[], Any],
    *,
    mode: str,
    random_seed: int | None = None,
) -> MetaGraph:
    """Builds the metagraph in a separate graph."""
    with tracing.fresh_graph(random_seed):
        receiver = receive(input_receiver_fn)
        labels = getattr(receiver, "labels", None)
        spec = call_model(receiver.features, labels, mode=mode, use_tpu=False)
        if hasattr(spec, "as_estimator_spec"):
            spec = spec.as_estimator_spec()
        output = _OUTPUTS[mode](
            loss=spec.loss, predictions=spec.predictions, metrics=spec.eval_metric_ops
        )
        if spec.train_op is not None:
            v1.add_to_collection(_TRAIN_OP_COLLECTION, spec.train_op)
        signature_defs = _signatures.build_signature_defs(
            receiver.receiver_tensors,
            {mode: output},
            getattr(receiver, "receiver_tensors_alternatives", None),
            serving_only=False,
        )
        return without_core_sums(
            MetaGraph.of_default_graph(
                mode=mode, tags=_tags.of_mode(mode), signatures=signature_defs, spec=spec
            )
        )
