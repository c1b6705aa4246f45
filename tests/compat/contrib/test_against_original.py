"""tfx_tpu_trainer.compat.contrib, held against what tf.contrib of TensorFlow 1.15 made of the same programs."""

import inspect
import json

import numpy as np
import pytest

from tests.compat.contrib import loops, record_original
from tests.compat.contrib.graph_facts import facts_of
from tfx_tpu_trainer.compat import contrib

ORIGINAL = json.loads(record_original.RECORDING.read_text("utf-8"))


@pytest.mark.parametrize("name", record_original.CASES)
def test_variables_collections_and_numbers_are_those_of_tf_contrib(name):
    ours = facts_of(record_original.CASES[name], contrib)
    original = ORIGINAL["cases"][name]
    assert sorted(ours["variables"]) == sorted(original["variables"])
    assert ours["collections"] == original["collections"]
    assert ours["outputs"].keys() == original["outputs"].keys()
    for key, (shape, values) in original["outputs"].items():
        assert ours["outputs"][key][0] == shape, key
        if values and isinstance(values[0], str):
            assert ours["outputs"][key][1] == values, key
        else:
            np.testing.assert_allclose(
                ours["outputs"][key][1], values, rtol=2e-4, atol=2e-5, err_msg=key
            )


@pytest.mark.parametrize("name", loops.LOOPS)
def test_loops_end_with_the_numbers_and_files_of_tf_contrib(name):
    # Lists in place of tuples, as in the recording.
    assert json.loads(json.dumps(loops.LOOPS[name](contrib))) == ORIGINAL["loops"][name]


def _ours():
    return [
        (part, name)
        for part in contrib.__all__
        for name in getattr(contrib, part).__all__
        if callable(getattr(getattr(contrib, part), name))
    ]


def test_arguments_and_defaults_are_those_of_tf_contrib():
    compared = 0
    different = {}
    for part, name in _ours():
        original = ORIGINAL["signatures"].get(part, {}).get(name)
        if original is None:
            continue
        ours = record_original.signature_of(getattr(getattr(contrib, part), name))
        compared += 1
        if ours != original:
            different[f"{part}.{name}"] = (ours, original)
    assert not different
    assert compared > 15


def test_each_public_name_was_one_of_tf_contrib():
    assert [
        (part, name) for part, name in _ours() if name not in ORIGINAL["signatures"].get(part, ())
    ] == []


def test_the_public_functions_say_what_they_are_for():
    for part, name in _ours():
        assert inspect.getdoc(getattr(getattr(contrib, part), name)), (part, name)
