"""Files of rows: how many they have, and in which order they are parsed."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests import tfx_testdata
from tests.components.inputs.counted_rows import SPEC, write_rows
from tfx_tpu_trainer.components.inputs._parsed_rows import estimated_rows, parsed_in_blocks


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
