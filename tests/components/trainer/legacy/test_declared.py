"""A module's source, looked at when the trainer is declared: refused only where it surely has no model."""

from __future__ import annotations

import pytest

from tests.bad_input import case
from tfx_tpu_trainer.components.trainer.declared_arguments import declared_source


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
