"""Beam components, each run alone, and their results compared: runners differ in the order of rows, so in digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_data_validation as tfdv
import tensorflow_model_analysis as tfma
import tensorflow_transform as tft
from tensorflow_serving.apis import prediction_log_pb2
from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor

from tfx_tpu_trainer.workbench.project.config_file import load_config
from tfx_tpu_trainer.workbench.project.project import find_pipeline

SPLITS = ("train", "eval")


def _records(folder: Path) -> list[bytes]:
    files = sorted(str(path) for path in folder.glob("*.gz"))
    assert files, folder
    return list(tf.data.TFRecordDataset(files, compression_type="GZIP").as_numpy_iterator())


def same_rows(found: Path, expected: Path) -> None:
    """Checks that two artifacts of examples hold the same rows, in any order."""
    for split in SPLITS:
        others, floats = _sorted_rows(found / f"Split-{split}")
        expected_others, expected_floats = _sorted_rows(expected / f"Split-{split}")
        assert len(others) > 4_000
        assert others == expected_others
        # A z-score's mean and deviation depend on the order of the rows by their last digits.
        np.testing.assert_allclose(floats, expected_floats, rtol=1e-5, atol=1e-6)


def _sorted_rows(folder: Path) -> tuple[list[Any], np.ndarray]:
    """All values but floats of each row, and all floats one after the other."""
    rows = []
    for record in _records(folder):
        features = tf.train.Example.FromString(record).features.feature
        others: list[Any] = []
        floats: list[float] = []
        for name in sorted(features):
            kind = features[name].WhichOneof("kind")
            values = list(getattr(features[name], kind).value) if kind else []
            if kind == "float_list":
                floats += values
                values = [len(values)]
            others.append((name, str(kind), values))
        rows.append((others, floats))
    rows.sort()
    return [row[0] for row in rows], np.array([value for row in rows for value in row[1]])


def _statistics(folder: Path, split: str) -> dict[str, Any]:
    (dataset,) = tfdv.load_stats_binary(str(folder / f"Split-{split}" / "FeatureStats.pb")).datasets
    return {feature.path.step[0]: feature for feature in dataset.features}


def _taken_sums(feature: Any) -> tuple[float, float]:
    """Mean and standard deviation of a feature's statistics, which are without them afterwards."""
    taken = (feature.num_stats.mean, feature.num_stats.std_dev)
    if feature.HasField("num_stats"):
        feature.num_stats.ClearField("mean")
        feature.num_stats.ClearField("std_dev")
    return taken


def _metrics(folder: Path) -> dict[Any, dict[str, float]]:
    result = tfma.load_eval_result(str(folder))
    return {
        slice_key: {
            name: value["doubleValue"]
            for name, value in outputs[""][""].items()
            if "doubleValue" in value
        }
        for slice_key, outputs in result.slicing_metrics
    }


def predictions(folder: Path) -> dict[bytes, float]:
    """Returns a BulkInferrer's predictions for each row."""
    logs = [
        prediction_log_pb2.PredictionLog.FromString(record).predict_log
        for record in _records(folder)
    ]
    return {
        _in_order(log.request.inputs["examples"].string_val[0]): (
            log.response.outputs["probability"].float_val[0]
        )
        for log in logs
    }


def _in_order(row: bytes) -> bytes:
    """Writes a row's features in one order; each process that reads and writes it chooses another."""
    return tf.train.Example.FromString(row).SerializeToString(deterministic=True)


def same_statistics(found: Path, expected: Path) -> None:
    """Checks two artifacts of statistics."""
    for split in SPLITS:
        of_found, of_expected = _statistics(found, split), _statistics(expected, split)
        assert of_found.keys() == of_expected.keys()
        for name, feature in of_expected.items():
            # Sums, and these come of them, depend on the order of the rows by their last digits.
            assert _taken_sums(of_found[name]) == pytest.approx(_taken_sums(feature), rel=1e-9)
            assert of_found[name] == feature


def same_transform_graph(found: Path, expected: Path) -> None:
    """Checks the features and the vocabularies of two transform graphs."""
    outputs = [tft.TFTransformOutput(str(folder)) for folder in (found, expected)]
    assert outputs[0].transformed_feature_spec() == outputs[1].transformed_feature_spec()
    for name in ("payment_type", "company"):
        words = [output.vocabulary_by_name(name) for output in outputs]
        assert words[0] == words[1]
        assert np.size(words[0]) > 1


def same_metrics(found: Path, expected: Path) -> None:
    """Checks the metrics of each slice in two artifacts of the Evaluator."""
    of_found, of_expected = _metrics(found), _metrics(expected)
    assert of_found.keys() == of_expected.keys()
    assert len(of_found) > 2
    for slice_key, values in of_expected.items():
        assert of_found[slice_key] == pytest.approx(values, rel=1e-6, nan_ok=True)


_SPLIT_NAMES = '["train", "eval"]'


def taxi_components(root: Path) -> dict[str, Any]:
    """The pipeline's components by name, with a BulkInferrer, and user code by import path.

    Workers have no part in what TFX packages: they import it, as those of an image do.
    """
    definition = find_pipeline("taxi")
    config = load_config(
        definition.config_class(),
        definition.config_file,
        values={"root": str(root), "user_code": "import"},
        overrides=["bulk_inference.splits=[eval]"],
    )
    config = config.model_copy(update={"data": definition.prepare_data(config)})
    return {node.id: node for node in definition.create_pipeline(config).components}


def artifact(kind: Any, uri: Path) -> Any:
    """Returns an artifact in a folder; one of examples has the pipeline's splits."""
    made = kind()
    made.uri = str(uri)
    if "split_names" in (kind.PROPERTIES or {}):
        made.split_names = _SPLIT_NAMES
    return made


def run_component(
    component: Any, inputs: Mapping[str, Path], folder: Path, beam_arguments: Sequence[str]
) -> Path:
    """Runs a component's own executor, like its container.

    Args:
        component: One of `taxi_components`.
        inputs: The folder of each input.
        folder: Where the outputs are written, each in a folder of its key.
        beam_arguments: Arguments that decide where its Beam job runs.

    Returns:
        `folder`.
    """
    outputs = {}
    for key, channel in component.outputs.items():
        outputs[key] = [artifact(channel.type, folder / key)]
        (folder / key).mkdir(parents=True)
    context = BaseBeamExecutor.Context(
        beam_pipeline_args=list(beam_arguments), tmp_dir=str(folder / "tmp"), unique_id="1"
    )
    types = {key: channel.type for key, channel in component.inputs.items()}
    component.executor_spec.executor_class(context).Do(
        {key: [artifact(types[key], uri)] for key, uri in inputs.items()},
        outputs,
        dict(component.exec_properties),
    )
    return folder
