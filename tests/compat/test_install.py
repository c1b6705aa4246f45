"""What install() puts back, under which names, and that uninstall() leaves no trace."""

import importlib
import json
import logging
import os
import subprocess
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tests.estimator.public_names import RECORDING
from tests.programs.fetching import REPOSITORY
from tfx_tpu_trainer import compat, estimator
from tfx_tpu_trainer._support.imports import choose_keras_2
from tfx_tpu_trainer.compat._installation import is_alias

PARAMETERS = [
    "AdagradParameters",
    "AdamParameters",
    "FtrlParameters",
    "StochasticGradientDescentParameters",
]


@pytest.fixture
def installed():
    with compat.install():
        yield


def test_importing_compat_imports_no_tensorflow():
    program = (
        "import sys, tfx_tpu_trainer.compat\n"
        "print([name for name in ('tensorflow', 'tfx', 'keras', 'numpy') if name in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


def test_it_is_not_installed_by_an_import():
    assert not hasattr(tf, "estimator")
    assert not hasattr(tf.compat.v1, "estimator")
    with pytest.raises(ImportError):
        importlib.import_module("tensorflow.estimator")


FORMS = {
    "tf.estimator": "import tensorflow as tf; found = tf.estimator",
    "from tensorflow": "from tensorflow import estimator as found",
    "import tensorflow.estimator": "import tensorflow.estimator as found",
    "compat.v2": "import tensorflow.compat.v2 as tf; found = tf.estimator",
    "from compat.v2": "from tensorflow.compat.v2 import estimator as found",
    "from compat": "from tensorflow.compat import v2; found = v2.estimator",
}
V1_FORMS = {
    "tf.compat.v1.estimator": "import tensorflow as tf; found = tf.compat.v1.estimator",
    "import compat.v1": "import tensorflow.compat.v1 as tf; found = tf.estimator",
    "from compat.v1": "from tensorflow.compat.v1 import estimator as found",
    "import compat.v1.estimator": "import tensorflow.compat.v1.estimator as found",
    "from compat": "from tensorflow.compat import v1; found = v1.estimator",
    "of v2": "import tensorflow.compat.v2 as tf; found = tf.compat.v1.estimator",
    "tensorflow_estimator": "import tensorflow_estimator; found = tensorflow_estimator.estimator",
    "the api": ("from tensorflow_estimator.python.estimator.api._v1 import estimator as found"),
}


def _found(program: str) -> types.ModuleType:
    names: dict[str, types.ModuleType] = {}
    exec(program, names)
    return names["found"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.usefixtures("installed")
def test_the_newer_api_is_found(form):
    found = _found(FORMS[form])
    assert found.Estimator is estimator.Estimator
    assert found.LinearRegressor is estimator.LinearRegressor
    assert not hasattr(found, "tpu")


@pytest.mark.parametrize("form", V1_FORMS)
@pytest.mark.usefixtures("installed")
def test_the_older_api_is_found(form):
    found = _found(V1_FORMS[form])
    assert found.LinearRegressor is estimator.v1.LinearRegressor
    assert found.LinearRegressor is not estimator.LinearRegressor
    assert found.tpu.TPUEstimator is estimator.tpu.TPUEstimator
    assert found.inputs.numpy_input_fn is estimator.inputs.numpy_input_fn


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("tensorflow.estimator.export", "ServingInputReceiver"),
        ("tensorflow.estimator.experimental", "make_early_stopping_hook"),
        ("tensorflow.compat.v1.estimator.tpu", "TPUEstimator"),
        ("tensorflow.compat.v1.estimator.tpu.experimental", "EmbeddingConfigSpec"),
        ("tensorflow.compat.v1.estimator.inputs", "pandas_input_fn"),
        ("tensorflow_estimator.python.estimator.estimator", "Estimator"),
        ("tensorflow_estimator.python.estimator.run_config", "RunConfig"),
        ("tensorflow_estimator.python.estimator.run_config", "TaskType"),
        ("tensorflow_estimator.python.estimator.model_fn", "ModeKeys"),
        ("tensorflow_estimator.python.estimator.tpu.tpu_estimator", "TPUEstimatorSpec"),
        ("tensorflow_estimator.python.estimator.tpu.tpu_config", "TPUConfig"),
        ("tensorflow_estimator.python.estimator.canned.linear", "LinearClassifierV2"),
        ("tensorflow_estimator.python.estimator.canned.dnn", "dnn_logit_fn_builder"),
        ("tensorflow_estimator.python.estimator.export.export_lib", "PredictOutput"),
        ("tensorflow_estimator.python.estimator.estimator_lib", "train_and_evaluate"),
        ("tensorflow.python.estimator.canned.prediction_keys", "PredictionKeys"),
        ("tensorflow.python.estimator.run_config", "RunConfig"),
        ("tensorflow.python.tpu.tpu_estimator", "TPUEstimator"),
        ("tensorflow.python.tpu.tpu_config", "RunConfig"),
    ],
)
@pytest.mark.usefixtures("installed")
def test_modules_of_the_original_can_be_imported(module, name):
    imported = importlib.import_module(module)
    above, _, last = module.rpartition(".")
    assert getattr(_found(f"from {above} import {last} as found"), name) is getattr(imported, name)
    assert getattr(imported, name).__module__.startswith("tfx_tpu_trainer.estimator")
    assert name in imported.__all__


@pytest.mark.parametrize("below", json.loads(RECORDING.read_text(encoding="utf-8")))
@pytest.mark.usefixtures("installed")
def test_the_names_are_the_originals(below):
    recorded = set(json.loads(RECORDING.read_text(encoding="utf-8"))[below])
    older = below.split(".")[0] in ("v1", "tpu")
    name = "tensorflow.compat.v1.estimator" if older else "tensorflow.estimator"
    module = importlib.import_module(
        ".".join([name, *below.removeprefix("v1").split(".")]).rstrip(".").replace("..", ".")
    )
    here = {each for each in vars(module) if not each.startswith("_")}
    assert {each for each in here if not is_alias(getattr(module, each))} == recorded
    assert here == set(module.__all__)


@pytest.mark.parametrize(
    "program",
    [
        case("doctor", f"compat: `{program}`", *says, values=program)
        for program, *says in (
            (
                "import tensorflow_estimator.python.estimator.gc",
                "tensorflow_estimator.python.estimator has no 'gc'",
            ),
            (
                "from tensorflow_estimator.python.estimator.canned.head import _Head",
                "canned has no 'head'",
                "public names of tf.estimator",
            ),
            ("from tensorflow.estimator import tpu", "tensorflow.estimator has no 'tpu'"),
            (
                "from tensorflow.compat.v1.estimator.tpu import TPUEstimators",
                "tpu has no 'TPUEstimators'",
            ),
        )
    ],
)
@pytest.mark.usefixtures("installed")
def test_what_is_not_there_is_told(program, refused):
    with refused(ImportError):
        exec(program, {})


@pytest.mark.usefixtures("installed")
def test_a_missing_attribute_is_an_attribute_error():
    assert not hasattr(tf.estimator, "inputs")
    with pytest.raises(AttributeError, match=r"tensorflow\.estimator.*LinearRegression"):
        _ = tf.estimator.LinearRegression


@pytest.mark.usefixtures("installed")
def test_parameters_of_embedding_tables_are_back():
    for program in (
        "import tensorflow as tf; found = tf.compat.v1.tpu.experimental",
        "import tensorflow.compat.v1.tpu.experimental as found",
        "from tensorflow.compat.v1.tpu import experimental as found",
    ):
        found = _found(program)
        for name in PARAMETERS:
            assert getattr(found, name) is getattr(estimator.tpu.experimental, name)


@pytest.fixture
def without_hub():
    """tensorflow-hub as if it had not been imported, before and after."""

    def take() -> dict[str, types.ModuleType]:
        names = [name for name in sys.modules if name.partition(".")[0] == "tensorflow_hub"]
        return {name: sys.modules.pop(name) for name in names}

    before = take()
    yield
    take()
    sys.modules.update(before)


@pytest.mark.usefixtures("without_hub")
@pytest.mark.filterwarnings("ignore:pkg_resources")
def test_a_library_of_the_stack_can_be_imported():
    """tensorflow-hub 0.15, which TFX 1.16 installs, imports tf.compat.v1.estimator at its top."""
    with compat.install():
        hub = importlib.import_module("tensorflow_hub")
        assert issubclass(hub.LatestModuleExporter, estimator.Exporter)


def test_keras_2_makes_estimators_with_ours(tmp_path):
    # Bound before, as by a program that imports it at its top.
    bound = tf.keras.estimator.model_to_estimator
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
    model.compile("sgd", "mse")
    x = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    with compat.install():
        made = [
            bound(model, model_dir=str(tmp_path / "v2")),
            tf.compat.v1.keras.estimator.model_to_estimator(model, model_dir=str(tmp_path / "v1")),
        ]
    for each in made:
        assert isinstance(each, estimator.Estimator)
        input_fn = estimator.inputs.numpy_input_fn({model.input_names[0]: x}, shuffle=False)
        predicted = [row[model.output_names[0]] for row in each.predict(input_fn)]
        np.testing.assert_allclose(predicted, model(x), rtol=1e-6)


def _state() -> dict[str, object]:
    """Returns the state that an installation changes."""
    modules = {
        name: module
        for name, module in sys.modules.items()
        # Copies of TensorFlow's own API modules, which any import by such a name leaves.
        if not name.startswith(("tensorflow.compat", "tensorflow.keras"))
    }
    api = [tf, tf.compat.v1, tf.compat.v2, tf.compat.v1.tpu.experimental]
    api += [tf.distribute.cluster_resolver, tf.compat.v1.distribute.cluster_resolver]
    return {
        "modules": modules,
        "api": [
            {**vars(module), "__all__": sorted(getattr(module, "__all__", []))} for module in api
        ],
        "finders": list(sys.meta_path),
        "environment": dict(os.environ),
    }


def test_uninstall_takes_back_everything(monkeypatch):
    monkeypatch.delenv("TFX_TPU_TRAINER_EMULATE", raising=False)
    importlib.import_module("tfx_tpu_trainer.compat._tensorflow_names")
    before = _state()
    compat.install(emulate=True)
    exec("import tensorflow.compat.v1 as tf; tf.estimator.tpu.TPUEstimator", {})
    assert os.environ["TFX_TPU_TRAINER_EMULATE"] == "1"
    assert _state() != before
    compat.uninstall()
    after = _state()
    for part, value in before.items():
        assert after[part] == value, part
    copy = importlib.import_module("tensorflow.compat.v1")
    assert not hasattr(copy, "estimator")


def test_a_second_install_changes_nothing():
    with compat.install():
        there = tf.estimator
        with compat.install():
            assert tf.estimator is there
        assert tf.estimator is there
    assert not hasattr(tf, "estimator")
    compat.uninstall()


def test_the_handle_undoes_what_it_did():
    handle = compat.install()
    handle.uninstall()
    assert not hasattr(tf, "estimator")


def test_an_estimator_of_somebody_else_is_kept(monkeypatch):
    there = types.ModuleType("somebody.estimator")
    monkeypatch.setattr(tf.compat.v1, "estimator", there, raising=False)
    with pytest.raises(
        RuntimeError, match=r"tensorflow\.compat\.v1\.estimator already exists: .*somebody"
    ):
        compat.install()
    assert tf.compat.v1.estimator is there
    assert not hasattr(tf, "estimator")


@row(
    "doctor",
    "compat, installed in a TensorFlow that has `tf.estimator`",
    "tensorflow.estimator already exists",
    "TensorFlow 2.15.1. Run the program without",
)
def test_tensorflow_with_its_own_is_left_alone(monkeypatch, refused):
    there = types.ModuleType("tensorflow_estimator.python.estimator.api._v2.estimator")
    monkeypatch.setattr(tf, "estimator", there, raising=False)
    monkeypatch.setattr(tf, "__version__", "2.15.1")
    with refused(RuntimeError):
        compat.install()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        case(
            "doctor",
            f"compat, installed after the program had bound {given}",
            f"bound the old names: the_program.{name} {says}",
            values=(name, value),
        )
        for given, name, value, says in (
            ("`None`", "tf_estimator", None, "found no tf.estimator and put None there"),
            (
                "a class of the original",
                "Estimator",
                type(
                    "Estimator",
                    (),
                    {"__module__": "tensorflow_estimator.python.estimator.estimator"},
                ),
                "holds <class 'tensorflow_estimator.",
            ),
            (
                "a module of the original",
                "tfe",
                types.ModuleType("tensorflow_estimator.python.estimator"),
                "holds <module",
            ),
        )
    ],
)
def test_a_program_that_has_bound_an_old_name_is_told(monkeypatch, name, value, refused):
    program = types.ModuleType("the_program")
    setattr(program, name, value)
    monkeypatch.setitem(sys.modules, "the_program", program)
    with refused(RuntimeError):
        compat.install()
    assert not hasattr(tf, "estimator")
    assert "tensorflow.estimator" not in sys.modules


def test_an_own_placeholder_is_no_old_name(monkeypatch):
    program = types.ModuleType("the_program")
    program.estimator = None
    monkeypatch.setitem(sys.modules, "the_program", program)
    with compat.install():
        assert tf.estimator.Estimator is estimator.Estimator


def test_keras_2_is_chosen_while_it_can_be(monkeypatch, caplog):
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    monkeypatch.setitem(sys.modules, "keras._tf_keras", types.ModuleType("keras._tf_keras"))
    with caplog.at_level(logging.WARNING, logger="tfx_tpu_trainer"):
        choose_keras_2(warns=True)
    assert "TF_USE_LEGACY_KERAS" not in os.environ
    (line,) = caplog.messages
    assert "set TF_USE_LEGACY_KERAS=1 before tf.keras is used" in line
    assert "\n" not in line

    monkeypatch.delitem(sys.modules, "keras._tf_keras")
    # Another test may have imported it.
    monkeypatch.delitem(sys.modules, "tensorflow.keras", raising=False)
    monkeypatch.delitem(sys.modules, "tensorflow")
    choose_keras_2(warns=True)
    assert os.environ["TF_USE_LEGACY_KERAS"] == "1"
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "0")
    choose_keras_2(warns=True)
    assert os.environ["TF_USE_LEGACY_KERAS"] == "0"


PROGRAM = """
import tensorflow as tf
from tfx_tpu_trainer import compat, estimator

import os
assert os.environ["TF_USE_LEGACY_KERAS"] == "0" and tf.keras.__version__.startswith("3.")
assert not hasattr(tf.keras, "estimator")
with compat.install():
    import tensorflow.keras as copied
    for keras in (tf.keras, copied, tf.compat.v1.keras):
        assert keras.estimator.model_to_estimator is estimator.model_to_estimator
    from tensorflow.keras import estimator as imported
    assert imported.model_to_estimator is estimator.model_to_estimator
assert not hasattr(tf.keras, "estimator")
assert not hasattr(copied, "estimator")
print("done")
"""


@pytest.mark.e2e
def test_the_names_are_there_with_keras_3():
    environment = {"PYTHONPATH": str(REPOSITORY), "TF_USE_LEGACY_KERAS": "0"}
    environment |= {"PATH": "", "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "done\n"
    assert "set TF_USE_LEGACY_KERAS=1 before tf.keras is used" in ended.stderr
