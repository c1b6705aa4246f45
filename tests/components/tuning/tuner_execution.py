"""Runs one execution of TFX's stock Tuner as its launcher would, on the tfx wheel's data."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import uuid
from typing import Any

from tfx import v1 as tfx
from tfx.components.tuner.executor import Executor

from tests import tfx_testdata
from tests.components.trainer.execution import Execution

_artifacts = tfx.types.standard_artifacts


@dataclasses.dataclass
class TunerExecution:
    """Artifacts and properties of one execution.

    Attributes:
        folder: Where its outputs and the search go.
        properties: Execution properties.
        tuning: What custom_config["tuning"] holds.
        trainer: What custom_config["tpu_trainer"] holds.
    """

    folder: pathlib.Path
    properties: dict[str, Any]
    tuning: dict[str, Any]
    trainer: dict[str, Any]

    @classmethod
    def of(
        cls,
        folder: pathlib.Path,
        tuner_fn: str = "tests.components.tuning.small_search.tuner_fn",
        *,
        steps: int = 12,
        trainer: dict[str, Any] | None = None,
        **tuning: Any,
    ) -> TunerExecution:
        """An execution that searches for the small model.

        Args:
            folder: Where its outputs and the search go.
            tuner_fn: Import path of the tuner_fn.
            steps: Steps of a trial.
            trainer: Settings of the trials, added to the small model's.
            **tuning: Settings of the search.
        """
        return cls(
            folder=folder,
            properties={
                "tuner_fn": tuner_fn,
                "train_args": json.dumps({"num_steps": steps}),
                "eval_args": json.dumps({"num_steps": 4}),
            },
            tuning={"directory": str(folder / "search"), **tuning},
            trainer={
                "label_key": tfx_testdata.LABEL,
                "train_batch_size": 64,
                "tf_random_seed": 3,
                **(trainer or {}),
            },
        )

    def run(self, executor: Any = Executor, *, inputs: pathlib.Path | None = None) -> None:
        """Runs an executor.

        Args:
            executor: Its class; the stock one unless another is named.
            inputs: A folder for further files of the search.
        """
        beside = (inputs or self.folder / "inputs") / uuid.uuid4().hex
        artifacts = Execution.of_trainer(beside).inputs
        outputs = {}
        for key, kind in (
            ("best_hyperparameters", _artifacts.HyperParameters),
            ("tuner_results", _artifacts.TunerResults),
        ):
            artifact = kind()
            artifact.uri = str(self.folder / key)
            outputs[key] = [artifact]
        custom = {"tpu_trainer": self.trainer, "tuning": self.tuning}
        # A context with a folder for temporary files, which the launcher would give.
        context = executor.Context(tmp_dir=str(self.folder / "tmp"), unique_id="1")
        executor(context).Do(
            {key: artifacts[key] for key in ("examples", "transform_graph", "schema")},
            outputs,
            {**self.properties, "custom_config": json.dumps(custom)},
        )

    @property
    def best(self) -> dict[str, Any]:
        """The values of the best hyperparameters, as TpuTrainer reads them."""
        text = (self.folder / "best_hyperparameters" / "best_hyperparameters.txt").read_text()
        return json.loads(text)["values"]

    @property
    def results(self) -> list[dict[str, Any]]:
        """The rows of tuner_results."""
        return json.loads((self.folder / "tuner_results" / "tuner_results.json").read_text())

    @property
    def project(self) -> pathlib.Path:
        """The folder of the search."""
        (folder,) = (self.folder / "search").iterdir()
        return folder

    def trials(self) -> dict[str, dict[str, Any]]:
        """Returns keras-tuner's files of each trial, by its number."""
        files = sorted(self.project.glob("trial_*/trial.json"))
        return {
            file.parent.name.removeprefix("trial_"): json.loads(file.read_text()) for file in files
        }
