"""What programs find under old names: tf.contrib, private modules that moved, and a TPU of that name."""

import copy
import importlib
import importlib.util
import inspect
import subprocess
import sys

import pytest
import tensorflow as tf
from tensorflow.python.tpu import tpu_function

from tests.bad_input import case
from tfx_tpu_trainer import compat, estimator
from tfx_tpu_trainer.compat import contrib
from tfx_tpu_trainer.compat._installation import MOVED
from tfx_tpu_trainer.compat._tensorflow_names import _resolve
from tfx_tpu_trainer.compat.doctor.rules import CONTRIB, RULES
from tfx_tpu_trainer.estimator.export._tpu_call import BatchConfig
from tfx_tpu_trainer.estimator.places.choice import emulated_replicas
from tfx_tpu_trainer.estimator.tpu import RunConfig

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


LAYERS = """
import sys
from tfx_tpu_trainer import compat

with compat.install():
    import tensorflow.compat.v1 as tf
    assert tf.contrib
    print([name for name in sys.modules if name.startswith("tfx_tpu_trainer.compat.doctor")])
    from tensorflow.python.layers import convolutional, core, normalization, pooling
    with tf.Graph().as_default():
        images = tf.zeros([2, 4, 4, 3])
        maps = convolutional.Conv2D(2, 3, name="conv")(images)
        maps = normalization.BatchNormalization(name="norm")(pooling.MaxPooling2D(2, 1)(maps))
        core.Dense(5, name="dense")(maps)
        print(sorted(v.op.name for v in tf.trainable_variables()))

print([finder for finder in sys.meta_path if "tfx_tpu_trainer" in type(finder).__module__])
"""

TRACKING = """
from tfx_tpu_trainer import compat

compat.install()
import tensorflow as tf
from tensorflow.python.training.tracking import base, graph_view, tracking, util
from tensorflow.python.training.tracking.data_structures import NoDependency

checkpoint = tf.train.Checkpoint(x=tf.Variable(1.0))
assert isinstance(checkpoint, base.Trackable) and isinstance(checkpoint, tracking.AutoTrackable)
print(len(graph_view.ObjectGraphView(checkpoint).breadth_first_traversal()[0]))
print(util.Checkpoint is tf.train.Checkpoint, NoDependency.__module__)
"""


@pytest.fixture(scope="module")
def said() -> list[str]:
    """Returns the output of both programs: a process takes seconds to import TensorFlow."""
    ended = subprocess.run(
        [sys.executable, "-c", LAYERS + TRACKING], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout.splitlines()


def test_who_asks_for_nothing_of_contrib_does_not_load_the_doctor(said):
    assert said[0] == "[]"


def test_layers_by_their_private_names_make_variables_of_tensorflow_1(said):
    assert importlib.util.find_spec("tf_keras.legacy_tf_layers") is None, "tf_keras has it: no need"
    variables = [
        "conv/bias",
        "conv/kernel",
        "dense/bias",
        "dense/kernel",
        "norm/beta",
        "norm/gamma",
    ]
    assert said[1:3] == [str(variables), "[]"]


@pytest.mark.parametrize("old", MOVED)
def test_each_old_name_is_free_and_the_new_one_is_there(old):
    assert importlib.util.find_spec(MOVED[old]) is not None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(old)


def test_tracking_is_todays_trackable_and_checkpoint(said):
    assert said[3:] == ["2", "True tensorflow.python.trackable.data_structures"]


@pytest.fixture
def emulated(monkeypatch):
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATED_REPLICAS", "4")
    with compat.install(emulate=True):
        yield


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    "program",
    [
        "import tensorflow as tf; found = tf.distribute.cluster_resolver",
        "import tensorflow.compat.v1 as tf; found = tf.distribute.cluster_resolver",
        "from tensorflow.compat.v1.distribute import cluster_resolver as found",
        "from tensorflow.compat.v2.distribute import cluster_resolver as found",
    ],
)
def test_a_named_tpu_is_answered(program):
    names: dict = {}
    exec(program, names)
    resolver = names["found"].TPUClusterResolver("tpu-of-nobody", zone="here", project="mine")
    assert isinstance(resolver, names["found"].TPUClusterResolver)
    assert resolver.master() == resolver.get_master() == ""
    assert resolver.cluster_spec().as_dict() == {}
    assert resolver.num_accelerators() == {"TPU": 4}
    metadata = resolver.get_tpu_system_metadata()
    assert (metadata.num_cores, metadata.num_hosts, metadata.num_of_cores_per_host) == (4, 1, 4)
    assert "tpu-of-nobody" in repr(resolver)


@pytest.mark.usefixtures("emulated")
def test_a_run_config_takes_it():
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="tpu-of-nobody")
    config = copy.deepcopy(RunConfig(cluster=resolver))
    assert config.master == config.evaluation_master == ""
    assert config.cluster_spec.as_dict() == {}


@pytest.mark.usefixtures("emulated")
def test_connect_gives_one():
    connected = tf.distribute.cluster_resolver.TPUClusterResolver.connect("tpu-of-nobody")
    assert connected.num_accelerators() == {"TPU": 4}


def test_without_emulation_it_is_tensorflows():
    theirs = tf.distribute.cluster_resolver.TPUClusterResolver
    with compat.install(emulate=False):
        assert tf.distribute.cluster_resolver.TPUClusterResolver is theirs


def test_the_environment_decides_where_nothing_is_said(monkeypatch):
    theirs = tf.distribute.cluster_resolver.TPUClusterResolver
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATE", "1")
    with compat.install():
        assert tf.distribute.cluster_resolver.TPUClusterResolver is not theirs
    assert tf.distribute.cluster_resolver.TPUClusterResolver is theirs


def test_replicas_of_the_environment(monkeypatch):
    monkeypatch.delenv("TFX_TPU_TRAINER_EMULATED_REPLICAS", raising=False)
    assert emulated_replicas() == 8
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATED_REPLICAS", "2")
    assert emulated_replicas() == 2


@pytest.mark.parametrize(
    "text",
    [
        case(
            "doctor",
            f"`TFX_TPU_TRAINER_EMULATED_REPLICAS={text}`",
            f"TFX_TPU_TRAINER_EMULATED_REPLICAS must be an integer from 1 to 1024; got '{text}'",
            values=text,
        )
        for text in ("0", "-1", "1025", "many", "1.5", "²")
    ],
)
def test_replicas_that_are_none(monkeypatch, text, refused):
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATED_REPLICAS", text)
    with refused(ValueError):
        emulated_replicas()
