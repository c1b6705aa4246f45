"""The file of `preflight --embeddings`."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import case
from tfx_tpu_trainer.preflight.embeddings.spec import EmbeddingSpec

embedding = tf.tpu.experimental.embedding

SPEC = {
    "tables": {
        "movies": {"vocabulary_size": 100, "dim": 12, "combiner": "sum"},
        "users": {
            "vocabulary_size": 50,
            "dim": 8,
            "optimizer": {"name": "Adam", "learning_rate": 0.01},
        },
    },
    "optimizer": {"name": "Adagrad", "learning_rate": 0.1},
    "features": {
        "watched": {"table": "movies", "max_sequence_length": 3, "ids": {"files": "ids-*.npy"}},
        "user": {"table": "users", "ids": {"zipf": 1.1, "per_row": 2}},
    },
    "rows": 6,
}


def _write(folder, values):
    np.save(folder / "ids-0.npy", np.zeros((2, 3), int))
    np.save(folder / "ids-1.npy", np.zeros((4, 3), int))
    path = folder / "spec.json"
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return str(path)


def test_a_file_is_tables_features_and_ids_beside_it(tmp_path):
    spec = EmbeddingSpec.read(_write(tmp_path, SPEC))
    watched, user = spec.features["watched"], spec.features["user"]
    assert (watched.table.name, watched.table.vocabulary_size) == ("movies", 100)
    assert (watched.table.dim, watched.table.combiner) == (12, "sum")
    assert watched.max_sequence_length == 3 and watched.table.optimizer is None
    assert user.table.optimizer == embedding.Adam(0.01)
    assert spec.optimizer == embedding.Adagrad(0.1)
    assert {name: source.rows for name, source in spec.sources.items()} == {"watched": 6, "user": 6}
    assert spec.sources["user"].read(0, 6)[0].shape == (6, 2)


def _changed(path, value):
    """The spec with another value at a path; `None` removes it."""
    values = copy.deepcopy(SPEC)
    *parents, key = path.split(".")
    inner = values
    for parent in parents:
        inner = inner[parent]
    if value is None:
        del inner[key]
    else:
        inner[key] = value
    return values


@pytest.mark.parametrize(
    "values",
    [
        case("preflight", f"`--embeddings spec.json` {given}", *says, values=values)
        for given, values, *says in (
            (
                "that is cut off",
                '{"tables": {"movies"',
                "spec.json is not valid JSON: Expecting ':'",
            ),
            (
                "that is a list",
                [],
                "spec.json: the file is not an object; give one with any of the keys tables",
            ),
            (
                "with an unknown key",
                _changed("bands", 1),
                (
                    "the file has the unknown key 'bands'; use any of tables, features, optimizer, "
                    "rows, seed"
                ),
            ),
            (
                "without tables",
                _changed("tables", None),
                '"tables" is not an object with a name for each table',
            ),
            (
                "of a table with a wrong key",
                _changed("tables.movies.width", 3),
                "table 'movies' has the unknown key 'width'; use any of vocabulary_size, dim",
            ),
            (
                "of a table without a width",
                _changed("tables.movies.dim", None),
                "table 'movies': dim is missing; give an integer from 1",
            ),
            (
                "of a table with `vocabulary_size` 0",
                _changed("tables.movies.vocabulary_size", 0),
                "table 'movies': vocabulary_size is 0; give an integer from 1",
            ),
            (
                "with a combiner `max`",
                _changed("tables.movies.combiner", "max"),
                "table 'movies': combiner is 'max'; use mean, sum or sqrtn",
            ),
            (
                "with an unknown optimizer",
                _changed("optimizer", {"name": "Lion"}),
                "the file: optimizer is 'Lion'; give one of SGD, Adagrad",
            ),
            (
                "with an unknown hyperparameter",
                _changed("optimizer", {"name": "SGD", "rate": 1}),
                "the file: optimizer SGD: ",
                "unexpected keyword argument 'rate'",
            ),
            (
                "of a feature of an unknown table",
                _changed("features.user.table", "people"),
                "feature 'user': unknown table 'people'; use one of movies, users",
            ),
            (
                "with a table of no feature",
                _changed("features.user", None),
                "no feature is looked up in table 'users': leave it out",
            ),
            (
                "with ids of some features",
                _changed("features.user.ids", None),
                "feature 'user' has no \"ids\", but other features have",
            ),
            (
                "with ids of two kinds",
                _changed("features.user.ids", {"zipf": 1, "files": "ids-0.npy"}),
                'ids of feature \'user\': give {"files": "ids-*.npy"}, {"zipf": 1.1',
            ),
            (
                "of files that are not there",
                _changed("features.watched.ids", {"files": "no-*.npy"}),
                "ids of feature 'watched': the file ",
                "no-*.npy",
            ),
            (
                "whose files are a number",
                _changed("features.watched.ids", {"files": 3}),
                "ids of feature 'watched': files is 3; give a .npy file, a pattern, or a list",
            ),
            (
                "whose `row_ends` is a number",
                _changed("features.watched.ids", {"files": "ids-0.npy", "row_ends": 3}),
                "ids of feature 'watched': row_ends is 3; give a .npy file",
            ),
            (
                "with an exponent below 0",
                _changed("features.user.ids.zipf", -1),
                "ids of feature 'user': zipf is -1; give an exponent from 0 to 10",
            ),
            (
                "that draws no known number of rows",
                _changed("rows", None),
                "ids of feature 'user': a distribution needs \"rows\" in the file",
            ),
        )
    ],
)
def test_a_bad_file_is_refused(tmp_path, values, refused):
    path = _write(tmp_path, values)
    with refused(ValueError) as raised:
        EmbeddingSpec.read(path)
    assert str(raised.value).startswith(f"--embeddings {path}")


def test_ids_may_be_left_to_an_input_fn(tmp_path):
    values = _changed("features.user.ids", None)
    del values["features"]["watched"]["ids"]
    assert EmbeddingSpec.read(_write(tmp_path, values)).sources == {}
