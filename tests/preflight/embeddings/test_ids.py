"""Ids of files, datasets and distributions, batch by batch."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import case
from tfx_tpu_trainer.preflight.embeddings.ids import (
    FileIds,
    ZipfIds,
    batches_of_sources,
)
from tfx_tpu_trainer.preflight.embeddings.input_ids import batches_of_dataset

embedding = tf.tpu.experimental.embedding


def _feature(*, rows=100, length=0):
    table = embedding.TableConfig(vocabulary_size=rows, dim=8, name="words")
    return embedding.FeatureConfig(table=table, max_sequence_length=length)


def _lists(ids):
    return ids.values.tolist(), ids.samples.tolist()


def _save(folder, name, values, dtype=np.int32):
    np.save(folder / name, np.array(values, dtype))
    return str(folder / name)


def _read(sources, batch_size=2, **features):
    return list(batches_of_sources(sources, features=features, batch_size=batch_size))


def test_batches_go_across_files_and_a_short_one_is_left_out(tmp_path):
    paths = [
        _save(tmp_path, "a.npy", [[1, 2], [3, -1], [-1, -1]]),
        _save(tmp_path, "b.npy", [[4, 5], [6, 7]], np.int64),
    ]
    first, second = _read({"x": FileIds(paths)}, x=_feature())
    assert _lists(first["x"]) == ([1, 2, 3], [0, 0, 1])
    assert _lists(second["x"]) == ([4, 5], [1, 1])


def test_rows_of_any_length_end_where_row_ends_says(tmp_path):
    ids = [_save(tmp_path, "a.npy", [1, 2, 3]), _save(tmp_path, "b.npy", [4, 5, 6])]
    source = FileIds(ids, row_ends=_save(tmp_path, "ends.npy", [2, 2, 5, 6]))
    batches = _read({"x": source}, x=_feature())
    assert [_lists(batch["x"]) for batch in batches] == [
        ([1, 2], [0, 0]),
        ([3, 4, 5, 6], [0, 0, 0, 1]),
    ]
    (sequence,) = _read({"x": source}, batch_size=4, x=_feature(length=2))
    # The third id of a row is cut off.
    assert _lists(sequence["x"]) == ([1, 2, 3, 4, 6], [0, 1, 4, 5, 6])


def test_drawn_ids_follow_the_power_and_come_again():
    drawn = ZipfIds(1000, exponent=1.0, per_row=4, rows=400_000, seed=3)
    ids, ends = drawn.read(0, 400_000)
    assert ids.shape == (400_000, 4) and ends is None
    shares = np.bincount(ids.reshape(-1), minlength=1000) / ids.size
    # Of 1 / x from k + 1 to k + 2: log((k + 2) / (k + 1)) / log(1001).
    expected = np.log(np.arange(2, 1002) / np.arange(1, 1001)) / np.log(1001)
    np.testing.assert_allclose(shares[:20], expected[:20], rtol=0.02)
    np.testing.assert_array_equal(drawn.read(0, 400_000)[0], ids)
    uniform, _ = ZipfIds(10, exponent=0, per_row=1, rows=100_000, seed=3).read(0, 100_000)
    np.testing.assert_allclose(np.bincount(uniform[:, 0]) / 1e5, 0.1, atol=0.005)


def _tensors():
    dense = tf.constant([[1, 2], [3, -1]])
    return {
        "dense": dense,
        "one": tf.constant([7, 8], tf.int64),
        "sparse": tf.SparseTensor([[0, 0], [1, 0], [1, 1]], [4, 5, 6], [2, 2]),
        "ragged": tf.RaggedTensor.from_row_lengths([1, 2, 3], [0, 3]),
    }


@pytest.mark.parametrize("by_function", [False, True])
def test_a_dataset_may_have_tensors_of_every_kind(by_function):
    def input_fn(params):
        dataset = tf.data.Dataset.from_tensors(_tensors()).repeat(3)
        assert not by_function or params == {"batch_size": 2, "more": 1}
        return dataset.map(lambda features: (features, tf.zeros([2])))

    features = dict.fromkeys(("dense", "one", "sparse", "ragged"), _feature())
    batches = list(
        batches_of_dataset(
            input_fn if by_function else input_fn({}),
            features=features,
            batch_size=2,
            params={"more": 1},
        )
    )
    assert len(batches) == 3
    assert {name: _lists(ids) for name, ids in batches[2].items()} == {
        "dense": ([1, 2, 3], [0, 0, 1]),
        "one": ([7, 8], [0, 1]),
        "sparse": ([4, 5, 6], [0, 1, 1]),
        "ragged": ([1, 2, 3], [1, 1, 1]),
    }


def test_the_last_batch_of_a_dataset_may_be_short():
    dataset = tf.data.Dataset.range(5).map(lambda number: {"x": number}).batch(2)
    assert len(list(batches_of_dataset(dataset, features={"x": _feature()}, batch_size=2))) == 2


def _bad_file(folder, kind):
    path = str(folder / "ids.npy")
    if kind == "text":
        (folder / "ids.npy").write_text("1,2,3")
    elif kind == "cut":
        np.save(path, np.arange(1000))
        (folder / "ids.npy").write_bytes((folder / "ids.npy").read_bytes()[:-100])
    elif kind == "floats":
        np.save(path, np.zeros(3))
    elif kind == "cube":
        np.save(path, np.zeros((2, 2, 2), int))
    elif kind == "columns":
        np.save(path, np.asfortranarray(np.zeros((2, 3), int)))
    return path


@pytest.mark.parametrize(
    "kind",
    [
        case("preflight", f"`--embeddings`: a .npy file that {given}", *says, values=kind)
        for kind, given, *says in (
            ("none", "does not exist", "ids.npy can't be read: No such file or directory"),
            ("text", "is none", "ids.npy is not a .npy file (", "write it with np.save"),
            ("cut", "is cut off", "ids.npy ends after ", "it is incomplete; write it again"),
            ("floats", "holds floats", "ids.npy contains float64; ids must be integers"),
            ("cube", "has three dimensions", "an array of shape [2, 2, 2]: give [rows] or [rows,"),
            ("columns", "is ordered by columns", "of shape [2, 3] by columns: give [rows] or"),
        )
    ],
)
def test_a_bad_file_is_refused(tmp_path, kind, refused):
    with refused(ValueError):
        FileIds([_bad_file(tmp_path, kind)])


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        case("preflight", f"`--embeddings`: {given}", *says, values=(files, ends))
        for given, files, ends, *says in (
            (
                "files with rows of two lengths",
                [[[1, 2]], [[1, 2, 3]]],
                None,
                "ids1.npy has rows of shape [3], and ",
                "ids0.npy of [2]: give all files of",
            ),
            (
                "`row_ends` for rows that have ends",
                [[[1, 2]]],
                [2],
                "ends.npy: with row_ends, all arrays have one dimension",
            ),
            (
                "`row_ends` for fewer ids",
                [[1, 2, 3]],
                [1, 2],
                "ends.npy ends with 2, but the files of ids contain 3",
            ),
            (
                "`row_ends` that fall",
                [[1, 2, 3]],
                [2, 1, 3, 3],
                "ends.npy: a number from row 0 on is lower than the one before it",
            ),
        )
    ],
)
def test_files_that_do_not_fit_each_other_are_refused(tmp_path, files, ends, refused):
    paths = [_save(tmp_path, f"ids{number}.npy", each) for number, each in enumerate(files)]
    with refused(ValueError):
        row_ends = None if ends is None else _save(tmp_path, "ends.npy", ends)
        _read({"x": FileIds(paths, row_ends=row_ends)}, x=_feature())


@pytest.mark.parametrize(
    "values",
    [
        case("preflight", f"`--embeddings`: {given}", says, values=values)
        for given, values, says in (
            (
                "an id that is the table's size",
                [0, 1, 2, 100],
                "feature 'x': id 100 in row 3 is not in table 'words', which has 0 to 99: enlarge",
            ),
            ("an id below -1", [0, -2, 2, 3], "feature 'x': id -2 in row 1 is not in table"),
        )
    ],
)
def test_an_id_out_of_range_is_refused(tmp_path, values, refused):
    source = FileIds([_save(tmp_path, "ids.npy", values)])
    with refused(ValueError):
        _read({"x": source}, x=_feature())


def _fails(params):
    def check(number):
        with tf.control_dependencies([tf.debugging.assert_less(number, tf.constant(4, tf.int64))]):
            return {"x": tf.identity(number)}

    return tf.data.Dataset.range(9).map(check).batch(2)


def _of(**tensors):
    return lambda params: tf.data.Dataset.from_tensors({k: v() for k, v in tensors.items()})


@pytest.mark.parametrize(
    "input_fn",
    [
        case("preflight", f"`--embeddings` by an `input_fn` {given}", *says, values=values)
        for given, values, *says in (
            (
                "without the feature",
                _of(y=lambda: tf.constant([1, 2])),
                "the input has no feature 'x', only 'y'",
            ),
            (
                "whose features have no names",
                lambda params: tf.data.Dataset.from_tensors(tf.constant([1, 2])),
                "the input's features are a ",
                "return a dict of them by name",
            ),
            (
                "of batches of another size",
                _of(x=lambda: tf.constant([1, 2, 3])),
                "the input's batches have 3 rows, not the 2 of --batch_size: batch by params['batch",
            ),
            (
                "of floats",
                _of(x=lambda: tf.constant([1.0, 2.0])),
                "feature 'x': ids are float32; give integers",
            ),
            (
                "of three dimensions",
                _of(x=lambda: tf.zeros([2, 2, 2], tf.int32)),
                "feature 'x': ids of shape [2, 2, 2]; give one or two dimensions",
            ),
            (
                "of sparse tensors of three dimensions",
                _of(x=lambda: tf.SparseTensor([[0, 0, 0]], [1], [2, 2, 2])),
                "a sparse feature has 3 dimensions; give [rows, ids]",
            ),
            ("that fails", _fails, "the input fails: InvalidArgumentError: ", "assertion failed"),
        )
    ],
)
def test_an_input_that_does_not_fit_is_refused(input_fn, refused):
    with refused(ValueError):
        list(batches_of_dataset(input_fn, features={"x": _feature()}, batch_size=2))
