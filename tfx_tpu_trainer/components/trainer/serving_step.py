"""Writes warm-up requests for a server and checks the export, both with real rows."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_transform as tft

from tfx_tpu_trainer._support.messages import first_reason
from tfx_tpu_trainer._support.progress import phase
from tfx_tpu_trainer.components.trainer.settings import TrainSettings
from tfx_tpu_trainer.components.trainer.tpu_checks import CHECK, check_compiles, padded_batch_sizes
from tfx_tpu_trainer.components.trainer.train_job import TrainJob
from tfx_tpu_trainer.estimator import Estimator
from tfx_tpu_trainer.estimator.export import HostPrediction
from tfx_tpu_trainer.estimator.extending import (
    HOST_TAGS,
    SINGLE_RECEIVER_NAME,
    TPU_TAGS,
    host_signatures_of,
)
from tfx_tpu_trainer.serving import (
    LOADING_PROCESS,
    Finding,
    FreshProcess,
    MetaGraphDescription,
    RequestError,
    Sample,
    ServingCheckError,
    SignatureDescription,
    TensorDescription,
    batching_for_tpu,
    check_saved_model,
    describe_saved_model,
    read_saved_model,
    read_tfrecords,
    request_inputs,
    says_missing,
    warmup_requests,
    write_server_config,
    write_serving_check,
    write_warmup,
)

v1 = tf.compat.v1

SAMPLE_ROWS = 32
"""The number of rows for comparing the exported model."""

_logger = logging.getLogger(__name__)

# The output name of a prediction that is a single tensor.
_LONE_PREDICTION = "output"

_FIX = "give raw_examples=example_gen.outputs['examples'], the examples that Transform read"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServingStep:
    """Prepares an exported model for a server, and rejects a broken one."""

    job: TrainJob
    receiver_fn: Callable[[], Any]  # The receiver of the export.
    # The estimator on the host; `None` skips comparing the exported model's answers.
    host_estimator: Estimator | None
    # The result of compiling the metagraph for TPU hosts before the training. Defaults to `None`: it is compiled now.
    compiled: Finding | None = None

    def run(
        self, path: str, checkpoint_path: str | None, process: FreshProcess | None = None
    ) -> None:
        """Writes warm-up requests into a version folder, checks it, and writes the reports."""
        settings, model_uri = self.job.settings, self.job.model.uri
        with phase("warm-up"):
            meta_graphs = [graph for graph in describe_saved_model(path) if "serve" in graph.tags]
            padded = padded_batch_sizes(read_saved_model(path).meta_graphs)
            batch_sizes = settings.warmup_batch_sizes or padded
            receiver = TracedReceiver(self.receiver_fn)
            rows = self._rows(receiver, max(SAMPLE_ROWS, *batch_sizes, 1))
            if rows.are_real:
                self._write_warmup(path, meta_graphs, rows, batch_sizes)
        for_tpu = any(graph.tags == TPU_TAGS for graph in meta_graphs)
        write_server_config(
            model_uri,
            model_name=settings.serving_model_name,
            base_path=f"/models/{settings.serving_model_name}",
            tpu=batching_for_tpu(padded) if for_tpu else None,
        )
        if settings.serving_check != "off":

            def take() -> Sample | str:
                return self._sample(meta_graphs, receiver, rows, checkpoint_path)

            with phase("serving check"):
                self._check(path, take, max(batch_sizes, default=1), process)

    def _rows(self, receiver: TracedReceiver, count: int) -> ServingRows:
        transformed = tft.TFTransformOutput(self.job.transform_graph_path)
        taken = set(receiver.inputs.inputs)
        return serving_rows(
            self.job,
            count,
            transformed_will_do=(
                taken <= set(transformed.transformed_feature_spec())
                and not taken <= set(transformed.raw_feature_spec())
            ),
        )

    def _write_warmup(
        self,
        path: str,
        meta_graphs: list[MetaGraphDescription],
        rows: ServingRows,
        batch_sizes: tuple[int, ...],
    ) -> None:
        try:
            requests = warmup_requests(
                meta_graphs,
                rows.examples,
                defaults=rows.defaults,
                batch_sizes=batch_sizes or (1,),
                model_name=self.job.settings.serving_model_name,
            )
        except RequestError as error:
            _logger.warning(
                "Wrote no warm-up requests: %s. Servers load the model without them.", error
            )
            return
        if requests:
            write_warmup(path, requests)

    def _check(
        self,
        path: str,
        sample: Callable[[], Sample | str],
        batch_size: int,
        process: FreshProcess | None,
    ) -> None:
        settings = self.job.settings
        report = check_saved_model(
            path,
            sample=sample,
            whole_model_on_tpu=settings.export_saved_model_api_version == 1,
            timeout_seconds=settings.serving_check_timeout,
            process=process,
            further_checks={
                CHECK: lambda: self.compiled or check_compiles(path, settings, batch_size)
            },
        )
        write_serving_check(self.job.model.uri, report)
        if report.passed:
            _logger.info("The exported model passes its check: %s", report.summary())
            return
        problem = f"the exported model fails its check: {report.summary()}"
        if settings.serving_check == "error":
            raise ServingCheckError(
                f"{problem}. The export was removed; the checkpoints were kept. Fix the model, or "
                "let it pass with serving_check='warn'"
            )
        _logger.warning("serving_check='warn': %s", problem)

    def _sample(
        self,
        meta_graphs: list[MetaGraphDescription],
        receiver: TracedReceiver,
        rows: ServingRows,
        checkpoint_path: str | None,
    ) -> Sample | str:
        on_host = [graph for graph in meta_graphs if graph.tags == HOST_TAGS]
        if not on_host:
            return "it has no metagraph for CPU hosts"
        if self.host_estimator is None:
            return "its estimator predicts on TPU cores, which round differently"
        try:
            return take_sample(
                rows,
                receiver=receiver,
                meta_graph=on_host[0],
                estimator=self.host_estimator,
                checkpoint_path=checkpoint_path,
            )
        except NoSampleError as error:
            advice = "" if rows.are_real else "; to check it, give the trainer raw_examples"
            return f"{error}{advice}"


def checking_process(settings: TrainSettings) -> contextlib.AbstractContextManager[Any]:
    """Starts the process that will check the exported model; it imports while the model is evaluated."""
    if settings.serving_check == "off":
        return contextlib.nullcontext()
    return FreshProcess(LOADING_PROCESS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServingRows:
    """Rows in the form that clients send."""

    examples: tuple[bytes, ...]  # Serialized tf.Examples.
    origin: str  # Their origin, for reports.
    # Whether they are real data. Made-up rows show that a model runs, but a server would learn wrong shapes from them
    # in its warm-up.
    are_real: bool
    defaults: Mapping[str, Any]  # Feature -> its default in a row without a value.


def serving_rows(job: TrainJob, count: int, *, transformed_will_do: bool) -> ServingRows:
    """Returns transformed rows if they suffice, else raw eval examples, else made-up rows."""
    if transformed_will_do:
        return ServingRows(
            examples=_records(job.eval_files, count),
            origin="transformed eval examples",
            are_real=True,
            defaults={},
        )
    spec = tft.TFTransformOutput(job.transform_graph_path).raw_feature_spec()
    defaults = {
        name: feature.default_value
        for name, feature in spec.items()
        if isinstance(feature, tf.io.FixedLenFeature) and feature.default_value is not None
    }
    if job.raw_eval_files:
        examples = _records(job.raw_eval_files, count)
        _check_examples(examples, job.raw_eval_files)
        return ServingRows(
            examples=examples, origin="raw eval examples", are_real=True, defaults=defaults
        )
    return ServingRows(
        examples=(_made_up(spec),) * 2, origin="made-up rows", are_real=False, defaults=defaults
    )


def check_raw_examples(job: TrainJob) -> None:
    """Checks that the first raw examples are rows; the export's check would find it late."""
    if not job.raw_eval_files:
        return
    try:
        examples = _records(job.raw_eval_files, 1)
    except tf.errors.OpError as error:
        raise ValueError(
            f"raw_examples can't be read in {', '.join(job.raw_eval_files)} ({first_reason(error.message)}); "
            f"{_FIX}"
        ) from error
    _check_examples(examples, job.raw_eval_files)


def _records(patterns: Sequence[str], count: int) -> tuple[bytes, ...]:
    paths = sorted(path for pattern in patterns for path in tf.io.gfile.glob(pattern))
    return tuple(read_tfrecords(paths, limit=count))


def _check_examples(examples: Sequence[bytes], patterns: Sequence[str]) -> None:
    if not examples:
        raise ValueError(f"raw_examples have no rows in {', '.join(patterns)}; {_FIX}")
    try:
        features = tf.train.Example.FromString(examples[0]).features.feature
    except Exception as error:
        raise ValueError(f"raw_examples are not tf.Examples ({error}); {_FIX}") from error
    if not features:
        raise ValueError(f"raw_examples are not tf.Examples, or empty ones; {_FIX}")


def _made_up(spec: Mapping[str, Any]) -> bytes:
    """Returns a row with a zero, or a short text, for each value."""
    example = tf.train.Example()
    for name, feature in spec.items():
        key, shape = name, ()
        if isinstance(feature, tf.io.FixedLenFeature):
            shape = feature.shape
        elif isinstance(feature, tf.io.RaggedFeature) and not feature.partitions:
            key = feature.value_key or name
        elif not isinstance(feature, tf.io.VarLenFeature):
            continue
        count = tf.TensorShape(shape).num_elements()
        values = example.features.feature[key]
        if feature.dtype == tf.string:
            # Not the empty text, which is a value in a tf.Example but a missing one in predict_raw.
            values.bytes_list.value.extend([b"?"] * count)
        elif feature.dtype.is_floating:
            values.float_list.value.extend([0.0] * count)
        else:
            values.int64_list.value.extend([0] * count)
    return example.SerializeToString()


class NoSampleError(ValueError):
    """The reason why rows can't be sent through the receiver."""


class TracedReceiver:
    """The result of a serving_input_receiver_fn, called once in its own graph."""

    def __init__(self, receiver_fn: Callable[[], Any]) -> None:
        self._graph = tf.Graph()
        with self._graph.as_default():
            self._receiver = receiver = receiver_fn()
        self._features = receiver.features
        self._tensors = _named(receiver.receiver_tensors)
        # As a signature without outputs.
        self.inputs = SignatureDescription(
            inputs={
                key: TensorDescription(
                    tensor.dtype.name,
                    None if tensor.shape.rank is None else tuple(tensor.shape.as_list()),
                )
                for key, tensor in self._tensors.items()
            },
            outputs={},
        )

    # Each call would add ops to the graph.
    @functools.cached_property
    def host_signatures(self) -> Mapping[str, Any]:
        """Its additional signatures for the metagraph on the host, by name."""
        with self._graph.as_default():
            return host_signatures_of(self._receiver)

    def features(self, inputs: Mapping[str, np.ndarray], *, origin: str) -> Any:
        """Computes the model's features for rows."""
        with self._graph.as_default(), v1.Session() as session:
            fed = {self._tensors[key]: value for key, value in inputs.items()}
            try:
                session.run([v1.global_variables_initializer(), v1.tables_initializer()])
                return session.run(self._features, fed)
            except tf.errors.OpError as error:
                message = error.message.splitlines()[0]
                raise NoSampleError(f"the receiver fails on {origin}: {message}") from None
            except (TypeError, ValueError) as error:
                # A sparse or ragged input, which no tf.Example can fill directly.
                raise NoSampleError(f"{origin} can't be fed to the receiver: {error}") from None


def take_sample(
    rows: ServingRows,
    *,
    receiver: TracedReceiver,
    meta_graph: MetaGraphDescription,
    estimator: Estimator,
    checkpoint_path: str | None,
) -> Sample:
    """Predicts rows with the estimator, using the features that the receiver makes."""
    try:
        inputs = request_inputs(receiver.inputs, rows.examples, defaults=rows.defaults)
    except RequestError as error:
        raise NoSampleError(f"{rows.origin} don't fit the receiver: {error}") from None
    features = receiver.features(inputs, origin=rows.origin)
    asked = _inputs_by_signature(meta_graph, inputs, receiver.host_signatures, rows)
    return Sample(
        inputs={name: of for name, (of, judged) in asked.items() if judged},
        predictions=_predictions(estimator, features, checkpoint_path),
        further_inputs={name: of for name, (of, judged) in asked.items() if not judged},
    )


def _named(tensors: Any) -> Mapping[str, Any]:
    return tensors if isinstance(tensors, Mapping) else {SINGLE_RECEIVER_NAME: tensors}


def _inputs_by_signature(
    meta_graph: MetaGraphDescription,
    inputs: Mapping[str, np.ndarray],
    host_signatures: Mapping[str, Any],
    rows: ServingRows,
) -> dict[str, tuple[Mapping[str, np.ndarray], bool]]:
    """Returns each signature's inputs, and whether its outputs are predictions of the same names."""
    found: dict[str, tuple[Mapping[str, np.ndarray], bool]] = {}
    for name, signature in meta_graph.signatures.items():
        if isinstance(host_signatures.get(name), HostPrediction):
            if says_missing(signature, rows.examples):
                _logger.info("Signature %r is not checked: rows hold empty values.", name)
                continue
            try:
                asked = request_inputs(signature, rows.examples, defaults=rows.defaults)
                found[name] = asked, True
            except RequestError as error:
                _logger.warning("Signature %r is not checked: %s.", name, error)
        elif name in host_signatures:
            continue
        elif set(signature.inputs) == set(inputs):
            found[name] = inputs, True
        elif len(signature.inputs) == len(inputs) == 1:
            # Classification and regression signatures name their single input themselves.
            asked = {next(iter(signature.inputs)): next(iter(inputs.values()))}
            # A prediction called `classes`, as in canned estimators, is the most likely one.
            found[name] = asked, not _names_all_classes(signature)
    return found


def _names_all_classes(signature: SignatureDescription) -> bool:
    return (
        signature.method_name == tf.saved_model.CLASSIFY_METHOD_NAME
        and tf.saved_model.CLASSIFY_OUTPUT_CLASSES in signature.outputs
    )


def _predictions(
    estimator: Estimator, features: Any, checkpoint_path: str | None
) -> dict[str, np.ndarray]:
    def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
        del params
        # A single batch, as the server will see it: other batches would round differently.
        return tf.data.Dataset.from_tensors(features)

    predicted = next(
        estimator.predict(input_fn, checkpoint_path=checkpoint_path, yield_single_examples=False)
    )
    if not isinstance(predicted, Mapping):
        predicted = {_LONE_PREDICTION: predicted}
    return {key: np.asarray(value) for key, value in predicted.items()}
