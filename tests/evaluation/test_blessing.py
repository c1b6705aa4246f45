from __future__ import annotations

import os

import pytest
from tfx.components.evaluator import constants
from tfx.types import standard_artifacts

from tfx_tpu_trainer.evaluation import Failure, Verdict, blessing, write_blessing


def _artifact(artifact_class, uri, artifact_id):
    artifact = artifact_class()
    artifact.uri, artifact.id = str(uri), artifact_id
    return artifact


@pytest.fixture
def artifacts(tmp_path):
    return {
        "blessing": _artifact(standard_artifacts.ModelBlessing, tmp_path / "blessing", 9),
        "model": _artifact(standard_artifacts.Model, tmp_path / "model", 4),
        "baseline_model": _artifact(standard_artifacts.Model, tmp_path / "old", 3),
    }


def _not_blessed():
    failure = Failure(
        metric="loss", message="loss is 2", bound="<= 1", value=2.0, baseline_value=None
    )
    return Verdict(blessed=False, failures=(failure,))


def test_names_are_tfx_own():
    assert blessing.BLESSED_FILE == constants.BLESSED_FILE_NAME
    assert blessing.NOT_BLESSED_FILE == constants.NOT_BLESSED_FILE_NAME
    assert blessing.BLESSED_PROPERTY == constants.ARTIFACT_PROPERTY_BLESSED_KEY
    assert blessing.CURRENT_MODEL_PROPERTY == constants.ARTIFACT_PROPERTY_CURRENT_MODEL_URI_KEY
    assert blessing.CURRENT_MODEL_ID_PROPERTY == constants.ARTIFACT_PROPERTY_CURRENT_MODEL_ID_KEY
    assert blessing.BASELINE_MODEL_PROPERTY == constants.ARTIFACT_PROPERTY_BASELINE_MODEL_URI_KEY
    assert blessing.BASELINE_MODEL_ID_PROPERTY == constants.ARTIFACT_PROPERTY_BASELINE_MODEL_ID_KEY
    assert int(True) == constants.BLESSED_VALUE
    assert int(False) == constants.NOT_BLESSED_VALUE


def test_blessed(artifacts):
    verdict = Verdict(blessed=True, passes=("loss is 0.5 (<= 1)",))
    write_blessing(verdict=verdict, component_id="gate", **artifacts)
    written = artifacts["blessing"]

    assert os.listdir(written.uri) == ["BLESSED"]
    assert written.get_int_custom_property("blessed") == 1
    assert written.get_int_custom_property("current_model_id") == 4
    assert written.get_string_custom_property("current_model") == artifacts["model"].uri
    assert written.get_int_custom_property("baseline_model_id") == 3
    assert written.get_string_custom_property("baseline_model") == artifacts["baseline_model"].uri
    assert written.get_string_custom_property("component_id") == "gate"
    assert written.get_string_custom_property("verdict") == "blessed: loss is 0.5 (<= 1)"


def test_not_blessed(artifacts):
    del artifacts["baseline_model"]
    write_blessing(verdict=_not_blessed(), **artifacts)
    written = artifacts["blessing"]

    assert os.listdir(written.uri) == ["NOT_BLESSED"]
    assert written.has_custom_property("blessed")
    assert written.get_int_custom_property("blessed") == 0
    assert not written.has_custom_property("baseline_model_id")
    assert written.get_string_custom_property("verdict") == "not blessed: loss is 2"


def test_a_retry_leaves_one_verdict(artifacts):
    write_blessing(verdict=Verdict(blessed=True), **artifacts)
    write_blessing(verdict=_not_blessed(), **artifacts)
    assert os.listdir(artifacts["blessing"].uri) == ["NOT_BLESSED"]


def test_no_thresholds_write_no_blessing(artifacts):
    write_blessing(verdict=Verdict(blessed=None), **artifacts)
    written = artifacts["blessing"]

    assert not os.path.exists(written.uri)
    assert not written.has_custom_property("blessed")
    assert "no thresholds" in written.get_string_custom_property("verdict")
