"""Tests a legacy module's training: its estimator, evaluations, exporters, and our artifacts."""

from __future__ import annotations

import copy
import json
import logging
import os
import pathlib
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_transform as tft
from tfx.v1.components import FnArgs

from tests import tfx_testdata
from tests.bad_input import case
from tests.components.trainer.execution import records
from tests.components.trainer.legacy import small
from tfx_tpu_trainer._support.messages import ModuleFailedError
from tfx_tpu_trainer.components.evaluation import read_eval_metrics, read_model_evaluation
from tfx_tpu_trainer.components.evaluation._learning_curve import read_learning_curve
from tfx_tpu_trainer.components.trainer.declared_arguments import declared_source
from tfx_tpu_trainer.components.trainer.legacy.training_spec import legacy_fn_args
from tfx_tpu_trainer.components.trainer.module_source import (
    ModuleSource,
    find_legacy,
    names_in_source,
)
from tfx_tpu_trainer.estimator import BestExporter, Exporter
from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoints
from tfx_tpu_trainer.serving import load_serving

# Batches of an evaluation whose metrics do not matter.
_FEW = '{"num_steps": 2}'


def _raw_rows(count):
    paths = sorted(pathlib.Path(tfx_testdata.RAW_EXAMPLES, "Split-eval").iterdir())
    data = tf.data.TFRecordDataset([str(path) for path in paths], compression_type="GZIP")
    return [row.numpy() for row in data.take(count)]


def _transformed(count):
    spec = tft.TFTransformOutput(tfx_testdata.TRANSFORM_GRAPH).transformed_feature_spec()
    parsed = tf.io.parse_example(records("eval", count), spec)
    inputs = np.stack([np.ravel(parsed[name]) for name in small.NUMBERS], axis=1)
    return inputs, np.ravel(parsed[small.LABEL])


def _probabilities(model_dir, inputs):
    kernel, bias = (checkpoints.variable_value(model_dir, name) for name in ("kernel", "bias"))
    return 1 / (1 + np.exp(-(inputs @ kernel + bias)))


def _answers(folder):
    """Returns a SavedModel's outputs for raw rows: predictions, and those that the stock Evaluator needs."""
    signatures = load_serving(str(folder)).signatures
    rows = tf.constant(_raw_rows(50))
    return signatures["serving_default"](examples=rows), signatures["transform_features"](
        examples=rows
    )


@pytest.mark.matrix
def test_the_modules_own_estimator_fills_the_artifacts(execution):
    trained = execution(steps=20)
    assert not hasattr(tf, "estimator")
    trained.run()
    # It was there for the run only.
    assert not hasattr(tf, "estimator") and not hasattr(tf.compat.v1, "estimator")
    model, model_run = trained.model, pathlib.Path(trained.outputs["model_run"][0].uri)
    # As TFX <= 1.15 left them: checkpoints and exports below Format-Serving and Format-TFMA.
    assert checkpoints.global_step_of(str(model_run / "Format-Serving")) == 20
    (served,) = (model_run / "Format-Serving" / "export" / "small").iterdir()
    (for_tfma,) = (model_run / "Format-TFMA").iterdir()
    for name, source in (("Format-Serving", served), ("Format-TFMA", for_tfma)):
        written = pathlib.Path(model.uri, name, "saved_model.pb").read_bytes()
        assert written == (source / "saved_model.pb").read_bytes()
    assert list((model_run / "Format-Serving" / "eval").glob("events*"))

    inputs, labels = _transformed(tfx_testdata.ROWS["eval"])
    probabilities = _probabilities(str(model_run / "Format-Serving"), inputs)
    metrics = read_eval_metrics(model.uri)
    assert metrics.num_examples == tfx_testdata.ROWS["eval"] and metrics.global_step == 20
    accuracy = np.mean(np.round(probabilities[:, 0]) == labels)
    assert metrics.overall["accuracy"] == pytest.approx(accuracy, abs=1e-6)
    assert metrics.overall["label_mean"] == pytest.approx(np.mean(labels), abs=1e-6)
    assert metrics.checkpoint == str(model_run / "Format-Serving" / "model.ckpt-20")
    assert model.get_int_custom_property("global_step") == 20
    evaluation = read_model_evaluation(trained.outputs["evaluation"][0].uri)
    assert evaluation.overall == metrics.overall
    steps = [point.step for point in read_learning_curve(model.uri).points]
    assert steps == [10, 20] and read_learning_curve(str(model_run)) is not None

    transformed = tft.TFTransformOutput(tfx_testdata.TRANSFORM_GRAPH)
    raw_rows = _raw_rows(50)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        raw = tf.io.parse_example(raw_rows, transformed.raw_feature_spec())
        features = transformed.transform_raw_features(raw)
        session.run(tf.compat.v1.tables_initializer())
        expected = session.run({key: tf.reshape(value, [-1]) for key, value in features.items()})
    rows = np.stack([expected[name] for name in small.NUMBERS], axis=1)
    for name in ("Format-Serving", "Format-TFMA"):
        predicted, asked = _answers(pathlib.Path(model.uri, name))
        np.testing.assert_allclose(
            predicted["probabilities"],
            _probabilities(str(model_run / "Format-Serving"), rows),
            rtol=1e-5,
        )
        np.testing.assert_array_equal(np.ravel(asked[small.LABEL]), expected[small.LABEL])
        # TFMA reads a raw feature that may be missing itself.
        assert "company_xf" in asked and "company" not in asked


@pytest.mark.matrix
def test_without_tf_estimator_the_module_must_import_ours(execution):
    trained = execution(restore_tf_estimator=0)
    with pytest.raises(ModuleFailedError, match=r"trainer_fn of .* has no attribute 'estimator'"):
        trained.run()
    assert trained.files() == []


@pytest.mark.matrix
def test_an_export_of_an_attempt_that_failed_brings_its_own_metrics(execution, changes, tmp_path):
    failures = [ConnectionError("no metadata server")]

    def first_is_best(best_eval_result, current_eval_result):
        if failures:
            raise failures.pop()
        return False

    changes["exporter"] = lambda name, receiver_fn: BestExporter(
        name, receiver_fn, compare_fn=first_is_best
    )
    given = {"steps": 20, "eval_args": _FEW, "checkpoint_root": str(tmp_path / "checkpoints")}
    # Step 10 is exported, and the comparison at step 20 fails.
    with pytest.raises(ConnectionError):
        execution(**given).run()
    trained = execution("second", **given)
    trained.run()
    metrics = read_eval_metrics(trained.model.uri)
    curve = read_learning_curve(trained.model.uri)
    assert metrics.global_step == 10
    assert metrics.overall == curve.at(10).metrics.overall != curve.at(20).metrics.overall
    # The module keeps one checkpoint, that of step 20: the export for TFMA can't be made of another.
    served, of_tfma = (
        _answers(pathlib.Path(trained.model.uri, name))[0]["probabilities"]
        for name in ("Format-Serving", "Format-TFMA")
    )
    np.testing.assert_array_equal(served, of_tfma)


# The test above also continues from a failed attempt.
@pytest.mark.sweep
@pytest.mark.matrix
def test_an_attempt_that_failed_after_training_is_gone_on_from(
    execution, changes, tmp_path, caplog
):
    root = str(tmp_path / "checkpoints")
    changes["export_fails"] = True
    failed = execution(steps=20, eval_args=_FEW, checkpoint_root=root)
    with pytest.raises(OSError, match="no space left"):
        failed.run()
    assert failed.files() == []
    del changes["export_fails"]
    again = execution("second", steps=20, eval_args=_FEW, checkpoint_root=root)
    with caplog.at_level(logging.INFO):
        again.run()
    assert "Resuming from the checkpoint of step 20" in caplog.text
    metrics = read_eval_metrics(again.model.uri)
    model_run = again.outputs["model_run"][0].uri
    assert metrics.checkpoint == f"{model_run}/Format-Serving/model.ckpt-20"
    assert checkpoints.global_step_of(f"{model_run}/Format-Serving") == 20
    steps = [point.step for point in read_learning_curve(again.model.uri).points]
    assert steps == [10, 20]
    assert os.listdir(f"{root}/Trainer") == []
    names = {name for _, _, files in os.walk(model_run) for name in files}
    assert not names & {"training.json", "last_export.json"}


@pytest.mark.matrix
def test_an_estimator_on_emulated_cores(execution, changes, monkeypatch):
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATE", "1")
    changes["tpu"] = True
    trained = execution(steps=10, eval_args=_FEW)
    trained.run()
    metrics = read_eval_metrics(trained.model.uri)
    assert metrics.global_step == 10 and metrics.num_examples == 2 * small.BATCH_SIZE
    predicted, asked = _answers(pathlib.Path(trained.serving_dir))
    assert predicted["probabilities"].shape == (50, 1) and small.LABEL in asked


@pytest.mark.matrix
def test_checkpoints_elsewhere_are_left_there(execution, changes, tmp_path, caplog):
    changes["model_dir"] = str(tmp_path / "own")
    trained = execution(steps=1, eval_args=_FEW, checkpoint_root=str(tmp_path / "checkpoints"))
    trained.run()
    assert "keeps its checkpoints in" in caplog.text
    assert checkpoints.global_step_of(str(tmp_path / "own")) == 1
    assert load_serving(trained.serving_dir).signatures["serving_default"]
    assert not os.path.exists(f"{trained.outputs['model_run'][0].uri}/Format-Serving")


class _AnotherAttempt(Exporter):
    """Takes the checkpoint folder, as an attempt does that was started while this one trains."""

    def __init__(self, name, receiver_fn):
        del receiver_fn
        self._name = name

    @property
    def name(self):
        return self._name

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        record = pathlib.Path(estimator.model_dir, "training.json")
        record.write_text(json.dumps({**json.loads(record.read_text()), "claim": "another"}))


@pytest.mark.matrix
def test_a_folder_that_another_attempt_has_taken_is_left_to_it(execution, changes, tmp_path):
    changes["exporter"] = _AnotherAttempt
    trained = execution(steps=20, eval_args=_FEW, checkpoint_root=str(tmp_path / "checkpoints"))
    with pytest.raises(RuntimeError, match="Another attempt at this training now uses"):
        trained.run()
    (folder,) = (tmp_path / "checkpoints" / "Trainer").iterdir()
    # It has not saved again.
    assert checkpoints.global_step_of(str(folder / "Format-Serving")) == 10


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
            "m.py' has no model_fn, build_model nor trainer_fn; define model_fn(features, labels, mode, params)",
            "docs/component.md",
            "or build_model(params) that returns a compiled Keras model",
            "docs/how-to/from-the-stock-trainer.md",
            values="def run_fn(fn_args): pass",
        ),
        case(
            "modules",
            "a module_file whose model_fn is a function's own, seen when TpuTrainer is declared",
            "m.py' has no model_fn",
            values="def make():\n    def model_fn(features, params): pass\n    return model_fn",
        ),
        case(
            "modules",
            "a module_file with a model_fn and a build_model, seen when TpuTrainer is declared",
            "m.py' has a model_fn and a build_model, which is ambiguous: leave one of them out",
            values="def model_fn(features, params): pass\ndef build_model(params): pass",
        ),
    ],
)
def test_a_module_without_a_model_is_refused(tmp_path, source, refused):
    with refused(ValueError):
        _declare(tmp_path, source)
