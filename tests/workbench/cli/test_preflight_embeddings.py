"""`tfx-tpu-trainer preflight --embeddings`, as it is typed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from tests.bad_input import case
from tfx_tpu_trainer.workbench.cli.main import main

SPEC = {
    "tables": {"words": {"vocabulary_size": 1000, "dim": 12}},
    "optimizer": {"name": "Adagrad", "learning_rate": 0.1},
    "features": {"word": {"table": "words", "ids": {"files": "words.npy"}}},
}

MODULE = """
import tensorflow as tf


def model_fn(features, labels, mode, params):
    raise AssertionError("is not called")


def input_fn(params):
    rows = tf.data.Dataset.range(params["rows"]).map(lambda row: ({"word": row % 7}, row))
    return rows.repeat().batch(params["batch_size"], drop_remainder=True)
"""


@pytest.fixture
def options(tmp_path):
    """Options for 1,280 rows of ids."""
    np.save(tmp_path / "words.npy", np.arange(1280, dtype=np.int32) % 1000)
    (tmp_path / "spec.json").write_text(json.dumps(SPEC))
    (tmp_path / "model.py").write_text(MODULE)
    return {"embeddings": str(tmp_path / "spec.json"), "tpu": "v6e:2x4", "batch_size": "128"}


def _preflight(options):
    typed = [f"--{name}={value}" for name, value in options.items() if value is not None]
    return CliRunner().invoke(main, ["preflight", *typed])


def test_the_plan_is_printed_and_written(options, tmp_path):
    ended = _preflight({**options, "json": str(tmp_path / "plan.json")})
    assert ended.exit_code == 0, ended.output
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert (plan["rows"], plan["batches"], plan["held_out_batches"]) == (1280, 8, 2)
    assert plan["ok"] is True
    for part in (
        "Embeddings on v6e:2x4  8 chips of 2 SparseCores, 128 rows a step; 1,280 ids in 1,280 rows",
        "no id of 2 held-out batches is dropped",
        "│ words │ words │ 1,000 │  1,024 │    12 │     16 │        0 │ Adagrad   │",
        f"max_ids_per_table={plan['settings']['max_ids_per_table']!r}",
        "nothing ran on a SparseCore",
    ):
        assert part in ended.output


def test_ids_are_read_from_a_modules_input_fn(options, tmp_path):
    spec = json.loads(json.dumps(SPEC))
    del spec["features"]["word"]["ids"]
    (tmp_path / "spec.json").write_text(json.dumps({**spec, "rows": 2560}))
    module = {"module_file": str(tmp_path / "model.py"), "params": '{"rows": 1000}'}
    ended = _preflight({**options, **module})
    assert ended.exit_code == 0, ended.output
    assert "2,560 ids in 2,560 rows" in ended.output


def test_a_table_that_does_not_fit_ends_with_1(options, tmp_path):
    large = {"words": {"vocabulary_size": 2_000_000_000, "dim": 64}}
    (tmp_path / "spec.json").write_text(json.dumps({**SPEC, "tables": large}))
    ended = _preflight(options)
    assert ended.exit_code == 1 and "does not fit: 119 GiB of 31.2 GiB HBM a chip" in ended.output


def test_several_slices_are_planned_with_the_network_between_them(options):
    ended = _preflight({**options, "num_slices": "2"})
    assert ended.exit_code == 0, ended.output
    words = " ".join(ended.output.split())
    assert (
        "Embeddings on 2 slices of v6e:2x4 each 8 chips of 2 SparseCores, 128 rows a step" in words
    )
    # 64 rows of 12 values of 4 bytes, over 8 chips with 100 Gbit/s each.
    assert "each slice sends 3 KiB of gradients to the others in a step, in 0.0307 µs" in words


@pytest.mark.parametrize(
    "changed",
    [
        case(
            "preflight",
            "`--embeddings` with "
            + " ".join(f"`--{name}={value}`" for name, value in given.items()),
            "Error: ",
            *says,
            values=given,
        )
        for given, *says in (
            ({"tpu": "v9:8"}, "TPU 'v9:8': unknown generation 'v9'; use one of v2, v3, v4"),
            ({"tpu": "v5e:2x4"}, "chips of v5e have no SparseCores; use v4, v5p, v6e, tpu7x"),
            ({"tpu": "v6e:2x4,v5p:8"}, "--tpu v6e:2x4,v5p:8: give one"),
            (
                {"batch_size": "100"},
                "batch size 100 must be divisible by the 16 SparseCores of v6e",
            ),
            (
                {"batch_size": "1280"},
                "the ids fill 1 batch of 1,280 rows, and one of 5 is held out",
            ),
            ({"embeddings": "no.json"}, "--embeddings no.json can't be read: No such file"),
            (
                {"function": "my:step"},
                "--embeddings can't be combined with --function: leave one of them out",
            ),
            (
                {"price": "p.json"},
                "--embeddings can't be combined with --price: leave one of them out",
            ),
            (
                {"num_slices": "2", "tpu": "v4:2x2x1"},
                "num_slices=2: no bandwidth is published for the network between slices of v4. Use one",
            ),
            (
                {"module": "m"},
                'has "ids", and the module\'s input_fn has others: leave one of them',
            ),
            ({"module": "m", "module_file": "m.py"}, "Give one of --module_file and --module, not"),
            (
                {"json": "/dev/null/a"},
                "--json='/dev/null/a' can't be written: '/dev/null' is not a f",
            ),
        )
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(options, changed, refused):
    ended = _preflight({**options, **changed})
    refused.output(ended)
    assert ended.exit_code == 2 and ended.stdout == ""
    assert ended.stderr.count("\n") == 1, ended.stderr


@pytest.mark.parametrize(
    ("file", "content"),
    [
        case("preflight", f"`preflight --embeddings spec.json` {given}", *says, values=values)
        for given, values, *says in (
            (
                "that is cut off",
                ("spec.json", '{"tables": {"wor'),
                "spec.json is not valid JSON: Unterminated string",
            ),
            (
                "without `ids` and without a module",
                ("spec.json", json.dumps(SPEC).replace(', "ids": {"files": "words.npy"}', "")),
                'the features have no "ids": add them to the file, or give a module with input_fn',
            ),
            (
                "of fewer rows than an id says",
                ("spec.json", json.dumps(SPEC).replace("1000", "900")),
                "feature 'word': id 900 in row 900 is not in table 'words', which has 0 to 899",
            ),
            (
                "whose ids are not a .npy file",
                ("words.npy", "1,2,3"),
                "words.npy is not a .npy file (",
            ),
        )
    ],
)
def test_a_bad_file_is_one_line_and_exit_code_2(options, tmp_path, file, content, refused):
    (tmp_path / file).write_text(content)
    ended = _preflight({**options, "json": str(tmp_path / "plan.json")})
    refused.output(ended)
    assert ended.exit_code == 2 and ended.stderr.count("\n") == 1, ended.stderr
    assert not (tmp_path / "plan.json").exists()
