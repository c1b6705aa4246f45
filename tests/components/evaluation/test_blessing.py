"""Tests verdicts, and that TFMA's own result on disk agrees with them."""

from __future__ import annotations

import math
import os

import pytest
import tensorflow_model_analysis as tfma
from tensorflow_model_analysis.proto import config_pb2
from tfx.components.evaluator import constants
from tfx.types import standard_artifacts

from tests.components.evaluation import thresholds as t
from tfx_tpu_trainer.components.evaluation import (
    EvalMetrics,
    Failure,
    Verdict,
    _blessing,
    write_blessing,
    write_model_evaluation,
)

_UP, _DOWN = {"lower_is_better": False}, {"lower_is_better": True}


@pytest.fixture
def judge(tmp_path):
    """Returns the verdict on metrics, after holding it against TFMA's files."""

    def judge(config, candidate, baseline=None, **locations):
        uri = str(tmp_path / "evaluation")
        verdict = write_model_evaluation(
            uri,
            EvalMetrics(overall=candidate, global_step=2),
            eval_config=config,
            baseline=None if baseline is None else EvalMetrics(overall=baseline, global_step=1),
            **locations,
        )
        result = tfma.load_validation_result(uri)
        assert result.validation_ok == bool(verdict.blessed)
        assert result.missing_thresholds == (verdict.blessed is None)
        failures = [
            failure for part in result.metric_validations_per_slice for failure in part.failures
        ]
        assert len(failures) == len(verdict.failures)
        return verdict

    return judge


@pytest.mark.parametrize(
    ("lower", "upper", "value", "blessed"),
    [
        (0.5, None, 0.5, True),
        (0.5, None, math.nextafter(0.5, 0), False),
        (None, 0.5, 0.5, True),
        (None, 0.5, math.nextafter(0.5, 1), False),
        (0.4, 0.6, 0.5, True),
        (0.4, 0.6, 0.7, False),
        (0.0, None, -1e-9, False),
        (0.5, None, math.nan, False),
        (None, 0.5, math.nan, False),
        # TFMA's rules let it pass.
        (0.5, None, math.inf, False),
        (None, 0.5, math.inf, False),
    ],
)
def test_value_thresholds(judge, lower, upper, value, blessed):
    assert judge(t.config(m=t.value(lower, upper)), {"m": value}).blessed is blessed


@pytest.mark.parametrize(
    ("bounds", "direction", "candidate", "baseline", "blessed"),
    [
        # Powers of two: the differences and ratios are exact.
        ({"absolute": -0.25}, _UP, 0.5, 0.75, True),
        ({"absolute": -0.125}, _UP, 0.5, 0.75, False),
        ({"absolute": 0.25}, _UP, 0.75, 0.5, True),
        ({"absolute": 0.25}, _DOWN, 0.75, 0.5, True),
        ({"absolute": 0.125}, _DOWN, 0.75, 0.5, False),
        ({"absolute": 0.0}, _DOWN, 0.25, 0.5, True),
        ({"relative": -0.5}, _UP, 0.25, 0.5, True),
        ({"relative": -0.25}, _UP, 0.25, 0.5, False),
        ({"relative": 0.5}, _DOWN, 0.75, 0.5, True),
        ({"relative": 0.25}, _DOWN, 0.75, 0.5, False),
        ({"absolute": -0.25, "relative": -0.25}, _UP, 0.5, 0.75, False),
        ({"absolute": -0.25, "relative": -0.5}, _UP, 0.5, 0.75, True),
        # A relative change from 0, or with NaN, is not a comparable number.
        ({"relative": -0.5}, _UP, 0.5, 0.0, False),
        ({"absolute": 0.5}, _UP, 0.5, 0.0, True),
        ({"absolute": -1.0}, _UP, math.nan, 0.5, False),
        ({"absolute": -1.0}, _UP, 0.5, math.nan, False),
        ({"absolute": 1.0}, _DOWN, math.inf, math.inf, False),
    ],
)
def test_change_thresholds(judge, bounds, direction, candidate, baseline, blessed):
    config = t.config(m=t.change(**bounds, **direction))
    assert judge(config, {"m": candidate}, {"m": baseline}).blessed is blessed


def test_all_thresholds_must_hold(judge):
    config = t.config(accuracy=t.change(-0.25, value_lower=0.5), loss=t.value(upper=1.0))
    baseline = {"accuracy": 0.75, "loss": 0.5}

    assert judge(config, {"accuracy": 0.75, "loss": 1.0}, baseline).blessed is True
    assert judge(config, {"accuracy": 0.75, "loss": 2.0}, baseline).blessed is False
    verdict = judge(config, {"accuracy": 0.25, "loss": 2.0}, baseline)
    assert [failure.bound for failure in verdict.failures] == [">= 0.5", "change >= -0.25", "<= 1"]


def test_failure_says_value_bound_and_baseline(judge):
    config = t.config(accuracy=t.change(-0.01, value_lower=0.75))
    value, change = judge(config, {"accuracy": 0.5}, {"accuracy": 0.8}).failures

    assert value.message == "accuracy is 0.5, but must be >= 0.75 (the baseline's is 0.8)"
    assert change.message == (
        "accuracy is 0.5, the baseline's 0.8, a change of -0.3 (relative -0.375), "
        "but must be a change >= -0.01"
    )
    for failure in (value, change):
        assert (failure.metric, failure.value, failure.baseline_value) == ("accuracy", 0.5, 0.8)
        assert failure.slice_key == ()
    assert (value.bound, change.bound) == (">= 0.75", "change >= -0.01")


def test_numbers_that_differ_look_different(judge):
    just_below = math.nextafter(0.75, 0)
    [failure] = judge(t.config(m=t.value(0.75)), {"m": just_below}).failures
    assert failure.message == f"m is {just_below!r}, but must be >= 0.75"


def test_nan_is_named(judge):
    verdict = judge(t.config(loss=t.value(upper=3.0)), {"loss": math.nan})
    assert verdict.summary() == "not blessed: loss is NaN, but must be <= 3"


def test_metric_that_metric_fn_does_not_give(judge):
    verdict = judge(t.config(acuracy=t.value(0.5)), {"loss": 0.5, "accuracy": 0.8})
    assert verdict.blessed is False
    [failure] = verdict.failures
    assert failure.value is None
    assert failure.message == (
        "acuracy is not among the model's metrics (accuracy, loss): "
        "return it from metric_fn, or correct the name in eval_config"
    )


def test_no_thresholds_no_blessing(judge):
    verdict = judge(None, {"loss": 0.5})
    assert (verdict.blessed, verdict.rubber_stamp) == (None, False)
    assert verdict.summary() == "no blessing written: eval_config has no thresholds"


def test_first_model_is_rubber_stamped(judge):
    config = t.config(accuracy=t.change(-0.01, value_lower=0.75))
    verdict = judge(config, {"accuracy": 0.8})
    assert (verdict.blessed, verdict.rubber_stamp) == (True, True)
    assert verdict.unchecked == ("accuracy",)
    assert verdict.summary() == (
        "blessed (first model: no baseline yet, change of accuracy not checked): "
        "accuracy is 0.8 (>= 0.75)"
    )
    # Its value threshold counts.
    assert judge(config, {"accuracy": 0.7}).blessed is False


def test_first_model_with_change_thresholds_only_gets_no_blessing(judge):
    """As the stock Evaluator, for which no threshold is then left."""
    verdict = judge(t.config(accuracy=t.change(-0.01)), {"accuracy": 0.8})
    assert (verdict.blessed, verdict.rubber_stamp) == (None, True)
    assert "only change thresholds (accuracy). Add a value threshold" in verdict.summary()


class TestBaselineWithoutMetrics:
    """A baseline model that another trainer made has no eval_metrics.json."""

    def test_change_can_not_be_checked(self, judge):
        config = t.config(accuracy=t.change(-0.01, value_lower=0.75))
        verdict = judge(config, {"accuracy": 0.8}, baseline_location="/old/model")
        assert (verdict.blessed, verdict.rubber_stamp) == (False, False)
        [failure] = verdict.failures
        assert failure.baseline_value is None
        assert failure.message.startswith(
            "accuracy is 0.8, but its change >= -0.01 can't be checked: "
            "the baseline model at /old/model has no eval_metrics.json"
        )

    def test_value_thresholds_need_no_baseline(self, judge):
        config = t.config(accuracy=t.value(0.75))
        assert judge(config, {"accuracy": 0.8}, baseline_location="/old/model").blessed is True

    def test_one_metric_missing(self, judge):
        config = t.config(auc=t.change(0.0))
        verdict = judge(
            config, {"auc": 0.8, "loss": 1}, {"loss": 1}, baseline_location="/old/model"
        )
        assert verdict.blessed is False
        assert "the baseline model at /old/model knows only loss" in verdict.summary()


@pytest.mark.parametrize("example_weight_key", ["", "weight"])
def test_thresholds_written_as_metric_configs(judge, example_weight_key):
    """TFMA's keys for these differ in `example_weighted`, which must not hide the metric."""
    config = config_pb2.EvalConfig(
        model_specs=[config_pb2.ModelSpec(example_weight_key=example_weight_key)],
        metrics_specs=[
            config_pb2.MetricsSpec(
                metrics=[
                    config_pb2.MetricConfig(
                        class_name="BinaryAccuracy", threshold=t.change(-0.25, value_lower=0.5)
                    ),
                    config_pb2.MetricConfig(class_name="ExampleCount"),
                ]
            )
        ],
    )
    baseline = {"binary_accuracy": 0.75}
    assert judge(config, {"binary_accuracy": 0.5}, baseline).blessed is True
    assert judge(config, {"binary_accuracy": 0.25}, baseline).blessed is False


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
    assert _blessing.BLESSED_FILE == constants.BLESSED_FILE_NAME
    assert _blessing.NOT_BLESSED_FILE == constants.NOT_BLESSED_FILE_NAME
    assert _blessing.BLESSED_PROPERTY == constants.ARTIFACT_PROPERTY_BLESSED_KEY
    assert _blessing.CURRENT_MODEL_PROPERTY == constants.ARTIFACT_PROPERTY_CURRENT_MODEL_URI_KEY
    assert _blessing.CURRENT_MODEL_ID_PROPERTY == constants.ARTIFACT_PROPERTY_CURRENT_MODEL_ID_KEY
    assert _blessing.BASELINE_MODEL_PROPERTY == constants.ARTIFACT_PROPERTY_BASELINE_MODEL_URI_KEY
    assert _blessing.BASELINE_MODEL_ID_PROPERTY == constants.ARTIFACT_PROPERTY_BASELINE_MODEL_ID_KEY
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
