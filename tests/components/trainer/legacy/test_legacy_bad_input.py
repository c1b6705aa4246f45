"""Tests errors about legacy modules, before anything is trained."""

from __future__ import annotations

import pathlib
import re

import pytest
import tensorflow as tf
from tfx import v1 as tfx

from tests.bad_input import row
from tests.components.trainer.legacy import small
from tests.components.trainer.legacy.conftest import TRAINER_FN
from tfx_tpu_trainer.components import TpuTrainer
from tfx_tpu_trainer.estimator.schedule import Exporter

_Runtime = tfx.dsl.experimental.RuntimeParameter


class _Idle(Exporter):
    def __init__(self, name, receiver_fn):
        del receiver_fn
        self._name = name

    @property
    def name(self):
        return self._name

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        return None


class _KerasModel(tf.Module):
    def compile(self):
        """As a Keras model has it."""


def _without(key, **others):
    return lambda given: {**{k: v for k, v in given.items() if k != key}, **others}


def _replaced(**others):
    return lambda given: {**given, **others}


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        pytest.param(
            lambda given: tuple(given.values()),
            r"trainer_fn of module '.*small' returned a builtins.tuple; let it return a dict with "
            "'estimator', 'train_spec', 'eval_spec', 'eval_input_receiver_fn'",
            id="no-dict",
        ),
        pytest.param(lambda given: None, "returned None; let it return a dict", id="nothing"),
        pytest.param(
            _without("eval_spec", evalspec=1, other=2),
            r"lacks 'eval_spec', and has 'evalspec', 'other'; .*'evalspec': did you mean 'eval_spec'",
            id="misspelt-key",
        ),
        pytest.param(
            _without("train_spec", eval_spec=None), "lacks 'train_spec'; let", id="missing-key"
        ),
        pytest.param(
            _replaced(estimator=object()),
            "estimator of module '.*small' is a builtins.object, not tfx_tpu_trainer's Estimator; "
            "leave restore_tf_estimator on",
            id="foreign-estimator",
        ),
        pytest.param(
            _replaced(estimator=_KerasModel()),
            "is a .*_KerasModel, not tfx_tpu_trainer's Estimator; convert a Keras model with "
            "model_to_estimator",
            id="keras-model",
        ),
        pytest.param(
            _replaced(train_spec={"max_steps": 3}),
            "train_spec of module .* is a builtins.dict, not tfx_tpu_trainer's TrainSpec",
            id="no-train-spec",
        ),
        pytest.param(
            _replaced(eval_input_receiver_fn=None),
            "eval_input_receiver_fn of module .* is None; give a function",
            id="no-eval-receiver",
        ),
        pytest.param(
            _replaced(eval_input_receiver_fn=lambda: 3),
            "eval_input_receiver_fn fails, .*returned 3, not an EvalInputReceiver",
            id="eval-receiver-of-something-else",
        ),
        pytest.param(
            lambda given: {**given, "eval_spec": given["eval_spec"]._replace(exporters=())},
            "eval_spec of module .* has no exporters",
            id="no-exporters",
        ),
        pytest.param(
            lambda given: {**given, "train_spec": given["train_spec"]._replace(max_steps=None)},
            "has max_steps=None, and a FinalExporter exports when",
            id="final-export-without-an-end",
        ),
    ],
)
def test_what_trainer_fn_returns_is_checked(execution, changes, returned, message):
    changes["returned"] = returned
    trained = execution()
    with pytest.raises(ValueError, match=message):
        trained.run()
    assert trained.files() == []


def test_an_entry_too_many_is_said_to_be_ignored(execution, changes, caplog):
    changes["returned"] = _replaced(note="hello", estimator=None)
    with pytest.raises(ValueError, match=r"estimator of module .* is None"):
        execution().run()
    assert "also returned 'note', which is ignored" in caplog.text


@row(
    "modules", "a trainer_fn whose evaluation never ends", "never ends ", "EvalArgs(num_steps=...)"
)
def test_an_evaluation_that_would_not_end(execution, changes, refused):
    changes["eval_repeats"] = True
    with refused(ValueError):
        execution().run()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            {"exporter": _Idle},
            r"the exporter 'small' \(_Idle\) has exported nothing, .*ended at step 2, .*max_steps=2",
            id="idle-exporter",
        ),
        pytest.param(
            {"train_batches": 1},
            r"\(FinalExporter\) has exported nothing.*at step 1, .*=2\. If the input ended",
            id="input-ended",
        ),
    ],
)
@row("modules", "a trainer_fn whose exporter exports nothing", "has exported nothing")
def test_nothing_exported_is_an_error(execution, changes, change, message, refused):
    changes.update(change)
    trained = execution(steps=2, eval_args='{"num_steps": 1}')
    with refused(ValueError) as raised:
        trained.run()
    assert re.search(message, str(raised.value))
    assert trained.files() == []


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        (
            {"trainer_fn": "trainer_fn"},
            "trainer_fn='trainer_fn' is not an import path of a function",
        ),
        (
            {"trainer_fn": "tests.components.trainer.legacy.small.trainerfn"},
            r"the module has no 'trainerfn'; did you mean 'trainer_fn'\?",
        ),
        ({"train_batch_size": 128}, "train_batch_size=128 has no meaning .* input functions"),
        ({"params": '{"a": 1}'}, "params={'a': 1} has no meaning .*custom_config"),
        ({"use_tpu": 1}, "use_tpu=True has no meaning .* RunConfig set it"),
        ({"eval_every_steps": 5}, "eval_every_steps=5 has no meaning .* evaluated"),
    ],
    ids=["no-module", "no-function", "batch-size", "params", "cores", "evaluations"],
)
def test_an_execution_is_refused(execution, properties, message):
    trained = execution(**properties)
    with pytest.raises(ValueError, match=message):
        trained.run()
    assert trained.files() == []


@row(
    "modules", "a trainer_fn in a cluster", "trains on one host only, but this process is the chief"
)
def test_several_hosts_are_refused(execution, monkeypatch, refused):
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b")
    monkeypatch.setenv("TPU_WORKER_ID", "0")
    with refused(ValueError):
        execution().run()


def test_a_module_with_both_functions_is_refused(execution, tmp_path):
    path = tmp_path / "both.py"
    path.write_text(
        "def model_fn(features, params): pass\n\n\ndef trainer_fn(fn_args, schema): pass\n"
    )
    message = "has a trainer_fn and a model_fn, .*give trainer_fn='package.module.trainer_fn'"
    with pytest.raises(ValueError, match=message):
        execution(trainer_fn=None, module_file=str(path)).run()


@row("modules", "a trainer_fn with other arguments", "takes (fn_args); it is called as trainer_fn(")
def test_a_trainer_fn_with_other_arguments(execution, tmp_path, refused):
    path = tmp_path / "one_argument.py"
    path.write_text("def trainer_fn(fn_args): pass\n")
    with refused(ValueError):
        execution(trainer_fn=None, module_file=str(path)).run()


def _trainer(**arguments):
    def channel(name):
        return tfx.dsl.Channel(type=getattr(tfx.types.standard_artifacts, name))

    return TpuTrainer(
        examples=channel("Examples"),
        transform_graph=channel("TransformGraph"),
        schema=channel("Schema"),
        train_args=tfx.proto.TrainArgs(num_steps=10),
        **arguments,
    )


@pytest.mark.parametrize(
    "named",
    [
        pytest.param({"trainer_fn": TRAINER_FN}, id="trainer_fn"),
        pytest.param({"module": "tests.components.trainer.legacy.small"}, id="module"),
        pytest.param({"module_file": str(pathlib.Path(small.__file__))}, id="module_file"),
    ],
)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"train_batch_size": 128}, "train_batch_size=128 has no meaning"),
        ({"label_key": _Runtime("label", ptype=str)}, "label_key=.* has no meaning"),
        ({"tpu": "v5e:2x4"}, "tpu=.* has no meaning"),
        ({"slicing_specs": [{"feature_keys": ["a"]}]}, "stock Evaluator"),
    ],
    ids=["batch-size", "runtime-parameter", "tpu", "slices"],
)
def test_a_pipeline_is_refused_when_it_is_made(named, given, message):
    with pytest.raises(ValueError, match=message):
        _trainer(**named, **given)


def test_what_a_component_may_name():
    both = {"trainer_fn": TRAINER_FN, "module": "tests.components.trainer.legacy.small"}
    with pytest.raises(ValueError, match="give exactly one of module_file=None "):
        _trainer(**both)
    with pytest.raises(ValueError, match=r"trainer_fn=.* can't be a runtime parameter"):
        _trainer(trainer_fn=_Runtime("f", ptype=str))
    with pytest.raises(ValueError, match=r"module='no_such\.module' can't be"):
        _trainer(trainer_fn="no_such.module.trainer_fn")
    with pytest.raises(ValueError, match="custom_config=3 is not valid"):
        _trainer(trainer_fn=TRAINER_FN, custom_config=3)
    properties = _trainer(trainer_fn=TRAINER_FN, restore_tf_estimator=False).exec_properties
    assert properties["restore_tf_estimator"] == 0 and properties["trainer_fn"] == TRAINER_FN
    assert len(properties["module_hash"]) == 64 and properties["custom_config"] == "null"
