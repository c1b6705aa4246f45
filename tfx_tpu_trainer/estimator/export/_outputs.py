"""Defines what a signature exports: predictions, classes with scores, a value, or loss and metrics.

A model_fn returns these in `export_outputs` of its spec, in mode `"infer"`. Each becomes one signature of the
SavedModel, of the kind that TensorFlow Serving's Predict, Classify or Regress call takes. TensorFlow's own classes of
the same names, which libraries import from the original's modules, are accepted, too.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import tensorflow as tf

from tfx_tpu_trainer._support.imports import without_notice
from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.evaluating import metric_ops

v1 = tf.compat.v1

DEFAULT_SIGNATURE = v1.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY

SINGLE_OUTPUT_NAME = "output"

_LOSS = "loss"
_PREDICTIONS = "predictions"
_METRICS = "metrics"
_VALUE = "value"
_UPDATE = "update_op"


class ExportOutput(abc.ABC):
    """One output of a model that can be served; the base of the kinds below."""

    @abc.abstractmethod
    def as_signature_def(self, receiver_tensors: Mapping[str, Any]) -> Any:
        """Returns the signature that feeds `receiver_tensors` and fetches this output.

        Args:
            receiver_tensors: Input name -> tensor to feed.

        Returns:
            A `SignatureDef`.

        Raises:
            ValueError: If an output of this kind cannot be fed by these tensors.
        """

    def map_tensors(self, fn: Callable[[tf.Tensor], tf.Tensor]) -> ExportOutput:
        """Returns a copy of this output with `fn(tensor)` in place of each tensor.

        The exporter uses it to replace the tensors that model_fn made inside the TPU call by those that leave it.

        Args:
            fn: Called once for every tensor, in a fixed order.

        Returns:
            An output of the same kind, with the same keys.

        Raises:
            ValueError: If outputs of this kind cannot be served from a TPU.
        """
        raise _not_for_tpus(self)


class PredictOutput(ExportOutput):
    """Named tensors of any type: the response of TensorFlow Serving's Predict call."""

    def __init__(self, outputs: Any) -> None:
        """Checks the tensors and names them.

        Args:
            outputs: A tensor, which is then called `output`, or a dict of str to tensor. A key may also be a tuple of
                strings, which is joined by `/`, as in heads of several heads.

        Raises:
            ValueError: If a key is not a string, or a value is not a tensor.
        """
        self._outputs = named_tensors(outputs, SINGLE_OUTPUT_NAME, label="Prediction")

    @property
    def outputs(self) -> dict[str, tf.Tensor]:
        """Output name -> tensor."""
        return self._outputs

    def as_signature_def(self, receiver_tensors: Mapping[str, Any]) -> Any:
        """Returns a predict signature; any tensors will do as inputs."""
        return v1.saved_model.predict_signature_def(dict(receiver_tensors), self._outputs)

    def map_tensors(self, fn: Callable[[tf.Tensor], tf.Tensor]) -> PredictOutput:
        """Returns a copy with `fn(tensor)` in place of each tensor."""
        return PredictOutput({name: fn(tensor) for name, tensor in self._outputs.items()})


class ClassificationOutput(ExportOutput):
    """Classes, their scores, or both: the response of TensorFlow Serving's Classify call.

    Classes alone are the best ones, best first. Scores alone are one for each class, in the order of the class ids.
    With both, a score belongs to the class at the same position.
    """

    def __init__(self, scores: tf.Tensor | None = None, classes: tf.Tensor | None = None) -> None:
        """Checks the tensors.

        Args:
            scores: Floating point scores, [batch, classes]. Defaults to `None`.
            classes: Labels as strings, not ids, [batch, classes]. Defaults to `None`.

        Raises:
            ValueError: If neither is given, or one is not a tensor of its type.
        """
        if scores is not None and not _is_floating(scores):
            raise ValueError(f"Classification scores must be a float32 Tensor; got {scores}.")
        if classes is not None and not _has_type(classes, tf.string):
            raise ValueError(
                f"Classification classes must be a string Tensor; got {classes}. "
                "Turn ids into labels first, for instance with tf.as_string."
            )
        if scores is None and classes is None:
            raise ValueError(
                "Cannot create a ClassificationOutput with empty arguments. At least one of "
                "`scores` and `classes` must be defined."
            )
        self._scores = scores
        self._classes = classes

    @property
    def scores(self) -> tf.Tensor | None:
        """The scores, or `None`."""
        return self._scores

    @property
    def classes(self) -> tf.Tensor | None:
        """The labels, or `None`."""
        return self._classes

    def as_signature_def(self, receiver_tensors: Mapping[str, Any]) -> Any:
        """Returns a classify signature.

        Raises:
            ValueError: If it would not be fed by one string tensor.
        """
        examples = _only_string_tensor(receiver_tensors, "Classification")
        return v1.saved_model.classification_signature_def(examples, self._classes, self._scores)

    def map_tensors(self, fn: Callable[[tf.Tensor], tf.Tensor]) -> ClassificationOutput:
        """Returns a copy with `fn(tensor)` in place of each tensor; `None` stays."""
        return ClassificationOutput(
            scores=None if self._scores is None else fn(self._scores),
            classes=None if self._classes is None else fn(self._classes),
        )


class RegressionOutput(ExportOutput):
    """One value per row: the response of TensorFlow Serving's Regress call."""

    def __init__(self, value: tf.Tensor) -> None:
        """Checks the tensor.

        Args:
            value: Floating point values, [batch, 1].

        Raises:
            ValueError: If it is not a floating point tensor.
        """
        if not _is_floating(value):
            raise ValueError(f"Regression output value must be a float32 Tensor; got {value}.")
        self._value = value

    @property
    def value(self) -> tf.Tensor:
        """The values."""
        return self._value

    def as_signature_def(self, receiver_tensors: Mapping[str, Any]) -> Any:
        """Returns a regress signature.

        Raises:
            ValueError: If it would not be fed by one string tensor.
        """
        examples = _only_string_tensor(receiver_tensors, "Regression")
        return v1.saved_model.regression_signature_def(examples, self._value)

    def map_tensors(self, fn: Callable[[tf.Tensor], tf.Tensor]) -> RegressionOutput:
        """Returns a copy with `fn(tensor)` in place of the values."""
        return RegressionOutput(fn(self._value))


class _SupervisedOutput(ExportOutput):
    """Loss, metrics and predictions under one signature.

    The outputs are named `loss`, `predictions/<name>`, `metrics/<name>/value` and `metrics/<name>/update_op`. A name
    that already begins with its group stays, and a single tensor has the name of the group.
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
    """The export output of a graph for training."""

    method_name = "tensorflow/supervised/training"


class EvalOutput(_SupervisedOutput):
    """The export output of a graph for evaluation."""

    method_name = "tensorflow/supervised/eval"


def own_output(output: Any) -> ExportOutput:
    """Converts an output, possibly TensorFlow's, to one of this module."""
    if isinstance(output, ExportOutput):
        return output
    if isinstance(output, tf_private.export_output.ClassificationOutput):
        return ClassificationOutput(output.scores, output.classes)
    if isinstance(output, tf_private.export_output.RegressionOutput):
        return RegressionOutput(output.value)
    if isinstance(output, tf_private.export_output.PredictOutput):
        return PredictOutput(output.outputs)
    raise _not_for_tpus(output)


def normalise_export_outputs(
    export_outputs: Mapping[str, Any] | None, predictions: Any
) -> dict[str, Any]:
    """Checks a spec's export outputs, and adds a default one if necessary."""
    if export_outputs is None:
        return {DEFAULT_SIGNATURE: PredictOutput(predictions)}
    if not isinstance(export_outputs, Mapping):
        raise TypeError(
            f"`export_outputs` must be dict, received: {export_outputs!r}. Give "
            f"{{{DEFAULT_SIGNATURE!r}: output}}."
        )
    for name, output in export_outputs.items():
        if not isinstance(output, (ExportOutput, tf_private.export_output.ExportOutput)):
            raise TypeError(
                "Values in `export_outputs` must be ExportOutput objects, received: "
                f"{output!r} for key: {name!r}. Wrap it, for instance in PredictOutput."
            )
    normalised = dict(export_outputs)
    # A single output is served under its own name and as the default.
    if len(normalised) == 1:
        (output,) = normalised.values()
        normalised[DEFAULT_SIGNATURE] = output
    if normalised and DEFAULT_SIGNATURE not in normalised:
        raise ValueError(
            "Multiple `export_outputs` were provided, but none of them are specified as the "
            "default. Use `tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY` to specify a "
            f"default: {DEFAULT_SIGNATURE!r}; the outputs are {list(normalised)}."
        )
    return normalised


def named_tensors(tensors: Any, single_name: str, *, label: str) -> dict[str, tf.Tensor]:
    """Returns a tensor or a dict of tensors as a new dict of str to tensor."""
    if not isinstance(tensors, Mapping):
        tensors = {single_name: tensors}
    named = {}
    for key, tensor in tensors.items():
        name = _joined(key, label)
        if not isinstance(tensor, tf.Tensor):
            raise ValueError(
                f"{label} output value must be a Tensor; got {tensor!r} for key: {name!r}."
            )
        named[name] = tensor
    return named


def _joined(key: Any, label: str) -> str:
    name = "/".join(key) if isinstance(key, tuple) else key
    if not isinstance(name, str):
        raise ValueError(f"{label} output key must be a string; got {name!r}.")
    return name


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
        name = _in_group(_joined(key, _METRICS), _METRICS)
        value, update = metric_ops.value_and_update(name, metric)
        if not isinstance(value, tf.Tensor):
            raise ValueError(f"{name} output value must be a Tensor; got {value!r}.")
        if not (isinstance(update, tf.Operation) or tf.is_tensor(update)):
            raise ValueError(f"{name} update_op must be a Tensor or Operation; got {update!r}.")
        named[f"{name}/{_VALUE}"] = value
        named[f"{name}/{_UPDATE}"] = _as_tensor(update)
    return named


def _as_tensor(update: Any) -> tf.Tensor:
    """Returns a tensor that runs an update, since a signature holds only tensors."""
    if isinstance(update, tf.Tensor):
        return update
    with tf.control_dependencies([update]):
        return tf.constant([], name="metric_op_wrapper")


def _tensor_infos(tensors: Mapping[str, Any]) -> dict[str, Any]:
    describe = without_notice(v1.saved_model.build_tensor_info)
    return {name: describe(tensor) for name, tensor in tensors.items()}


def _only_string_tensor(receiver_tensors: Mapping[str, Any], kind: str) -> tf.Tensor:
    tensors = list(receiver_tensors.values())
    if len(tensors) != 1 or not _has_type(tensors[0], tf.string):
        raise ValueError(
            f"{kind} signatures can only accept a single tensor input of type tf.string. "
            "Make the serving_input_receiver_fn create a single string placeholder and parse it "
            "with `tf.io.parse_example()`, or export a PredictOutput. "
            f"Received: {dict(receiver_tensors)}."
        )
    return tensors[0]


def _not_for_tpus(output: Any) -> ValueError:
    return ValueError(
        "`export_output` must be have type `ClassificationOutput`, `RegressionOutput`, or "
        f"`PredictOutput`; got {output!r}. Export one of these kinds, or let it be served from CPU "
        "hosts only, with export_to_tpu=False."
    )


def _is_floating(tensor: Any) -> bool:
    return isinstance(tensor, tf.Tensor) and tensor.dtype.is_floating


def _has_type(tensor: Any, dtype: tf.DType) -> bool:
    return isinstance(tensor, tf.Tensor) and tensor.dtype == dtype
