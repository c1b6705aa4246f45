"""Reads StatisticsGen's results for the raw examples, and tests whether two sets of rows differ by more than chance."""

from __future__ import annotations

import collections
import dataclasses
import math
import os
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.file_systems import as_pattern
from tfx_tpu_trainer._support.messages import printable
from tfx_tpu_trainer.components.report._run_data import (
    MEAN,
    MISSING,
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
# TFMD's feature types by name.
_KINDS = {"INT": "integer", "FLOAT": "float", "STRING": "text", "BYTES": "bytes"}
# The share of random assignments of rows to splits that must show no difference.
_CONFIDENCE = 0.95


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
    # Imported late: the estimators work without TFDV.
    from tensorflow_metadata.proto.v0 import statistics_pb2

    found = {}
    for path in sorted(tf.io.gfile.glob(os.path.join(as_pattern(folder), f"{_SPLIT}*", _FILE))):
        read = statistics_pb2.DatasetFeatureStatisticsList()
        try:
            with tf.io.gfile.GFile(path, "rb") as file:
                read.ParseFromString(file.read())
        except Exception as error:  # The class of Protobuf's exceptions differs between versions.
            raise ValueError(f"{path} can't be read as statistics of TFDV: {error}") from error
        # The whole split comes first; slices follow.
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
    # TFDV does not count a row with an empty list, as CsvExampleGen writes it, as missing.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Compared:
    """A mean, or a share of rows, in two sets of rows."""

    feature: str
    of: str
    now: float
    before: float
    deviation: float  # standard deviation of the averaged values over both sets
    error: float  # standard error of the difference under random assignment

    def distance(self, *, bound: float) -> Distance:
        """Returns the difference; chance explains up to `bound` standard errors."""
        is_mean = self.of == MEAN
        unit = (self.deviation or 1.0) if is_mean else 1.0
        return Distance(
            feature=self.feature,
            measure="standard deviations" if is_mean else "L-infinity",
            value=abs(self.now - self.before) / unit,
            of=self.of,
            now=self.now,
            before=self.before,
            chance=bound * self.error / unit,
        )


def _compared(
    feature: str, of: str, now: tuple[float, float, int], before: tuple[float, float, int]
) -> _Compared:
    """Compares two means, each given with its deviation and number of rows."""
    (mean, deviation, rows), (mean_before, deviation_before, rows_before) = now, before
    every = rows + rows_before
    between = rows * rows_before / every * (mean - mean_before) ** 2
    within = rows * deviation**2 + rows_before * deviation_before**2
    of_both = math.sqrt((within + between) / max(1, every - 1))
    # The variance over all assignments of these rows to sets of these sizes, as in a permutation test.
    error = of_both * math.sqrt(1 / rows + 1 / rows_before)
    return _Compared(
        feature=feature, of=of, now=mean, before=mean_before, deviation=of_both, error=error
    )


def _share(share: float, rows: int) -> tuple[float, float, int]:
    return share, math.sqrt(share * (1 - share)), rows


def _drift(now: Any, before: Any, *, rows: str, against: str) -> Drift:
    """Compares each shared feature: its mean or the shares of its values, and how often it is missing."""
    features_now, features_before = _features(now), _features(before)
    both = [name for name in features_now if name in features_before]
    by_feature = {
        name: list(_comparisons(name, (features_now[name], now), (features_before[name], before)))
        for name in both
    }
    # One in 20 random assignments exceeds a bound anywhere: more comparisons mean wider bounds (Bonferroni).
    count = sum(map(len, by_feature.values()))
    bound = statistics.NormalDist().inv_cdf(1 - (1 - _CONFIDENCE) / (2 * max(1, count)))
    distances = [
        max(
            (each.distance(bound=bound) for each in of_feature),
            key=lambda distance: distance.beyond,
        )
        for of_feature in by_feature.values()
        if of_feature
    ]
    return Drift(
        rows=rows,
        against=against,
        distances=tuple(sorted(distances, key=lambda each: (-each.beyond, each.feature))),
        new=tuple(name for name in features_now if name not in features_before),
        gone=tuple(name for name in features_before if name not in features_now),
    )


def _comparisons(name: str, now: tuple[Any, Any], before: tuple[Any, Any]) -> Iterator[_Compared]:
    """Yields the comparable quantities from the statistics of a feature and of its split."""
    found = [_of_split(feature, int(split.num_examples)) for feature, split in (now, before)]
    every = [int(split.num_examples) for _, split in (now, before)]
    if not all(every):
        return
    missing = [_share(each.missing / rows, rows) for each, rows in zip(found, every)]
    if any(each.missing for each in found):
        yield _compared(name, MISSING, *missing)
    given = [rows - each.missing for rows, each in zip(every, found)]
    if not all(given):
        return
    means = [
        (each.mean, each.deviation, rows)
        for each, rows in zip(found, given)
        if each.mean is not None and each.deviation is not None and math.isfinite(each.mean)
    ]
    if len(means) == len(found):
        yield _compared(name, MEAN, *means)
    elif all(each.unique is not None for each in found):
        shares = [_shares(feature) for feature, _ in (now, before)]
        for value in dict.fromkeys(value for of_set in shares for value in of_set):
            pair = [_share(of_set[value], rows) for of_set, rows in zip(shares, given)]
            yield _compared(name, f"share of {printable(value) or 'empty text'}", *pair)


def _shares(feature: Any) -> collections.defaultdict[str, float]:
    """Returns value -> its share; a value that TFDV has not listed gets the share of the rarest listed one."""
    counts = {
        bucket.label: bucket.sample_count for bucket in feature.string_stats.rank_histogram.buckets
    }
    every = max(1, feature.string_stats.common_stats.tot_num_values)
    is_complete = feature.string_stats.unique <= len(counts)
    rarest = 0.0 if is_complete else min(counts.values(), default=0.0) / every
    shares = {value: min(1.0, count / every) for value, count in counts.items()}
    return collections.defaultdict(lambda: rarest, shares)
