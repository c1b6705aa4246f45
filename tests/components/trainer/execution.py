"""Runs one execution of the trainer as TFX's launcher would, on the tfx wheel's data."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import Any

import tensorflow as tf
from tfx import v1 as tfx

from tests import tfx_testdata
from tfx_tpu_trainer import RunPage
from tfx_tpu_trainer.components import TpuTrainerExecutor

_artifacts = tfx.types.standard_artifacts
MODULE = "tests.components.trainer.small_model"


def artifact_of(kind: Any, uri: Any, **properties: Any) -> Any:
    """Makes an artifact of a kind, at a place."""
    made = kind()
    made.uri = str(uri)
    for name, value in properties.items():
        setattr(made, name, value)
    return made


@dataclasses.dataclass
class Execution:
    """Artifacts and properties of one execution.

    Attributes:
        folder: Where its outputs go.
        inputs: Input artifacts by key.
        outputs: Output artifacts by key.
        properties: Execution properties.
    """

    folder: pathlib.Path
    inputs: dict[str, list[Any]]
    outputs: dict[str, list[Any]]
    properties: dict[str, Any]

    @classmethod
    def of_trainer(cls, folder: pathlib.Path, *, steps: int = 20, **properties: Any) -> Execution:
        """An execution of a TpuTrainer.

        Args:
            folder: Where its outputs go.
            steps: Training steps.
            **properties: Execution properties, added to the small model's.
        """
        outputs = {
            "model": [artifact_of(_artifacts.Model, folder / "model")],
            "model_run": [artifact_of(_artifacts.ModelRun, folder / "model_run")],
            "evaluation": [artifact_of(_artifacts.ModelEvaluation, folder / "evaluation")],
            "page": [artifact_of(RunPage, folder / "page")],
        }
        for (artifact,) in outputs.values():
            os.makedirs(artifact.uri)
        given = {
            "module": MODULE,
            "label_key": tfx_testdata.LABEL,
            "train_args": json.dumps({"num_steps": steps}),
            "eval_args": "{}",
            "train_batch_size": 64,
            # Two processes more for each execution: the tests of the check turn it on.
            "serving_check": "off",
            **properties,
        }
        return cls(
            folder=folder,
            inputs=_inputs(),
            outputs=outputs,
            properties={name: value for name, value in given.items() if value is not None},
        )

    @classmethod
    def of_stock_trainer(
        cls, folder: pathlib.Path, *, settings: dict[str, Any], steps: int = 20, **properties: Any
    ) -> Execution:
        """An execution of the stock Trainer with our executor.

        Args:
            folder: Where its outputs go.
            settings: What custom_config['tpu_trainer'] holds.
            steps: Training steps.
            **properties: Further execution properties.
        """
        execution = cls.of_trainer(folder, steps=steps)
        del execution.outputs["evaluation"], execution.outputs["page"]
        execution.properties = {
            "train_args": json.dumps({"num_steps": steps}),
            "eval_args": "{}",
            "custom_config": json.dumps({"tpu_trainer": {"serving_check": "off", **settings}}),
            **properties,
        }
        return execution

    def run(self) -> None:
        """Runs the executor."""
        TpuTrainerExecutor().Do(self.inputs, self.outputs, self.properties)

    @property
    def model(self) -> Any:
        """The Model artifact."""
        return self.outputs["model"][0]

    @property
    def serving_dir(self) -> str:
        """Returns the place of the SavedModel."""
        return os.path.join(self.model.uri, "Format-Serving")

    def add_model(self, uri: str) -> None:
        """Adds a base model."""
        self.inputs["base_model"] = [artifact_of(_artifacts.Model, uri)]

    def add_raw_examples(self, folder: pathlib.Path | None = None, **rows: list[bytes]) -> None:
        """Adds raw examples: those of the tfx wheel, or rows by split, written to a folder."""
        self.inputs["raw_examples"] = [
            examples_of(folder, **rows)
            if folder
            else artifact_of(
                _artifacts.Examples, tfx_testdata.RAW_EXAMPLES, split_names='["train", "eval"]'
            )
        ]

    def add_statistics(self, folder: str) -> None:
        """Adds statistics of the raw examples."""
        self.inputs["statistics"] = [artifact_of(_artifacts.ExampleStatistics, folder)]

    def add_hyperparameters(self, config: dict[str, Any]) -> None:
        """Adds a HyperParameters artifact."""
        folder = self.folder / "hyperparameters"
        folder.mkdir()
        (folder / "best_hyperparameters.txt").write_text(json.dumps(config))
        self.inputs["hyperparameters"] = [artifact_of(_artifacts.HyperParameters, folder)]

    def files(self) -> list[str]:
        """Lists the files in the folders of the model and of its evaluation."""
        return [
            os.path.join(root, name)
            for key in ("model", "evaluation")
            for artifact in self.outputs.get(key, ())
            for root, folders, files in os.walk(artifact.uri)
            for name in (*folders, *files)
        ]


def _inputs() -> dict[str, list[Any]]:
    return {
        "examples": [
            artifact_of(
                _artifacts.Examples,
                tfx_testdata.TRANSFORMED_EXAMPLES,
                split_names='["train", "eval"]',
            )
        ],
        "transform_graph": [artifact_of(_artifacts.TransformGraph, tfx_testdata.TRANSFORM_GRAPH)],
        "schema": [
            artifact_of(_artifacts.Schema, os.path.join(tfx_testdata.TRANSFORM_GRAPH, "metadata"))
        ],
    }


def examples_of(folder: pathlib.Path, **rows: list[bytes]) -> Any:
    """Writes an Examples artifact.

    Args:
        folder: Where it goes.
        **rows: Serialized records by the split's name.
    """
    for split, records in rows.items():
        split_folder = folder / f"Split-{split}"
        split_folder.mkdir(parents=True)
        options = tf.io.TFRecordOptions(compression_type="GZIP")
        with tf.io.TFRecordWriter(str(split_folder / "rows-00000-of-00001.gz"), options) as writer:
            for record in records:
                writer.write(record)
    return artifact_of(_artifacts.Examples, folder, split_names=json.dumps(list(rows)))


def records(split: str, count: int) -> list[bytes]:
    """Returns the first serialized rows of a split of the tfx wheel's data."""
    (path,) = tf.io.gfile.glob(tfx_testdata.files(split))
    data = tf.data.TFRecordDataset(path, compression_type="GZIP").take(count)
    return [record.numpy() for record in data]
