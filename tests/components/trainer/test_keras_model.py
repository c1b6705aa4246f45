"""Tests build_model in TpuTrainer: cores, weights, several outputs, callbacks, and what is rejected."""

from __future__ import annotations

import dataclasses
import glob
import importlib
import json
import os
import types

import numpy as np
import pytest
import tensorflow as tf

from tests import tfx_testdata
from tests.bad_input import case
from tests.components.trainer.execution import Execution
from tfx_tpu_trainer.components.evaluation import read_eval_metrics
from tfx_tpu_trainer.components.trainer.estimators import with_callbacks
from tfx_tpu_trainer.components.trainer.settings import TrainSettings
from tfx_tpu_trainer.components.user_module._module import check_module, with_keras_model
from tfx_tpu_trainer.serving import describe_saved_model, load_serving

MODULE = "tests.components.trainer.keras_model"
CORES = {"use_tpu": 1, "master": "emulated", "num_shards": 2}


def _trained(folder, *, steps=30, add=lambda execution: None, params=None, **properties):
    execution = Execution.of_trainer(
        folder, steps=steps, module=MODULE, params=json.dumps(params or {}), **properties
    )
    add(execution)
    execution.run()
    return execution


def _variables(execution):
    """Variables of the newest checkpoint that its objects have in common with the model, by the ends of their names."""
    path = tf.train.latest_checkpoint(execution.outputs["model_run"][0].uri)
    reader = tf.train.load_checkpoint(path)
    suffix = "/.ATTRIBUTES/VARIABLE_VALUE"
    names = [n for n in reader.get_variable_to_shape_map() if n.endswith(suffix)]
    return {n.removesuffix(suffix): reader.get_tensor(n) for n in names}


def _served(execution, *left_out):
    """Returns a model's outputs for the raw eval rows without some features, and the same rows transformed."""
    whole, rows = [], []
    for path in glob.glob(os.path.join(tfx_testdata.RAW_EXAMPLES, "Split-eval", "*")):
        for record in tf.data.TFRecordDataset(path, compression_type="GZIP").as_numpy_iterator():
            row = tf.train.Example.FromString(record)
            for name in left_out:
                row.features.feature.pop(name, None)
            whole.append(record)
            rows.append(row.SerializeToString())
    signatures = load_serving(execution.serving_dir).signatures
    answered = signatures["serving_default"](examples=tf.constant(rows))
    transformed = signatures["transform_features"](examples=tf.constant(whole))
    return [{k: v.numpy() for k, v in each.items()} for each in (answered, transformed)]


@pytest.mark.parametrize("library", ["keras", pytest.param("tf_keras", marks=pytest.mark.matrix)])
@pytest.mark.e2e
def test_a_functional_model_trains_on_cores_and_serves_classes_from_both_graphs(library, tmp_path):
    execution = _trained(tmp_path / "first", params={"library": library}, tf_random_seed=3, **CORES)
    metrics = read_eval_metrics(execution.model.uri)
    assert (metrics.num_examples, metrics.global_step) == (tfx_testdata.ROWS["eval"], 30)
    assert {frozenset(graph.tags) for graph in describe_saved_model(execution.serving_dir)} == {
        frozenset({"serve"}),
        frozenset({"serve", "tpu"}),
    }
    served, rows = _served(execution, "tips")
    np.testing.assert_array_equal(served["classes"], served["tips_xf"] > 0.5)
    right = np.mean(served["classes"] == rows["tips_xf"])
    assert metrics.overall["accuracy"] == pytest.approx(right, abs=1e-6)
    # The page finds labels and predictions.
    with open(os.path.join(execution.outputs["model_run"][0].uri, "run.json")) as file:
        page = json.load(file)
    errors, layers = page["errors"], page["layers"]
    counts = {each["name"]: each["parameters"] for each in layers if each["parameters"]}
    assert counts == {"norm": 4 * 2, "hidden": 2 * 4 + 4, "tips_xf": 4 + 1}
    assert sum(each["slots"] for each in layers) >= 2 * (4 + 12 + 5)
    assert (errors["kind"], errors["rows"]) == ("scores", tfx_testdata.ROWS["eval"])
    # Nothing of the model's first values is published.
    assert not os.path.exists(os.path.join(execution.outputs["model_run"][0].uri, "keras"))

    if library == "tf_keras":
        return
    # A base model gives the values of trained variables; the others are the new model's own, not zeros.
    again = _trained(
        tmp_path / "second",
        steps=1,
        params={"library": library, "learning_rate": 0.0},
        add=lambda each: each.add_model(execution.model.uri),
    )
    before, after = _variables(execution), _variables(again)
    kernels = [name for name in before if name.endswith("kernel") and "optimizer" not in name]
    assert len(kernels) >= 2
    for name in kernels:
        np.testing.assert_allclose(after[name], before[name], atol=1e-6)
    (variance,) = (v for n, v in after.items() if n.endswith("moving_variance"))
    assert (variance > 0.9).all()


@pytest.mark.matrix
@pytest.mark.e2e
def test_a_subclassed_model_begins_at_the_same_values_and_evaluates_slices(tmp_path):
    """The metrics of a learning rate of 0 are those of the model's own values, which the seed decides."""
    overall, slices = [], json.dumps([{"feature_keys": ["payment_type_xf"]}])
    for number in range(2):
        execution = _trained(
            tmp_path / str(number),
            steps=1,
            params={"kind": "subclassed", "learning_rate": 0.0},
            tf_random_seed=1,
            **({"slicing_specs": slices, "max_slices": 1} if number else {}),
        )
        metrics = read_eval_metrics(execution.model.uri)
        overall.append(metrics.overall["loss"])
    assert overall[0] == overall[1]
    of_slices = sum(each.num_examples * each.metrics["accuracy"] for each in metrics.slices)
    assert len(metrics.slices) > 1
    assert of_slices / metrics.num_examples == pytest.approx(metrics.overall["accuracy"], abs=1e-6)


@pytest.mark.matrix
@pytest.mark.e2e
def test_two_outputs_find_their_labels_among_the_features_and_rows_have_weights(tmp_path):
    execution = _trained(
        tmp_path,
        params={"kind": "two outputs", "weighted": True, "weight_column": "trip_start_hour_xf"},
        label_key=None,
        eval_every_steps=15,
        best_metric="tips_xf_accuracy",
    )
    metrics = read_eval_metrics(execution.model.uri)
    assert {"tips_xf_accuracy", "trip_seconds_xf_mae"} <= set(metrics.overall)
    # A request has no label, nor a weight.
    served, rows = _served(execution, "tips", "trip_seconds", "trip_start_hour")
    assert set(served) == {"tips_xf", "trip_seconds_xf"}
    weights = rows["trip_start_hour_xf"]
    right = (served["tips_xf"] > 0.5) == rows["tips_xf"]
    off = np.abs(served["trip_seconds_xf"] - rows["trip_seconds_xf"])
    for name, values in (("tips_xf_accuracy", right), ("trip_seconds_xf_mae", off)):
        expected = np.average(values, weights=weights)
        assert metrics.overall[name] == pytest.approx(expected, abs=1e-4)
        assert metrics.overall[name] != pytest.approx(values.mean(), abs=1e-4)


def _module(**names):
    module = types.ModuleType("some")
    vars(module).update(names)
    return check_module(module)


def _model(**compiled):
    import keras

    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1, name="out")], name="mine")
    if compiled:
        model.compile(**compiled)
    return model


@pytest.mark.parametrize(
    ("build_model", "label_key", "params"),
    [
        case(
            "modules",
            "a build_model whose model is not compiled",
            "build_model of module 'some' returned the model 'mine', which is not compiled; call model.compile(",
            values=(lambda params: _model(), "y", {}),
        ),
        case(
            "modules",
            "a build_model without `return`",
            "build_model of module 'some' returned None; let it return a compiled Keras model",
            values=(lambda params: None, "y", {}),
        ),
        case(
            "modules",
            "a build_model and neither a label_key nor outputs that are named as features",
            "label_key is not set, and build_model of module 'some' returned a model with the outputs 'out'; set",
            "name each output as its label's feature (there are x, y)",
            values=(lambda params: _model(optimizer="sgd", loss="mse"), None, {}),
        ),
        case(
            "modules",
            "a weight_column that is no feature",
            "params['weight_column']='z' is not among the features x, y; name the one that holds the rows' weights",
            values=(
                lambda params: _model(optimizer="sgd", loss="mse"),
                "y",
                {"weight_column": "z"},
            ),
        ),
    ],
)
def test_what_build_model_returns_is_checked(build_model, label_key, params, refused):
    with refused(ValueError):
        with_keras_model(
            _module(build_model=build_model), params, features=["x", "y"], label_key=label_key
        )


@dataclasses.dataclass(frozen=True)
class _Job:
    """The part of a TrainJob that callbacks need."""

    settings: TrainSettings
    transform_graph_path: str = tfx_testdata.TRANSFORM_GRAPH
    fn_args: None = None
    hyperparameters: dict = dataclasses.field(default_factory=dict)


def _settings_with(listed, **settings):
    module = _module(build_model=lambda params: None, callbacks=lambda params: listed)
    job = _Job(TrainSettings.parse({"eval_every_steps": 10, **settings}))
    return with_callbacks(job, module).settings


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_callbacks_become_settings(library):
    keras = pytest.importorskip(library)
    stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=0)
    best = keras.callbacks.ModelCheckpoint(
        "m.keras", monitor="val_auc", mode="max", save_best_only=True
    )
    settings = _settings_with([stop])
    assert (settings.best_metric, settings.best_metric_mode) == ("loss", "min")
    assert settings.early_stopping_patience == 1
    settings = _settings_with([best])
    assert (settings.best_metric, settings.best_metric_mode) == ("auc", "max")
    assert settings.early_stopping_patience is None


def _callback(name, *, library="keras", **arguments):
    callbacks = importlib.import_module(library).callbacks
    return [getattr(callbacks, name)(**arguments)]


def _own():
    import keras

    class Mine(keras.callbacks.Callback):
        pass

    return [Mine()]


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        case(
            "modules",
            f"a callback `{given}`",
            "callbacks of module 'some'",
            *says,
            values=(make, settings),
        )
        for given, make, settings, says in [
            (
                "LearningRateScheduler",
                lambda: _callback("LearningRateScheduler", schedule=lambda epoch: 0.1),
                {},
                (
                    "TpuTrainer has no LearningRateScheduler: give the optimizer in compile a schedule",
                ),
            ),
            (
                "TensorBoard",
                lambda: _callback("TensorBoard"),
                {},
                ("TpuTrainer has no TensorBoard: leave it out: events are in ModelRun",),
            ),
            (
                "of the module's own",
                _own,
                {},
                ("TpuTrainer has no Mine: a session runs many steps at once", "training_hooks"),
            ),
            (
                "ModelCheckpoint of each epoch",
                lambda: _callback("ModelCheckpoint", filepath="m.keras"),
                {},
                ("TpuTrainer saves checkpoints by itself", "save_best_only=True"),
            ),
            (
                "EarlyStopping of the training's loss",
                lambda: _callback("EarlyStopping", monitor="loss"),
                {},
                ("EarlyStopping has monitor='loss', a metric of the training", "'val_loss'"),
            ),
            (
                "EarlyStopping with min_delta",
                lambda: _callback("EarlyStopping", min_delta=0.1),
                {},
                (
                    "EarlyStopping has min_delta=0.1, for which TpuTrainer has no setting",
                    "leave it out",
                ),
            ),
            (
                "EarlyStopping of an unknown direction",
                lambda: _callback("EarlyStopping", monitor="val_gain"),
                {},
                ("EarlyStopping has mode='auto' for monitor='val_gain'; give it mode='max' or",),
            ),
            (
                "ModelCheckpoint that takes an AUC for a loss",
                # Newer releases of Keras 3 read the metric.
                lambda: _callback(
                    "ModelCheckpoint",
                    library="tf_keras",
                    filepath="m.keras",
                    monitor="val_auc",
                    save_best_only=True,
                ),
                {},
                ("ModelCheckpoint has mode='min' for monitor='val_auc'; give it mode='max' or",),
            ),
            (
                "EarlyStopping beside another best_metric",
                lambda: _callback("EarlyStopping", monitor="val_loss"),
                {"best_metric": "auc"},
                ("EarlyStopping sets best_metric='loss', but best_metric='auc' is set",),
            ),
            (
                "EarlyStopping without evaluations",
                lambda: _callback("EarlyStopping", monitor="val_loss"),
                {"eval_every_steps": None},
                ("best_metric='loss' needs evaluations during training; give eval_every_steps",),
            ),
            ("list that is none", lambda: 3, {}, ("returned 3; let it return a list",)),
        ]
    ],
)
def test_other_callbacks_are_refused_by_name(make, settings, refused):
    with refused(ValueError):
        _settings_with(make(), **settings)
