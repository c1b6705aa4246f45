from __future__ import annotations

import pytest
import tensorflow_model_analysis as tfma
from tensorflow_model_analysis.proto import config_pb2

from tfx_tpu_trainer.components.evaluation._stock_evaluator import stock_evaluator_config


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
