"""Checks everything that can be checked before the first training step."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_transform as tft
from tfx import v1 as tfx

from tfx_tpu_trainer._support.file_systems import check_is_no_pattern
from tfx_tpu_trainer._support.messages import reason_in_words
from tfx_tpu_trainer._support.whole_files import try_writing
from tfx_tpu_trainer.components._tfx_private import artifact_utils
from tfx_tpu_trainer.components.inputs import TransformServing, vocabulary_sizes
from tfx_tpu_trainer.components.trainer.settings import RESERVED_PARAMS, TrainSettings
from tfx_tpu_trainer.components.trainer.values import json_problem, shown, suggest


def check_splits(examples: Sequence[tfx.dsl.Artifact], splits: Sequence[str], mode: str) -> None:
    """Checks that Examples artifacts have the requested splits, with files in them."""
    for artifact in examples:
        try:
            available = artifact_utils.decode_split_names(artifact.split_names)
        except ValueError as error:
            raise ValueError(
                f"the examples at {artifact.uri} have split_names={artifact.split_names!r}, which "
                "is not a JSON list of names; rerun the component that writes them"
            ) from error
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
                    f"{mode} split {split!r} has no files in {folder}; rerun the component that "
                    "writes the examples, or name another split"
                )


def check_examples(examples: Sequence[tfx.dsl.Artifact]) -> None:
    """Checks that there are Examples artifacts in a readable format."""
    if not examples:
        raise ValueError(
            "examples is missing; give examples=transform.outputs['transformed_examples'] of a Transform "
            "component"
        )
    for artifact in examples:
        check_is_no_pattern("examples", artifact.uri)
        payload = artifact.get_string_custom_property("payload_format")
        if payload and payload not in _PAYLOADS:
            raise ValueError(
                f"the examples at {artifact.uri} have payload_format={payload!r}, which TFX does not know; "
                f"let their component write {_PAYLOADS[0]}"
            )


_PAYLOADS = (
    "FORMAT_TF_EXAMPLE",
    "FORMAT_TF_SEQUENCE_EXAMPLE",
    "FORMAT_PROTO",
    "FORMAT_PARQUET",
)


def check_transform_graph(path: str) -> None:
    """Checks that Transform's description of its output is readable."""
    again = "run Transform again, or give transform_graph=transform.outputs['transform_graph']"
    if not tf.io.gfile.isdir(path):
        raise ValueError(f"transform_graph {path} is not a folder; {again}")
    output = tft.TFTransformOutput(path)
    for what, read in (
        ("the schema transformed_metadata/schema.pbtxt", output.transformed_feature_spec),
        ("the sizes of its vocabularies", lambda: vocabulary_sizes(path)),
    ):
        try:
            read()
        except Exception as error:
            raise ValueError(
                f"transform_graph {path}: {what} can't be read ({reason_in_words(error)}); {again}"
            ) from error


def check_only_file(artifacts: Sequence[tfx.dsl.Artifact], name: str) -> None:
    """Checks that an artifact is a folder with one file, as TFX expects for some types."""
    for artifact in artifacts:
        folder = artifact.uri
        files = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
        if len(files) != 1:
            raise ValueError(
                f"{name}: {folder} must contain exactly one file, but it has "
                f"{', '.join(sorted(files)) or 'none'}; rerun the component that writes it"
            )


def check_hyperparameters(artifacts: Sequence[tfx.dsl.Artifact]) -> None:
    """Checks that a Tuner's best hyperparameters are readable name-value pairs."""
    check_only_file(artifacts, "hyperparameters")
    for artifact in artifacts:
        (name,) = tf.io.gfile.listdir(artifact.uri)
        path = os.path.join(artifact.uri, name)
        try:
            with tf.io.gfile.GFile(path, "rb") as file:
                config = json.loads(file.read())
        except (ValueError, RecursionError, tf.errors.OpError) as error:
            raise ValueError(
                f"hyperparameters: {path} is not valid JSON ({reason_in_words(error)}); run the Tuner "
                "again"
            ) from error
        values = config.get("values", config) if isinstance(config, dict) else config
        if not isinstance(values, dict):
            raise ValueError(
                f"hyperparameters: {path} contains {shown(values)} instead of values by name; "
                'write an object such as {"values": {"learning_rate": 0.1}}'
            )
        for key, value in values.items():
            if problem := json_problem(value):
                raise ValueError(
                    f"hyperparameters: {path}: {key!r}={shown(value)} {problem}; run the Tuner again"
                )
        if reserved := sorted(set(values) & set(RESERVED_PARAMS)):
            raise ValueError(
                f"hyperparameters: {path} has a value for {reserved[0]!r}, which the engine sets itself; "
                "rename it in the Tuner"
            )


def check_label(transform_graph_path: str, label_key: str | None, *, wanted: bool) -> None:
    """Checks that the label is one of Transform's outputs."""
    features = tft.TFTransformOutput(transform_graph_path).transformed_feature_spec()
    if label_key is None:
        if wanted:
            raise ValueError(
                "label_key is not set, but model_fn takes labels; name the transformed feature "
                f"that is the label (one of {', '.join(map(repr, sorted(features)))}), or give an "
                "input_fn in the module"
            )
    elif label_key not in features:
        raise ValueError(
            f"label_key={label_key!r} is not an output of Transform; {suggest(label_key, features)}"
        )


def check_receiver(receiver_fn: Callable[[], Any], *, transform_graph_path: str) -> None:
    """Builds a serving receiver, whose mistakes would otherwise show after the training."""
    try:
        if isinstance(receiver_fn, TransformServing):
            # The full receiver is built before the training, too, with the export's graphs.
            receiver_fn.check()
            return
        with tf.Graph().as_default():
            receiver = receiver_fn()
    except Exception as error:
        if isinstance(receiver_fn, TransformServing):
            raise ValueError(
                f"transform_graph {transform_graph_path}: Transform's graph can't be used, so the model "
                f"couldn't be exported after training ({reason_in_words(error)}); run Transform again, or give a "
                "serving_input_receiver_fn in the module"
            ) from error
        raise ValueError(
            f"serving_input_receiver_fn fails, so the model couldn't be exported after training: "
            f"{reason_in_words(error)}"
        ) from error
    if not (hasattr(receiver, "features") and hasattr(receiver, "receiver_tensors")):
        raise ValueError(
            f"serving_input_receiver_fn returned {receiver!r}; let it return a "
            "ServingInputReceiver of tfx_tpu_trainer.estimator.export"
        )


def check_base_model(path: str | None) -> None:
    """Checks that a base model can provide initial values."""
    if path is None:
        return
    check_is_no_pattern("base_model", path)
    fix = "give the output of a trainer that exported one, or leave base_model out"
    if not tf.saved_model.contains_saved_model(path):
        raise ValueError(f"base_model has no SavedModel in {path}; {fix}")
    variables = os.path.join(path, "variables", "variables")
    if not tf.io.gfile.exists(f"{variables}.index"):
        raise ValueError(f"base_model has no variables: {variables}.index does not exist; {fix}")
    try:
        tf.compat.v1.train.NewCheckpointReader(variables)
    except tf.errors.OpError as error:
        raise ValueError(
            f"base_model: the variables {variables} can't be read ({reason_in_words(error)}); {fix}"
        ) from error


def check_writable(*folders: str, called: str = "output folder") -> None:
    """Checks by writing that results can be written."""
    for folder in folders:
        try:
            try_writing(folder)
        except tf.errors.OpError as error:
            raise ValueError(
                f"the {called} {folder} can't be written to: {error.message}; check its "
                "permissions and the free space"
            ) from None


def check_in_cluster(settings: TrainSettings, *, in_cluster: bool) -> None:
    """Checks that several processes with shared variables can run this training."""
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
            "use_tpu=True can't be combined with a cluster (TF_CONFIG), whose parameter servers "
            "serve workers that train on their hosts; unset TF_CONFIG and name the TPU with "
            "master=..., or set use_tpu=False"
        )
