"""Wraps TFMA names without a public alias. No other module imports a private TFMA name.

| name | why we need it | if it goes away |
|---|---|---|
| `evaluators.metrics_validator.validate_metrics` | decides value and change thresholds for one slice, with the rules of the stock Evaluator; only the Beam stage around it is public | the same comparisons, some 40 lines |
| `writers.metrics_plots_and_validations_writer.CombineValidations` | merges the slices' results and finds slices that a threshold names and that were not computed | merge by hand: and of `validation_ok`, concatenation of the failures |
| `proto.config_pb2.EvalRun` | the message of `eval_config.json`, which `tfma.load_eval_result` reads | write its five JSON fields |

Seen with TFMA 0.47.1 (TFX 1.16) and 0.52.0 (TFX 1.21); the tests of the verdict fail if a later TFMA changes one of
them. The messages of an EvalConfig come from `proto.config_pb2` everywhere: TFMA 0.52 lost their aliases in `tfma.`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow_model_analysis as tfma
from google.protobuf import json_format
from tensorflow_model_analysis.evaluators import metrics_validator
from tensorflow_model_analysis.proto import config_pb2
from tensorflow_model_analysis.writers import metrics_plots_and_validations_writer

from tfx_tpu_trainer.components.evaluation._data_slices import SliceKey

KeyedMetrics = Mapping[tfma.metrics.MetricKey, float]


def validate(
    slices: Sequence[tuple[SliceKey, KeyedMetrics, config_pb2.EvalConfig]],
    eval_config: config_pb2.EvalConfig,
    *,
    rubber_stamp: bool,
) -> tfma.ValidationResult:
    """Checks metrics against the thresholds of an EvalConfig, as the stock Evaluator does."""
    combine = metrics_plots_and_validations_writer.CombineValidations(
        eval_config, rubber_stamp=rubber_stamp
    )
    accumulator = combine.create_accumulator()
    for slice_key, metrics, of_slice in slices:
        result = metrics_validator.validate_metrics((slice_key, dict(metrics)), of_slice)
        accumulator = combine.add_input(accumulator, result)
    return combine.extract_output(accumulator)


def eval_run_to_json(
    eval_config: config_pb2.EvalConfig, *, data_location: str, model_locations: Mapping[str, str]
) -> str:
    """Returns the text of `eval_config.json`."""
    run = config_pb2.EvalRun(
        eval_config=eval_config,
        version=tfma.__version__,
        data_location=data_location,
        file_format="tfrecord",
        model_locations=model_locations,
    )
    return json_format.MessageToJson(run)
