"""Tests the errors of an import, and of a command, without its extra."""

import importlib
import os
import re
import subprocess
import sys

import pytest

from tests.bad_input import case, row
from tfx_tpu_trainer._support.imports import MissingExtraError, of_extra

# Of all extras: a module that is None in sys.modules can't be imported.
BLOCKED = """
import sys
for name in ("apache_beam", "jinja2", "kfp", "libtpu", "ml_metadata", "pydantic", "tensorflow_metadata",
             "tensorflow_model_analysis", "tensorflow_transform", "tfx", "tfx_bsl"):
    sys.modules[name] = None
"""


PACKAGES = {
    "components": "tfx",
    "components.evaluation": "tfx",
    "hardware": "tfx",
    "components.inputs": "tfx",
    "components.clusters": "tfx",
    "workbench.notebook": "notebook",
    "preflight": "preflight",
    "components.report": "report",
    "components.tuning": "tune",
}
# All of their names, as some are looked up only when they are used.
IMPORT_ALL = f"""
import traceback
for name in {list(PACKAGES)}:
    try:
        exec(f"from tfx_tpu_trainer.{{name}} import *")
    except Exception as error:
        print(name, traceback.format_exception_only(error)[-1].strip(), sep=": ")
"""


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKED + code], capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def told() -> dict[str, str]:
    """Package -> what its import raises."""
    lines = _run(IMPORT_ALL).stdout.splitlines()
    return dict(line.split(": ", 1) for line in lines)


@pytest.mark.parametrize("name", PACKAGES)
@row(
    "component",
    "a part of the package whose requirements are not installed",
    "which is not installed: pip install 'tfx-tpu-trainer[",
)
def test_an_import_names_the_extra_that_it_needs(refused, told, name):
    error = f"tfx_tpu_trainer._support.imports.MissingExtraError: tfx_tpu_trainer.{name} needs "
    assert told[name].startswith(error)
    assert told[name].endswith(f"pip install 'tfx-tpu-trainer[{PACKAGES[name]}]'")
    refused.log(told[name])


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


# Programs that need Keras 2 and know nothing of TF_USE_LEGACY_KERAS.

PROGRAM = """
import sys

{imports}

layers = tf.compat.v1.layers if {uses_layers} else None


def input_fn():
    return tf.data.Dataset.from_tensors((tf.ones([4, 2]), tf.ones([4, 1]))).repeat()


def model_fn(features, labels, mode):
    {model}
    loss = tf.reduce_mean(tf.square(outputs - labels))
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    step = tf.compat.v1.train.get_global_step()
    return estimator.EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, step))


made = estimator.Estimator(model_fn, model_dir=sys.argv[1])
made.train(input_fn, steps=2)
print(tf.keras.layers.Layer.__module__, made.get_variable_names())
"""
OURS_FIRST = "from tfx_tpu_trainer import estimator\nimport tensorflow as tf"
TENSORFLOW_FIRST = "import tensorflow as tf\nfrom tfx_tpu_trainer import estimator"
KERAS_FIRST = f"import tensorflow as tf\ntf.keras.layers\n{OURS_FIRST}"
DENSE = "outputs = layers.dense(features, 1)"


def _run_program(folder, imports, model, *, keras=None):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.pop("TF_USE_LEGACY_KERAS", None)
    if keras is not None:
        environment["TF_USE_LEGACY_KERAS"] = keras
    program = PROGRAM.format(imports=imports, model=model, uses_layers="layers." in model)
    return subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("imports", [OURS_FIRST, TENSORFLOW_FIRST])
def test_importing_the_estimators_chooses_keras_2_in_either_order(tmp_path, imports):
    # The path that the import system takes, and the attribute.
    model = "from tensorflow.keras.layers import Dense; assert Dense is tf.keras.layers.Dense; "
    ended = _run_program(tmp_path, imports, model + DENSE)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("tf_keras.") and "dense/kernel" in ended.stdout


@pytest.mark.sweep
def test_keras_3_stays_where_the_variable_asks_for_it(tmp_path):
    model = 'outputs = features @ tf.compat.v1.get_variable("weights", [2, 1])'
    ended = _run_program(tmp_path, OURS_FIRST, model, keras="0")
    assert ended.returncode == 0 and ended.stdout.startswith("keras."), ended.stderr


@pytest.mark.parametrize(
    "model",
    [
        case(
            "estimator",
            "a model_fn with tf.compat.v1.layers after a use of Keras 3's tf.keras",
            "model_fn uses 'dense', which Keras 3 does not have, and TensorFlow has Keras 3",
            "import tfx_tpu_trainer.estimator before tf.keras is used, or set TF_USE_LEGACY_KERAS=1",
            values=DENSE,
        ),
        case(
            "estimator",
            "a model_fn with tf.keras.optimizers.legacy after a use of Keras 3's tf.keras",
            "model_fn uses something that Keras 3 does not have, and TensorFlow has Keras 3",
            values="outputs = tf.keras.optimizers.legacy.Adam()",
            marks=[pytest.mark.sweep],
        ),
    ],
)
def test_after_a_use_of_keras_3_the_first_use_says_what_to_set(tmp_path, refused, model):
    ended = _run_program(tmp_path, KERAS_FIRST, model)
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("tfx_tpu_trainer._support.imports.Keras2NeededError: ")
    refused.log(last)
