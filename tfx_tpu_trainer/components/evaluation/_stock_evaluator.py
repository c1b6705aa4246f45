"""The stock Evaluator's config for a model of TpuTrainer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tensorflow_model_analysis.proto import config_pb2

from tfx_tpu_trainer.components.evaluation._slices import parse_slicing_specs

TRANSFORM_FEATURES = "transform_features"
"""The signature that TpuTrainer's default receiver adds: raw example -> transformed features and label."""


def stock_evaluator_config(
    label_key: str,
    *,
    metrics: Iterable[str | config_pb2.MetricConfig] = ("ExampleCount",),
    prediction_key: str = "",
    slicing_specs: Any = (),
    example_weight_key: str = "",
) -> config_pb2.EvalConfig:
    """Returns the EvalConfig by which TFX's Evaluator measures a model of TpuTrainer on raw examples.

    The model gets serialized raw examples by `serving_default`; the label, which Transform has made, is
    found by the `transform_features` signature. No user code is needed.

    There are no thresholds in it, so that the Evaluator writes no blessing: `EvalMetricsGate` blesses. To
    let the Evaluator bless instead, give thresholds on TFMA's metrics in `metrics`, and leave the gate out.

    Args:
        label_key: the label in Transform's output, as TpuTrainer's `label_key`.
        metrics: TFMA's metrics: class names, as "AUC", or configs.
        prediction_key: which output of the model is its prediction; '' if it has one output only, or if the
            metrics know what to do with several.
        slicing_specs: slices to measure beside the whole, of raw or transformed features, in any form that
            TpuTrainer takes.
        example_weight_key: feature of Transform's output that weighs the rows; '' for none.

    Returns:
        The config.

    Raises:
        ValueError: no label_key or no metric, or slicing specs that can't be read.
    """
    if not label_key:
        raise ValueError(f"label_key={label_key!r}: name the label in Transform's output.")
    configs: Sequence[config_pb2.MetricConfig] = [
        config_pb2.MetricConfig(class_name=one) if isinstance(one, str) else one for one in metrics
    ]
    if not configs:
        raise ValueError("metrics is empty: name TFMA's metrics, such as ['ExampleCount', 'AUC'].")
    return config_pb2.EvalConfig(
        model_specs=[
            config_pb2.ModelSpec(
                # The default type would load the model through Keras, which reads no TF1 metagraph.
                model_type="tf_generic",
                signature_name="serving_default",
                label_key=label_key,
                prediction_key=prediction_key,
                example_weight_key=example_weight_key,
                preprocessing_function_names=[TRANSFORM_FEATURES],
            )
        ],
        metrics_specs=[config_pb2.MetricsSpec(metrics=configs)],
        slicing_specs=[config_pb2.SlicingSpec(), *parse_slicing_specs(slicing_specs)],
    )
