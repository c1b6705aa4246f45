"""An input_fn, read and scaled to the hosts of a slice."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.preflight.reports import report
from tfx_tpu_trainer.hardware import find_slice
from tfx_tpu_trainer.preflight._input_speed import InputError, InputSpeed, measure_input
from tfx_tpu_trainer.preflight._report import PreflightReport


def _measure(input_fn, *, tpu="v5e:2x4", batch_size=64, seconds=0.2):
    return measure_input(
        input_fn, tpu_slice=find_slice(tpu), batch_size=batch_size, seconds=seconds, params={}
    )


def _rows(count, *, fails_at=None):
    def input_fn(params):
        def one(number):
            if fails_at is not None:
                with tf.control_dependencies(
                    [tf.debugging.assert_less(number, tf.constant(fails_at, tf.int64))]
                ):
                    number = tf.identity(number)
            return tf.fill([3], tf.cast(number, tf.float32)), tf.cast(number, tf.int32)

        rows = tf.data.Dataset.range(count).map(one)
        return rows.batch(params["batch_size"], drop_remainder=True)

    return input_fn


SPEED = InputSpeed(
    seconds=2.0,
    rows=4000,
    ends=0,
    cpus=2,
    cpus_used=1.9,
    row_bytes=1e6,
    hosts=2,
    host_cpus=112,
    chips=8,
    to_chip_gb_per_s=16.0,
)


def test_rows_and_bytes_are_those_of_the_batches():
    speed = _measure(_rows(10**9))
    assert speed.rows > 0 and speed.rows % 64 == 0 and speed.ends == 0
    assert speed.row_bytes == 3 * 4 + 4
    assert (speed.hosts, speed.host_cpus, speed.chips) == (1, 224, 8)


def test_each_host_reads_its_share_of_a_batch():
    speed = _measure(_rows(10**9), tpu="v5e:4x4", batch_size=128)
    assert speed.hosts == find_slice("v5e:4x4").hosts > 1
    assert speed.rows % (128 // speed.hosts) == 0


def test_an_input_that_ends_is_read_again_and_that_is_said():
    # Two batches a turn, of which the first turn's first one does not count.
    speed = _measure(_rows(128), seconds=2.0)
    assert speed.ends > 0 and speed.rows >= 64 * speed.ends


def test_speed_scales_by_cpus_and_hosts():
    assert SPEED.rows_per_second == 2000
    assert SPEED.slice_rows_per_second == pytest.approx(2000 / 2 * 112 * 2)
    assert SPEED.step_seconds(1024) == pytest.approx(1024 / 224_000)
    # 128 rows of a megabyte go to each chip.
    assert SPEED.transfer_seconds(1024) == pytest.approx(128e6 / 16e9)


def test_a_report_names_the_limit_and_keeps_it_as_json():
    made = report(input=SPEED)
    limit = made.input_limit
    assert limit.input_rows == SPEED.slice_rows_per_second
    assert limit.limited_by == ("input" if limit.estimated_rows > 224_000 else "chips")
    values = made.to_json()
    assert values["input"]["limited_by"] == limit.limited_by
    assert PreflightReport.from_json(values) == made
    # A report of an earlier version has neither key.
    del values["input"], values["steps"][0]["estimate"]
    assert PreflightReport.from_json(values).input is None


@row(
    "preflight",
    "an input_fn that fails while `--measure_input` reads it",
    "--measure_input: input_fn fails after ",
    "rows: InvalidArgumentError",
)
def test_an_input_that_fails_is_one_line(refused):
    with refused(InputError):
        _measure(_rows(10**9, fails_at=1000), seconds=30.0)


@row(
    "preflight",
    "an input_fn without a full batch, for `--measure_input`",
    "--measure_input: input_fn's data ends before its first row",
)
def test_an_input_without_rows_is_one_line(refused):
    with refused(InputError):
        _measure(_rows(3))
