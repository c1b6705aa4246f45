"""What an import without its extra says, and a command."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys

import pytest

from tests.bad_input import row
from tfx_tpu_trainer._support.extras import MissingExtraError, of_extra

# Of all extras: a module that is None in sys.modules can't be imported.
BLOCKED = """
import sys
for name in ("apache_beam", "jinja2", "kfp", "libtpu", "ml_metadata", "pydantic", "tensorflow_metadata",
             "tensorflow_model_analysis", "tensorflow_transform", "tfx", "tfx_bsl"):
    sys.modules[name] = None
"""


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKED + code], capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize(
    ("package", "extra"),
    [
        ("tfx_tpu_trainer.components", "tfx"),
        pytest.param("tfx_tpu_trainer.components.evaluation", "tfx", marks=pytest.mark.sweep),
        ("tfx_tpu_trainer.hardware", "tfx"),
        pytest.param("tfx_tpu_trainer.components.inputs", "tfx", marks=pytest.mark.sweep),
        ("tfx_tpu_trainer.components.clusters", "tfx"),
        pytest.param("tfx_tpu_trainer.workbench.notebook", "notebook", marks=pytest.mark.sweep),
        ("tfx_tpu_trainer.preflight", "preflight"),
        ("tfx_tpu_trainer.components.report", "report"),
        pytest.param("tfx_tpu_trainer.components.tuning", "tune", marks=pytest.mark.sweep),
    ],
)
@row(
    "component",
    "a part of the package whose requirements are not installed",
    "which is not installed: pip install 'tfx-tpu-trainer[",
)
def test_an_import_names_the_extra_that_it_needs(refused, package, extra):
    # All of its names, as some are looked up only when they are used.
    ended = _run(f"from {package} import *")
    last = ended.stderr.strip().splitlines()[-1]
    assert ended.returncode == 1
    assert last.startswith(f"tfx_tpu_trainer._support.extras.MissingExtraError: {package} needs ")
    assert last.endswith(f"pip install 'tfx-tpu-trainer[{extra}]'")
    refused.log(last)


# A module of this package, and one that an installed package lacks.
@pytest.mark.parametrize("module", ["tfx_tpu_trainer.absent", "numpy.absent"])
def test_a_module_that_no_extra_brings_is_no_requirement(module):
    with (
        pytest.raises(ModuleNotFoundError, match=re.escape(module)) as error,
        of_extra("tfx", for_what="tfx_tpu_trainer.components.trainer"),
    ):
        importlib.import_module(module)
    assert not isinstance(error.value, MissingExtraError)


def test_the_component_is_named_by_the_top_level_too():
    ended = _run("import tfx_tpu_trainer; tfx_tpu_trainer.TpuTrainer")
    assert ended.returncode == 1 and "pip install 'tfx-tpu-trainer[tfx]'" in ended.stderr


def test_a_command_says_it_in_one_line():
    arguments = ["preflight", "--module=any", "--tpu=v5e:2x4", "--batch_size=64"]
    ended = _run(f"from tfx_tpu_trainer.workbench.cli.main import main; main({arguments!r})")
    assert ended.returncode == 2
    (line,) = ended.stderr.strip().splitlines()
    assert line.startswith("Error: ") and line.endswith("'tfx-tpu-trainer[preflight]'")


def test_the_estimators_and_the_tools_need_none():
    ended = _run(
        "import tfx_tpu_trainer.estimator.tpu, tfx_tpu_trainer.compat, tfx_tpu_trainer.compat.doctor\n"
        "import tfx_tpu_trainer.workbench.cli.main, tfx_tpu_trainer.serving\n"
        "import tfx_tpu_trainer.components.user_module._module"
    )
    assert ended.returncode == 0, ended.stderr
