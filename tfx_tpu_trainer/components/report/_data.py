"""What StatisticsGen has found in a training's raw examples, and how far two sets of them are apart, by TFDV."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.file_systems import as_pattern
from tfx_tpu_trainer._support.messages import printable
from tfx_tpu_trainer.components.report._run_data import (
    Data,
    Distance,
    Drift,
    Feature,
    FeatureOfSplit,
)

_MOST_FEATURES = 1000
_SPLIT = "Split-"
_FILE = "FeatureStats.pb"
_TRAIN = "train"
# Names of TFMD's enumeration of types.
_KINDS = {"INT": "integer", "FLOAT": "float", "STRING": "text", "BYTES": "bytes"}
_MEASURES = {
    "L_INFTY": "L-infinity",
    "JENSEN_SHANNON_DIVERGENCE": "Jensen-Shannon divergence",
}


def read_data(statistics: str, *, baseline: str | None = None) -> Data:
    """Reads the statistics of a training's raw examples."""
    splits = _read_splits(statistics)
    first = _TRAIN if _TRAIN in splits else min(splits)
    drift = [
        _drift(splits[name], splits[first], rows=f"split {name}", against=f"split {first}")
        for name in splits
        if name != first
    ]
    if baseline is not None:
        before = _read_splits(baseline)
        of_before = first if first in before else min(before)
        drift.append(
            _drift(
                splits[first],
                before[of_before],
                rows=f"split {first}",
                against=f"the baseline's split {of_before}",
            )
        )
    by_split = {name: _features(split) for name, split in splits.items()}
    rows = {name: int(split.num_examples) for name, split in splits.items()}
    names = list(dict.fromkeys(name for features in by_split.values() for name in features))
    return Data(
        statistics=statistics,
        splits=rows,
        features=tuple(_feature(name, by_split, rows) for name in names[:_MOST_FEATURES]),
        all_features=len(names),
        drift=tuple(drift),
    )


def _read_splits(folder: str) -> dict[str, Any]:
    """Returns split -> TFMD's DatasetFeatureStatistics over all of its rows."""
    # Late: the estimators do without TFDV and its messages.
    from tensorflow_metadata.proto.v0 import statistics_pb2

    found = {}
    for path in sorted(tf.io.gfile.glob(os.path.join(as_pattern(folder), f"{_SPLIT}*", _FILE))):
        read = statistics_pb2.DatasetFeatureStatisticsList()
        try:
            with tf.io.gfile.GFile(path, "rb") as file:
                read.ParseFromString(file.read())
        except (
            Exception
        ) as error:  # Protobuf's own class of exceptions differs between its versions.
            raise ValueError(f"{path} can't be read as statistics of TFDV: {error}") from error
        # Slices, where there are any, come after the whole.
        if read.datasets:
            found[os.path.basename(os.path.dirname(path)).removeprefix(_SPLIT)] = read.datasets[0]
    if not found:
        raise ValueError(
            f"{folder} has no statistics ({_SPLIT}*/{_FILE}): let StatisticsGen write them again"
        )
    return found


def _features(split: Any) -> dict[str, Any]:
    return {_name(feature): feature for feature in split.features}


def _name(feature: Any) -> str:
    name = feature.name or ".".join(feature.path.step)
    return printable(name)


def _feature(
    name: str, by_split: Mapping[str, Mapping[str, Any]], rows: Mapping[str, int]
) -> Feature:
    found = {split: features[name] for split, features in by_split.items() if name in features}
    one = next(iter(found.values()))
    kind = one.Type.Name(one.type)
    return Feature(
        name=name,
        kind=_KINDS.get(kind, kind.lower()),
        by_split={split: _of_split(feature, rows[split]) for split, feature in found.items()},
    )


def _of_split(feature: Any, rows: int) -> FeatureOfSplit:
    stats = getattr(feature, feature.WhichOneof("stats"))
    common = stats.common_stats
    values = int(common.tot_num_values)
    # A row whose list is empty, as CsvExampleGen writes it, is not missing to TFDV.
    given = int(common.num_non_missing) if common.max_num_values > 1 else values
    counted: dict[str, Any] = {"missing": rows - given, "values": values}
    if feature.HasField("num_stats") and values:
        counted.update(
            mean=stats.mean, deviation=stats.std_dev, least=stats.min, greatest=stats.max
        )
    if feature.HasField("string_stats"):
        top = stats.top_values[0].value if stats.top_values else None
        counted.update(unique=int(stats.unique), most_frequent=top and printable(top))
    return FeatureOfSplit(**counted)


def _drift(now: Any, before: Any, *, rows: str, against: str) -> Drift:
    """Lets TFDV measure the distance of each feature that both have."""
    import tensorflow_data_validation as tfdv
    from tensorflow_metadata.proto.v0 import schema_pb2, statistics_pb2

    features_now, features_before = _features(now), _features(before)
    schema = schema_pb2.Schema()
    for name, feature in features_now.items():
        steps = list(feature.path.step) or [feature.name]
        # A nested feature is no feature of the schema's first level.
        if len(steps) == 1 and all(map(_has_values, (feature, features_before.get(name)))):
            compared = schema.feature.add(name=steps[0], type=_schema_type(feature))
            # A threshold that nothing exceeds: the distance is reported all the same.
            if feature.HasField("num_stats"):
                compared.drift_comparator.jensen_shannon_divergence.threshold = 1
            else:
                compared.drift_comparator.infinity_norm.threshold = 1
    distances = []
    if schema.feature:
        anomalies = tfdv.validate_statistics(
            statistics_pb2.DatasetFeatureStatisticsList(datasets=[now]),
            schema,
            previous_statistics=statistics_pb2.DatasetFeatureStatisticsList(datasets=[before]),
        )
        for info in anomalies.drift_skew_info:
            for measured in info.drift_measurements:
                measure = _MEASURES.get(measured.Type.Name(measured.type))
                if measure is not None:
                    distances.append(
                        Distance(
                            feature=printable(".".join(info.path.step)),
                            measure=measure,
                            value=measured.value,
                        )
                    )
    return Drift(
        rows=rows,
        against=against,
        distances=tuple(sorted(distances, key=lambda each: (-each.value, each.feature))),
        new=tuple(name for name in features_now if name not in features_before),
        gone=tuple(name for name in features_before if name not in features_now),
    )


def _has_values(feature: Any) -> bool:
    if feature is None:
        return False
    stats = getattr(feature, feature.WhichOneof("stats"))
    return stats.common_stats.tot_num_values > 0


def _schema_type(feature: Any) -> int:
    from tensorflow_metadata.proto.v0 import schema_pb2

    if feature.HasField("num_stats"):
        is_float = feature.Type.Name(feature.type) == "FLOAT"
        return schema_pb2.FLOAT if is_float else schema_pb2.INT
    # Integers that the schema calls categorical have texts' statistics.
    return schema_pb2.INT if feature.Type.Name(feature.type) == "INT" else schema_pb2.BYTES
