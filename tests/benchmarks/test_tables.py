"""Tests the comparison of made projects with gradient boosting: its constant, its dates and its verdict."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from benchmarks import tables


def rows(count: int) -> pd.DataFrame:
    """Rows whose label follows from the day of the week alone."""
    days = pd.date_range("2024-01-01", periods=count, freq="D")
    weekday = days.weekday
    return pd.DataFrame(
        {
            "day": days.strftime("%Y-%m-%d"),
            "word": np.where(np.arange(count) % 3 == 0, None, "a"),
            "late": np.where(weekday >= 5, "yes", "no"),
            "delay": np.where(weekday >= 5, 3.0, 1.0),
        }
    )


def test_the_constant_of_classes_knows_how_often_each_is():
    data = rows(700).drop(columns="delay")
    constant, boosting = tables.losses(data, data[:70], "late")
    entropy = -(2 / 7 * math.log(2 / 7) + 5 / 7 * math.log(5 / 7))
    assert constant == pytest.approx(entropy)
    # Only a model that reads the date as a calendar can know.
    assert boosting < 0.01


def test_the_constant_of_numbers_is_the_mean():
    data = rows(700).drop(columns="late")
    constant, boosting = tables.losses(data, data[:70], "delay")
    # The variance of two values, 2 apart, of which 2 in 7 are the greater.
    assert constant == pytest.approx(4 * 2 / 7 * 5 / 7)
    assert boosting < 0.01


@pytest.mark.parametrize(
    ("project", "boosting", "verdict"),
    [
        (0.54, 0.5, "0.92"),
        (0.56, 0.5, "0.88 below 0.9"),
        (0.97, 1.2, "-"),
        (1.01, 1.2, "- below 0.9"),
    ],
)
def test_a_project_has_most_of_the_skill_of_boosting_over_all_splits(project, boosting, verdict):
    splits = [
        tables.Compared((1200, 1), 3, 1.0, constant=1.0, project=project + more, boosting=boosting)
        for more in (-0.02, 0.02)
    ]
    line = tables.summary("wages", splits)
    assert line[:5] == ["wages", "1,200 + 1", "3", "1 s", "2"]
    mean = 1 - project
    assert line[5] == f"{mean:.3f} ({mean - 0.02:.3f} to {mean + 0.02:.3f})"
    assert line[-1] == verdict


def test_the_splits_of_a_run_are_read_back(tmp_path):
    (tmp_path / "1" / "Split-eval").mkdir(parents=True)
    options = tf.io.TFRecordOptions("GZIP")
    with tf.io.TFRecordWriter(str(tmp_path / "1" / "Split-eval" / "data.gz"), options) as file:
        for word, number in ((b"a", 2), (None, 3)):
            features = {
                "word": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[word] if word else [])
                ),
                "number": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
            }
            file.write(
                tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
            )
    assert tables.rows_of(tmp_path, "eval").to_dict("list") == {
        "word": ["a", None],
        "number": [2, 3],
    }


def test_the_loss_of_answers_is_that_of_the_label():
    answers = pd.DataFrame({"bought": ["CH", "MM"], "probability_MM": [0.25, 0.5]})
    answers["probability_CH"] = 1 - answers["probability_MM"]
    expected = -(math.log(0.75) + math.log(0.5)) / 2
    assert tables.loss_of_answers(answers, "bought") == pytest.approx(expected)
    answers = pd.DataFrame({"price": [1.0, 3.0], "prediction": [2.0, 1.0]})
    assert tables.loss_of_answers(answers, "price") == pytest.approx((1 + 4) / 2)
