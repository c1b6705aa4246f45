"""What a model exports under one signature: predictions, classes with scores, or a value.

A model_fn returns these in `export_outputs` of its spec, in mode `"infer"`. Each becomes one signature of the
SavedModel, of the kind that TensorFlow Serving's Predict, Classify or Regress call takes. TensorFlow's own classes of
the same names, which libraries import from where the original has them, are taken too.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private

v1 = tf.compat.v1

DEFAULT_SIGNATURE = v1.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY

SINGLE_OUTPUT_NAME = "output"


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
        """Returns a copy of this output with `fn(tensor)` in the place of every tensor.

        The exporter needs it to put what leaves the TPU call in the place of what model_fn made
        inside of it.

        Args:
            fn: Called once for every tensor, in a fixed order.

        Returns:
            An output of the same kind, with the same keys.

        Raises:
            ValueError: If outputs of this kind cannot be served from a TPU.
        """
        raise _not_for_tpus(self)


class PredictOutput(ExportOutput):
    """Named tensors of any type: what TensorFlow Serving's Predict call answers with."""

    def __init__(self, outputs: Any) -> None:
        """Checks the tensors and names them.

        Args:
            outputs: A tensor, which is then called `output`, or a dict of str to tensor. A tuple
                of strings is taken as a key too, joined by `/`, as heads of several heads do.

        Raises:
            ValueError: If a key is not a string, or a value no tensor.
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
        """Returns a copy with `fn(tensor)` in the place of every tensor."""
        return PredictOutput({name: fn(tensor) for name, tensor in self._outputs.items()})


class ClassificationOutput(ExportOutput):
    """Classes, their scores, or both: what TensorFlow Serving's Classify call answers with.

    With classes alone they are the best ones, best first. With scores alone there is one score
    for every class, in the order of the class ids. With both, a score belongs to the class at its
    place.
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
        """Returns a copy with `fn(tensor)` in the place of every tensor; what is `None` stays so."""
        return ClassificationOutput(
            scores=None if self._scores is None else fn(self._scores),
            classes=None if self._classes is None else fn(self._classes),
        )


class RegressionOutput(ExportOutput):
    """One value a row: what TensorFlow Serving's Regress call answers with."""

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
        """Returns a copy with `fn(tensor)` in the place of the values."""
        return RegressionOutput(fn(self._value))


def own_output(output: Any) -> ExportOutput:
    """Returns an output of this module for one that may be TensorFlow's."""
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
    """Checks the export outputs of a spec and makes sure that there is a default one."""
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
        name = "/".join(key) if isinstance(key, tuple) else key
        if not isinstance(name, str):
            raise ValueError(f"{label} output key must be a string; got {name!r}.")
        if not isinstance(tensor, tf.Tensor):
            raise ValueError(
                f"{label} output value must be a Tensor; got {tensor!r} for key: {name!r}."
            )
        named[name] = tensor
    return named


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
