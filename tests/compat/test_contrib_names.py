"""`tf.contrib` under `compat.install()`: each name is what has its place, or the doctor's advice."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import tensorflow as tf
from tensorflow.python.tpu import tpu_function

from tests.programs.fetching import REPOSITORY
from tfx_tpu_trainer import compat, estimator
from tfx_tpu_trainer.compat import contrib
from tfx_tpu_trainer.compat._contrib_names import _resolve
from tfx_tpu_trainer.compat.doctor.rules import CONTRIB, RULES
from tfx_tpu_trainer.estimator.export._tpu_call import BatchConfig

v1 = tf.compat.v1


@pytest.fixture
def installed():
    with compat.install():
        yield


def _found(program: str) -> object:
    names: dict[str, object] = {}
    exec(program, names)
    return names["found"]


@pytest.mark.parametrize(
    ("program", "value"),
    [
        ("import tensorflow as tf; found = tf.contrib.layers.flatten", contrib.layers.flatten),
        ("from tensorflow.contrib import layers; found = layers.flatten", contrib.layers.flatten),
        ("from tensorflow.contrib.layers import flatten as found", contrib.layers.flatten),
        ("import tensorflow.contrib.layers as a; found = a.flatten", contrib.layers.flatten),
        ("import tensorflow.contrib as a; found = a.layers.flatten", contrib.layers.flatten),
        (
            "import tensorflow.compat.v1 as tf; found = tf.contrib.metrics.streaming_mean",
            contrib.metrics.streaming_mean,
        ),
        (
            "from tensorflow.compat.v1.contrib.tpu import RunConfig as found",
            estimator.tpu.RunConfig,
        ),
        (
            "from tensorflow.contrib.tpu.python.tpu import tpu_config; found = tpu_config.TPUConfig",
            estimator.tpu.TPUConfig,
        ),
        (
            "from tensorflow.contrib.layers.python.layers.layers import flatten as found",
            contrib.layers.flatten,
        ),
        (
            "from tensorflow.contrib.opt.python.training.weight_decay_optimizers import AdamWOptimizer as found",
            contrib.opt.AdamWOptimizer,
        ),
        (
            "from tensorflow.contrib.estimator import stop_if_lower_hook as found",
            estimator.v1.experimental.stop_if_lower_hook,
        ),
        (
            "from tensorflow.contrib.cluster_resolver import TPUClusterResolver as found",
            estimator.tpu.TPUClusterResolver,
        ),
        (
            "from tensorflow.contrib.tpu.python.tpu import tpu_estimator; found = tpu_estimator.BatchConfig",
            BatchConfig,
        ),
        (
            "from tensorflow.contrib.tpu.python.tpu import tpu_function; found = tpu_function",
            tpu_function,
        ),
        (
            "import tensorflow.contrib.tpu.python.tpu.tpu_function as a; found = a.TpuContext",
            tpu_function.TpuContext,
        ),
    ],
)
@pytest.mark.usefixtures("installed")
def test_a_name_is_what_has_its_place(program, value):
    assert _found(program) is value


@pytest.mark.usefixtures("installed")
def test_every_name_that_a_rule_moves_is_there():
    moved = [
        name.removeprefix(f"{CONTRIB}.")
        for name, advice in RULES.items()
        if name.startswith(f"{CONTRIB}.") and advice.becomes and not advice.calls_only
    ]
    assert len(moved) > 100
    assert [name for name in moved if _resolve(name) is None] == []


@pytest.mark.parametrize(
    ("program", "error", "says"),
    [
        (
            "tf.contrib.layers.real_valued_column",
            AttributeError,
            r"'tensorflow\.contrib\.layers' has no attribute 'real_valued_column': .*numeric_column.*doctor",
        ),
        (
            "tf.contrib.nonsense",
            AttributeError,
            "no attribute 'nonsense': .*no rule for this part of it",
        ),
        ("tf.contrib.losses.metric_learning", AttributeError, "no attribute 'metric_learning': "),
        ("from tensorflow.contrib import tensorrt", ImportError, "Instead: tf.experimental.tensor"),
        (
            "from tensorflow.contrib.quantize import create_eval_graph",
            ImportError,
            "tensorflow_model_optimization",
        ),
        (
            "from tensorflow.contrib.layers import real_valued_column",
            ImportError,
            "real_valued_column': .*numeric_column",
        ),
        (
            "from tensorflow.contrib.layers.python.layers.layers import real_valued_column",
            ImportError,
            "numeric_column",
        ),
    ],
)
@pytest.mark.usefixtures("installed")
def test_what_has_no_place_is_the_doctors_advice(program, error, says):
    with pytest.raises(error, match=says):
        exec(program, {"tf": tf})


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "statement",
    [
        "from tensorflow.contrib import tensorrt as found",
        "import tensorflow.contrib.tensorrt as found",
        "from tensorflow.contrib.tensorboard.plugins import projector as found",
    ],
)
def test_a_guarded_import_of_what_is_gone_falls_back(statement):
    program = f"try:\n    {statement}\nexcept ModuleNotFoundError:\n    found = None"
    assert _found(program) is None


@pytest.mark.usefixtures("installed")
def test_a_module_under_an_old_name_has_no_file():
    """Whoever looks for the module of a file, as inspect does, finds the one of today."""
    exec("import tensorflow.contrib.tpu.python.tpu.tpu_function", {})
    assert inspect.getmodule(tpu_function.TpuContext) is tpu_function
    for name, module in sys.modules.items():
        if name.startswith("tensorflow.contrib"):
            assert not hasattr(module, "__file__")


def test_nothing_is_left_when_it_is_uninstalled():
    before = {name for name in sys.modules if ".contrib" in name}
    with compat.install():
        exec("from tensorflow.contrib.tpu import TPUConfig\nimport tensorflow.contrib.rnn", {})
        assert tf.contrib.tpu.TPUConfig
    for module in (tf, v1, sys.modules.get("tensorflow.compat.v1", v1)):
        assert not hasattr(module, "contrib")
    after = {name for name in sys.modules if ".contrib" in name}
    assert {name for name in after - before if name.startswith("tensorflow.")} == set()


def test_who_asks_for_nothing_of_contrib_does_not_load_the_doctor():
    program = (
        "import sys\nfrom tfx_tpu_trainer import compat\ncompat.install()\n"
        "import tensorflow as tf\nassert tf.contrib\n"
        "print([name for name in sys.modules if name.startswith('tfx_tpu_trainer.compat.doctor')])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"
