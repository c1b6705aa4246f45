"""Tests cached rows: which rows an epoch has, in which order, and when they are parsed again."""

from __future__ import annotations

import contextlib
import glob
import logging
import math
import os

import numpy as np
import pytest
import tensorflow as tf

from tests import tfx_testdata
from tests.bad_input import row
from tests.components.inputs.counted_rows import (
    LABEL,
    NUMBERS,
    SPEC,
    counted_input,
    values,
    write_rows,
)
from tests.disks import full_disk
from tests.estimator import counting_model
from tests.estimator.counting_model import KillAt, Killed
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.components.inputs import RowCache, train_on_current_rows
from tfx_tpu_trainer.components.inputs._parsed_rows import estimated_rows, parsed_in_blocks
from tfx_tpu_trainer.components.trainer.rows import values_by_row
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator.tpu._tpu_context import TPUContext
from tfx_tpu_trainer.estimator.tpu.cores.layout import CoreLayout, InputMode

v1 = tf.compat.v1


ROWS = counting_model.ROWS
PARSED_ONCE = "Parsed the training input in"


def _kept(folder, rows=ROWS, *, cache=None, **arguments):
    cache = cache or RowCache(rows_to_draw=None)
    return counted_input(folder, rows, cache=cache, **arguments)


def _drawn(source, batches, *, batch_size=5, params=None):
    """Batches of training, drawn in a session as the engine does."""
    with tf.Graph().as_default() as graph:
        dataset = source.train_fn()({"batch_size": batch_size, **(params or {})})
        iterator = v1.data.make_initializable_iterator(dataset)
        following = iterator.get_next()
        assert graph.as_graph_def().ByteSize() < 200_000
        with v1.Session() as session:
            session.run(iterator.initializer)
            return [session.run(following) for _ in range(batches)]


def _ids(batches):
    return np.concatenate([features["id"] for features, _ in batches]).tolist()


def _of_row(value, index):
    return values_by_row(value)[index].tolist()


@mostly_swept("suffix", ["", ".gz"], kept=[".gz"])
def test_each_epoch_has_each_row_once_in_another_order(tmp_path, suffix):
    ids = _ids(_drawn(_kept(tmp_path, suffix=suffix, names=NUMBERS), 24))
    epochs = [ids[start : start + ROWS] for start in range(0, 5 * ROWS, ROWS)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(ROWS))] * 5
    assert len(set(map(tuple, epochs))) == 5


# Enough for the distinct strings, and not for the columns.
LITTLE = 1300


@pytest.mark.parametrize(("memory", "place"), [(1 << 20, "in memory"), (LITTLE, "on disk")])
def test_a_row_is_what_was_written(tmp_path, caplog, memory, place):
    source = _kept(tmp_path, cache=RowCache(rows_to_draw=None, memory=memory))
    caplog.set_level(logging.INFO)
    for features, labels in _drawn(source, 6):
        for index, number in enumerate(features["id"].tolist()):
            found = {name: _of_row(value, index) for name, value in features.items()}
            assert found == {name: each for name, each in values(number).items() if name != LABEL}
            assert labels[index].tolist() == [number % 2]
        assert features["tags"].dense_shape.tolist() == [5, max(features["id"] % 4)]
        assert features["never"].dense_shape.tolist() == [5, 0]
    assert f"MB {place}" in caplog.text


def test_a_batch_is_shaped_as_one_that_is_parsed_when_it_is_read(tmp_path):
    with tf.Graph().as_default():
        specs = [
            source.train_fn()({"batch_size": 5}).element_spec
            for source in (_kept(tmp_path), counted_input(tmp_path))
        ]
    assert specs[0] == specs[1] and set(specs[0][0]) == set(SPEC) - {LABEL}
    assert set(_drawn(_kept(tmp_path, label_key=None), 1)[0]) == set(SPEC)


def test_the_order_is_that_of_the_seed_wherever_the_rows_are(tmp_path, caplog):
    def first(seed, **arguments):
        source = _kept(tmp_path, shuffle_seed=seed, cache=RowCache(rows_to_draw=None, **arguments))
        return _ids(_drawn(source, 5))

    with caplog.at_level(logging.INFO):
        assert first(3) == first(3, memory=LITTLE, folder=str(tmp_path)) != first(4)
    assert caplog.text.count(PARSED_ONCE) == 3 and f"on disk (below {tmp_path})" in caplog.text
    # Nobody sees the files, so nothing has to be removed.
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} == {"graph", "rows"}


def test_rows_are_parsed_once_for_all_sessions(tmp_path, caplog):
    source = _kept(tmp_path, names=NUMBERS)
    with caplog.at_level(logging.INFO):
        first, again = _drawn(source, 5), _drawn(source, 5)
    assert _ids(first) == _ids(again)
    assert caplog.text.count(PARSED_ONCE) == 1
    assert f"{ROWS} rows" in caplog.text and "in memory" in caplog.text


@mostly_swept(
    ("rows_to_draw", "is_kept"),
    [(ROWS, False), (ROWS + 1, False), (2 * ROWS, True), (None, True)],
    kept=[(ROWS + 1, False), (2 * ROWS, True)],
)
def test_a_training_of_one_epoch_keeps_no_rows(tmp_path, caplog, rows_to_draw, is_kept):
    cache = RowCache(rows_to_draw=rows_to_draw)
    with caplog.at_level(logging.INFO):
        batches = _drawn(_kept(tmp_path, cache=cache, names=NUMBERS), 5, batch_size=4)
    assert (PARSED_ONCE in caplog.text) == is_kept
    assert len(set(_ids(batches))) == 20


def test_each_host_draws_its_own_rows(tmp_path):
    layout = CoreLayout(num_replicas=16)
    contexts = [TPUContext(layout, InputMode.PER_HOST_V1, invocation=host) for host in range(2)]
    for files in (1, 4):
        folder = tmp_path / str(files)
        folder.mkdir()
        cache = RowCache(rows_to_draw=None)
        parts = [
            _ids(_drawn(source, 12, batch_size=4, params={"context": context}))
            for context in contexts
            for source in [_kept(folder, cache=cache, files=files, names=NUMBERS)]
        ]
        for part in parts:
            assert len(set(part[:12])) == 12 and sorted(part[:12]) == sorted(part[12:24])
        assert sorted(parts[0][:12] + parts[1][:12]) == list(range(ROWS))


# Replicas and rows of a step; on 16 cores there are two hosts, which draw a part of the rows each.
_PLACES = {"host": (0, 4), "two cores": (2, 4), "two hosts": (16, 16), "mirrored": (0, 4)}


def _estimator(folder, place):
    cores, batch_size = _PLACES[place]
    options = {}
    if cores:
        tpu_config = tpu.TPUConfig(num_shards=cores, iterations_per_loop=5)
        options = {"master": "emulated", "tpu_config": tpu_config}
    elif place == "mirrored":
        options = {"train_distribute": tf.distribute.MirroredStrategy(["/cpu:0"])}
    config = tpu.RunConfig(
        model_dir=str(folder),
        save_input_position=True,
        save_checkpoints_steps=10,
        **options,
    )
    return tpu.TPUEstimator(
        counting_model.model_fn, config=config, train_batch_size=batch_size, use_tpu=cores > 0
    )


# On the host, tests/chaos resumes such trainings in `make test`.
@mostly_swept("place", _PLACES, kept=["two cores"])
def test_a_killed_training_sees_the_rows_that_come_next(tmp_path, place):
    def train(folder, *hooks):
        # Cores take no sparse features.
        input_fn = _kept(tmp_path, files=4, names=NUMBERS).train_fn()
        return _estimator(folder, place).train(input_fn, hooks=hooks, max_steps=23)

    expected = train(tmp_path / "expected")
    # The checkpoint of step 10 is in the second epoch, or in a later one.
    with pytest.raises(Killed):
        train(tmp_path / "resumed", KillAt(13))
    resumed = train(tmp_path / "resumed")
    counting_model.assert_equal(resumed, expected)
    _, batch_size = _PLACES[place]
    seen = resumed.get_variable_value("counts") * batch_size / counting_model.BATCH
    assert seen.sum() == 23 * batch_size and seen.max() - seen.min() <= 1


def test_a_training_that_has_begun_without_goes_on_without(tmp_path, caplog):
    cache = RowCache(rows_to_draw=None, checkpoints=str(tmp_path / "resumed"))
    kept, parsed_each_time = (
        counted_input(tmp_path, cache=each, names=NUMBERS).train_fn() for each in (cache, None)
    )
    expected = counting_model.estimator(tmp_path / "expected")
    expected.train(parsed_each_time, max_steps=23)
    with pytest.raises(Killed):
        counting_model.estimator(tmp_path / "resumed").train(
            parsed_each_time, hooks=[KillAt(13)], max_steps=23
        )
    with caplog.at_level(logging.INFO):
        resumed = counting_model.estimator(tmp_path / "resumed").train(kept, max_steps=23)
    assert PARSED_ONCE not in caplog.text
    counting_model.assert_equal(resumed, expected)


def test_a_training_that_has_begun_with_them_goes_on_with_them(tmp_path, caplog):
    def train(steps, rows_to_draw):
        cache = RowCache(rows_to_draw=rows_to_draw, checkpoints=str(tmp_path / "model"))
        input_fn = _kept(tmp_path, cache=cache, names=NUMBERS).train_fn()
        counting_model.estimator(tmp_path / "model").train(input_fn, max_steps=steps)

    train(13, None)
    with caplog.at_level(logging.INFO):
        train(23, 1)
    assert PARSED_ONCE in caplog.text and "resumes at its position of step 13" in caplog.text


@row(
    "data",
    "files that change under a training whose rows are kept parsed",
    "The files of the training input changed after their 24 rows were parsed; parsing them again",
)
def test_files_that_change_are_parsed_anew(tmp_path, caplog, refused):
    source = _kept(tmp_path)
    assert sorted(_ids(_drawn(source, 6, batch_size=4))) == list(range(ROWS))
    write_rows(tmp_path / "rows-0", range(100, 108))
    assert glob.glob(f"{tmp_path}/rows-*") and os.path.getsize(tmp_path / "rows-0")
    found = set(_ids(_drawn(source, 6, batch_size=4)))
    assert found == {*range(100, 108), *(n for n in range(ROWS) if n % 3)}
    refused.log(caplog.text)


@row(
    "disks",
    "no room in memory or on local disk for the parsed rows of a training",
    "The rows of the training input are parsed again in each epoch, for lack of room to keep them",
    "cache_input=False turns the cache off",
)
def test_without_room_rows_are_parsed_in_each_epoch(tmp_path, caplog, refused):
    counted_input(tmp_path)
    source = _kept(tmp_path)
    with full_disk(room=100):
        batches = _drawn(source, 12, batch_size=4)
    refused.log(caplog.text)
    assert caplog.text.count("for lack of room") == 1
    assert sorted(_ids(batches)) == sorted([*range(ROWS)] * 2)
    # A training that has begun that way continues that way.
    assert _ids(_drawn(source, 12, batch_size=4)) == _ids(batches)
    assert caplog.text.count("for lack of room") == 1


def test_distinct_strings_beyond_the_memory_are_not_kept(tmp_path, caplog):
    assert len(_drawn(_kept(tmp_path, cache=RowCache(rows_to_draw=None, memory=500)), 2)) == 2
    assert "the distinct strings of 'names', 'steps', 'word' need more than" in caplog.text


def _open_row_files() -> set[str]:
    """Returns the rows in memory that this process holds; other tests' files come and go."""
    found = set()
    for entry in os.listdir("/proc/self/fd"):
        # A file may be closed by another thread, or be the listing's own.
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(f"/proc/self/fd/{entry}").startswith("/memfd:rows"):
                found.add(entry)
    return found


def test_released_rows_leave_no_files_open(tmp_path):
    cache = RowCache(rows_to_draw=None)
    before = _open_row_files()
    _drawn(_kept(tmp_path, cache=cache), 1)
    opened = _open_row_files() - before
    assert opened
    cache.release()
    assert not opened & _open_row_files()


PARSED_ANEW = "changed after their 12 rows were parsed; parsing them again"


class _AtStep(v1.train.SessionRunHook):
    """Does something once, when a step has been made."""

    def __init__(self, step, work):
        self._step, self._work = step, work

    def after_run(self, run_context, run_values):
        if self._work and run_context.session.run(v1.train.get_global_step()) >= self._step:
            self._work()
            self._work = None


def _train(folder, change, *, steps):
    """Trains on 12 rows, 4 a step, and changes their files in the middle of the first epoch."""
    cache = RowCache(rows_to_draw=None)
    source = counted_input(folder, 12, cache=cache, names=NUMBERS)
    sessions = []
    hook = _AtStep(2, lambda: change(folder))

    def train(hooks):
        sessions.append(hooks)
        made = counting_model.estimator(folder / "model")
        made.train(source.train_fn(), hooks=[hook, *hooks], max_steps=steps)

    train_on_current_rows(train, cache, batch_size=4, time_share=math.inf)
    cache.release()
    trained = counting_model.estimator(folder / "model")
    assert trained.get_variable_value("global_step") == steps
    counts = trained.get_variable_value("counts")
    assert counts.sum() == pytest.approx(4 * steps)
    return counts, len(sessions)


def test_rows_that_are_added_are_seen_from_the_next_epoch_on(tmp_path, caplog):
    counts, sessions = _train(
        tmp_path, lambda folder: write_rows(folder / "rows-3", range(12, 24)), steps=16
    )
    assert caplog.text.count(PARSED_ANEW) == 1 and sessions == 2
    # Three or four steps with 12 rows, then two epochs of 24 and a step at most.
    assert {*counts[12:].tolist()} <= {2.0, 3.0}


def test_a_file_that_is_written_anew_is_parsed_anew(tmp_path, caplog):
    counts, sessions = _train(
        tmp_path, lambda folder: write_rows(folder / "rows-0", range(20, 24)), steps=30
    )
    assert caplog.text.count(PARSED_ANEW) == 1 and sessions == 2
    former, later = counts[0:12:3], counts[20:]
    assert [counts[n] for n in range(12) if n % 3] == pytest.approx([10.0] * 8)
    # What took the place of a row has its turn; batches that were drawn before the change are still trained on.
    assert (former + later).tolist() == pytest.approx([10.0] * 4)
    assert former.max() <= 4.0


def test_files_that_are_gone_for_a_moment_change_nothing(tmp_path, caplog):
    def remove(folder):
        for name in ("rows-0", "rows-1", "rows-2"):
            os.remove(folder / name)

    counts, sessions = _train(tmp_path, remove, steps=12)
    assert sessions == 1 and "parsing them again" not in caplog.text
    assert counts[:12].tolist() == pytest.approx([4.0] * 12)


def test_without_kept_rows_there_is_one_session_and_no_hook():
    given = []
    train_on_current_rows(given.append, None, batch_size=4)
    assert given == [[]]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_rows_of_small_files_are_counted(tmp_path, suffix):
    paths = [tmp_path / f"{number}{suffix}" for number in range(3)]
    for path, rows in zip(paths, (0, 301, 7)):
        write_rows(path, range(rows))
    assert estimated_rows(list(map(str, paths))) == 308


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_rows_of_large_files_are_estimated(tmp_path, suffix):
    paths = [tmp_path / f"{number}{suffix}" for number in range(2)]
    write_rows(paths[0], range(20_000))
    paths[1].write_bytes(paths[0].read_bytes())
    assert estimated_rows(list(map(str, paths))) == pytest.approx(40_000, rel=0.05)


def test_rows_of_a_split_of_transform_are_counted():
    (path,) = tf.io.gfile.glob(tfx_testdata.files("train"))
    assert estimated_rows([path]) == tfx_testdata.ROWS["train"]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"\xff" * 100])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_what_is_no_file_of_rows_has_no_number(tmp_path, content, suffix):
    path = tmp_path / f"rows{suffix}"
    path.write_bytes(content)
    assert estimated_rows([str(path)]) is None
    assert estimated_rows([]) is None


def test_all_rows_of_many_files_are_parsed_in_one_order(tmp_path):
    paths = [str(tmp_path / f"rows-{number:02d}") for number in range(11)]
    for number, path in enumerate(paths):
        write_rows(tmp_path / path, range(number * 10, number * 10 + number))
    orders = [
        np.concatenate([block["id"].numpy() for block in parsed_in_blocks(paths, SPEC)])
        for _ in range(2)
    ]
    np.testing.assert_array_equal(*orders)
    expected = [n * 10 + i for n in range(11) for i in range(n)]
    assert sorted(orders[0]) == expected
