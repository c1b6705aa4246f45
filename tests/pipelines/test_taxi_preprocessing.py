"""The taxi features against their formulas, on a handful of rides."""

from __future__ import annotations

import dataclasses
import tempfile
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_transform as tft
from tensorflow_transform import beam as tft_beam

from pipelines.taxi.transform.preprocessing import (
    BUCKETED,
    BUCKETS,
    IDS,
    LABEL,
    NUMBERS,
    VOCABULARIES,
    preprocessing_fn,
)
from tests.pipeline_runs import PipelineRun

Rows = list[dict[str, Any]]

FLOATS = ("fare", "tips", "trip_miles", *BUCKETED)
STRINGS = VOCABULARIES


def ride(index: int, **changes: Any) -> dict[str, list[Any]]:
    """A raw ride as a sparse row; a feature set to None is missing."""
    row: dict[str, Any] = {
        "fare": 10.0 + index,
        "tips": 0.0,
        "trip_miles": 1.0 + index,
        "trip_seconds": 60 * (index + 1),
        "payment_type": "Cash",
        "company": "Blue",
        **{name: float(index) for name in BUCKETED},
        **dict.fromkeys(IDS, 1),
        **changes,
    }
    return {name: [] if value is None else [value] for name, value in row.items()}


ROWS = [
    ride(0, tips=3.0, payment_type="Credit Card"),
    ride(1, tips=2.2),
    ride(2, company=None, pickup_latitude=None, trip_start_hour=23),
    ride(3, trip_seconds=None, pickup_community_area=None, dropoff_community_area=900),
    ride(4, tips=2.8001),
    ride(5, tips=None),
]


@dataclasses.dataclass(frozen=True)
class Transformed:
    """The transformed rides.

    Attributes:
        rows: The features of each ride.
        logs: The analyzed logarithms of each number.
        companies: The vocabulary.
    """

    rows: Rows
    logs: dict[str, np.ndarray]
    companies: list[str]

    def column(self, name: str) -> list[Any]:
        return [row[name] for row in self.rows]


@pytest.fixture(
    scope="module", params=["by the run", pytest.param("by themselves", marks=pytest.mark.sweep)]
)
def transformed(request: pytest.FixtureRequest, taxi_run: PipelineRun) -> Transformed:
    """Returns the rides, transformed with an analysis of the pipeline's rides, or with their own, which takes long."""
    if request.param == "by the run":
        return transformed_by(taxi_run)
    logs = {
        name: np.log1p([value for row in ROWS for value in row[name]])
        for name in ("fare", "trip_seconds")
    }
    return Transformed(analyzed_and_transformed(), logs, ["Blue", "missing"])


def transformed_by(run: PipelineRun) -> Transformed:
    output = tft.TFTransformOutput(str(run.output_folder("Transform", "transform_graph")))
    spec = output.raw_feature_spec()
    folder = run.output_folder("CsvExampleGen", "examples") / "Split-train"
    files = [str(path) for path in folder.iterdir()]
    analyzed = list(tf.data.TFRecordDataset(files, compression_type="GZIP").as_numpy_iterator())
    parsed = tf.io.parse_example(analyzed, spec)
    logs = {
        name: np.log1p(parsed[name].values.numpy().astype(np.float64))
        for name in ("fare", "trip_seconds")
    }
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        raw = tf.io.parse_example([as_example(row, spec) for row in ROWS], spec)
        features = output.transform_raw_features(raw)
        session.run(tf.compat.v1.tables_initializer())
        columns = session.run(features)
    rows = [{name: column[i] for name, column in columns.items()} for i in range(len(ROWS))]
    companies = [word.decode() for word in output.vocabulary_by_name("company")]
    return Transformed(rows, logs, companies)


def as_example(row: dict[str, list[Any]], spec: dict[str, Any]) -> bytes:
    kinds = {tf.float32: "float_list", tf.int64: "int64_list", tf.string: "bytes_list"}
    example = tf.train.Example()
    for name, values in row.items():
        given = [value.encode() if isinstance(value, str) else value for value in values]
        getattr(example.features.feature[name], kinds[spec[name].dtype]).value.extend(given)
    return example.SerializeToString()


def analyzed_and_transformed() -> Rows:
    spec = {
        name: tf.io.VarLenFeature(
            tf.float32 if name in FLOATS else tf.string if name in STRINGS else tf.int64
        )
        for name in ROWS[0]
    }
    metadata = tft.DatasetMetadata.from_feature_spec(spec)
    with (
        tempfile.TemporaryDirectory() as folder,
        tft_beam.Context(temp_dir=folder, force_tf_compat_v1=True),
    ):
        (rows, _), _ = (ROWS, metadata) | tft_beam.AnalyzeAndTransformDataset(preprocessing_fn)
    return rows


def test_every_feature_is_one_value_a_row(transformed: Transformed) -> None:
    expected = {f"{name}_scaled" for name in NUMBERS}
    expected |= {f"{name}_id" for name in (*BUCKETED, *VOCABULARIES, *IDS)}
    assert set(transformed.rows[0]) == expected | {LABEL}
    assert all(np.shape(value) == () for row in transformed.rows for value in row.values())


def test_the_label_is_a_tip_of_more_than_a_fifth_of_the_fare(transformed: Transformed) -> None:
    # 3.0 of 10, 2.2 of 11 (a fifth exactly), none, none, 2.8001 of 14, missing.
    assert transformed.column(LABEL) == [1, 0, 0, 0, 1, 0]


def test_numbers_are_z_scores_of_logarithms(transformed: Transformed) -> None:
    logged, of_all = np.log1p(10.0 + np.arange(6)), transformed.logs["fare"]
    expected = (logged - of_all.mean()) / of_all.std()
    np.testing.assert_allclose(transformed.column("fare_scaled"), expected, rtol=1e-4)


def test_a_missing_number_becomes_the_mean(transformed: Transformed) -> None:
    seconds = np.log1p(60.0 * np.array([1, 2, 3, 5, 6]))
    of_all = transformed.logs["trip_seconds"]
    expected = np.insert((seconds - of_all.mean()) / of_all.std(), 3, 0.0)
    np.testing.assert_allclose(transformed.column("trip_seconds_scaled"), expected, rtol=1e-4)


def test_a_missing_place_gets_a_bucket_of_its_own(transformed: Transformed) -> None:
    buckets = transformed.column("pickup_latitude_id")
    assert buckets[2] == BUCKETS
    others = buckets[:2] + buckets[3:]
    assert others == sorted(others)
    assert max(others) < BUCKETS


def test_a_missing_string_is_a_word_of_its_own(transformed: Transformed) -> None:
    words = transformed.companies
    # A word that was never seen has the last id.
    blue = words.index("Blue") if "Blue" in words else len(words)
    missing = words.index("missing")
    assert blue != missing
    assert transformed.column("company_id") == [blue, blue, missing, blue, blue, blue]


def test_ids_are_kept_within_their_range(transformed: Transformed) -> None:
    assert transformed.column("trip_start_hour_id") == [1, 1, 23, 1, 1, 1]
    assert transformed.column("pickup_community_area_id")[3] == 0
    assert transformed.column("dropoff_community_area_id")[3] == 77


def test_a_missing_column_is_named() -> None:
    with pytest.raises(ValueError, match=r"no columns \['fare', 'tips'\], only \['company'"):
        preprocessing_fn({name: None for name in ROWS[0] if name not in ("fare", "tips")})
