"""Writes a ModelEvaluation, the folder that all TensorFlow Model Analysis tools open, without Beam."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import tensorflow as tf
import tensorflow_model_analysis as tfma
from google.protobuf import message
from tensorflow_model_analysis.proto import config_pb2

from tfx_tpu_trainer._support.whole_files import folder_written_whole, is_whole, write_whole
from tfx_tpu_trainer.components.evaluation import _eval_config as eval_configs
from tfx_tpu_trainer.components.evaluation import _tfma_private
from tfx_tpu_trainer.components.evaluation._blessing import Comparison, Verdict, judge
from tfx_tpu_trainer.components.evaluation._data_slices import OVERALL, SliceKey
from tfx_tpu_trainer.components.evaluation._eval_metrics import EvalMetrics, SliceMetrics

_METRICS_FILE = "metrics-00000-of-00001.tfrecord"
_PLOTS_FILE = "plots-00000-of-00001.tfrecord"
_ATTRIBUTIONS_FILE = "attributions-00000-of-00001.tfrecord"
_VALIDATIONS_FILE = "validations.tfrecord"
_EVAL_CONFIG_FILE = "eval_config.json"
_FILES = (_METRICS_FILE, _PLOTS_FILE, _ATTRIBUTIONS_FILE, _VALIDATIONS_FILE, _EVAL_CONFIG_FILE)

# Each slice's row count, which TFMA's views filter by.
_EXAMPLE_COUNT = "example_count"


def write_model_evaluation(
    uri: str,
    metrics: EvalMetrics,
    *,
    eval_config: config_pb2.EvalConfig | None = None,
    baseline: EvalMetrics | None = None,
    model_location: str = "",
    baseline_location: str = "",
    data_location: str = "",
) -> Verdict:
    """Writes a ModelEvaluation, slices included, and checks the metrics against the config's thresholds.

    `tfma.load_eval_result`, `tfma.load_validation_result` and `tfma.load_metrics` load the result; the values are
    doubles and are restored bit for bit. With a baseline, it also has the baseline's metrics and the differences, under
    TFMA's model names `candidate` and `baseline`.

    Args:
        uri: folder of the ModelEvaluation artifact. It may exist and be empty, or hold the evaluation of
            an earlier attempt, which is replaced. It appears whole or not at all.
        metrics: the candidate's metrics.
        eval_config: thresholds by metric name, on every slice or on some; None only writes the metrics.
        baseline: the baseline's metrics; None: there is no baseline model, or (if `baseline_location` is given)
            it is a model without metrics, whose change thresholds then fail.
        model_location: path of the candidate model; TFMA's views show it.
        baseline_location: path of the baseline model; '' if there is none.
        data_location: path of the evaluated data; TFMA's views show it.

    Returns:
        The verdict: `blessed` is None without thresholds to check.

    Raises:
        ValueError: thresholds that can't be checked, see `check_eval_config`.
        FileExistsError: `uri` holds other files.
    """
    eval_config = config_pb2.EvalConfig() if eval_config is None else eval_config
    eval_configs.check_eval_config(eval_config)
    has_baseline = baseline is not None or bool(baseline_location)
    config = eval_configs.with_defaults(eval_config, has_baseline=has_baseline)
    thresholds = eval_configs.thresholds_of(config)
    unchecked = () if has_baseline else eval_configs.metrics_with_change_thresholds(eval_config)

    comparisons = [
        Comparison(
            candidate=_metrics_of(metrics, key),
            baseline=None if baseline is None else _metrics_of(baseline, key),
            baseline_location=baseline_location,
            slice_key=key,
        )
        for key in (OVERALL, *(one.key for one in metrics.slices))
    ]
    slices = [(one.slice_key, _keyed_values(config, thresholds, one)) for one in comparisons]
    validation, verdict = judge(config, slices, comparisons, unchecked=unchecked)
    locations = {
        spec.name: baseline_location if spec.is_baseline else model_location
        for spec in config.model_specs
    }
    eval_run = _tfma_private.eval_run_to_json(
        config, data_location=data_location, model_locations=locations
    )
    with folder_written_whole(uri, replaceable=_FILES, last=[_EVAL_CONFIG_FILE]) as folder:
        records = [
            tfma.writers.convert_slice_metrics_to_proto(part, add_metrics_callbacks=None)
            for part in slices
        ]
        _write_records(os.path.join(folder, _METRICS_FILE), records)
        _write_records(os.path.join(folder, _PLOTS_FILE), [])
        _write_records(os.path.join(folder, _ATTRIBUTIONS_FILE), [])
        _write_records(os.path.join(folder, _VALIDATIONS_FILE), [validation])
        write_whole(os.path.join(folder, _EVAL_CONFIG_FILE), eval_run)
    return verdict


def read_model_evaluation(uri: str) -> EvalMetrics | None:
    """Reads the candidate's metrics from a ModelEvaluation, the stock Evaluator's included.

    Args:
        uri: folder of the ModelEvaluation artifact.

    Returns:
        The scalar metrics, without a global step or checkpoint, which a ModelEvaluation doesn't have; None if it has no
        scalar metric over the whole data.

    Raises:
        FileNotFoundError: It was not completely written.
    """
    is_whole(uri, [_EVAL_CONFIG_FILE])
    by_slice: dict[SliceKey, dict[str, float]] = {}
    for record in tfma.load_metrics(uri):
        if record.HasField("cross_slice_key"):
            continue
        metrics = by_slice.setdefault(tfma.slicer.deserialize_slice_key(record.slice_key), {})
        for item in record.metric_keys_and_values:
            key = item.key
            is_candidate = key.model_name in ("", tfma.CANDIDATE_KEY) and not key.is_diff
            of_one_output = key.output_name or key.HasField("sub_key")
            if is_candidate and not of_one_output and item.value.HasField("double_value"):
                metrics[key.name] = item.value.double_value.value
    overall = by_slice.pop(OVERALL, {})
    slices = tuple(
        SliceMetrics(key, metrics, _as_count(metrics.pop(_EXAMPLE_COUNT, None)))
        for key, metrics in by_slice.items()
    )
    return EvalMetrics(overall=overall, global_step=None, slices=slices) if overall else None


def _as_count(value: float | None) -> int | None:
    return None if value is None else int(value)


def _metrics_of(metrics: EvalMetrics, key: SliceKey) -> Mapping[str, float]:
    """Returns a slice's metrics; none if it was not measured."""
    counts = {one.key: one.num_examples for one in metrics.slices}
    count = {**counts, OVERALL: metrics.num_examples if counts else None}.get(key)
    of_slice = metrics.of_slice(key) or {}
    return of_slice if count is None else {_EXAMPLE_COUNT: count, **of_slice}


def _keyed_values(
    config: config_pb2.EvalConfig,
    thresholds: eval_configs.Thresholds,
    comparison: Comparison,
) -> dict[tfma.metrics.MetricKey, float]:
    """Returns metrics under TFMA's keys: candidate's, baseline's and their differences.

    The `example_weighted` in a threshold's key depends on how the threshold was written, and TFMA compares whole keys,
    so a metric with thresholds gets their keys.
    """
    candidate_name = eval_configs.candidate_name(config)
    baseline_name = eval_configs.baseline_name(config)
    threshold_keys: dict[str, set[tfma.metrics.MetricKey]] = {}
    for key in thresholds:
        threshold_keys.setdefault(key.name, set()).add(key._replace(is_diff=False))

    def keys_of(name: str) -> Iterable[tfma.metrics.MetricKey]:
        plain = tfma.metrics.MetricKey(name, model_name=candidate_name, example_weighted=None)
        return threshold_keys.get(name, {plain})

    values = {}
    for name, value in comparison.candidate.items():
        for key in keys_of(name):
            values[key] = value
    for name, value in (comparison.baseline or {}).items():
        for key in keys_of(name):
            values[key.make_baseline_key(baseline_name)] = value
            if key in values:
                values[key.make_diff_key()] = values[key] - value
    return values


def _write_records(path: str, records: Iterable[message.Message]) -> None:
    with tf.io.TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record.SerializeToString())
