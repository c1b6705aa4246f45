"""What can be known to be wrong before the first training step, said in one line each."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_transform as tft
from tfx import v1 as tfx

from tfx_tpu_trainer.component.names import suggest
from tfx_tpu_trainer.component.tfx_private import artifact_utils
from tfx_tpu_trainer.component.trainer_parameters import TrainSettings
from tfx_tpu_trainer.inputs.transformed import InputFn


def check_splits(examples: Sequence[tfx.dsl.Artifact], splits: Sequence[str], mode: str) -> None:
    """Checks that Examples artifacts have the splits asked for, and files in them.

    Args:
        examples: The Examples artifacts.
        splits: Names of splits.
        mode: "train" or "eval": which arguments have named them.

    Raises:
        ValueError: A split is not there or has no files.
    """
    for artifact in examples:
        available = artifact_utils.decode_split_names(artifact.split_names)
        for split in splits:
            if split not in available:
                raise ValueError(
                    f"{mode} split {split!r} is not among the splits of the examples at "
                    f"{artifact.uri}; {suggest(split, available)}; name one in "
                    f"{mode}_args=tfx.proto.{mode.title()}Args(splits=[...], num_steps=...)"
                )
            folder = artifact_utils.get_split_uri([artifact], split)
            if not tf.io.gfile.glob(f"{folder}/*"):
                raise ValueError(
                    f"{mode} split {split!r} has no files in {folder}; run the component that "
                    "writes the examples again, or name another split"
                )


def check_label(transform_graph_path: str, label_key: str | None, *, wanted: bool) -> None:
    """Checks that the label is one of Transform's outputs.

    Args:
        transform_graph_path: Folder of a TransformGraph artifact.
        label_key: Name of the label.
        wanted: Whether model_fn takes labels.

    Raises:
        ValueError: Transform didn't output it, or model_fn wants labels and no key is set.
    """
    features = tft.TFTransformOutput(transform_graph_path).transformed_feature_spec()
    if label_key is None:
        if wanted:
            raise ValueError(
                "label_key is not set, but model_fn takes labels; name the transformed feature "
                f"that is the label (there are {', '.join(map(repr, sorted(features)))}), or "
                "give an input_fn in the module"
            )
    elif label_key not in features:
        raise ValueError(
            f"label_key={label_key!r} is not an output of Transform; {suggest(label_key, features)}"
        )


def check_rows(input_fn: InputFn, *, batch_size: int, split: Sequence[str], training: bool) -> None:
    """Checks that a split has rows that can be read, and enough for a batch in training.

    Args:
        input_fn: An input function that reads the split once, short last batch included.
        batch_size: Rows of a batch.
        split: Names of the splits read, for messages.
        training: Whether only full batches are used.

    Raises:
        ValueError: There are no rows, too few, or their features aren't Transform's.
    """
    name = "+".join(split)
    rows = _rows_of_first_batch(input_fn, batch_size, name)
    if not rows:
        raise ValueError(
            f"split {name!r} has no rows; check the data that the pipeline started with"
        )
    if training and rows < batch_size:
        raise ValueError(
            f"train_batch_size={batch_size} is larger than the split {name!r}, which has {rows} "
            f"rows, and training uses full batches only; use at most {rows}"
        )


def check_receiver(receiver_fn: Callable[[], Any]) -> None:
    """Builds a serving receiver on trial: a mistake in it would else show after the training.

    Args:
        receiver_fn: A serving_input_receiver_fn.

    Raises:
        ValueError: It fails, or gives something else than a receiver.
    """
    try:
        with tf.Graph().as_default():
            receiver = receiver_fn()
    except Exception as error:
        raise ValueError(
            f"serving_input_receiver_fn fails, so the model couldn't be exported after training: "
            f"{type(error).__name__}: {_reason(str(error))}"
        ) from error
    if not (hasattr(receiver, "features") and hasattr(receiver, "receiver_tensors")):
        raise ValueError(
            f"serving_input_receiver_fn gave {receiver!r}; let it return a ServingInputReceiver "
            "of tfx_tpu_trainer.estimator.export"
        )


def check_base_model(path: str | None) -> None:
    """Checks that a base model can give first values.

    Args:
        path: Folder of its SavedModel, or `None` where there is no base model.

    Raises:
        ValueError: There is no SavedModel.
    """
    if path is not None and not tf.saved_model.contains_saved_model(path):
        raise ValueError(
            f"base_model has no SavedModel in {path}; give the output of a trainer that exported "
            "one, or leave base_model out"
        )


def check_writable(*folders: str, called: str = "output folder") -> None:
    """Checks that results can be written, by writing.

    Args:
        *folders: Folders of output artifacts; made where they are missing.
        called: What a message calls them.

    Raises:
        ValueError: One of them can't be written to.
    """
    for folder in folders:
        probe = f"{folder}/.write-check-{uuid.uuid4().hex}"
        try:
            tf.io.gfile.makedirs(folder)
            with tf.io.gfile.GFile(probe, "w") as file:
                file.write("")
            tf.io.gfile.remove(probe)
        except tf.errors.OpError as error:
            raise ValueError(
                f"the {called} {folder} can't be written to: {error.message}; check its "
                "permissions and the free space"
            ) from None


def check_in_cluster(settings: TrainSettings, *, in_cluster: bool) -> None:
    """Checks that a training can be done by several processes that share its variables.

    Args:
        settings: The typed parameters.
        in_cluster: Whether there are such processes.

    Raises:
        ValueError: It can't.
    """
    if not in_cluster:
        return
    if settings.evaluates_in_training:
        given = f"eval_every_steps={settings.eval_every_steps}"
        if settings.eval_every_secs:
            given = f"eval_every_secs={settings.eval_every_secs}"
        raise ValueError(
            f"{given}: the chief of a cluster (TF_CONFIG) can't stop for evaluations while its "
            "workers train on; leave it out, and give the cluster an 'evaluator' task"
        )
    if settings.use_tpu:
        raise ValueError(
            "use_tpu=True: the parameter servers of a cluster (TF_CONFIG) serve workers that train "
            "on their hosts; unset TF_CONFIG and name the TPU with master=..., or set use_tpu=False"
        )


@contextlib.contextmanager
def missing_label_explained(label_key: str | None) -> Iterator[None]:
    """Says what to do about a row without a label: it is found only when it is read.

    Args:
        label_key: Name of the label.

    Raises:
        ValueError: In place of TensorFlow's error for such a row.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        if label_key is None or f"Feature: {label_key} " not in error.message:
            raise
        raise ValueError(
            f"A row has no label {label_key!r}, which Transform's schema requires of all: fill it in or "
            "drop such rows in the preprocessing_fn or before it."
        ) from error


def _rows_of_first_batch(input_fn: InputFn, batch_size: int, split: str) -> int:
    # In a graph of its own: programs in TF1 behaviour have no eager iteration.
    with tf.Graph().as_default(), tf.device("/cpu:0"):
        batch = tf.compat.v1.data.make_initializable_iterator(input_fn({"batch_size": batch_size}))
        first = tf.nest.flatten(batch.get_next())[0]
        shape = first.dense_shape if isinstance(first, tf.SparseTensor) else tf.shape(first)
        with tf.compat.v1.Session() as session:
            try:
                session.run(batch.initializer)
                return int(session.run(shape)[0])
            except tf.errors.OutOfRangeError:
                return 0
            except tf.errors.OpError as error:
                raise ValueError(
                    f"split {split!r} can't be read with Transform's schema: "
                    f"{_reason(error.message)}; give examples="
                    "transform.outputs['transformed_examples'] of the same Transform"
                ) from None


def _reason(message: str) -> str:
    """Takes the reason out of TensorFlow's report of a node and of where it was defined."""
    lines = [line for line in message.splitlines() if line.strip()]
    reasons = [line for line in lines if not line.startswith(_REPORT)]
    return (reasons or lines or ["no reason given"])[0].strip()


_REPORT = ("Graph execution error", "Detected at", "Node:", " ", "\t")
