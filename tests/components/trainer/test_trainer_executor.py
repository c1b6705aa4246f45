"""Runs TpuTrainerExecutor for real: a small model on 15,000 taxi trips, and one whose input stalls."""

from __future__ import annotations

import glob
import os

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_model_analysis as tfma

from tests import tfx_testdata
from tests.bad_input import case, row
from tests.components.trainer import small_model
from tests.components.trainer.execution import Execution
from tests.estimator._engine.log_lines import log_lines
from tfx_tpu_trainer.components.evaluation import read_eval_metrics
from tfx_tpu_trainer.components.user_module._module import ModuleExitedError
from tfx_tpu_trainer.estimator._engine.sessions.stall_watch import StalledError
from tfx_tpu_trainer.serving import describe_saved_model, load_serving

STEPS = 30


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished execution, which the tests only read."""
    execution = Execution.of_trainer(
        tmp_path_factory.mktemp("trained"),
        steps=STEPS,
        params='{"width": 3}',
        save_checkpoints_steps=20,
        tf_random_seed=1,
    )
    small_model.calls.clear()
    execution.run()
    execution.calls = dict(small_model.calls)
    return execution


@pytest.mark.e2e
def test_the_graphs_of_the_export_are_traced_before_the_training_alone(trained):
    # An evaluation is traced before it, and again with the trained values.
    assert trained.calls == {"train": 1, "eval": 2, "infer": 2}


def _variable(execution, name):
    return tf.train.load_variable(execution.outputs["model_run"][0].uri, name)


def _trips():
    """Two raw trips as requests, without the tips."""
    trips = [
        {"trip_miles": 1.5, "fare": 8.25, "trip_seconds": 480, "payment_type": b"Cash"},
        {"trip_miles": 9.0, "fare": 30.0, "trip_seconds": 1800, "payment_type": b"Credit Card"},
    ]
    kinds = {float: "float_list", int: "int64_list", bytes: "bytes_list"}
    examples = [tf.train.Example() for _ in trips]
    for trip, example in zip(trips, examples, strict=True):
        for name, value in trip.items():
            getattr(example.features.feature[name], kinds[type(value)]).value.append(value)
    return tf.constant([example.SerializeToString() for example in examples])


@pytest.mark.e2e
def test_the_model_serves_raw_trips_in_both_metagraphs(trained):
    signatures = load_serving(trained.serving_dir).signatures
    outputs = signatures["serving_default"](examples=_trips())
    assert outputs["probabilities"].shape == (2, 1)
    assert np.all((outputs["probabilities"] > 0) & (outputs["probabilities"] < 1))
    transformed = signatures["transform_features"](examples=_trips())
    assert transformed[tfx_testdata.LABEL].shape == (2, 1)
    assert len(transformed) == 17
    graphs = {frozenset(graph.tags): graph for graph in describe_saved_model(trained.serving_dir)}
    assert set(graphs) == {frozenset({"serve"}), frozenset({"serve", "tpu"})}
    assert "transform_features" in graphs[frozenset({"serve"})].signatures
    assert "transform_features" not in graphs[frozenset({"serve", "tpu"})].signatures


@pytest.mark.e2e
def test_the_metrics_are_those_of_the_whole_eval_split(trained):
    metrics = read_eval_metrics(trained.model.uri)
    assert metrics.num_examples == tfx_testdata.ROWS["eval"]
    assert metrics.global_step == STEPS
    (path,) = tf.io.gfile.glob(tfx_testdata.files("eval"))
    labels = [
        tf.train.Example.FromString(row.numpy()).features.feature["tips_xf"].int64_list.value[0]
        for row in tf.data.TFRecordDataset(path, compression_type="GZIP")
    ]
    assert metrics.overall["label_mean"] == pytest.approx(np.mean(labels), rel=1e-6)
    assert 0.5 < metrics.overall["accuracy"] <= 1.0


@pytest.mark.e2e
def test_the_evaluation_opens_in_tfma(trained):
    result = tfma.load_eval_result(trained.outputs["evaluation"][0].uri)
    ((_, metrics),) = result.slicing_metrics
    stored = read_eval_metrics(trained.model.uri).overall["accuracy"]
    assert metrics[""][""]["accuracy"]["doubleValue"] == stored


@pytest.mark.e2e
def test_artifacts_carry_the_metrics_as_properties(trained):
    metrics = read_eval_metrics(trained.model.uri)
    for key in ("model", "evaluation"):
        (artifact,) = trained.outputs[key]
        assert artifact.get_float_custom_property("eval_loss") == metrics.overall["loss"]
        by_rows = artifact.get_float_custom_property("eval_loss_by_rows")
        assert by_rows == metrics.overall["loss_by_rows"]
        assert artifact.get_string_custom_property("ran_on") == "this host"
        assert artifact.get_int_custom_property("global_step") == STEPS
        assert artifact.get_int_custom_property("num_examples") == tfx_testdata.ROWS["eval"]


@pytest.mark.e2e
def test_checkpoints_and_events_are_in_model_run_and_nothing_else_is_beside_the_model(trained):
    folder = trained.outputs["model_run"][0].uri
    assert _variable(trained, "global_step") == STEPS
    assert os.path.exists(os.path.join(folder, "model.ckpt-20.index"))
    assert glob.glob(os.path.join(folder, "events.out.tfevents*"))
    assert sorted(os.listdir(trained.model.uri)) == [
        "Format-Serving",
        "eval_metrics.json",
        "serving_config",
    ]
    # The module has 4, the component 3.
    assert _variable(trained, "payment").shape[1] == 3


@pytest.mark.e2e
def test_hyperparameters_win_over_both_a_base_model_gives_the_first_values_and_flags_the_metagraphs(
    trained, tmp_path
):
    execution = Execution.of_trainer(
        tmp_path, steps=1, params='{"width": 5, "learning_rate": 1e-9}', export_to_tpu=0
    )
    execution.add_hyperparameters({"space": [], "values": {"width": 3}})
    execution.add_model(trained.model.uri)
    execution.run()
    assert _variable(execution, "payment").shape[1] == 3
    np.testing.assert_allclose(
        _variable(execution, "kernel"), _variable(trained, "kernel"), atol=1e-6
    )
    assert _variable(execution, "global_step") == 1
    (graph,) = describe_saved_model(execution.serving_dir)
    assert set(graph.tags) == {"serve"}


@pytest.mark.e2e
def test_the_modules_own_functions_are_used(tmp_path):
    path = tmp_path / "own_functions.py"
    path.write_text(
        "import tensorflow as tf\n"
        f"from {small_model.__name__} import DENSE, model_fn\n"
        "from tfx_tpu_trainer.estimator.export import ServingInputReceiver\n"
        "def params(fn_args):\n"
        "    return {'width': 2, 'learning_rate': fn_args.train_steps / 100}\n"
        "def input_fn(params, mode, fn_args):\n"
        "    rows = 3 if mode == 'eval' else 8\n"
        "    features = {name: tf.ones([rows, 1]) for name in DENSE}\n"
        "    features['payment_type_xf'] = tf.zeros([rows, 1], tf.int64)\n"
        "    data = tf.data.Dataset.from_tensors((features, tf.ones([rows, 1], tf.int64)))\n"
        "    return data if mode == 'eval' else data.repeat()\n"
        "def serving_input_receiver_fn():\n"
        "    features = {n: tf.compat.v1.placeholder(tf.float32, [None, 1]) for n in DENSE}\n"
        "    features['payment_type_xf'] = tf.compat.v1.placeholder(tf.int64, [None, 1])\n"
        "    return ServingInputReceiver(features, features)\n"
    )
    execution = Execution.of_trainer(
        tmp_path,
        steps=2,
        module=None,
        module_file=str(path),
        label_key=None,
        export_to_tpu=0,
    )
    execution.run()
    metrics = read_eval_metrics(execution.model.uri)
    assert metrics.num_examples == 3 and metrics.overall["label_mean"] == 1.0
    assert _variable(execution, "payment").shape[1] == 2
    signature = load_serving(execution.serving_dir).signatures["serving_default"]
    assert set(signature.structured_input_signature[1]) == {*small_model.DENSE, "payment_type_xf"}


@pytest.mark.e2e
@pytest.mark.parametrize(
    "mode",
    [
        case(
            "modules",
            f"a model_fn that fails in mode {mode!r}, before anything is trained",
            "model_fn of module 'failing_model' fails at",
            "failing_model.py:3: ArithmeticError: on purpose",
            values=mode,
        )
        for mode in ("train", "eval", "infer")
    ],
)
def test_a_failure_in_model_fn_is_found_before_the_training(tmp_path, mode, refused):
    path = tmp_path / "failing_model.py"
    path.write_text(
        f"from {small_model.__name__} import model_fn as good, params\n"
        "def model_fn(features, labels, mode, params):\n"
        f"    if mode == '{mode}': raise ArithmeticError('on purpose')\n"
        "    return good(features, labels, mode, params)\n"
    )
    execution = Execution.of_trainer(tmp_path, steps=2, module=None, module_file=str(path))
    with refused(ValueError):
        execution.run()
    assert execution.files() == []
    assert glob.glob(str(tmp_path / "model_run" / "model.ckpt*")) == []


@pytest.mark.e2e
def test_in_the_stock_trainer_model_and_model_run_are_written(tmp_path):
    execution = Execution.of_stock_trainer(
        tmp_path,
        settings={"label_key": tfx_testdata.LABEL, "export_to_tpu": False},
        steps=3,
        run_fn=f"{small_model.__name__}.model_fn",
    )
    execution.run()
    assert read_eval_metrics(execution.model.uri).global_step == 3
    assert load_serving(execution.serving_dir).signatures["serving_default"]
    assert os.listdir(tmp_path / "evaluation") == []


@pytest.mark.e2e
@row(
    "modules",
    "a model_fn that calls `sys.exit(0)`",
    "the module 'exiting_model' ended the process by SystemExit(0) at",
    "exiting_model.py:5; raise an exception that says what is wrong, or return",
)
def test_a_model_fn_that_exits_is_a_failure_that_names_it(tmp_path, monkeypatch, refused):
    monkeypatch.syspath_prepend(str(tmp_path))
    model = tmp_path / "exiting_model.py"
    model.write_text(
        "from tests.components.trainer.small_model import *\n\n\n"
        "def model_fn(features, labels, mode, params):\n    raise SystemExit(0)\n"
    )
    execution = Execution.of_trainer(tmp_path / "run", module="exiting_model")
    with refused(ModuleExitedError):
        execution.run()
    assert os.listdir(execution.model.uri) == []
    assert os.listdir(execution.outputs["evaluation"][0].uri) == []


# After 12 batches its input waits, unless there is a file beside it.
_MODULE = """
import pathlib
import tensorflow as tf
import tensorflow_transform as tft
from tests.components.trainer.small_model import model_fn, params

def input_fn(params, mode, fn_args):
    files = fn_args.train_files if mode == "train" else fn_args.eval_files
    spec = tft.TFTransformOutput(fn_args.transform_graph_path).transformed_feature_spec()
    paths = [path for pattern in files for path in tf.io.gfile.glob(pattern)]

    def parse(rows):
        features = tf.io.parse_example(rows, spec)
        return features, features["tips_xf"]

    def wait(features, label):
        with tf.control_dependencies([label]):
            queue = tf.queue.FIFOQueue(1, [tf.int64], shapes=[()])
            return features, label + queue.dequeue()

    rows = tf.data.TFRecordDataset(paths, compression_type="GZIP")
    batches = rows.batch(params["batch_size"], drop_remainder=mode == "train").map(parse)
    if mode == "train" and not pathlib.Path({flag!r}).exists():
        return batches.take(12).concatenate(batches.map(wait))
    return batches.repeat() if mode == "train" else batches
"""


@pytest.mark.e2e
@pytest.mark.sweep
def test_an_attempt_whose_input_stops_ends_and_the_next_one_goes_on(tmp_path, caplog):
    flag, module = tmp_path / "goes_on", tmp_path / "own_input.py"
    module.write_text(_MODULE.format(flag=str(flag)))

    def execution(name):
        (tmp_path / name).mkdir()
        return Execution.of_trainer(
            tmp_path / name,
            steps=20,
            module=None,
            module_file=str(module),
            label_key=None,
            eval_batch_size=1000,
            save_checkpoints_steps=5,
            stall_timeout_secs=5,
            checkpoint_root=str(tmp_path / "checkpoints"),
        )

    first = execution("first")
    with pytest.raises(StalledError, match=r"Training has finished no step .*stall_timeout_secs=5"):
        first.run()
    assert first.files() == []
    flag.touch()
    again = execution("again")
    with log_lines(caplog) as logged:
        again.run()
    restored = [line for line in logged if line.startswith("Restoring parameters from")]
    assert restored[0].endswith("model.ckpt-10")
    assert read_eval_metrics(again.model.uri).global_step == 20
