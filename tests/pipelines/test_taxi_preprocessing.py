"""The taxi features against their formulas, on a handful of rides."""

from __future__ import annotations

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


@pytest.fixture(scope="module")
def transformed() -> Rows:
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


def column(rows: Rows, name: str) -> list[Any]:
    return [row[name] for row in rows]


def test_every_feature_is_one_value_a_row(transformed: Rows) -> None:
    expected = {f"{name}_scaled" for name in NUMBERS}
    expected |= {f"{name}_id" for name in (*BUCKETED, *VOCABULARIES, *IDS)}
    assert set(transformed[0]) == expected | {LABEL}
    assert all(np.shape(value) == () for row in transformed for value in row.values())


def test_the_label_is_a_tip_of_more_than_a_fifth_of_the_fare(
    transformed: Rows,
) -> None:
    # 3.0 of 10, 2.2 of 11 (a fifth exactly), none, none, 2.8001 of 14, missing.
    assert column(transformed, LABEL) == [1, 0, 0, 0, 1, 0]


def test_numbers_are_z_scores_of_logarithms(transformed: Rows) -> None:
    logged = np.log1p(10.0 + np.arange(6))
    expected = (logged - logged.mean()) / logged.std()
    np.testing.assert_allclose(column(transformed, "fare_scaled"), expected, rtol=1e-4)


def test_a_missing_number_becomes_the_mean(transformed: Rows) -> None:
    seconds = np.log1p(60.0 * np.array([1, 2, 3, 5, 6]))
    expected = np.insert((seconds - seconds.mean()) / seconds.std(), 3, 0.0)
    np.testing.assert_allclose(column(transformed, "trip_seconds_scaled"), expected, rtol=1e-4)


def test_a_missing_place_gets_a_bucket_of_its_own(
    transformed: Rows,
) -> None:
    buckets = column(transformed, "pickup_latitude_id")
    assert buckets[2] == BUCKETS
    others = buckets[:2] + buckets[3:]
    assert others == sorted(others)
    assert max(others) < BUCKETS


def test_a_missing_string_is_a_word_of_its_own(transformed: Rows) -> None:
    companies = column(transformed, "company_id")
    assert companies == [0, 0, 1, 0, 0, 0]


def test_ids_are_kept_within_their_range(transformed: Rows) -> None:
    assert column(transformed, "trip_start_hour_id") == [1, 1, 23, 1, 1, 1]
    assert column(transformed, "pickup_community_area_id")[3] == 0
    assert column(transformed, "dropoff_community_area_id")[3] == 77


def test_a_missing_column_is_named() -> None:
    with pytest.raises(ValueError, match=r"no columns \['fare', 'tips'\], only \['company'"):
        preprocessing_fn({name: None for name in ROWS[0] if name not in ("fare", "tips")})
