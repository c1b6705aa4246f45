from __future__ import annotations

import numpy as np
import pytest

from tfx_tpu_trainer.estimator._predicted_rows import select_predictions, single_rows

PREDICTIONS = {"a": 1, "b": 2, "c": 3}


@pytest.mark.parametrize(
    ("keys", "kept"),
    [
        (None, PREDICTIONS),
        ([], PREDICTIONS),
        (["a", "c"], {"a": 1, "c": 3}),
        ("b", {"b": 2}),
        (["a", "absent"], {"a": 1}),
    ],
)
@pytest.mark.behaviour(229)
def test_keys_keep_those_predictions(keys, kept):
    assert select_predictions(PREDICTIONS, keys) == kept


@pytest.mark.behaviour(229)
def test_no_key_that_is_there_is_refused():
    with pytest.raises(ValueError, match=r"at least one output from \['a', 'b', 'c'\].*\['x'\]"):
        select_predictions(PREDICTIONS, ["x"])


@pytest.mark.behaviour(229)
def test_keys_of_a_lone_tensor_are_refused():
    with pytest.raises(ValueError, match="not valid in case of non-dict predictions"):
        select_predictions(np.zeros(3), ["x"])


@pytest.mark.behaviour(221)
def test_rows_of_mappings():
    batches = [{"a": np.array([1, 2]), "b": np.array([[3], [4]])}, {"a": [5], "b": [[6]]}]
    batches[1] = {name: np.array(value) for name, value in batches[1].items()}
    rows = [{name: value.tolist() for name, value in row.items()} for row in single_rows(batches)]
    assert rows == [{"a": 1, "b": [3]}, {"a": 2, "b": [4]}, {"a": 5, "b": [6]}]


def test_a_row_is_a_mapping_of_its_own_with_the_names_in_their_order():
    batches = [{"b": np.zeros((3, 2)), "a": np.arange(3), "c": np.ones(3)}]
    rows = list(single_rows(batches))
    assert [list(row) for row in rows] == [["b", "a", "c"]] * 3
    rows[0].clear()
    assert [row["a"] for row in rows[1:]] == [1, 2]


def test_a_batch_of_no_predictions_or_no_rows_has_no_rows():
    assert list(single_rows([{}, {"a": np.zeros((0, 2)), "b": np.zeros(0)}])) == []


@pytest.mark.behaviour(230)
def test_rows_of_a_lone_tensor():
    assert list(single_rows([np.array([1, 2]), np.array([3])])) == [1, 2, 3]


@pytest.mark.behaviour(228)
def test_unequal_first_dimensions_are_refused():
    batch = {"a": np.zeros([2]), "b": np.zeros([3])}
    with pytest.raises(ValueError, match=r"should be same. b has .*{'a': 2, 'b': 3}"):
        next(single_rows([batch]))
