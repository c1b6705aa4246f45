"""Measures columns with TFDV: their types, means and schema, like TFX's StatisticsGen and SchemaGen."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import tensorflow_data_validation as tfdv
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2, statistics_pb2

from tfx_tpu_trainer._support.messages import errors_only
from tfx_tpu_trainer.workbench.new.arguments import ScaffoldError
from tfx_tpu_trainer.workbench.new.reading import Dates, Source

_STATISTICS = statistics_pb2.FeatureNameStatistics
_TYPES: Mapping[int, Type] = {
    _STATISTICS.INT: "integer",
    _STATISTICS.FLOAT: "float",
    _STATISTICS.STRING: "string",
    _STATISTICS.BYTES: "string",
}

Type = Literal["integer", "float", "string"]


@dataclasses.dataclass(frozen=True)
class Column:
    """A column's statistics from TFDV."""

    name: str
    # The type that Transform gets: 64-bit integers, floats or strings.
    type: Type
    # Rows without a value, or with text in a column of numbers.
    missing: int
    # Value, as text -> rows; `None` if there are too many values to count.
    counts: Mapping[str, int] | None
    # The form of its dates; `None` if not all values are dates.
    dates: Dates | None = None
    # The number of distinct values; `None` if not counted.
    distinct: int | None = None
    # The most values in one row; more than 1 only in TFRecords.
    most_values: int = 1
    # The smallest number; `None` for strings, like `greatest`, `mean` and `deviation`.
    least: float | None = None
    greatest: float | None = None
    mean: float | None = None
    deviation: float | None = None


@dataclasses.dataclass(frozen=True)
class Table:
    """A data file's statistics from TFDV.

    Attributes:
        source: The file, and how it is read.
        columns: The columns, in the data's order.
        schema: The schema that TFDV infers, as text.
    """

    source: Source
    columns: tuple[Column, ...]
    schema: str


def measure(source: Source) -> Table:
    """Runs TFDV on a file."""
    try:
        # Their warnings are about their own code.
        with errors_only("", "tensorflow", "apache_beam"):
            if source.kind == "csv":
                statistics = tfdv.generate_statistics_from_csv(str(source.path))
            else:
                statistics = tfdv.generate_statistics_from_tfrecord(str(source.path))
            schema = tfdv.infer_schema(statistics, infer_feature_shape=False)
    except Exception as error:  # Beam raises its workers' exceptions, of any type
        reason = " ".join(str(error).split())[:200]
        raise ScaffoldError(
            f"TFDV can't read {source.path} ({type(error).__name__}: {reason}): correct the data"
        ) from error
    found = {_name(feature): feature for feature in statistics.datasets[0].features}
    return Table(
        source=source,
        columns=tuple(
            _column(name, found[name], source) for name in source.columns if name in found
        ),
        schema=text_format.MessageToString(_without_bounds(schema, source)),
    )


def _name(feature: Any) -> str:
    return feature.name or ".".join(feature.path.step)


def _column(name: str, feature: Any, source: Source) -> Column:
    kind = _TYPES.get(feature.type)
    values = source.columns[name]
    if kind is None:
        raise ScaffoldError(
            f"column {name!r} contains neither numbers nor strings; remove it from {source.path}"
        )
    numbers = feature.num_stats if kind != "string" else None
    common = (numbers or feature.string_stats).common_stats
    if numbers is None or not common.num_non_missing:
        return Column(
            name,
            kind,
            values.missing,
            values.counts,
            values.dates,
            distinct=int(feature.string_stats.unique) or None,
            most_values=int(common.max_num_values) or 1,
        )
    not_a_number = sum(bucket.num_nan for bucket in numbers.histograms[:1])
    return Column(
        name,
        kind,
        values.missing + int(not_a_number),
        values.counts,
        most_values=int(common.max_num_values) or 1,
        least=numbers.min,
        greatest=numbers.max,
        mean=numbers.mean,
        deviation=numbers.std_dev,
    )


def _without_bounds(schema: schema_pb2.Schema, source: Source) -> schema_pb2.Schema:
    """Removes from the schema bounds of only these rows: their number, their days, and that no value is missing.

    The share of rows with a value stays a bound for columns without missing values, such as the label.
    """
    for feature in schema.feature:
        if source.columns[feature.name].dates:
            # Later data has other days.
            feature.ClearField("domain_info")
        feature.presence.min_count = 0
        if feature.presence.min_fraction < 1:
            feature.presence.ClearField("min_fraction")
    return schema
