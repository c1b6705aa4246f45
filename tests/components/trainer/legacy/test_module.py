"""A module with a trainer_fn: recognized before it is imported, declared, and called as each TFX release did."""

from __future__ import annotations

import copy
import types

import pytest
from tfx.v1.components import FnArgs

from tests.bad_input import case
from tfx_tpu_trainer.components.trainer.declared_arguments import declared_source
from tfx_tpu_trainer.components.trainer.legacy.module import (
    find_legacy,
    legacy_fn_args,
    names_in_source,
)
from tfx_tpu_trainer.components.trainer.module_source import ModuleSource


@pytest.fixture
def args():
    given = FnArgs(
        train_files=["train/*"],
        train_steps=5,
        transform_output="graph",
        serving_model_dir="/model/Format-Serving",
        eval_model_dir="/model/Format-TFMA",
        model_run_dir="/model_run",
        custom_config={"rate": 0.5, "train_steps": 7},
    )
    return legacy_fn_args(given, "/attempt")


def test_exports_are_made_below_the_working_folder(args):
    assert args.serving_model_dir == "/attempt/Format-Serving"
    assert args.eval_model_dir == "/attempt/Format-TFMA" and args.model_run_dir == "/attempt"
    assert args.train_files == ["train/*"] and args.base_model is None


def test_it_is_an_object_and_a_dict_of_all_values(args):
    assert isinstance(args, FnArgs) and isinstance(copy.deepcopy(args), FnArgs)
    assert args["train_files"] == ["train/*"] and args.get("train_files") == ["train/*"]
    assert "transform_output" in args and "no_such" not in args
    assert {**args}["transform_output"] == "graph"


def test_own_values_are_attributes_as_in_tfx_0(args):
    assert args.custom_config["rate"] == args.rate == args["rate"] == 0.5
    # A name of TFX's keeps its meaning.
    assert args.train_steps == 5 and {**args}["train_steps"] == 5


def test_a_missing_name_is_told(args):
    with pytest.raises(AttributeError, match=r"has no 'log_dir'; .*custom_config=\{'log_dir'"):
        _ = args.log_dir
    with pytest.raises(KeyError, match="has no 'log_dir'"):
        _ = args["log_dir"]
    assert args.get("log_dir", 3) == 3 and not hasattr(args, "log_dir")


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


def _declare(folder, source):
    path = folder / "m.py"
    path.write_text(source)
    return declared_source(module_file=str(path), module=None, trainer_fn=None, settings={})


@pytest.mark.parametrize(
    "source",
    [
        "from helpers import *",
        "from helpers import make as model_fn",
        "import helpers\nmodel_fn = helpers.make()",
        "import helpers\nmodel_fn: object = helpers.make()",
        "a, (model_fn, b) = 1, (2, 3)",
        "if (model_fn := 1): pass",
        "try:\n    from a import model_fn\nexcept ImportError:\n    model_fn = None",
        "try:\n    import a\nexcept ImportError:\n    def model_fn(features, params): pass",
        "for each in ():\n    def model_fn(features, params): pass",
        "with open('x') as model_fn: pass",
        "match 1:\n    case model_fn: pass",
        "class model_fn: pass",
        "async def model_fn(): pass",
        "def set_it():\n    global model_fn\n    model_fn = 1\nset_it()",
        "globals()['model' + '_fn'] = print",
        "exec('model_fn = 1')",
        "import sys\nsetattr(sys.modules[__name__], 'model_fn', print)",
        "import sys\nsys.modules[__name__].__dict__['model_fn'] = print",
        "def __getattr__(name): return print",
        "this is no Python",
    ],
)
def test_a_module_that_may_have_a_model_fn_is_left_to_its_import(tmp_path, source):
    assert _declare(tmp_path, source) is None


@pytest.mark.parametrize(
    "source",
    [
        case(
            "modules",
            "a module_file of the stock Trainer, with a run_fn, seen when TpuTrainer is declared",
            "m.py' has no model_fn, nor a trainer_fn; define model_fn(features, labels, mode, params)",
            "docs/component.md",
            "keras_to_estimator",
            "docs/migration.md",
            values="def run_fn(fn_args): pass",
        ),
        case(
            "modules",
            "a module_file whose model_fn is a function's own, seen when TpuTrainer is declared",
            "m.py' has no model_fn",
            values="def make():\n    def model_fn(features, params): pass\n    return model_fn",
        ),
    ],
)
def test_a_module_without_a_model_is_refused(tmp_path, source, refused):
    with refused(ValueError):
        _declare(tmp_path, source)
