import math

import pytest
import tensorflow as tf

from tfx_tpu_trainer.components.report._events import read_learning

v1 = tf.compat.v1


def _write(folder, values, *, tag="loss", begins_at=None, suffix=""):
    """Writes an event file, as a process that trains does."""
    with tf.Graph().as_default():
        writer = v1.summary.FileWriter(str(folder), filename_suffix=suffix)
        if begins_at is not None:
            log = v1.SessionLog(status=v1.SessionLog.START)
            writer.add_session_log(log, begins_at + 1)
        for step, value in values:
            summary = v1.Summary(value=[v1.Summary.Value(tag=tag, simple_value=value)])
            writer.add_summary(summary, step)
        writer.close()


@pytest.mark.parametrize("name", ["run", "run[lr=0.1]", "run*"])
def test_values_are_those_of_the_files_by_source(tmp_path, name):
    tmp_path = tmp_path / name
    _write(tmp_path, [(1, 0.5), (3, 0.25)])
    _write(tmp_path / "eval", [(3, 2.0)], tag="accuracy")
    _write(tmp_path / "eval_test", [(3, math.nan)], tag="accuracy")
    learning, unread = read_learning(str(tmp_path))
    assert not unread
    assert not learning.restarts
    loss, accuracy, on_test = learning.series
    assert (loss.source, loss.name, loss.steps, loss.values) == (
        "training",
        "loss",
        (1, 3),
        (0.5, 0.25),
    )
    assert (accuracy.source, accuracy.steps, accuracy.values) == ("eval", (3,), (2.0,))
    assert on_test.source == "eval_test"
    assert math.isnan(on_test.values[0])


def test_summaries_of_tf_2_are_read_and_other_tensors_are_not(tmp_path):
    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        tf.summary.scalar("rate", 0.5, step=7)
        tf.summary.text("words", "many", step=7)
        tf.summary.histogram("weights", [1.0, 2.0], step=7)
    learning, unread = read_learning(str(tmp_path))
    (series,) = learning.series
    assert (series.name, series.steps, series.values) == ("rate", (7,), (0.5,))
    assert not unread


def test_the_process_that_went_on_counts_where_steps_are_there_twice(tmp_path):
    _write(tmp_path, [(n, 1.0) for n in range(1, 31)], begins_at=0, suffix=".a")
    _write(tmp_path, [(n, 2.0) for n in range(21, 41)], begins_at=20, suffix=".b")
    learning, _ = read_learning(str(tmp_path))
    (series,) = learning.series
    assert series.steps == tuple(range(1, 41))
    assert series.values == (1.0,) * 20 + (2.0,) * 20
    assert [restart.step for restart in learning.restarts] == [20]
    assert series.thinned_from == 50


@pytest.mark.parametrize(
    "count", [600, 601, 50_000, pytest.param(1_000_000, marks=pytest.mark.sweep)]
)
def test_many_values_become_the_last_of_equal_stretches(tmp_path, count):
    _write(tmp_path, [(n, float(n)) for n in range(count)])
    ((series,), _) = read_learning(str(tmp_path))[0].series, None
    assert series.thinned_from == count
    stretch = 1
    while -(-count // stretch) > 600:
        stretch *= 2
    expected = [min(start + stretch, count) - 1 for start in range(0, count, stretch)]
    assert list(series.steps) == expected
    assert list(series.values) == expected
    assert len(series.steps) > min(count, 601) // 3


def test_a_damaged_file_is_read_up_to_its_damage(tmp_path):
    _write(tmp_path, [(n, float(n)) for n in range(100)])
    (path,) = tmp_path.glob("*tfevents*")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    learning, (unread,) = read_learning(str(tmp_path))
    assert str(path) in unread
    assert "read up to the damage" in unread
    (series,) = learning.series
    assert series.steps == tuple(range(len(series.steps)))
    assert 10 < len(series.steps) < 90


def test_no_more_than_200_scalars_are_kept(tmp_path):
    with tf.Graph().as_default():
        writer = v1.summary.FileWriter(str(tmp_path))
        values = [v1.Summary.Value(tag=f"s{n:03}", simple_value=n) for n in range(250)]
        writer.add_summary(v1.Summary(value=values), 1)
        writer.close()
    learning, (unread,) = read_learning(str(tmp_path))
    assert len(learning.series) == 200
    assert "50 in all" in unread
    assert "s200" in unread


def test_a_folder_without_events_has_learned_nothing(tmp_path):
    learning, unread = read_learning(str(tmp_path))
    assert learning.series == ()
    assert unread == ()
