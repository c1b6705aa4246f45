"""A legacy module seen in its source, and in itself."""

from __future__ import annotations

import types

import pytest

from tfx_tpu_trainer.components.trainer.legacy.module import find_legacy, names_in_source
from tfx_tpu_trainer.components.trainer.module_source import ModuleSource

_SOURCE = """
import a.b, tensorflow as tf
from x import trainer_fn as made_here, y
SIZE, (LEFT, right) = 1, (2, 3)
try:
    typed: int = 1
except ImportError:
    pass
if SIZE:
    def conditional(): inner = 1
else:
    class Other: member = 2
"""


def test_names_of_the_top_level(tmp_path):
    path = tmp_path / "m.py"
    path.write_text(_SOURCE)
    names = {
        "a.b",
        "tf",
        "made_here",
        "y",
        "SIZE",
        "LEFT",
        "right",
        "typed",
        "conditional",
        "Other",
    }
    assert names_in_source(str(path)) == names


def test_a_source_that_cannot_be_read_is_left_to_the_import(tmp_path):
    path = tmp_path / "m.py"
    path.write_text("def broken(:\n")
    assert names_in_source(str(path)) == names_in_source(str(tmp_path / "none.py")) == {"*"}


def test_the_place_of_a_trainer_fn():
    source = ModuleSource.from_exec_properties({"trainer_fn": "a.b.make"})
    assert (source.module, source.trainer_fn, str(source)) == ("a.b", "make", "a.b")


def test_a_function_that_is_named_needs_no_other_name():
    module = types.ModuleType("some")
    module.make, module.model_fn = (lambda fn_args, schema: "made"), None
    assert find_legacy(module, "make")(1, 2) == "made"
    assert find_legacy(module) is None
    module.trainer_fn = lambda *args: args
    with pytest.raises(ValueError, match="module 'some' has a trainer_fn and a model_fn"):
        find_legacy(module)
    del module.model_fn
    assert find_legacy(module)(1, 2) == (1, 2)
