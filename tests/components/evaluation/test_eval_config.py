"""Tests the checks and defaults of an EvalConfig, and the config for the stock Evaluator."""

from __future__ import annotations

import math
import pathlib
import re
import types

import pytest
import tensorflow_model_analysis as tfma
from tensorflow_model_analysis.proto import config_pb2
from tfx import v1 as tfx

from tests.components.evaluation import thresholds as t
from tfx_tpu_trainer.components.evaluation import (
    EvalMetrics,
    check_eval_config,
    write_model_evaluation,
)
from tfx_tpu_trainer.components.evaluation._data_slices import parse_slicing_specs
from tfx_tpu_trainer.components.evaluation._eval_config import (
    baseline_name,
    candidate_name,
    stock_evaluator_config,
    with_defaults,
)

_NO_DIRECTION = config_pb2.MetricThreshold(
    change_threshold=config_pb2.GenericChangeThreshold(absolute={"value": 0.1})
)
_SLICE = config_pb2.SlicingSpec(feature_keys=["hour"])


def test_thresholds_by_name_are_fine():
    check_eval_config(
        t.config(accuracy=t.value(0.5, 0.9), loss=t.change(0.1, lower_is_better=True))
    )
    check_eval_config(t.sliced(accuracy=(_SLICE, t.value(0.5))))
    check_eval_config(t.sliced(loss=(config_pb2.SlicingSpec(), t.value(0.5))))
    check_eval_config(config_pb2.EvalConfig())
    check_eval_config(config_pb2.EvalConfig(slicing_specs=[config_pb2.SlicingSpec()]))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (t.config(acc=config_pb2.MetricThreshold()), "threshold on 'acc' is empty"),
        (t.config(acc=t.value()), "value_threshold on 'acc' has no bound"),
        (t.config(acc=t.change()), "change_threshold on 'acc' has no bound"),
        (t.config(acc=_NO_DIRECTION), "change_threshold on 'acc' has no direction"),
        (t.config(acc=t.value(0.9, 0.5)), r"lower_bound 0\.9 is above its upper_bound 0\.5"),
        (t.config(acc=t.value(math.nan)), "lower_bound=NaN"),
        (t.config(acc=t.change(relative=math.nan)), "relative=NaN"),
        (config_pb2.EvalConfig(slicing_specs=[_SLICE]), "has slicing_specs"),
        (t.sliced(acc=(_SLICE, config_pb2.MetricThreshold())), "threshold on 'acc' is empty"),
        (t.sliced(acc=(None, t.value(0.5))), "threshold on 'acc' has no slicing_specs"),
        (
            t.sliced(loss=(_SLICE, t.value(0.5))),
            "'loss' can't be applied, since this metric belongs to whole batches",
        ),
        (
            t.sliced(acc=(config_pb2.SlicingSpec(slice_keys_sql="SELECT 1"), t.value(0.5))),
            "only the stock Evaluator runs",
        ),
        (
            config_pb2.EvalConfig(cross_slicing_specs=[config_pb2.CrossSlicingSpec()]),
            "compares slices with each other",
        ),
        (
            config_pb2.EvalConfig(
                metrics_specs=[
                    config_pb2.MetricsSpec(
                        cross_slice_thresholds={"acc": config_pb2.CrossSliceMetricThresholds()}
                    )
                ]
            ),
            r"compares slices with each other \(acc\)",
        ),
        (
            config_pb2.EvalConfig(metrics_specs=[config_pb2.MetricsSpec(output_names=["head"])]),
            "output_names, binarize or aggregate",
        ),
        (
            config_pb2.EvalConfig(
                model_specs=[config_pb2.ModelSpec(name="a"), config_pb2.ModelSpec(name="b")]
            ),
            r"2 candidate\(s\) and 0 baseline\(s\)",
        ),
        (
            config_pb2.EvalConfig(model_specs=[config_pb2.ModelSpec(is_baseline=True)]),
            r"0 candidate\(s\) and 1 baseline\(s\)",
        ),
    ],
)
def test_what_could_only_fail_later_is_refused(config, says):
    with pytest.raises(ValueError, match=says):
        check_eval_config(config)


def test_other_types_are_refused():
    with pytest.raises(TypeError, match=r"tfma\.EvalConfig, got dict"):
        check_eval_config({"accuracy": 0.5})


@pytest.mark.parametrize(
    "model_specs",
    [
        [],
        [config_pb2.ModelSpec(label_key="tips")],
        [config_pb2.ModelSpec(name="mine")],
        [
            config_pb2.ModelSpec(name="baseline", is_baseline=True),
            config_pb2.ModelSpec(name="candidate"),
        ],
    ],
)
def test_both_models_are_named_whatever_the_user_wrote(model_specs):
    config = t.config(accuracy=t.change(0.0))
    config.model_specs.extend(model_specs)

    compared = with_defaults(config, has_baseline=True)
    assert (candidate_name(compared), baseline_name(compared)) == ("candidate", "baseline")

    alone = with_defaults(config, has_baseline=False)
    assert (candidate_name(alone), baseline_name(alone)) == ("", None)


def test_tfma_takes_it():
    auc = config_pb2.MetricConfig(class_name="AUC", config='{"num_thresholds": 1000}')
    config = stock_evaluator_config(
        "tips_xf",
        metrics=["ExampleCount", auc],
        prediction_key="probability",
        slicing_specs=[{"feature_keys": ["payment_type"]}],
    )
    filled = tfma.utils.update_eval_config_with_defaults(config)
    tfma.utils.verify_eval_config(filled)
    assert list(filled.metrics_specs[0].metrics) == [
        config_pb2.MetricConfig(class_name="ExampleCount"),
        auc,
    ]
    assert list(filled.slicing_specs) == [
        config_pb2.SlicingSpec(),
        config_pb2.SlicingSpec(feature_keys=["payment_type"]),
    ]
    (model,) = filled.model_specs
    assert (model.label_key, model.prediction_key) == ("tips_xf", "probability")
    # Without thresholds the Evaluator writes no blessing.
    assert not tfma.metrics.metric_thresholds_from_metrics_specs(filled.metrics_specs, filled)


def test_refused():
    with pytest.raises(ValueError, match="label_key='': name the label"):
        stock_evaluator_config("")
    with pytest.raises(ValueError, match="metrics is empty"):
        stock_evaluator_config("tips_xf", metrics=[])
    with pytest.raises(ValueError, match="is not a list"):
        stock_evaluator_config("tips_xf", slicing_specs=config_pb2.SlicingSpec())


_PAGE = pathlib.Path(__file__).parents[3] / "docs" / "evaluation.md"


def test_code_of_the_page(tmp_path, capsys):
    page = {}
    for block in re.findall(r"```python\n(.*?)```", _PAGE.read_text(), re.DOTALL):
        exec(block, page)

    check_eval_config(page["eval_config"])
    check_eval_config(page["sliced_config"])
    assert len(parse_slicing_specs(page["slicing_specs"])) == 3
    (spec,) = page["evaluator_config"].model_specs
    assert spec.preprocessing_function_names == ["transform_features"]
    channels = {
        "model": tfx.dsl.Channel(type=tfx.types.standard_artifacts.Model),
        "evaluation": tfx.dsl.Channel(type=tfx.types.standard_artifacts.ModelEvaluation),
    }
    _, gate = page["gate_for"](types.SimpleNamespace(outputs=channels))
    assert set(gate.outputs) == {"evaluation", "blessing"}

    uri = str(tmp_path / "evaluation")
    metrics = EvalMetrics(overall={"accuracy": 0.8125, "loss": 0.5}, global_step=1)
    write_model_evaluation(uri, metrics, eval_config=page["eval_config"])
    assert page["show"](uri).validation_ok
    assert "{'accuracy': {'doubleValue': 0.8125}" in capsys.readouterr().out
